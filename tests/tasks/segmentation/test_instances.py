"""Objects that the queries of a model find."""

import types

import numpy as np
import pytest
from reference.comparing import randomize
from reference.small import SMALL

from keras_vit import ImageSegmenter
from keras_vit.tasks.segmentation import instances as module
from keras_vit.tasks.segmentation.instance_task import INSTANCES
from keras_vit.tasks.segmentation.instances import best_instances, boxes_of

CLASSES, QUERIES = 4, 6


def made():
    encoder = {**SMALL, "num_classes": None, "num_layers": 1}
    return randomize(ImageSegmenter(encoder, CLASSES, head="mask", num_queries=QUERIES, query_blocks=1))


model = pytest.fixture(made, scope="module", name="model")


@pytest.fixture(scope="module")
def photo():
    return np.random.default_rng(0).integers(0, 256, (20, 31, 3)).astype("uint8")


def logits_of(rng, size=(5, 7)):
    return rng.normal(0, 2, (QUERIES, CLASSES + 1)), rng.normal(0, 3, (*size, QUERIES))


def found_in(classes, masks, threshold=0.0, top=100, things=None):
    sizes = []

    def masks_of(numbers):
        sizes.append(len(numbers))
        return masks[..., numbers]

    return best_instances(classes, masks_of, masks.shape[:2], threshold, top, things), sizes


def by_definition(classes, masks):
    """(score, class, mask) of all pairs of a query and a class, one after the other, the best first."""
    rows = []
    for scores, mask in zip(classes, np.moveaxis(masks, 2, 0)):
        probabilities = np.exp(scores) / np.exp(scores).sum()
        inside = [1 / (1 + np.exp(-logit)) for logit in mask.ravel() if logit > 0]
        rows += [(p * np.mean(inside), number, mask > 0) for number, p in enumerate(probabilities[:-1])]
    return sorted(rows, key=lambda row: -row[0])


def test_the_objects_are_all_pairs_of_a_query_and_a_class(rng):
    classes, masks = logits_of(rng)
    found, _ = found_in(classes, masks)
    expected = by_definition(classes, masks)
    assert len(found.scores) == QUERIES * CLASSES
    np.testing.assert_allclose(found.scores, [score for score, *_ in expected], rtol=1e-5)
    assert found.classes.tolist() == [number for _, number, _ in expected]
    np.testing.assert_array_equal(found.masks, [mask for *_, mask in expected])


def test_the_best_classes_are_kept_before_the_masks_are_computed(rng):
    classes, masks = logits_of(rng)
    found, sizes = found_in(classes, masks, top=3)
    assert len(found.scores) == 3 and sum(sizes) <= 3
    same, _ = found_in(classes, masks, threshold=float(found.scores[1]), top=3)
    assert same.scores.tolist() == found.scores[:2].tolist()
    none, sizes = found_in(classes, masks, threshold=1.0)
    assert none.masks.shape == (0, 5, 7) and none.boxes.shape == (0, 4) and not sizes


def test_only_things_are_objects(rng):
    classes, masks = logits_of(rng)
    found, _ = found_in(classes, masks, things=(3, 1))
    expected = [row for row in by_definition(classes, masks) if row[1] in (1, 3)]
    assert found.classes.tolist() == [number for _, number, _ in expected]
    assert not len(found_in(classes, masks, things=())[0].scores)


def test_a_query_without_pixels_is_no_object(rng):
    classes, masks = logits_of(rng)
    masks[..., 2] = -1
    found, _ = found_in(classes, masks)
    assert len(found.scores) == (QUERIES - 1) * CLASSES and found.masks.any(axis=(1, 2)).all()


def test_masks_of_a_few_queries_are_computed_at_once(rng, monkeypatch):
    classes, masks = logits_of(rng)
    whole, sizes = found_in(classes, masks)
    assert sizes == [QUERIES]
    monkeypatch.setattr(module, "AT_ONCE", 2 * 5 * 7)
    parts, sizes = found_in(classes, masks)
    assert sizes == [2, 2, 2]
    for one, other in zip(whole, parts):
        np.testing.assert_array_equal(one, other)


def test_a_box_is_around_the_pixels_of_a_mask():
    masks = np.zeros((3, 6, 8), bool)
    masks[0, 2:4, 3:7] = masks[1, [0, 5], [7, 0]] = True
    assert boxes_of(masks).tolist() == [[3, 2, 7, 4], [0, 0, 8, 6], [0, 0, 0, 0]]
    assert boxes_of(masks[:0]).shape == (0, 4)


def test_objects_are_at_the_size_of_each_image(model, photo):
    photos = [photo, photo.transpose(1, 0, 2)[:, :9]]
    found = model.instances(photos, threshold=0.0, top=5)
    for image, one in zip(photos, found, strict=True):
        assert one.masks.shape[1:] == image.shape[:2] and one.masks.dtype == bool
        assert 0 < len(one.scores) <= 5 and ((one.scores > 0) & (one.scores < 1)).all()
        assert ((one.classes >= 0) & (one.classes < CLASSES)).all()
        np.testing.assert_array_equal(one.boxes, boxes_of(one.masks))


def test_wrong_arguments_are_refused(model, photo):
    for wrong, said in (
        ({"threshold": 1.5}, "threshold must be"),
        ({"top": 0}, "top must be"),
        ({"things": [1, 4]}, r"expected things from 0 to 3; got \[1, 4\]"),
    ):
        with pytest.raises(ValueError, match=said):
            model.instances(photo, **wrong)
    linear = ImageSegmenter(model.encoder, CLASSES)
    with pytest.raises(ValueError, match="only head='mask' has queries; got 'linear'"):
        linear.instances(photo)


@pytest.mark.slow
def test_changed_weights_change_the_objects(photo):
    model = made()
    before = model.instances(photo, threshold=0.0)[0].scores
    assert model.query_predictions() is model.query_predictions()
    model.enable_lora(2, targets=("query", "value"))
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            layer.lora_kernel_b.assign(np.full(layer.lora_kernel_b.shape, 0.5))
    after = model.instances(photo, threshold=0.0)[0].scores
    assert np.abs(after[:3] - before[:3]).max() > 1e-4


@pytest.mark.parametrize("iou, count", [(None, 3), (0.7, 1)])
def test_objects_with_equal_boxes_are_listed_and_drawn_unless_an_iou_is_given(iou, count, model, photo):
    boxes, masks = np.float32([[0, 0, 9, 9]] * 3), np.ones((3, 20, 31), bool)
    found, drawn = module.Instances(boxes, np.ones(3), np.arange(3), masks), []
    model = types.SimpleNamespace(instances=lambda *_: [found], class_names=None, num_classes=CLASSES)
    [row] = INSTANCES.rows(model, ["a.png"], [photo], 9, 0.0, iou, write=lambda *given: drawn.append(given))
    assert len(row["objects"]) == len(drawn[0][2].scores) == count
