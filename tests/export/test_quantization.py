"""The accuracy of each precision, the effect of calibration, and integer inputs and outputs."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from made.exports import pixels
from reference.comparing import assert_close
from reference.small import run_live

from keras_vit.cli.quickstart import MODEL
from keras_vit.cli.source import open_model
from keras_vit.data.datasets import load_dataset
from keras_vit.export import tflite
from keras_vit.export.folder import export_folder
from keras_vit.export.tflite import export_tflite
from keras_vit.training.named_recipes import RECIPES
from keras_vit.training.run import RunConfig, train


@pytest.mark.slow
@pytest.mark.parametrize("integer_io", [None, "uint8"])
def test_each_precision_keeps_the_accuracy_of_a_trained_model(integer_io, shared_folder, tmp_path):
    config = RunConfig(dataset="digits", recipe=RECIPES["digits"], model=MODEL)
    run = shared_folder("quantized_run", lambda folder: train(config, folder / "run", verbose=0)) / "run"
    options = {"precisions": ("float32", "float16", "dynamic_int8", "int8"), "integer_io": integer_io}
    model, dataset = open_model(run), load_dataset("digits", RECIPES["digits"].seed)
    report = export_folder(model, tmp_path / "export", ("tflite",), dataset=dataset, **options)
    live = report["live"]["score"]
    assert live >= 0.98
    for precision, width, bound, lost, agreement in (
        ("float32", 4, 1e-5, 0.0, 1.0),
        ("float16", 2, 5e-3, 0.003, 0.995),
        ("dynamic_int8", 1, 0.06, 0.003, 0.99),
        ("int8", 1, 0.25, 0.015, 0.98),
    ):
        row = report["formats"][f"tflite_{precision}"]
        assert row["max_logit_difference"] <= bound
        assert row["score"] >= live - lost and row["agreement"] >= agreement
        weights = width * model.count_params()
        assert weights * 0.98 < row["bytes"] < weights * 1.1 + 100_000


def runner(path):
    return Interpreter(model_path=str(path)).get_signature_runner("serving_default")


def logits(path, images):
    return runner(path)(images=images)["logits"]


@pytest.fixture(scope="module")
def grey_images():
    """Calibration images that are neither black nor white anywhere."""
    return 0.25 + 0.5 * pixels(8)


@pytest.fixture(scope="module")
def integers(saved_model, grey_images, tmp_path_factory):
    path = tmp_path_factory.mktemp("uint8") / "m.tflite"
    return export_tflite(saved_model, path, precision="int8", calibration=grey_images, integer_io="uint8")


def test_uint8_inputs_are_pixels(integers, model):
    (given,) = runner(integers).get_input_details().values()
    assert given["dtype"] == np.uint8
    assert given["quantization"] == (pytest.approx(1 / 255), 0)
    images = np.random.default_rng(1).integers(64, 192, (3, 16, 16, 3)).astype("uint8")
    scale, zero = runner(integers).get_output_details()["logits"]["quantization"]
    found = (logits(integers, images).astype("float32") - zero) * scale
    assert_close(found, run_live(model, images / np.float32(255)), 0.3)


@pytest.mark.slow
def test_int8_inputs_are_pixels_minus_128(integers, saved_model, grey_images, tmp_path):
    options = {"precision": "int8", "calibration": grey_images, "integer_io": "int8"}
    other = export_tflite(saved_model, tmp_path / "m.tflite", **options)
    (given,) = runner(other).get_input_details().values()
    assert given["dtype"] == np.int8
    assert given["quantization"] == (pytest.approx(1 / 255), -128)
    images = np.random.default_rng(1).integers(0, 256, (3, 16, 16, 3))
    found = runner(integers)(images=images.astype("uint8"))
    shifted = runner(other)(images=(images - 128).astype("int8"))
    for name, values in found.items():
        assert (values.dtype, shifted[name].dtype) == (np.uint8, np.int8)
        np.testing.assert_array_equal(values.astype(int) - 128, shifted[name])


def test_an_input_range_in_which_integers_are_no_pixels_is_refused(
    saved_model, grey_images, tmp_path, monkeypatch
):
    monkeypatch.setattr(tflite, "_samples", lambda calibration, shape: ([calibration[:1]] for _ in "1"))
    options = {"precision": "int8", "calibration": grey_images, "integer_io": "uint8"}
    with pytest.raises(ValueError, match=r"input would be \(pixel / 255\) / .* instead of the pixel"):
        export_tflite(saved_model, tmp_path / "m.tflite", **options)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_calibration_images_set_the_ranges_and_are_not_changed(saved_model, tmp_path):
    images = pixels(6)
    files = [
        export_tflite(saved_model, tmp_path / f"{i}.tflite", precision="int8", calibration=given)
        for i, given in enumerate(
            (images, iter([images[:1], images[1:5], images[5:]]), np.full((6, 16, 16, 3), 0.5, "float32"))
        )
    ]
    np.testing.assert_array_equal(images, pixels(6))
    as_array, in_batches, of_grey = (logits(file, pixels(4)) for file in files)
    np.testing.assert_array_equal(as_array, in_batches)
    assert np.abs(as_array - of_grey).max() > 1e-3


def test_a_fixed_batch_of_calibration_images_is_filled_up():
    images = pixels(5, (2, 2))
    given = [batch for (batch,) in tflite._samples([images[:3], images[3:]], (2, 2, 2, 3))]
    assert [batch.shape for batch in given] == [(2, 2, 2, 3)] * 3
    images[0, 0, 0, 0], images[0, 1, 1, 2] = 0, 1
    np.testing.assert_array_equal(given, [images[:2], images[[2, 2]], images[3:]])


@pytest.mark.parametrize(
    "images, message",
    [
        (np.zeros((0, 16, 16, 3), "float32"), "expected 100 to 500 calibration images; got none"),
        ([], "expected 100 to 500 calibration images; got none"),
        (np.zeros((2, 16, 16, 3)), r"float32 in \[0, 1\], of shape .*; got float64"),
        (np.zeros((2, 16, 16, 3), "uint8"), "got uint8"),
        (np.full((2, 16, 16, 3), 1.5, "float32"), r"float32 in \[0, 1\]"),
        (np.full((2, 16, 16, 3), -0.1, "float32"), r"float32 in \[0, 1\]"),
        (np.full((2, 16, 16, 3), np.nan, "float32"), r"float32 in \[0, 1\]"),
        (np.zeros((16, 16, 3), "float32"), r"got float32 of shape \(16, 16, 3\)"),
        ([pixels(2), pixels(2, (8, 16))], r"\(None, 16, 16, 3\); got float32 of shape \(2, 8, 16, 3\)"),
    ],
)
def test_other_calibration_images_are_refused(images, message, saved_model, tmp_path):
    with pytest.raises(ValueError, match=message):
        export_tflite(saved_model, tmp_path / "m.tflite", precision="int8", calibration=images)
    assert [*tmp_path.iterdir()] == []
