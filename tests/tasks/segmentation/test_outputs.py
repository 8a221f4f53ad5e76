"""Exports of segmenters: class maps in every format."""

import io
import json

import numpy as np
import pytest
import tensorflow as tf
from made.browser import analyzed, overlay
from made.exports import HEADS, SCENE, described, photos, pixels, segmenter
from made.refusals import assert_is, tables
from made.tables import by_table
from PIL import Image
from reference.comparing import assert_close
from reference.small import run_live

from keras_vit.evaluation import evaluate
from keras_vit.export.description import describe, parse_description
from keras_vit.export.exported_model import open_exported
from keras_vit.export.folder import export_folder
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import open_runner
from keras_vit.export.tolerance import Tolerance
from keras_vit.export.verify import Reference
from keras_vit.export.web import check_model, export_web
from keras_vit.inspection.class_colors import class_colors
from keras_vit.tasks.segmentation.outputs import ClassMapOutputs
from keras_vit.tasks.segmentation.samples import MaskSamples
from keras_vit.tasks.segmentation.scores import one_hot

SLOW = pytest.mark.slow


def encoded(images):
    return tf.stack([tf.io.encode_png(image) for image in images])


def masks_of(loaded, images):
    found = loaded.signatures["serving_bytes"](image_bytes=encoded(images))
    assert [*found] == ["mask_bytes"]
    return [np.asarray(Image.open(io.BytesIO(content))) for content in found["mask_bytes"].numpy()]


@pytest.fixture(scope="module")
def model(eager):
    return segmenter(layers=1)


@pytest.fixture(scope="module")
def loaded(saved):
    return tf.saved_model.load(saved)


@pytest.mark.slow
def test_masks_have_the_sizes_of_the_images(model, loaded):
    images = photos((40, 31), (16, 24))
    for mask, expected in zip(masks_of(loaded, images), model.segment(images, whole=True)):
        np.testing.assert_array_equal(mask, expected)
    found = loaded.signatures["serving_uint8"](images=images[0][np.newaxis])
    np.testing.assert_array_equal(found["class_map"][0], model.segment(images[0], whole=True)[0])
    found = loaded.signatures["serving_bytes"](image_bytes=tf.constant([], tf.string))
    assert found["mask_bytes"].shape == (0,) and "image_feature_vector" not in loaded.signatures


@pytest.mark.slow
def test_opened_exports_are_evaluated_and_segment_like_the_live_model(model, saved, litert):
    """At the model's size a class map is as good as logits."""
    images = photos((40, 31), (16, 24))
    masks = [image[..., :1] // 52 for image in images]
    samples = MaskSamples(*(tuple(encoded(each).numpy().tolist()) for each in (images, masks)))
    expected = evaluate(model, samples, task="segmentation")
    assert evaluate(open_exported(saved), samples, task="segmentation") == expected
    found = evaluate(open_exported(litert), samples, task="segmentation")
    assert found["pixel_accuracy"] == pytest.approx(expected["pixel_accuracy"], abs=0.1)
    details = open_runner(litert).get_output_details()
    assert [*details] == ["class_map"] and details["class_map"]["dtype"] is np.uint8
    photo, small = images
    np.testing.assert_array_equal(open_exported(saved).segment(photo)[0], model.segment(photo)[0])
    np.testing.assert_array_equal(open_exported(litert).segment(small)[0], model.segment(small)[0])
    with pytest.raises(ValueError, match="this export segments images; use its `segment` method"):
        open_exported(litert).classify(photo)


def test_the_description_builds_the_segmenter(model):
    description = described(model, "segmentation", ("semantic segmentation", "`class_map`"))
    assert (description.output, description.labels) == ("logits", SCENE)
    assert description.around["head"] == "up" and not description.is_classifier
    values = json.loads(description.as_json())
    wrong = {"task": "single_label", "around": None, "num_outputs": 4, "class_names": ["a"]}
    more = ("around", []), ("around", {"num_classes": 0}), ("kind", "classifier"), ("kind", "boxes")
    for change in [*wrong.items(), *more]:
        text = json.dumps({**values, **dict([change])})
        with pytest.raises(ValueError, match="'m.onnx' is damaged"):
            parse_description(text, "m.onnx")


REFUSED = {  # by the row of the manual
    "another task": lambda model: describe(model, "single_label"),
    "a page with `attention=True`": lambda model: check_model(describe(model), attention=True),
    "`--representation`": lambda model: export_folder(model, "export", representation=True),
}
*_, MESSAGES = tables("segmentation.md")


def test_the_manual_lists_what_exports_refuse():
    assert [*MESSAGES] == [*REFUSED]


@pytest.mark.parametrize("wrong", REFUSED)
def test_an_export_is_refused_with_the_message_of_the_manual(wrong, model):
    with pytest.raises(ValueError) as error:
        REFUSED[wrong](model)
    assert_is(str(error.value), MESSAGES[wrong])


LIVE = np.array([[[0.0, 1.0, 0.5], [3.0, 1.0, 3.0]]], "float32")[np.newaxis]  # (1, 1, 2, 3)


@by_table(
    "classes, agreement, score",
    [([[1, 0]], 1.0, 1.0), ([[1, 2]], 1.0, 1 / 3), ([[2, 0]], 0.5, 1 / 3), ([[7, 1]], 0.0, 0.0)],
    ids=str,
)
def test_pixels_agree_if_their_class_has_the_highest_live_logit(classes, agreement, score, model):
    reference = Reference(describe(model), np.zeros((1, 1, 2, 3)), [np.array([[1, 0]])], LIVE, None)
    found = reference.compare(np.uint8([classes]))
    assert found["agreement"] == agreement and found["max_logit_difference"] is None
    assert found["score"] == pytest.approx(score)
    if max(classes[0]) < 3:
        logits = reference.compare(LIVE + np.float32(0.3) * one_hot(np.uint8([classes]), 3))
        assert logits["max_logit_difference"] == pytest.approx(0.1)


def test_class_maps_have_tolerances_of_their_own():
    exact, agreeing = Tolerance("max_logit_difference", 1e-5, level="exact"), Tolerance("agreement", 0.99)
    outputs = ClassMapOutputs(None)

    def logits(pixels):
        return np.broadcast_to(np.float32(0), (1, 1, pixels, 3))

    def row(agreement, difference=None, score=0.5):
        found = {"max_logit_difference": difference, "mean_logit_difference": difference}
        return {**found, "agreement": agreement, "score": score}

    for noise in (None, 0.5):
        assert exact.check(row(1.0, score=noise), 16, outputs, logits(1000)) is None
        with pytest.raises(ValueError, match="on 99.99% of 1,000 pixels; the bound is 100.0%"):
            exact.check(row(0.9999, score=noise), 16, outputs, logits(1000))
    assert exact.check(row(1.0, 1e-3), 16, outputs, logits(1000)) is None
    with pytest.raises(ValueError, match="NaN"):
        exact.check(row(1.0, np.nan), 16, outputs, logits(1000))
    assert agreeing.check(row(0.995), 300, outputs, logits(1000)) is None
    assert "32 or more images, or 1,000,000 or" in agreeing.check(row(0.9), 31, outputs, logits(999_999))
    for images, count in ((32, 1000), (6, 1_000_000)):
        with pytest.raises(ValueError, match="on 99.40% of .* pixels; the bound is 99.5%"):
            agreeing.check(row(0.994), images, outputs, logits(count))


@SLOW
@pytest.mark.parametrize("head", HEADS)
def test_every_head_gives_masks_at_the_size_of_each_image(head, tmp_path):
    """Models of one size: test_formats.py."""
    model, many = segmenter(head, (None, None)), photos((40, 31), (13, 20))
    saved = export_saved_model(model, tmp_path / "1", warmup=())
    for mask, expected in zip(masks_of(tf.saved_model.load(saved), many), model.segment(many)):
        assert np.mean(mask == expected) > 0.999 and mask.shape == expected.shape
    for exported in map(open_exported, (saved, export_onnx(saved, tmp_path / "m.onnx"))):
        for batch in (pixels(2, (16, 24)), pixels(2, (32, 16))):
            outputs = exported.outputs(batch)
            assert_close(outputs["logits"], run_live(model, batch), 1e-5)
            np.testing.assert_array_equal(outputs["class_map"], outputs["logits"].argmax(-1))


@SLOW
@pytest.mark.parametrize("head", HEADS)
def test_pages_show_the_classes_over_pictures_and_the_camera(head, tmp_path):
    saved = export_saved_model(segmenter(head), tmp_path / "1", warmup=())
    page = export_web(saved, tmp_path / "web", precision="float32", title="Roads")
    file = tmp_path / "photo.png"
    Image.fromarray(photos((48, 36))[0]).save(file)
    exported = open_exported(page)
    images = exported.preprocessing([file])
    expected = exported.outputs(images)["class_map"][0]
    for tab in analyzed(page, file):
        found = np.reshape(tab.evaluate("Array.from(result.outputs.class_map)"), expected.shape)
        assert np.mean(found == expected) > 0.999
        numbers, counts = np.unique(found, return_counts=True)
        labels = [text.strip() for text in tab.locator("#classes .label").all_inner_texts()]
        assert {*labels} == {SCENE[number] for number in numbers}
        assert labels[0] == SCENE[numbers[counts.argmax()]]
        drawn = overlay(tab, *found.shape)
        assert np.abs(drawn[..., :3] - class_colors(5)[found].astype(int)).max() <= 1
        assert ((drawn[..., 3] == 0) == (found == 0)).all() and tab.is_visible("#attention")
