import numpy as np
import pytest
from made.devices import devices
from reference.comparing import assert_close, numpy, randomize
from reference.small import small

import keras_vit
from keras_vit.labels.box_rows import PADDING
from keras_vit.preprocessing import Preprocessing
from keras_vit.tasks.detection.detecting import best_detections, input_window
from keras_vit.tasks.detection.loss import DetectionLoss
from keras_vit.training import SGD


def detector(num_classes=3, options={}, **encoder):  # noqa: B006 - it is not changed
    encoder = small(num_classes=None, **encoder)
    return randomize(keras_vit.ObjectDetector(encoder, num_classes, **options))


def test_a_new_model_finds_each_patch_with_a_small_probability():
    """The centers are the lower right corners of the patches, as OWL-ViT has them."""
    model = keras_vit.ObjectDetector(keras_vit.VisionTransformer((16, 24), 8, 24, 1, 48, 3), 2)
    outputs = numpy(model(np.zeros((1, 16, 24, 3), "float32")))[0]
    corners = [(x / 3, y / 2) for y in (1, 2) for x in (1, 2, 3)]
    np.testing.assert_allclose(outputs[:, :2], corners, atol=2e-4)
    np.testing.assert_allclose(outputs[:, 2:4], np.tile([1 / 3, 1 / 2], (6, 1)), atol=2e-4)
    np.testing.assert_allclose(1 / (1 + np.exp(-outputs[:, 4:])), 0.01, rtol=1e-4)


def test_the_outputs_are_the_stages(rng):
    model = detector()
    images = rng.standard_normal((2, *model.image_size, 3)).astype("float32")
    stages = model.feature_extractor(["boxes", "logits"])(images)
    outputs = numpy(model(images))
    np.testing.assert_array_equal(outputs, np.concatenate([numpy(stages[name]) for name in stages], axis=-1))


def test_the_merged_class_token_multiplies_the_patches(rng):
    model = detector(options={"merge_class_token": True})
    images = rng.standard_normal((2, *model.image_size, 3)).astype("float32")
    tokens = numpy(model.feature_extractor("tokens")(images)["tokens"])
    merged = tokens[:, 1:] * tokens[:, :1]
    norm, head = model.get_layer("merge_norm"), model.get_layer("head")
    np.testing.assert_allclose(numpy(model(images))[..., 4:], numpy(head(norm(merged))), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="^merge_class_token needs an encoder with a class token"):
        detector(options={"merge_class_token": True}, pooling="gap", class_token=False)


def test_objects_in_the_padding_are_left_out():
    rows = np.array([[[0.5, 0.25, 0.2, 0.2, 1.0], [0.5, 0.9, 0.2, 0.1, 2.0]]], "float32")
    [found] = best_detections(rows, [(20, 40)], Preprocessing(16, resize="pad"))
    np.testing.assert_allclose(found.boxes, [[16, 6, 24, 14]], atol=1e-5)


def test_images_of_any_size(rng):
    open_size = detector(image_size=(None, None), position_grid=2)
    for size in ((16, 16), (16, 32)):
        fixed = keras_vit.ObjectDetector(small(num_classes=None, image_size=size, position_grid=2), 3)
        fixed.set_weights(open_size.get_weights())
        images = rng.standard_normal((2, *size, 3)).astype("float32")
        np.testing.assert_allclose(numpy(fixed(images)), numpy(open_size(images)), rtol=1e-4, atol=1e-5)


def test_detections_are_in_pixels_of_the_images(rng):
    model = detector()
    images = [rng.integers(0, 256, (*size, 3), "uint8") for size in ((40, 50), (16, 90))]
    found = model.detect(images, threshold=0.0, top=7)
    for image, one in zip(images, found):
        height, width = image.shape[:2]
        assert one.boxes.shape == (7, 4) and (np.diff(one.scores) <= 0).all()
        assert (one.boxes >= 0).all() and (one.boxes <= [width, height] * 2).all()
        outputs = numpy(model(model.preprocessing([image])))[0]
        patch, number = np.unravel_index(outputs[:, 4:].argmax(), outputs[:, 4:].shape)
        assert one.classes[0] == number
        x, y, w, h = outputs[patch, :4] * (width, height, width, height)
        sides = np.clip([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 0, [width, height] * 2)
        np.testing.assert_allclose(one.boxes[0], sides, rtol=1e-4, atol=1e-3)
    alone = model.detect(images, threshold=0.0, top=7, batch_size=1)
    for one, other in zip(found, alone, strict=True):
        np.testing.assert_allclose(one.boxes, other.boxes, rtol=1e-3, atol=1e-2)
    least = alone[0].scores[3]  # Batches of another size round scores in another way.
    assert len(model.detect(images[:1], threshold=float(least))[0].scores) >= 4
    for wrong in ({"threshold": 1.5}, {"top": 0}, {"batch_size": 0}):
        with pytest.raises(ValueError, match=f"{[*wrong][0]} must be"):
            model.detect(images, **wrong)


def test_boxes_of_a_center_crop_are_those_of_the_whole_image():
    prepare = Preprocessing(32, resize="crop", crop_fraction=0.8)
    scale, offset = input_window((50, 100), prepare)
    np.testing.assert_allclose(scale, [40] * 4)
    np.testing.assert_allclose(offset, [30, 5, 30, 5])
    outputs = np.array([[[0.5, 0.5, 1.0, 0.5, 3.0]]], "float32")
    [found] = best_detections(outputs, [(50, 100)], prepare)
    np.testing.assert_allclose(found.boxes, [[30, 15, 70, 35]])


@pytest.mark.slow
@pytest.mark.tensorflow_only("JAX has one program, whose devices tests/training divides")
@pytest.mark.parametrize("replicas, accumulation_steps", [(0, 2), (2, 1), (2, 2)])
def test_steps_of_parts_are_those_of_the_batch(replicas, accumulation_steps, rng):
    """Of five images with up to three objects, so that the parts differ in size and padding."""
    boxes = np.full((5, 4, 7), PADDING, "float32")
    for image, count in enumerate((3, 0, 1, 2, 1)):
        sides = np.sort(rng.random((count, 2, 2)), axis=1).reshape(count, 4)
        others = rng.integers(0, 3, count), np.zeros(count), np.ones(count)
        boxes[image, :count] = np.column_stack([sides, *others])
    images = rng.standard_normal((5, 16, 16, 3)).astype("float32")
    histories, models = [], []
    for count, steps in ((0, 1), (replicas, accumulation_steps)):
        with devices(count).scope():
            models.append(detector(num_layers=1))
            models[-1].compile(SGD(0.1), DetectionLoss(), accumulation_steps=steps)
        fitted = models[-1].fit(images, boxes, batch_size=5, epochs=3, shuffle=False, verbose=0)
        histories.append(fitted.history["loss"])
    np.testing.assert_allclose(*histories, rtol=1e-5)
    for expected, found in zip(models[0].weights, models[1].weights):
        assert_close(numpy(found), numpy(expected), 1e-4)
