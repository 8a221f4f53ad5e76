"""Exports of detectors: boxes in every format."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from made import browser
from made.exports import described
from made.scenes import few_scenes
from PIL import Image
from reference.comparing import assert_close, randomize
from reference.small import one_block, run_live

import keras_vit
from keras_vit.evaluation import evaluate
from keras_vit.export.description import describe
from keras_vit.export.exported_model import open_exported
from keras_vit.export.onnx import export_onnx
from keras_vit.export.openvino import export_openvino
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.tolerance import Tolerance
from keras_vit.export.web import check_input, check_model, export_web
from keras_vit.tasks.detection.outputs import DetectionOutputs
from keras_vit.tasks.detection.pictures import box_colors

DIGITS = tuple(map(str, range(10)))


def detector(query_size=None, **options):
    encoder = one_block(num_classes=None, **{"image_size": (16, 24), "mlp_dim": 24, **options})
    own = {"merge_class_token": True, "query_size": query_size, "class_names": DIGITS}
    model = randomize(keras_vit.ObjectDetector(encoder, 10, **own))
    if query_size is None:
        model.get_layer("head").bias.assign(np.linspace(-2, 0, 10))
    return model


def photos(*sizes):
    return [np.random.default_rng(1).integers(0, 256, (*size, 3), "uint8") for size in sizes]


def pixels(count):
    return np.random.default_rng(0).uniform(size=(count, 16, 24, 3)).astype("float32")


@pytest.fixture(scope="module")
def model(eager):
    return detector()


@pytest.fixture(scope="module")
def loaded(saved):
    return tf.saved_model.load(saved)


# `make test` does not install OpenVINO.
OPENVINO = pytest.param("openvino", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=["saved_model", "tflite", "onnx", OPENVINO])
def exported(request, saved, litert, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "openvino":
        pytest.importorskip("openvino", reason="openvino is not installed; see requirements-peers.txt")
        return open_exported(export_openvino(saved, folder / "m.xml"))
    if request.param == "onnx":
        return open_exported(export_onnx(saved, folder / "m.onnx"))
    return open_exported({"tflite": litert, "saved_model": saved}[request.param])


def corners_of(live):
    """The sides of the boxes that the live model computes."""
    return np.concatenate([live[..., :2] - live[..., 2:4] / 2, live[..., :2] + live[..., 2:4] / 2], axis=-1)


def test_every_format_has_the_boxes_and_scores_of_the_live_model(model, exported):
    images = pixels(1)
    live = run_live(model, images)
    outputs = exported.outputs(images)
    assert {*outputs} == {"boxes", "logits", "scores"}
    assert_close(exported.predict_on_batch(images), live, 1e-5)
    assert_close(outputs["boxes"], corners_of(live), 1e-5)
    assert_close(outputs["scores"], keras.ops.sigmoid(live[..., 4:]).numpy(), 1e-5)


def test_the_saved_object_returns_boxes_too_as_the_live_model_does(model, loaded):
    assert_close(loaded(pixels(2)), run_live(model, pixels(2)), 1e-5)


@pytest.mark.slow
def test_litert_compares_patches_with_the_vectors_of_classes(tmp_path):
    model = detector(query_size=12)
    saved = export_saved_model(model, tmp_path / "1", warmup=())
    exported = open_exported(export_tflite(saved, tmp_path / "m.tflite", precision="float32"))
    assert_close(exported.predict_on_batch(pixels(1)), run_live(model, pixels(1)), 1e-5)


def test_an_opened_export_detects_like_the_live_model(model, exported):
    images = photos((40, 31), (16, 24))
    for found, expected in zip(exported.detect(images, top=9), model.detect(images, top=9), strict=True):
        assert found.classes.tolist() == expected.classes.tolist() and len(found.classes)
        np.testing.assert_allclose(found.boxes, expected.boxes, rtol=1e-3, atol=1e-2)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
    with pytest.raises(ValueError, match="this export detects objects; use its `detect` method"):
        exported.classify(images)


@pytest.mark.slow
@pytest.mark.parametrize("integer_io", [None, pytest.param("uint8", marks=pytest.mark.slow)])
def test_boxes_of_full_int8_end_in_float_unless_its_outputs_are_integers(integer_io, model, saved, tmp_path):
    options = {"precision": "full_int8", "calibration": pixels(8), "integer_io": integer_io}
    opened = open_exported(export_tflite(saved, tmp_path / "m.tflite", **options))
    images = pixels(40)
    outputs = opened.outputs(images)
    count = {name: len(np.unique(values)) for name, values in outputs.items()}
    assert (count["boxes"] > 256) == (integer_io is None) and max(count["logits"], count["scores"]) <= 256
    assert_close(opened.predict_on_batch(images), run_live(model, images), 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("precision, bound", [("bfloat16", 0.05), ("int8", 0.1)])
def test_openvino_computes_boxes_in_few_bits(precision, bound, model, saved, tmp_path):
    for package in ("openvino", "nncf"):
        pytest.importorskip(package, reason=f"{package} is not installed; see requirements-peers.txt")
    options = {"calibration": pixels(8)} if precision == "int8" else {}
    opened = open_exported(export_openvino(saved, tmp_path / "m.xml", precision=precision, **options))
    assert_close(opened.predict_on_batch(pixels(2)), run_live(model, pixels(2)), bound)


@pytest.mark.slow
def test_an_opened_export_is_evaluated_like_the_live_model(model, saved):
    scenes = few_scenes().split("test")
    expected = evaluate(model, scenes, task="detection")
    found = evaluate(open_exported(saved), scenes, task="detection")
    assert found == {name: pytest.approx(score, abs=1e-4) for name, score in expected.items()}


@pytest.mark.slow
@pytest.mark.parametrize("resize", ["pad", "squash", "crop"])
def test_serving_decodes_images_to_boxes_in_their_pixels(resize, tmp_path, eager):
    model = detector(preprocessing={"resize": resize, "crop_fraction": 0.9})
    loaded = tf.saved_model.load(export_saved_model(model, tmp_path / "1", warmup=()))
    images = photos((40, 31), (16, 64))
    encoded = tf.stack([tf.io.encode_png(image) for image in images])
    found = loaded.signatures["serving_bytes"](image_bytes=encoded)
    live = model.detect(images, threshold=0.0, top=60)
    for number, expected in enumerate(live):
        count = len(expected.scores)
        np.testing.assert_allclose(found["scores"][number, :count], expected.scores, atol=1e-5)
        assert not found["scores"][number, count:].numpy().any()  # of boxes in the padding
        np.testing.assert_allclose(found["boxes"][number, :count], expected.boxes, rtol=1e-4, atol=1e-2)
        assert found["class_ids"][number].numpy().tolist()[:count] == expected.classes.tolist()
        assert found["classes"][number, 0].numpy().decode() == DIGITS[expected.classes[0]]
    found = loaded.signatures["serving_uint8"](images=images[0][np.newaxis])
    height, width, _ = images[0].shape
    best = np.unravel_index(found["scores"][0].numpy().argmax(), found["scores"].shape[1:])[0]
    sides = np.clip(found["boxes"][0, best] * [width, height, width, height], 0, [width, height] * 2)
    np.testing.assert_allclose(sides, live[0].boxes[0], rtol=1e-4, atol=1e-2)
    assert loaded.signatures["serving_bytes"](image_bytes=tf.constant([], tf.string))["boxes"].shape[0] == 0


def test_a_page_knows_the_classes_and_the_boxes_in_one_image(model, saved, litert, tmp_path):
    page = export_web(saved, tmp_path / "web", precision="float32", model=litert)
    text = (page / "index.html").read_text(encoding="utf-8")
    facts = json.loads(re.search(r'id="page"[^>]*>(.*?)</script>', text)[1])
    assert facts["labels"] == [*DIGITS] and facts["colors"] == box_colors(10).tolist()
    live = run_live(model, check_input(describe(model)))
    assert [*facts["check"]] == ["boxes", "logits"]
    for name, expected in {"boxes": corners_of(live), "logits": live[..., 4:]}.items():
        check = facts["check"][name]
        assert_close(np.array(check["values"]), expected.ravel()[:: check["step"]], 1e-5)
    with pytest.raises(ValueError, match="shown on pages of models with one row of outputs"):
        check_model(describe(model), attention=True)


def test_the_description_builds_the_detector(model):
    description = described(model, "detection", ("object detection", "`serving_bytes`"))
    assert (description.num_outputs, description.labels) == (10, DIGITS)
    assert not description.is_classifier and not description.is_map
    expected = "^expected the task 'detection' for an ObjectDetector; got 'single_label'"
    with pytest.raises(ValueError, match=expected):
        describe(model, "single_label")


@pytest.mark.parametrize(
    "change, bound, message",
    [
        ({"mean_logit_difference": 1e-4}, "max_logit_difference", "from the live model by 1.0e-04 of the "),
        ({"agreement": 0.97}, "agreement", "the live model on 97.0% of the objects in 64 images; the"),
    ],
)
def test_exports_that_find_other_objects_are_discarded(change, bound, message):
    row = {"max_logit_difference": 0.5, "mean_logit_difference": 0.0, "agreement": 1.0, "score": 0.5}
    tolerance, outputs = Tolerance(bound, 1e-5), DetectionOutputs(None)
    assert tolerance.check(row, 64, outputs) is None
    with pytest.raises(ValueError, match=message):
        tolerance.check(row | change, 64, outputs)
    assert "32 or more images of a data set" in tolerance.check(row | {"score": None}, 16, outputs)


def found_as_live(tab, model, threshold):
    """The `Detections` of the live model in the picture of a page, which has found the same."""
    objects = "result.objects.map(({box, score, number}) => [...box, score, number])"
    picture, found = browser.picture_with(tab, objects)
    [expected] = model.detect(picture, threshold)
    found = np.reshape(found, (-1, 6))
    assert found[:, 5].tolist() == expected.classes.tolist()
    np.testing.assert_allclose(found[:, 4], expected.scores, atol=1e-4)
    np.testing.assert_allclose(found[:, :4], expected.boxes, rtol=1e-3, atol=1e-2)
    return expected


def assert_shows(tab, detections, threshold):
    """Compare the list of a page with the objects in its picture, and what is drawn with the best box."""
    labels, scores = (tab.locator(f"#classes .{part}").all_inner_texts() for part in ("label", "value"))
    assert [label.strip() for label in labels] == [DIGITS[number] for number in detections.classes]
    assert [float(score.strip(" %")) for score in scores] == pytest.approx(detections.scores * 100, abs=0.1)
    assert tab.inner_text("#threshold-value") == f"{100 * threshold:.1f} %: {len(labels)}"
    left, _, right, bottom = detections.boxes[0].tolist()
    drawn = tab.evaluate(browser.DRAWN, [(left + right) / 2, bottom - 1e-3])
    assert drawn == [*box_colors(10)[detections.classes[0]].tolist(), 255]


PAGES = [("squash", None, "webgpu"), ("squash", 12, "webgpu"), ("crop", None, "wasm"), ("pad", None, "wasm")]


@pytest.mark.slow
@pytest.mark.parametrize("resize, query_size, accelerator", PAGES)
def test_pages_draw_the_objects_over_pictures_and_the_camera(resize, query_size, accelerator, tmp_path):
    model = detector(query_size, preprocessing={"resize": resize, "crop_fraction": 0.9})
    saved = export_saved_model(model, tmp_path / "1", warmup=())
    page = export_web(saved, tmp_path / "web", precision="float32", title="Digits")
    Image.fromarray(photos((60, 84))[0]).save(tmp_path / "photo.png")
    with browser.ready(page, accelerator) as tab:
        assert tab.is_hidden("#threshold")
        tab.set_input_files("#file", tmp_path / "photo.png")
        tab.evaluate("last")
        for threshold in (0.3, 0.05, 0.45):
            tab.fill("#threshold", str(threshold))
            assert_shows(tab, found_as_live(tab, model, threshold), threshold)
        tab.fill("#threshold", "1")
        assert tab.evaluate("result.objects") == [] and tab.locator("#classes li").count() == 0
        browser.hide_and_show_overlay(tab)
        tab.fill("#threshold", "0.3")
        browser.follow_camera(tab, 500)
        found_as_live(tab, model, 0.3)
        browser.take_picture(tab)
        assert_shows(tab, found_as_live(tab, model, 0.3), 0.3)
