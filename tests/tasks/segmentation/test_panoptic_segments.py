"""Segments of the queries of a model."""

import numpy as np
import pytest
from reference.comparing import randomize
from reference.small import SMALL

from keras_vit import ImageSegmenter
from keras_vit.tasks.segmentation import panoptic_segments

ENCODER = {**SMALL, "num_classes": None}
QUERIES = {"head": "mask", "num_queries": 6, "query_blocks": 1}


def test_images_of_any_size_have_segments_at_their_own_size():
    model = randomize(ImageSegmenter(ENCODER, 5, **QUERIES))
    photo = np.random.default_rng(0).integers(0, 256, (20, 31, 3)).astype("uint8")
    (found,) = model.panoptic(photo, threshold=0.0, overlap=0.0)
    assert found.shape == (20, 31, 2) and (found[..., 0] < 5).any()
    assert ((found[..., 0] == 255) == (found[..., 1] == 0)).all()
    with pytest.raises(ValueError, match="only head='mask' has queries; got 'linear'"):
        ImageSegmenter(ENCODER, 5).panoptic(photo)


def by_definition(masks, scores, classes, things, overlap):
    """The segments of all masks at once, as EoMT's code has them."""
    found, numbers = np.zeros((*masks.shape[:2], 2), "int32") + [255, 0], {}
    likeliest = (masks * scores).argmax(-1)
    for mask, number in enumerate(classes):
        inside, wins = masks[..., mask] >= 0.5, likeliest == mask
        if (inside & wins).any() and wins.sum() >= overlap * inside.sum():
            segment = numbers.setdefault(number if number not in things else (mask,), len(numbers) + 1)
            found[inside & wins] = number, segment
    return found


@pytest.mark.parametrize("at_once", [1, 3 * 130, 2**24])
def test_masks_in_parts_have_the_segments_of_all_at_once(at_once, rng, monkeypatch):
    monkeypatch.setattr(panoptic_segments, "AT_ONCE", at_once)
    logits = 3 * rng.standard_normal((10, 13, 7)).astype("float32")
    logits[:5, :, 2] += 9
    logits[5:, :, 4] += 6
    scores, classes = rng.random(7).astype("float32"), np.array([1, 1, 0, 3, 0, 3, 3])
    asked = []

    def masks_of(masks):
        asked.append(logits[..., masks].shape[-1])
        return logits[..., masks]

    found = panoptic_segments.segments(masks_of, (10, 13), scores, classes, {3}, 0.3)
    expected = by_definition(1 / (1 + np.exp(-logits)), scores, classes.tolist(), {3}, 0.3)
    np.testing.assert_array_equal(found, expected)
    assert max(asked) == min(max(at_once // 130, 1), 7) and len(np.unique(found[..., 1])) > 2


def test_an_image_without_segments_is_ignored_and_nan_is_refused():
    model = ImageSegmenter(ENCODER, 5, **QUERIES)
    photo = np.zeros((20, 31, 3), "uint8")
    (found,) = model.panoptic(photo, threshold=0.999)
    assert found.shape == (20, 31, 2) and (found == [255, 0]).all()
    head = model.get_layer("class_head")
    head.bias.assign(np.full(head.bias.shape, np.nan))
    with pytest.raises(ValueError, match="the model computes NaN or infinity"):
        model.panoptic(photo)
