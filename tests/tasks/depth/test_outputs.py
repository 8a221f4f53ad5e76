"""Exports of depth estimators: maps of numbers in every format."""

import json

import numpy as np
import pytest
import tensorflow as tf
from made.browser import analyzed, overlay
from made.exports import described, photos, pixels
from PIL import Image
from reference.comparing import assert_close, randomize
from reference.small import SMALL, run_live

import keras_vit
from keras_vit.export.description import describe, parse_description
from keras_vit.export.exported_model import open_exported
from keras_vit.export.onnx import export_onnx
from keras_vit.export.openvino import export_openvino
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.tolerance import Tolerance
from keras_vit.export.verify import Reference
from keras_vit.export.web import check_model, export_web
from keras_vit.tasks.depth.outputs import DepthOutputs
from keras_vit.tasks.depth.pictures import depth_colors

SLOW = pytest.mark.slow
SIZE = (16, 24)
MODELS = {  # by what differs
    "metric": {},
    "relative": {"quantity": "relative"},
    "disparity": {"quantity": "disparity"},
    "normals": {"quantity": "values", "num_classes": 3},
    "dpt": {"quantity": "disparity", "upsampling": "double", "readout": "project", "head_norm": "batch"},
    "bins": {"head": "linear", "bins": 8},
    "linear": {"head": "linear", "quantity": "disparity", "readout": "concatenate"},
    "values": {"head": "linear", "quantity": "values", "num_classes": 6},
}


def estimator(size=SIZE, **options):
    encoder = {**SMALL, "num_classes": None, "num_layers": 1, "image_size": size, "patch_size": 8}
    if size[0] is None:
        encoder["position_grid"] = (2, 3)
    small = {"decoder_size": 8, "neck_sizes": (4, 4, 8, 8), "head_size": 4}
    model = keras_vit.DepthEstimator(keras_vit.VisionTransformer(**encoder), **{**small, **options})
    return randomize(model, 0.15)  # Larger weights multiply the rounding of float16.


def served_maps(loaded, images):
    """The maps that `serving_bytes` returns, and the largest rounding of each."""
    encoded = tf.stack([tf.io.encode_png(image) for image in images])
    found = {name: x.numpy() for name, x in loaded.signatures["serving_bytes"](image_bytes=encoded).items()}
    assert {*found} == {"map_bytes", "scales", "offsets"}
    numbers = [tf.io.decode_png(content, dtype=tf.uint16).numpy() for content in found["map_bytes"]]
    maps = [n * scale + offset for n, scale, offset in zip(numbers, found["scales"], found["offsets"])]
    return maps, found["scales"]


@pytest.fixture(scope="module")
def model(eager):
    return estimator(head="linear", bins=8, class_names=("depth",))


@pytest.fixture(scope="module")
def loaded(saved):
    return tf.saved_model.load(saved)


@pytest.mark.slow
def test_served_maps_have_the_sizes_of_the_images(model, loaded):
    images = photos((40, 31), SIZE)
    maps, scales = served_maps(loaded, images)
    assert scales == pytest.approx(10 / 65535)
    expected = model.estimate(images, whole=True)
    for values, live, scale in zip(maps, expected, scales, strict=True):
        np.testing.assert_allclose(values, live, rtol=1e-4, atol=0.6 * scale)
    found = loaded.signatures["serving_uint8"](images=images[0][np.newaxis])["depth"]
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)


@pytest.mark.slow
def test_an_opened_export_estimates_like_the_live_model(model, saved, litert):
    images = photos((40, 31), SIZE)
    for path in (saved, litert):
        exported = open_exported(path)
        assert (exported.quantity, exported.max_depth, exported.class_names) == (
            "metric",
            10.0,
            ("depth",),
        )
        for options in ({}, {"whole": True}):
            for found, expected in zip(
                exported.estimate(images, **options), model.estimate(images, **options)
            ):
                np.testing.assert_allclose(found, expected, rtol=1e-4)
    with pytest.raises(AttributeError, match="this export estimates depth; use its `estimate` method"):
        exported.segment(images)
    with pytest.raises(ValueError, match="this export estimates depth; use its `estimate` method"):
        exported.classify(images)
    with pytest.raises(AttributeError, match="no attribute 'blocks'"):
        exported.blocks  # noqa: B018


@SLOW
@pytest.mark.parametrize("name", MODELS)
def test_every_head_and_output_is_the_live_one_in_every_format(name, eager, tmp_path):
    model, images = estimator(**MODELS[name]), pixels(2, SIZE)
    saved, live = export_saved_model(model, tmp_path / "1", warmup=()), run_live(model, images)
    assert np.ptp(live) > 0
    names = {"disparity": "disparity", "values": "values"}
    files = {saved: 1e-5, export_onnx(saved, tmp_path / "m.onnx"): 1e-5}
    for precision, bound in {"float32": 1e-5, "float16": 5e-3}.items():
        files[export_tflite(saved, tmp_path / f"{precision}.tflite", precision=precision)] = bound
    for path, bound in files.items():
        outputs = open_exported(path).outputs(images)
        assert [*outputs] == [names.get(model.quantity, "depth")]
        assert_close(*outputs.values(), live, bound)
    if model.num_classes <= 4:
        maps, scales = served_maps(tf.saved_model.load(saved), photos((40, 31)))
        expected = model.estimate(photos((40, 31)), whole=True)
        np.testing.assert_allclose(
            maps[0], expected[0], atol=0.6 * scales[0] + 1e-4 * np.abs(expected[0]).max()
        )
    else:
        assert "serving_bytes" not in tf.saved_model.load(saved).signatures


@SLOW
def test_images_of_any_size_keep_theirs(tmp_path):
    model = estimator((None, None))
    saved, images = export_saved_model(model, tmp_path / "1", warmup=()), photos((40, 31), (13, 20))
    maps, scales = served_maps(tf.saved_model.load(saved), images)
    for values, live, scale in zip(maps, model.estimate(images), scales, strict=True):
        np.testing.assert_allclose(values, live, atol=0.6 * scale + 1e-3)
    for exported in map(open_exported, (saved, export_onnx(saved, tmp_path / "m.onnx"))):
        for batch in (pixels(2, (16, 24)), pixels(2, (32, 16))):
            assert_close(exported.predict_on_batch(batch), run_live(model, batch), 1e-5)


@SLOW
def test_the_last_layer_is_in_float_in_full_int8(saved, tmp_path):
    images = pixels(24, SIZE)
    path = export_tflite(saved, tmp_path / "m.tflite", precision="full_int8", calibration=images)
    assert len(np.unique(open_exported(path).main_output(images))) > 1000  # more than 8 bits can be


@SLOW
def test_openvino_computes_the_first_and_the_last_matmul_in_float_in_int8(model, saved, tmp_path):
    for package in ("openvino", "nncf"):
        pytest.importorskip(package, reason=f"{package} is not installed; see requirements-peers.txt")
    import openvino

    path = export_openvino(saved, tmp_path / "m.xml", precision="int8", calibration=pixels(24, SIZE))
    products = [
        node
        for node in openvino.Core().read_model(path).get_ordered_ops()
        if node.get_type_name() in ("MatMul", "Convolution")
    ]
    in_float = [
        all(value.get_source_output().get_node().get_type_name() != "FakeQuantize" for value in node.inputs())
        for node in products
    ]
    assert in_float[0] and in_float[-1] and not all(in_float)
    assert_close(open_exported(path).main_output(pixels(2, SIZE)), run_live(model, pixels(2, SIZE)), 0.2)


def test_the_description_builds_the_estimator(model):
    description = described(model, "depth", ("depth estimation", "up to 10 in the unit"))
    assert (description.output, description.labels) == ("values", ())
    for name, value in (("task", "segmentation"), ("around", None), ("kind", "segmenter")):
        with pytest.raises(ValueError, match="'m.onnx' is damaged"):
            parse_description(json.dumps({**json.loads(description.as_json()), name: value}), "m.onnx")
    with pytest.raises(ValueError, match="the task 'depth' for a DepthEstimator; got 'single_label'"):
        describe(model, "single_label")


LIVE = np.float32([1.0, 4.0]).reshape(1, 1, 2, 1)


@pytest.mark.parametrize("output, expected", [("metric", (0.1 + 0.05) / 2), ("disparity", 0.15 / 2.5)])
def test_differences_are_relative_to_each_depth(output, expected, eager):
    outputs = DepthOutputs(describe(estimator(quantity=output)))
    found = outputs.differences(LIVE, LIVE + np.float32([0.1, 0.2]).reshape(LIVE.shape))
    assert found["mean_relative_difference"] == pytest.approx(expected, rel=1e-5)


def test_exports_of_depth_have_tolerances_of_their_own(model):
    outputs = DepthOutputs(describe(model))

    def row(relative, largest=0.0, score=0.1):
        found = {"max_logit_difference": largest, "mean_logit_difference": largest, "agreement": None}
        return {**found, "score": score, "mean_relative_difference": relative}

    exact, rounded = Tolerance("max_logit_difference", 1e-5, level="exact"), Tolerance("agreement", 0.99)
    assert exact.check(row(0.5, 1e-5), 1, outputs, LIVE) is None
    with pytest.raises(ValueError, match="2.0e-05 of the largest; the bound is 1e-05"):
        exact.check(row(0.0, 2e-5), 1, outputs, LIVE)
    assert rounded.check(row(0.02, 0.5), 1, outputs, LIVE) is None
    with pytest.raises(ValueError, match="by 2.1% on average; the bound is 2%"):
        rounded.check(row(0.021), 1, outputs, LIVE)
    assert "of noise" in rounded.check(row(0.5, score=None), 1, outputs, LIVE)


def test_exports_of_values_are_judged_by_their_absolute_error(eager):
    description, live = describe(estimator(**MODELS["normals"])), np.ones((1, 2, 2, 3), "float32")
    row = Reference(description, pixels(1, SIZE), [live[0]], live, None).compare(live + np.float32(0.25))
    assert row["score"] == pytest.approx(0.25)
    with pytest.raises(ValueError, match="by 25.0% on average; the bound is 2%"):
        Tolerance("agreement", 0.99).check(row, 1, DepthOutputs(description), live)


def test_a_page_shows_one_channel_without_attention(model):
    check_model(describe(model))
    with pytest.raises(ValueError, match="shown on pages of models with one row of outputs"):
        check_model(describe(model), attention=True)
    with pytest.raises(ValueError, match="this model has none"):
        check_model(describe(estimator(quantity="values", num_classes=3)))


@SLOW
@pytest.mark.parametrize("name", ["metric", "relative", "disparity", "dpt", "bins", "linear"])
def test_pages_show_depth_over_pictures_and_the_camera(name, tmp_path):
    saved = export_saved_model(estimator(**MODELS[name]), tmp_path / "1", warmup=())
    page = export_web(saved, tmp_path / "web", precision="float32", title="Rooms")
    file = tmp_path / "photo.png"
    Image.fromarray(photos((48, 36))[0]).save(file)
    exported = open_exported(page)
    images = exported.preprocessing([file])
    [(output, expected)] = exported.outputs(images).items()
    for tab in analyzed(page, file):
        found = np.reshape(tab.evaluate(f"Array.from(result.outputs.{output})"), expected.shape)
        assert_close(found, expected, 1e-3)
        low, high = np.quantile(found, (0.02, 0.98), method="nearest")
        ends = tab.locator("#classes .end").all_inner_texts()
        near, far = (high, low) if output == "disparity" else (low, high)
        assert [float(text.removeprefix(output)) for text in ends] == pytest.approx([near, far], rel=1e-3)
        drawn = overlay(tab, *SIZE)
        colors = depth_colors(found[0, ..., 0], low, high, output == "disparity").astype(int)
        assert np.abs(drawn[..., :3] - colors).max() <= 4 and (drawn[..., 3] == 255).all()
