"""Exports of detectors: boxes in every format."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.scenes import few_scenes
from reference.comparing import assert_close, randomize
from reference.small import one_block, run_live

import keras_vit
from keras_vit.evaluation import evaluate
from keras_vit.export.description import describe, parse_description
from keras_vit.export.exported_model import open_exported
from keras_vit.export.folder import export_folder
from keras_vit.export.hub import Facts
from keras_vit.export.hub_card import model_card
from keras_vit.export.onnx import export_onnx
from keras_vit.export.saved_model import export_saved_model
from keras_vit.export.tflite import export_tflite
from keras_vit.export.tolerance import Tolerance

DIGITS = tuple(map(str, range(10)))


def detector(**options):
    encoder = one_block(num_classes=None, **{"image_size": (16, 24), "mlp_dim": 24, **options})
    model = randomize(keras_vit.ObjectDetector(encoder, 10, merge_class_token=True, class_names=DIGITS))
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
def saved(model, tmp_path_factory):
    return export_saved_model(model, tmp_path_factory.mktemp("detector") / "1", warmup=())


@pytest.fixture(scope="module")
def loaded(saved):
    return tf.saved_model.load(saved)


@pytest.fixture(scope="module", params=["saved_model", "tflite", "onnx"])
def opened(request, saved, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "tflite":
        return open_exported(export_tflite(saved, folder / "m.tflite", precision="float32"))
    return open_exported(export_onnx(saved, folder / "m.onnx") if request.param == "onnx" else saved)


def test_every_format_has_the_boxes_and_scores_of_the_live_model(model, opened):
    images = pixels(1)
    live = run_live(model, images)
    outputs = opened.outputs(images)
    assert {*outputs} == {"boxes", "logits", "scores"}
    assert_close(opened.predict_on_batch(images), live, 1e-5)
    low, high = live[..., :2] - live[..., 2:4] / 2, live[..., :2] + live[..., 2:4] / 2
    assert_close(outputs["boxes"], np.concatenate([low, high], axis=-1), 1e-5)
    assert_close(outputs["scores"], keras.ops.sigmoid(live[..., 4:]).numpy(), 1e-5)


def test_an_opened_export_detects_like_the_live_model(model, opened):
    images = photos((40, 31), (16, 24))
    for found, expected in zip(opened.detect(images, top=9), model.detect(images, top=9), strict=True):
        assert found.classes.tolist() == expected.classes.tolist() and len(found.classes)
        np.testing.assert_allclose(found.boxes, expected.boxes, rtol=1e-3, atol=1e-2)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
    with pytest.raises(ValueError, match="this export detects objects; use its `detect` method"):
        opened.classify(images)


def test_an_opened_export_is_evaluated_like_the_live_model(model, saved):
    scenes = few_scenes().split("test")
    expected = evaluate(model, scenes, task="detection")
    found = evaluate(open_exported(saved), scenes, task="detection")
    assert found == {name: pytest.approx(score, abs=1e-4) for name, score in expected.items()}


@pytest.mark.parametrize("resize", ["squash", "crop", "pad"])
def test_serving_decodes_images_to_boxes_in_their_pixels(resize, tmp_path, eager):
    model = detector(preprocessing={"resize": resize, "crop_fraction": 0.9})
    loaded = tf.saved_model.load(export_saved_model(model, tmp_path / "1", warmup=()))
    images = photos((40, 31), (16, 64))
    encoded = tf.stack([tf.io.encode_png(image) for image in images])
    found = loaded.signatures["serving_bytes"](image_bytes=encoded)
    live = model.detect(images, threshold=0.0, top=60)
    for number, expected in enumerate(live):
        np.testing.assert_allclose(found["scores"][number], expected.scores, atol=1e-5)
        np.testing.assert_allclose(found["boxes"][number], expected.boxes, rtol=1e-4, atol=1e-2)
        assert found["class_ids"][number].numpy().tolist() == expected.classes.tolist()
        assert found["classes"][number, 0].numpy().decode() == DIGITS[expected.classes[0]]
    found = loaded.signatures["serving_uint8"](images=images[0][np.newaxis])
    height, width, _ = images[0].shape
    best = np.unravel_index(found["scores"][0].numpy().argmax(), found["scores"].shape[1:])[0]
    sides = np.clip(found["boxes"][0, best] * [width, height, width, height], 0, [width, height] * 2)
    np.testing.assert_allclose(sides, live[0].boxes[0], rtol=1e-4, atol=1e-2)
    assert loaded.signatures["serving_bytes"](image_bytes=tf.constant([], tf.string))["boxes"].shape[0] == 0


def test_the_description_builds_the_detector(model):
    description = describe(model, seed=3)
    assert parse_description(description.as_json(), "m.onnx") == description
    assert (description.task, description.num_outputs, description.labels) == ("detection", 10, DIGITS)
    assert not description.is_classifier and not description.is_map
    built = description.build(description.live_preprocessing)
    assert type(built) is keras_vit.ObjectDetector and built.output_shape == model.output_shape
    card = model_card(description, Facts(), "vit")
    assert "object detection" in card and "`serving_bytes`" in card and "None" not in card
    expected = "^expected the task 'detection' for an ObjectDetector; got 'single_label'"
    with pytest.raises(ValueError, match=expected):
        describe(model, "single_label")


@pytest.mark.parametrize(
    "change, bound, message",
    [
        (
            {"mean_logit_difference": 1e-4},
            "max_logit_difference",
            "differ from the live model by 1.0e-04 of the ",
        ),
        (
            {"agreement": 0.97},
            "agreement",
            "agrees with the live model on 97.0% of the objects in 64 images; the",
        ),
        ({"max_logit_difference": 0.5}, "max_logit_difference", None),
    ],
)
def test_exports_that_find_other_objects_are_discarded(change, bound, message):
    row = {
        "max_logit_difference": 0.0,
        "mean_logit_difference": 0.0,
        "agreement": 1.0,
        "score": 0.5,
        **change,
    }
    tolerance = Tolerance(bound, 1e-5)
    if message:
        with pytest.raises(ValueError, match=message):
            tolerance.check(row, 64, has_objects=True)
    else:
        assert tolerance.check(row, 64, has_objects=True) is None
    row = {**row, "mean_logit_difference": 0.0, "score": None}
    assert "32 or more images of a data set" in tolerance.check(row, 16, has_objects=True)


@pytest.mark.slow
def test_a_folder_of_exports_has_the_precision_of_each(model, tmp_path):
    small = detector(image_size=32, patch_size=8)
    report = export_folder(
        small,
        tmp_path / "export",
        ("saved_model", "tflite"),
        dataset=few_scenes(),
        precisions=("float32", "float16"),
    )
    assert report["judged"] == "ap" and report["images"] == 12
    scores = [row["score"] for row in (report["live"], *report["formats"].values())]
    assert scores == pytest.approx([scores[0]] * 4, abs=0.005)
    with pytest.raises(ValueError, match="web"):
        export_folder(small, tmp_path / "page", ("web",))
    assert not (tmp_path / "page").exists()
