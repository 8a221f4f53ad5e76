"""Exports of keypoint estimators: heat maps in every format, and points of opened exports."""

import json

import numpy as np
import pytest
import tensorflow as tf
from made.exports import described, pixels
from reference.comparing import assert_close, randomize
from reference.small import SMALL, run_live

import keras_vit
from keras_vit.export.description import describe, parse_description
from keras_vit.export.exported_model import open_exported
from keras_vit.export.litert.ml_drift import refusals
from keras_vit.export.onnx import export_onnx
from keras_vit.export.openvino import export_openvino
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.tolerance import Tolerance
from keras_vit.export.web import check_model
from keras_vit.tasks.keypoints.crops import to_image
from keras_vit.tasks.keypoints.estimating import decoded
from keras_vit.tasks.keypoints.loss import heat_maps
from keras_vit.tasks.keypoints.outputs import KeypointOutputs

SLOW = pytest.mark.slow
SIZE = (32, 24)
NAMES = ("nose", "left_eye", "right_eye")
BOXES = [[[2, 3, 20, 30], [5, 1, 28, 16]], [[0, 0, 9, 9]]]
HEADS = ("classic", "simple")


def estimator(head="classic", **options):
    encoder = {**SMALL, "num_classes": None, "num_layers": 1, "image_size": SIZE, "patch_size": 8}
    names = {"class_names": NAMES, "flip_index": (0, 2, 1), "decoder_width": 8, "head": head}
    return randomize(
        keras_vit.KeypointEstimator(keras_vit.VisionTransformer(**encoder), 3, **names, **options), 0.15
    )


@pytest.fixture(scope="module")
def model(eager):
    return estimator()


@pytest.fixture(scope="module")
def images():
    return [np.random.default_rng(side).integers(0, 256, (side, 40, 3), "uint8") for side in (30, 50)]


def test_the_description_builds_the_estimator(model):
    description = described(model, "keypoints", ("keypoint estimation", "3 keypoints"))
    assert (description.output, description.labels) == ("values", ())
    assert tuple(description.flip_index) == (0, 2, 1)
    with pytest.raises(ValueError, match="'m.onnx' is damaged"):
        parse_description(json.dumps({**json.loads(description.as_json()), "task": "depth"}), "m.onnx")


def test_a_page_is_refused_in_one_line(model):
    with pytest.raises(ValueError, match="^a web page shows one row of class scores or values; .* none$"):
        check_model(describe(model))


@SLOW
@pytest.mark.parametrize("head", HEADS)
def test_every_format_computes_the_heat_maps(head, eager, images, tmp_path):
    model, inputs = estimator(head), pixels(3, SIZE)
    saved, live = export_saved_model(model, tmp_path / "1", warmup=()), run_live(model, inputs)
    assert np.ptp(live) > 0
    files = {saved: 1e-5, export_onnx(saved, tmp_path / "m.onnx"): 1e-5}
    for precision, bound in {"float32": 1e-5, "float16": 5e-3}.items():
        files[export_tflite(saved, tmp_path / f"{precision}.tflite", precision=precision)] = bound
        assert refusals((tmp_path / f"{precision}.tflite").read_bytes()) == []
    for path, bound in files.items():
        exported = open_exported(path)
        outputs = exported.outputs(inputs)
        assert [*outputs] == ["heat_maps"]
        assert_close(outputs["heat_maps"], live, bound)
        if bound == 1e-5:
            for options in ({}, {"boxes": BOXES}, {"boxes": BOXES, "flip_test": True}):
                expected = model.estimate_keypoints(images, **options)
                for found, points in zip(exported.estimate_keypoints(images, **options), expected):
                    np.testing.assert_allclose(found, points, atol=0.1)


@SLOW
@pytest.mark.parametrize("head", HEADS)
def test_openvino_computes_the_heat_maps(head, eager, tmp_path):
    for package in ("openvino", "nncf"):
        pytest.importorskip(package, reason=f"{package} is not installed; see requirements-peers.txt")
    model, inputs = estimator(head), pixels(3, SIZE)
    saved, live = export_saved_model(model, tmp_path / "1", warmup=()), run_live(model, inputs)
    options = {"float32": ({}, 1e-5), "int8": ({"calibration": pixels(24, SIZE)}, 0.2)}
    for precision, (calibration, bound) in options.items():
        path = export_openvino(saved, tmp_path / f"{precision}.xml", precision=precision, **calibration)
        assert_close(open_exported(path).main_output(inputs), live, bound)


@SLOW
@pytest.mark.parametrize("precision", ["dynamic_int8", "full_int8"])
def test_the_last_layer_is_in_float_in_int8(precision, model, saved, tmp_path):
    inputs = pixels(24, SIZE)
    calibration = {"calibration": inputs} if precision == "full_int8" else {}
    path = export_tflite(saved, tmp_path / "m.tflite", precision=precision, **calibration)
    found = open_exported(path).main_output(inputs)
    assert len(np.unique(found)) > 1000  # more than 8 bits can be
    assert_close(found, run_live(model, inputs), 0.2)


@SLOW
def test_served_heat_maps_are_of_whole_images(model, saved, images):
    signatures = tf.saved_model.load(saved).signatures
    encoded = tf.stack([tf.io.encode_png(image) for image in images])
    found = {name: x.numpy() for name, x in signatures["serving_bytes"](image_bytes=encoded).items()}
    assert {*found} == {"heat_maps", "windows"}
    places, scores = decoded(found["heat_maps"])
    points = to_image(places, found["windows"], found["heat_maps"].shape[1:3])
    expected = np.concatenate(model.estimate_keypoints(images))
    np.testing.assert_allclose(scores, expected[..., 2], atol=1e-4)
    np.testing.assert_allclose(points, expected[..., :2], atol=0.1)
    maps = signatures["serving_uint8"](images=images[1][np.newaxis])["heat_maps"].numpy()
    assert_close(maps[0], found["heat_maps"][1], 1e-5)


def maps_of(x):
    """Heat maps of two objects with a point at a place, in pixels of the model's input."""
    points = np.array([[[x / SIZE[1], 0.5, 2]], [[0.5, x / SIZE[0], 2]]])
    return np.asarray(heat_maps(points, (16, 12), 2.0, sigma=1.5))


def test_distances_are_in_pixels_of_the_input(model):
    outputs, live = KeypointOutputs(describe(model)), maps_of(10.0)
    found = outputs.differences(live, maps_of(11.0))
    assert found["mean_point_distance"] == pytest.approx(1, abs=0.05)
    nothing = outputs.differences(live * 0.1, live)
    assert nothing == {"mean_point_distance": None, "point_distance_99": None}


def test_exports_of_keypoints_have_tolerances_of_their_own(model):
    outputs = KeypointOutputs(describe(model))

    def row(distance, largest=0.0, score=0.5):
        found = {"max_logit_difference": largest, "mean_logit_difference": largest, "agreement": None}
        return {**found, "score": score, "mean_point_distance": distance, "point_distance_99": distance}

    exact, rounded = Tolerance("max_logit_difference", 1e-5, level="exact"), Tolerance("agreement", 0.99)
    live = maps_of(10.0)
    assert exact.check(row(0.1), 2, outputs, live) is None
    with pytest.raises(ValueError, match="^1% of its points are 0.2 pixels or more off; the bound is 0.1$"):
        exact.check(row(0.2), 2, outputs, live)
    with pytest.raises(ValueError, match="2.0e-05 of the largest; the bound is 1e-05"):
        exact.check(row(0.0, 2e-5), 2, outputs, live)
    assert rounded.check(row(0.6, 0.5), 2, outputs, live) is None
    with pytest.raises(ValueError, match="^its points are 0.7 pixels off on average; the bound is 0.64$"):
        rounded.check(row(0.7), 2, outputs, live)
    assert "of a data set" in rounded.check(row(0.7, score=None), 2, outputs, live)
    assert "above 0.2 to be compared" in rounded.check(row(None), 2, outputs, live)
