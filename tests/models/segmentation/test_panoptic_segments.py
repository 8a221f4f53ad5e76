"""Segments of the queries of a model."""

import numpy as np
import pytest
from reference.comparing import randomize
from reference.small import SMALL

from keras_vit import ImageSegmenter, VisionTransformer
from keras_vit.models.segmentation.panoptic_segments import segments

LEFT = np.repeat([[0.9, 0.9, 0.1, 0.1]], 4, axis=0)
UPPER = LEFT.T
MASKS = np.stack([LEFT, 1 - LEFT, UPPER], axis=-1)


def test_pixels_belong_to_the_likeliest_mask():
    found = segments(MASKS, np.array([0.9, 0.9, 0.5]), [1, 1, 2])
    assert found[0].tolist() == [[1, 1], [1, 1], [1, 2], [1, 2]]
    together = segments(MASKS, np.array([0.9, 0.9, 0.5]), [1, 1, 2], things=(2,))
    assert set(together[..., 1].ravel()) == {1}


def test_a_mask_of_which_little_is_left_is_no_segment():
    scores = np.array([0.9, 0.5, 0.8])
    found = segments(MASKS, scores, [1, 2, 3])
    assert set(found[..., 0].ravel()) == {1, 255}
    assert set(segments(MASKS, scores, [1, 2, 3], overlap=0.4)[..., 0].ravel()) == {1, 2, 3}
    assert (segments(MASKS[..., :0], scores[:0], []) == [255, 0]).all()


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
