"""Segments of the queries of a model."""

import numpy as np
import pytest
from reference.comparing import randomize
from reference.small import SMALL

from keras_vit import ImageSegmenter, VisionTransformer


def test_images_of_any_size_have_segments_at_their_own_size():
    encoder = VisionTransformer(**{**SMALL, "num_classes": None})
    model = randomize(ImageSegmenter(encoder, 5, head="mask", num_queries=6, query_blocks=1))
    photo = np.random.default_rng(0).integers(0, 256, (20, 31, 3)).astype("uint8")
    (found,) = model.panoptic(photo, threshold=0.0, overlap=0.0)
    assert found.shape == (20, 31, 2) and (found[..., 0] < 5).any()
    assert ((found[..., 0] == 255) == (found[..., 1] == 0)).all()
    with pytest.raises(ValueError, match="only head='mask' has queries; got 'linear'"):
        ImageSegmenter(encoder, 5).panoptic(photo)


def test_an_image_without_segments_is_ignored_and_nan_is_refused():
    encoder = VisionTransformer(**{**SMALL, "num_classes": None})
    model = ImageSegmenter(encoder, 5, head="mask", num_queries=6, query_blocks=1)
    photo = np.zeros((20, 31, 3), "uint8")
    (found,) = model.panoptic(photo, threshold=0.999)
    assert found.shape == (20, 31, 2) and (found == [255, 0]).all()
    head = model.get_layer("class_head")
    head.bias.assign(np.full(head.bias.shape, np.nan))
    with pytest.raises(ValueError, match="the model computes NaN or infinity"):
        model.panoptic(photo)
