"""The parts of images around objects: those of transformers' ViTPose, and ours."""

import types

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.preprocessing import Preprocessing
from keras_vit.tasks.keypoints.cropping import cropped, window_of
from keras_vit.tasks.keypoints.crops import to_image
from keras_vit.tasks.keypoints.crops import window_of as window_of_boxes
from keras_vit.tasks.keypoints.estimating import decoded
from keras_vit.tasks.keypoints.labels import label_of

torch = pytest.importorskip("torch")
vitpose = pytest.importorskip("transformers.models.vitpose.image_processing_vitpose")
pytest.importorskip("torchvision")


@pytest.mark.slow
@pytest.mark.parametrize("size", [(64, 48), (48, 64)])
def test_a_crop_has_the_pixels_of_transformers(size, rng):
    height, width = 120, 160
    image = tf.constant(rng.integers(0, 256, (height, width, 3)), tf.uint8)
    boxes = [[10.0, 20.0, 60.0, 50.0], [100.5, 30.25, 40.0, 90.0], [-5.0, 3.0, 30.0, 12.0]]
    processor = vitpose.VitPoseImageProcessor(
        size={"height": size[0], "width": size[1]}, do_rescale=False, do_normalize=False
    )
    expected = processor(image.numpy(), boxes=[boxes], return_tensors="np")["pixel_values"]
    for (left, top, *extent), pixels in zip(boxes, expected, strict=True):
        sides = (left / width, top / height, (left + extent[0]) / width, (top + extent[1]) / height)
        window = window_of(label_of([[0, 0, 0]], sides), (height, width), size)
        found = cropped(image, window, Preprocessing(size)).numpy().transpose(2, 0, 1)
        # At the edge of the image it has no mean of a pixel and black.
        rows, columns = np.mgrid[: size[0], : size[1]]
        places = to_image(np.stack([columns, rows], axis=2), window.numpy(), size) - 0.5
        last = np.array([width - 1, height - 1])
        is_inside = ((places >= 0.01) & (places <= last - 0.01)).all(axis=2)
        is_outside = ((places <= -1.01) | (places >= last + 1.01)).any(axis=2)
        assert (is_inside | is_outside).mean() > 0.9
        difference = (found - pixels)[:, is_inside | is_outside]
        assert np.abs(difference).max() < 0.51  # It rounds to whole numbers.


@pytest.mark.slow
def test_points_of_heat_maps_are_those_of_transformers(rng):
    """Gaussians with noise, some of them at the edges of their maps, to 1e-4 pixels of the image."""
    objects, points, size = 12, 17, (64, 48)
    places = rng.uniform(-1, 64, (objects, points, 2)) * (48 / 64, 1)
    rows, columns = np.mgrid[: size[0], : size[1]]
    offsets = np.stack([columns, rows], axis=2) - places[:, :, np.newaxis, np.newaxis]
    maps = np.exp(-(offsets**2).sum(axis=4) / 8) + 0.002 * rng.random((objects, points, *size))
    maps = maps.astype("float32")
    boxes = np.concatenate([rng.uniform(0, 50, (objects, 2)), rng.uniform(20, 200, (objects, 2))], axis=1)
    processor = vitpose.VitPoseImageProcessor(size={"height": 256, "width": 192})
    outputs = types.SimpleNamespace(heatmaps=torch.tensor(maps))
    [expected] = processor.post_process_pose_estimation(outputs, [boxes.tolist()])
    found, scores = decoded(np.moveaxis(maps, 1, -1))
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    windows = window_of_boxes(corners, np.array([(500, 500)] * objects), 192 / 256)
    found = to_image(found, windows, size) - 0.5
    for row, (own, own_scores) in zip(expected, zip(found, scores), strict=True):
        np.testing.assert_allclose(row["keypoints"].numpy(), own, rtol=0, atol=1e-4)
        np.testing.assert_allclose(row["scores"].numpy(), own_scores, rtol=1e-6)
