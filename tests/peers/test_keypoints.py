"""The parts of images around objects: those of transformers' ViTPose, and ours."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.preprocessing import Preprocessing
from keras_vit.tasks.keypoints.cropping import cropped, window_of
from keras_vit.tasks.keypoints.crops import to_image
from keras_vit.tasks.keypoints.labels import label_of

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
        places = to_image(np.stack([columns, rows], axis=2), window, size) - 0.5
        last = np.array([width - 1, height - 1])
        is_inside = ((places >= 0) & (places <= last)).all(axis=2)
        is_outside = ((places <= -1) | (places >= last + 1)).any(axis=2)
        assert (is_inside | is_outside).mean() > 0.9
        difference = (found - pixels)[:, is_inside | is_outside]
        assert np.abs(difference).max() < 0.51  # It rounds to whole numbers.
