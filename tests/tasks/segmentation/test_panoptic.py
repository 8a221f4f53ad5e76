import numpy as np
import pytest

from keras_vit.evaluation import panoptic_counts, panoptic_quality

CLASSES, THINGS = 4, (1, 3)


def random_panoptic(rng, size, ignored):
    coarse = rng.integers(0, CLASSES, size), rng.integers(0, 3, size)
    found = np.stack(coarse, -1).repeat(3, 0).repeat(3, 1)
    found[rng.random(found.shape[:2]) < ignored] = (255, 0)
    return found


def changed(rng, label):
    """A prediction that is nearly the label: some pixels are of another segment."""
    other = random_panoptic(rng, (label.shape[0] // 3, label.shape[1] // 3), 0.05)
    return np.where(rng.random((*label.shape[:2], 1)) < 0.8, label, other)


def segments(panoptic, things):
    """The pixels of each segment as a set, by (class, object)."""
    found = {}
    for y, row in enumerate(panoptic.tolist()):
        for x, (number, own) in enumerate(row):
            if number != 255:
                found.setdefault((number, own if number in things else 0), set()).add((y, x))
    return found


def counts_by_sets(predicted, label, things):
    """As `panoptic_counts`, by sets of pixels."""
    counts = np.zeros((CLASSES, 4))
    void = {(*at,) for at in np.argwhere(label[..., 0] == 255).tolist()}
    mine, true = segments(predicted, things), segments(label, things)
    matched = set()
    for key, pixels in mine.items():
        best = None
        for other, others in true.items():
            if key[0] == other[0]:
                iou = len(pixels & others) / len((pixels - void) | others)
                if iou > 0.5:
                    best, matched = iou, matched | {other}
        if best is not None:
            counts[key[0], :2] += best, 1
        elif len(pixels & void) <= len(pixels) / 2:
            counts[key[0], 2] += 1
    for key in true.keys() - matched:
        counts[key[0], 3] += 1
    return counts


@pytest.mark.parametrize(
    "ignored, count",
    [(0.0, 8), (0.3, 8), *(pytest.param(part, 250, marks=pytest.mark.slow) for part in (0.0, 0.1, 0.5, 1.0))],
)
def test_counts_equal_those_of_sets_of_pixels(ignored, count, rng):
    for _ in range(count):
        label = random_panoptic(rng, tuple(rng.integers(1, 7, 2)), ignored)
        predicted = changed(rng, label)
        for things in (None, THINGS, ()):
            found = panoptic_counts(predicted, label, CLASSES, things)
            expected = counts_by_sets(predicted, label, range(CLASSES) if things is None else things)
            np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_objects_may_have_any_numbers(rng):
    """As those of COCO, which are colors."""
    label = random_panoptic(rng, (5, 6), 0.1)
    predicted = changed(rng, label)
    expected = panoptic_counts(predicted, label, CLASSES, THINGS)
    for numbers in ([7, -(2**62), 2**62], [2**24 - 1, 5, 0]):
        pair = (np.stack([each[..., 0], np.array(numbers)[each[..., 1]]], -1) for each in (predicted, label))
        np.testing.assert_allclose(panoptic_counts(*pair, CLASSES, THINGS), expected)
    small = predicted.astype("uint8"), label.astype("uint8")
    np.testing.assert_allclose(panoptic_counts(*small, CLASSES, THINGS), expected)


def test_the_quality_is_the_mean_over_classes_with_segments():
    counts = np.array([[1.5, 2, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0], [0.6, 1, 0, 0]])
    found = panoptic_quality(counts, THINGS, "abcd")
    pq, sq, rq = (np.array([0.5, 0, 0.6]), np.array([0.75, 0, 0.6]), np.array([2 / 3, 0, 1]))
    assert [found[name] for name in ("pq", "sq", "rq")] == pytest.approx([pq.mean(), sq.mean(), rq.mean()])
    assert found["pq_things"] == pytest.approx(0.3) and found["pq_stuff"] == pytest.approx(0.5)
    empty = {"name": "c", "pq": None, "sq": None, "rq": None, "matched": 0, "wrong": 0, "missed": 0}
    assert found["classes"][2] == empty
    assert panoptic_quality(np.zeros((2, 4)))["pq"] is None


@pytest.mark.parametrize(
    "shape, number, said",
    [
        ((2, 3, 2), 0, r"of one size; got \(2, 2, 2\) and \(2, 3, 2\)"),
        ((2, 2, 2), 9, "classes below 4, or 255; got 9"),
    ],
)
def test_other_maps_are_refused(shape, number, said):
    with pytest.raises(ValueError, match=said):
        panoptic_counts(np.zeros((2, 2, 2), int), np.full(shape, number), CLASSES)
