"""What each precision costs a model that has learned something, and what calibration does."""

import os

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from reference.comparing import assert_close
from reference.small import run_live, small

from keras_vit.cli.quickstart import MODEL
from keras_vit.cli.source import open_model
from keras_vit.data.batches import evaluation_batches
from keras_vit.data.datasets import load_dataset
from keras_vit.export import tflite
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.training.named_recipes import RECIPES
from keras_vit.training.run import RunConfig, train

FULL = "FULL" in os.environ
# Without FULL a run of 15 % of the steps, on a quarter of the tokens.
RECIPE = (
    RECIPES["digits"]
    if FULL
    else RECIPES["digits"].with_changes(
        total_steps=180, warmup_steps=18, eval_every=180, checkpoint_every=180
    )
)
SIZES = MODEL if FULL else {**MODEL, "patch_size": 4}
LEAST = 0.98 if FULL else 0.85  # that it knows, of the 355 test images


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    config = RunConfig(dataset="digits", recipe=RECIPE, model=SIZES)
    return open_model(train(config, tmp_path_factory.mktemp("run") / "digits", verbose=0)[0].path)


def digits(model, split):
    """The images of a split as float32 in [0, 1], and their labels."""
    samples = load_dataset("digits", RECIPE.seed).split(split)
    images = np.concatenate([x for x, _ in evaluation_batches(samples, model.preprocessing, 64)])
    pixels = images * np.float32(model.preprocessing.std) + np.float32(model.preprocessing.mean)
    return np.clip(pixels, 0, 1), samples.labels


@pytest.fixture(scope="module")
def test_digits(learned):
    return digits(learned, "test")


@pytest.fixture(scope="module")
def some_digits(learned):
    """Calibration images: 200 of the training's."""
    images, _ = digits(learned, "train")
    return images[np.random.default_rng(0).permutation(len(images))[:200]]


@pytest.fixture(scope="module")
def live(learned, test_digits):
    images, labels = test_digits
    logits = run_live(learned, images)
    assert np.mean(logits.argmax(-1) == labels) >= LEAST
    return logits


@pytest.fixture(scope="module")
def learned_folder(learned, tmp_path_factory):
    return export_saved_model(learned, tmp_path_factory.mktemp("export") / "1")


def runner(path):
    return Interpreter(model_path=str(path)).get_signature_runner("serving_default")


def logits(path, images):
    return runner(path)(images=images)["logits"]


def accuracy(found, labels):
    return float(np.mean(found.argmax(-1) == labels))


@pytest.mark.parametrize(
    "precision, width, bound, lost, agreement",
    [
        ("float32", 4, 1e-5, 0.0, 1.0),
        ("float16", 2, 5e-3, 0.003, 0.995),
        ("dynamic_int8", 1, 0.06, 0.003, 0.99),
        ("int8", 1, 0.25, 0.015, 0.98),
    ],
)
def test_what_a_precision_costs(
    precision,
    width,
    bound,
    lost,
    agreement,
    learned,
    learned_folder,
    live,
    test_digits,
    some_digits,
    tmp_path,
):
    images, labels = test_digits
    options = {"calibration": some_digits} if precision == "int8" else {}
    path = export_tflite(learned_folder, tmp_path / "m.tflite", precision=precision, **options)
    found = logits(path, images)
    assert_close(found, live, bound)
    assert accuracy(found, labels) >= accuracy(live, labels) - lost
    assert np.mean(found.argmax(-1) == live.argmax(-1)) >= agreement
    weights = width * learned.count_params()
    assert weights * 0.98 < path.stat().st_size < weights * 1.1 + 100_000


def test_pixels_in_whole_numbers_are_recognised_as_well(
    learned_folder, live, test_digits, some_digits, tmp_path
):
    images, labels = test_digits
    path = export_tflite(
        learned_folder, tmp_path / "m.tflite", precision="int8", calibration=some_digits, integer_io="uint8"
    )
    found = logits(path, np.round(images * 255).astype("uint8"))
    assert found.dtype == np.uint8
    assert accuracy(found, labels) >= accuracy(live, labels) - 0.015
    scale, zero = runner(path).get_output_details()["probabilities"]["quantization"]
    assert (scale, zero) == (1 / 256, 0)


def test_more_calibration_images_are_better_than_one(
    learned_folder, live, test_digits, some_digits, tmp_path
):
    images, _ = test_digits
    errors = []
    for count in (1, 200):
        path = export_tflite(
            learned_folder, tmp_path / f"{count}.tflite", precision="int8", calibration=some_digits[:count]
        )
        errors.append(np.sqrt(np.mean((logits(path, images) - live) ** 2)))
    assert errors[1] < 0.7 * errors[0]


def pixels(count, size):
    return np.random.default_rng(0).uniform(size=(count, *size, 3)).astype("float32")


@pytest.fixture(scope="module")
def model():
    return small(num_layers=1)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return export_saved_model(model, tmp_path_factory.mktemp("small") / "1")


@pytest.fixture(scope="module")
def grey_ones():
    """Calibration images that are neither black nor white anywhere."""
    return 0.25 + 0.5 * pixels(8, (16, 16))


@pytest.fixture(scope="module")
def whole_numbers(folder, grey_ones, tmp_path_factory):
    path = tmp_path_factory.mktemp("uint8") / "m.tflite"
    return export_tflite(folder, path, precision="int8", calibration=grey_ones, integer_io="uint8")


class TestWholeNumbersAtBothEnds:
    def test_pixels_go_in_as_they_are(self, whole_numbers):
        (given,) = runner(whole_numbers).get_input_details().values()
        assert given["dtype"] == np.uint8
        assert given["quantization"] == (pytest.approx(1 / 255), 0)

    def test_int8_takes_pixels_less_128(self, whole_numbers, folder, grey_ones, tmp_path):
        other = export_tflite(
            folder, tmp_path / "m.tflite", precision="int8", calibration=grey_ones, integer_io="int8"
        )
        (given,) = runner(other).get_input_details().values()
        assert given["dtype"] == np.int8
        assert given["quantization"] == (pytest.approx(1 / 255), -128)
        whole = np.random.default_rng(1).integers(0, 256, (3, 16, 16, 3))
        found = runner(whole_numbers)(images=whole.astype("uint8"))
        shifted = runner(other)(images=(whole - 128).astype("int8"))
        for name, numbers in found.items():
            assert (numbers.dtype, shifted[name].dtype) == (np.uint8, np.int8)
            np.testing.assert_array_equal(numbers.astype(int) - 128, shifted[name])

    def test_they_give_what_the_model_computes_for_the_pixels(
        self, whole_numbers, model, folder, grey_ones, tmp_path
    ):
        whole = np.random.default_rng(1).integers(64, 192, (3, 16, 16, 3)).astype("uint8")
        found = runner(whole_numbers)(images=whole)["logits"]
        scale, zero = runner(whole_numbers).get_output_details()["logits"]["quantization"]
        logits = (found.astype("float32") - zero) * scale
        assert_close(logits, run_live(model, whole / np.float32(255)), 0.3)
        inside = export_tflite(folder, tmp_path / "m.tflite", precision="int8", calibration=grey_ones)
        np.testing.assert_allclose(
            logits, runner(inside)(images=whole / np.float32(255))["logits"], atol=1.01 * scale
        )

    def test_another_range_is_refused(self, folder, grey_ones, tmp_path, monkeypatch):
        monkeypatch.setattr(tflite, "_samples", lambda calibration, shape: ([calibration[:1]] for _ in "1"))
        with pytest.raises(ValueError, match=r"input would be \(pixel / 255\) / .* instead of the pixel"):
            export_tflite(
                folder, tmp_path / "m.tflite", precision="int8", calibration=grey_ones, integer_io="uint8"
            )
        assert [*tmp_path.iterdir()] == []


class TestCalibration:
    def test_batches_are_as_good_as_one_array(self, folder, tmp_path):
        images = pixels(6, (16, 16))
        files = [
            export_tflite(folder, tmp_path / f"{i}.tflite", precision="int8", calibration=given)
            for i, given in enumerate((images, iter([images[:1], images[1:5], images[5:]])))
        ]
        assert files[0].read_bytes() == files[1].read_bytes()

    def test_its_images_set_the_ranges(self, folder, tmp_path):
        files = [
            export_tflite(folder, tmp_path / f"{i}.tflite", precision="int8", calibration=images)
            for i, images in enumerate((pixels(6, (16, 16)), np.full((6, 16, 16, 3), 0.5, "float32")))
        ]
        images = pixels(4, (16, 16))
        found = [runner(file)(images=images)["logits"] for file in files]
        assert np.abs(found[0] - found[1]).max() > 1e-3

    def test_the_images_are_not_changed(self, folder, tmp_path):
        images = pixels(2, (16, 16))
        before = images.copy()
        export_tflite(folder, tmp_path / "m.tflite", precision="int8", calibration=images)
        np.testing.assert_array_equal(images, before)

    def test_a_fixed_batch_is_filled_up(self):
        images = pixels(5, (2, 2))
        given = [batch for (batch,) in tflite._samples([images[:3], images[3:]], (2, 2, 2, 3))]
        assert [batch.shape for batch in given] == [(2, 2, 2, 3)] * 3
        images[0, 0, 0, 0], images[0, 1, 1, 2] = 0, 1
        np.testing.assert_array_equal(given, [images[:2], images[[2, 2]], images[3:]])

    @pytest.mark.parametrize(
        "images, said",
        [
            (np.zeros((0, 16, 16, 3), "float32"), "there are no calibration images; 100 to 500 are wanted"),
            ([], "there are no calibration images"),
            (np.zeros((2, 16, 16, 3)), r"float32 in \[0, 1\], of shape .*; got float64"),
            (np.zeros((2, 16, 16, 3), "uint8"), "got uint8"),
            (np.full((2, 16, 16, 3), 1.5, "float32"), r"float32 in \[0, 1\]"),
            (np.full((2, 16, 16, 3), -0.1, "float32"), r"float32 in \[0, 1\]"),
            (np.full((2, 16, 16, 3), np.nan, "float32"), r"float32 in \[0, 1\]"),
            (np.zeros((16, 16, 3), "float32"), r"got float32 of shape \(16, 16, 3\)"),
            (
                [pixels(2, (16, 16)), pixels(2, (8, 16))],
                r"\(None, 16, 16, 3\); got float32 of shape \(2, 8, 16, 3\)",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused(self, images, said, folder, tmp_path):
        with pytest.raises(ValueError, match=said):
            export_tflite(folder, tmp_path / "m.tflite", precision="int8", calibration=images)
        assert [*tmp_path.iterdir()] == []
