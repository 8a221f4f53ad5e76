"""Exports of keypoint estimators: heat maps in every format, and points of opened exports."""

import json

import numpy as np
import pytest
import tensorflow as tf
from made import browser
from made.exports import described, pixels
from made.folders import write_keypoints
from PIL import Image
from reference.comparing import assert_close, randomize
from reference.small import SMALL, run_live

import keras_vit
from keras_vit.data import load_dataset
from keras_vit.export.description import describe, parse_description
from keras_vit.export.exported_model import open_exported
from keras_vit.export.litert.ml_drift import refusals
from keras_vit.export.onnx import export_onnx
from keras_vit.export.openvino import export_openvino
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.tolerance import Tolerance, lowest
from keras_vit.export.verify import Reference
from keras_vit.export.web import export_web
from keras_vit.tasks import get_task
from keras_vit.tasks.keypoints.crops import cropped, to_image, window_of
from keras_vit.tasks.keypoints.estimating import decoded
from keras_vit.tasks.keypoints.loss import heat_maps
from keras_vit.tasks.keypoints.outputs import KeypointOutputs
from keras_vit.tasks.keypoints.pictures import point_colors

SLOW = pytest.mark.slow
SIZE = (32, 24)
NAMES = ("nose", "left_eye", "right_eye")
BOXES = [[[2, 3, 20, 30], [5, 1, 28, 16]], [[0, 0, 9, 9]]]
HEADS = ("classic", "simple")


def estimator(head="classic", channels=3, **options):
    encoder = {**SMALL, "num_classes": None, "num_layers": 1, "image_size": SIZE, "patch_size": 8}
    names = {"class_names": NAMES, "flip_index": (0, 2, 1), "decoder_width": 8, "head": head, **options}
    encoder["in_channels"] = channels
    return randomize(keras_vit.KeypointEstimator(keras_vit.VisionTransformer(**encoder), 3, **names), 0.15)


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


def test_a_page_knows_the_points_and_their_skeleton(model):
    outputs = KeypointOutputs(describe(model))
    assert outputs.page_facts == {"labels": [*NAMES], "skeleton": ()}
    assert outputs.colors == point_colors(3).tolist()
    lines = KeypointOutputs(describe(estimator(class_names=None, skeleton=((0, 2),))))
    assert json.loads(json.dumps(lines.page_facts)) == {"labels": ["0", "1", "2"], "skeleton": [[0, 2]]}


def assert_decoded(outputs, live, distance=0.1):
    """Check that the outputs are the points of the live model's heat maps, in pixels of its input."""
    [(name, points)] = outputs.items()
    places, scores = decoded(live)
    whole = np.array([0, 0, SIZE[1] - 1, SIZE[0] - 1])
    assert name == "points"
    np.testing.assert_allclose(points[..., :2], to_image(places, whole, live.shape[1:3]), atol=distance)
    np.testing.assert_allclose(points[..., 2], scores, atol=0.01 * distance)


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
        assert_close(outputs.pop("heat_maps"), live, bound)
        if path.suffix == ".tflite":
            assert not outputs
        else:
            assert_decoded(outputs, live)
        if bound == 1e-5:
            for options in ({}, {"boxes": BOXES}, {"boxes": BOXES, "flip_test": True}):
                expected = model.estimate_keypoints(images, **options)
                for found, points in zip(exported.estimate_keypoints(images, **options), expected):
                    np.testing.assert_allclose(found, points, atol=0.1)


@SLOW
@pytest.mark.parametrize("head", HEADS)
def test_openvino_computes_the_heat_maps_in_8_bits(head, eager, tmp_path):
    for package in ("openvino", "nncf"):
        pytest.importorskip(package, reason=f"{package} is not installed; see requirements-peers.txt")
    model, inputs, options = estimator(head), pixels(3, SIZE), {"calibration": pixels(24, SIZE)}
    saved = export_saved_model(model, tmp_path / "1", warmup=())
    path = export_openvino(saved, tmp_path / "m.xml", precision="int8", **options)
    outputs = open_exported(path).outputs(inputs)
    maps = outputs.pop("heat_maps")
    assert_close(maps, run_live(model, inputs), 0.2)
    assert_decoded(outputs, maps)


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
def test_served_points_are_of_whole_images(model, saved, images):
    signatures = tf.saved_model.load(saved).signatures
    encoded = tf.stack([tf.io.encode_png(image) for image in images])
    found = {name: x.numpy() for name, x in signatures["serving_bytes"](image_bytes=encoded).items()}
    assert {*found} == {"heat_maps", "points", "windows"}
    places, scores = decoded(found["heat_maps"])
    points = to_image(places, found["windows"], found["heat_maps"].shape[1:3])
    expected = np.concatenate(model.estimate_keypoints(images))
    np.testing.assert_allclose(scores, expected[..., 2], atol=1e-4)
    np.testing.assert_allclose(points, expected[..., :2], atol=0.1)
    np.testing.assert_allclose(found["points"], expected, atol=0.1)
    one = signatures["serving_uint8"](images=images[1][np.newaxis])
    assert_close(one["heat_maps"][0], found["heat_maps"][1], 1e-5)
    np.testing.assert_allclose(one["points"][0], expected[1], atol=0.1)


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


def test_an_export_in_integers_whose_ap_is_below_the_live_models_is_refused(tmp_path):
    """On average its points are near those of the live model, and on every fourth object they are not."""
    model = estimator(sigmas=(0.03, 0.03, 0.03))
    task, description = get_task("keypoints"), describe(model)
    samples = load_dataset(write_keypoints(tmp_path / "points", 40), task="keypoints").split("train")
    images, labels = task.sampled(samples, description.preprocessing, len(samples))
    _, _, truth = task.shown(model, samples)

    def maps(shift):
        points = truth.copy()
        points[::4, :, 0] += shift
        points[..., :2] /= SIZE[::-1]
        return np.asarray(heat_maps(points, (16, 12), 2.0, sigma=1.5))

    reference = Reference(description, images, labels, maps(0), run=None)
    same, broken = reference.compare(maps(0)), reference.compare(maps(1.8))
    assert same["score"] > 0.9 and same["least_score"] == pytest.approx(lowest(same["score"], len(images)))
    assert broken["score"] < same["least_score"] and 0.4 < broken["mean_point_distance"] < 0.64
    rounded, outputs = Tolerance("agreement", 0.99), KeypointOutputs(description)
    assert rounded.check(same, len(images), outputs, reference.outputs) is None
    words = rf"^its AP is {broken['score']:.1%}; the bound is {same['least_score']:.1%}$"
    with pytest.raises(ValueError, match=words):
        rounded.check(broken, len(images), outputs, reference.outputs)


def test_exports_of_keypoints_have_tolerances_of_their_own(model):
    outputs = KeypointOutputs(describe(model))

    def row(distance, largest=0.0, score=0.5):
        found = {"max_logit_difference": largest, "mean_logit_difference": largest, "least_score": 0.5}
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


DECODED = "maps => decoded(maps, [16, 12], 3).map(({x, y, score}) => [x, y, score])"


def found_as_live(tab, model):
    """The picture, the box and the live model's points of a page, which has found the same."""
    points = "result.objects.map(({x, y, score}) => [x, y, score])"
    values = f"[{points}, Array.from(result.input), boxOf(picture)]"
    picture, (found, received, box) = browser.picture_with(tab, values)
    [[expected]] = model.estimate_keypoints([picture], None if box is None else [[box]])
    np.testing.assert_allclose(np.array(found)[:, :2], expected[:, :2], atol=0.1)
    np.testing.assert_allclose(np.array(found)[:, 2], expected[:, 2], atol=1e-4)
    window = window_of(box, picture.shape[:2], SIZE[1] / SIZE[0])
    pixels = picture if model.in_channels == 3 else picture @ np.array([[0.299], [0.587], [0.114]])
    part = cropped(pixels, window, SIZE) / 255
    np.testing.assert_allclose(received, part.ravel(), atol=1e-5)
    return picture, box, expected


def assert_shows(tab, points, picture, threshold):
    """Compare the list of a page with points, and what is drawn with one and with a line."""
    labels, scores = (tab.locator(f"#classes .{part}").all_inner_texts() for part in ("label", "value"))
    assert [label.strip() for label in labels] == [*NAMES]
    assert [float(score.strip(" %")) for score in scores] == pytest.approx(points[:, 2] * 100, abs=0.1)
    sure = points[:, 2] >= threshold
    assert tab.inner_text("#threshold-value") == f"{100 * threshold:.1f} %: {sure.sum()}"
    assert tab.locator("#classes .key").count() == sure.sum()
    middle = points[[0, 2], :2].mean(axis=0)
    for place, number, is_drawn in ((points[2, :2], 2, sure[2]), (middle, 2, sure[0] and sure[2])):
        height, width = picture.shape[:2]
        if (place > 0).all() and (place < (width, height)).all():
            expected = [*point_colors(3)[number].tolist(), 255] if is_drawn else [0, 0, 0, 0]
            assert tab.evaluate(browser.DRAWN, place.tolist()) == expected


@SLOW
@pytest.mark.parametrize("head, channels, accelerator", [("simple", 3, "webgpu"), ("classic", 1, "wasm")])
def test_pages_draw_the_points_over_pictures_and_the_camera(head, channels, accelerator, tmp_path):
    model = estimator(head, channels, skeleton=((0, 2),))
    saved = export_saved_model(model, tmp_path / "1", warmup=())
    page = export_web(saved, tmp_path / "web", precision="float32", title="Faces")
    with browser.ready(page, accelerator) as tab:
        for size in ((84, 60), (40, 90)):  # wider and higher than the model's input
            noise = np.random.default_rng(3).integers(0, 256, (6, 5, 3), "uint8")
            Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(tmp_path / "photo.png")
            tab.set_input_files("#file", tmp_path / "photo.png")
            tab.evaluate("last")
            picture, box, points = found_as_live(tab, model)
            assert box is None and picture.shape[:2] == size[::-1]
            for threshold in np.round([0, points[:, 2].mean(), 1], 2).clip(0, 1).tolist():
                tab.fill("#threshold", str(threshold))
                assert_shows(tab, points, picture, threshold)
        assert "A box drawn over the picture" in tab.inner_text("#threshold-choice")
        area = tab.locator("#frame").bounding_box()
        x, y, width, height = area["x"], area["y"], area["width"], area["height"]
        tab.mouse.move(x + 0.7 * width, y + 0.9 * height)
        tab.mouse.down()
        tab.mouse.move(x + 0.1 * width, y + 0.3 * height)
        assert tab.evaluate(browser.DRAWN, [0.1 * 40, 0.6 * 90]) == [0, 0, 0, 255]
        tab.mouse.up()
        tab.evaluate("last")
        _, box, of_box = found_as_live(tab, model)
        assert box == pytest.approx([0.1 * 40, 0.3 * 90, 0.7 * 40, 0.9 * 90], abs=1)
        assert np.abs(of_box - points).max() > 0.1
        tab.mouse.click(x + 0.7 * width, y + 0.9 * height)
        tab.evaluate("last")
        assert found_as_live(tab, model)[1] is None
        browser.hide_and_show_overlay(tab)
        browser.follow_camera(tab, 500)
        found_as_live(tab, model)
        browser.take_picture(tab)
        found_as_live(tab, model)
        assert_decodes_as_python(tab)


def assert_decodes_as_python(tab):
    """Compare the page's points with Python's, of random maps with noise, at edges, and of a flat map."""
    random = np.random.default_rng(5)
    places = np.concatenate([random.uniform(size=(20, 3, 2)), random.integers(0, 2, (4, 3, 2))])
    points = np.concatenate([places, np.full((24, 3, 1), 2)], axis=2)
    maps = np.asarray(heat_maps(points, (16, 12), 2.0, sigma=1.5))
    maps = np.concatenate([maps + random.normal(0, 0.02, maps.shape), np.zeros((1, 16, 12, 3))])
    for own, expected, scores in zip(maps.astype("float32"), *decoded(maps)):
        found = np.array(tab.evaluate(DECODED, own.ravel().tolist()))
        np.testing.assert_allclose(found[:, :2], expected, atol=1e-4)
        np.testing.assert_allclose(found[:, 2], scores, rtol=1e-6)
