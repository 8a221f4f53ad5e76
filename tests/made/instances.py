"""Random objects with masks, found and true, with what evaluations get wrong: ties, crowds, limits."""

import numpy as np

from keras_vit.evaluation import TrueObjects
from keras_vit.models import Instances
from keras_vit.tasks.segmentation.instances import boxes_of

SIZE = (120, 110)  # (height, width): objects of more than 96² pixels fit


def random_images(rng, size=SIZE):
    """(found, truth, classes): `Instances` and `TrueObjects` of a few images, and their class count."""
    classes, crowds = int(rng.integers(1, 4)), rng.choice([0.0, 0.3])
    found, truth = [], []
    for _ in range(int(rng.integers(1, 5))):
        objects = random_masks(rng, int(rng.integers(0, 7)), size)
        of_class, is_crowd = rng.integers(0, classes, len(objects)), rng.random(len(objects)) < crowds
        areas = np.count_nonzero(objects, axis=(1, 2))
        areas = np.where(rng.random(len(areas)) < 0.2, rng.choice([1024, 9216, 1, 1e5], len(areas)), areas)
        truth.append(TrueObjects(objects, of_class, is_crowd, areas))
        masks = random_masks(rng, int(rng.integers(0, rng.choice([3, 12]))), size)
        found_class = rng.integers(0, classes, len(masks))
        near = np.flatnonzero(rng.random(len(masks)) < 0.6) if len(objects) else []
        for row in near:  # An object with other pixels at some places, and mostly with its class.
            chosen, flipped = rng.integers(0, len(objects)), rng.choice([0.0, 0.02, 0.2])
            other = np.roll(objects[chosen], rng.integers(-3, 4, 2), (0, 1))
            masks[row] = np.where(rng.random(size) < flipped, other, objects[chosen])
            found_class[row] = of_class[chosen] if rng.random() < 0.8 else found_class[row]
        masks[~masks.any(axis=(1, 2)), 0, 0] = True
        scores = rng.random(len(masks)) if rng.random() < 0.5 else rng.choice([0.25, 0.5], len(masks))
        found.append(Instances(boxes_of(masks), scores, found_class, masks))
    return found, truth, classes


def random_masks(rng, count, size=SIZE):
    """Ellipses and rectangles of many sizes, bool (count, height, width), some of 32² or 96² pixels."""
    rows, columns = np.ogrid[: size[0], : size[1]]
    masks = np.zeros((count, *size), bool)
    for mask in masks:
        sides = np.array([rng.choice([32, 96])] * 2) if rng.random() < 0.2 else rng.integers(2, 100, 2)
        top, left = (int(rng.integers(0, max(whole - side, 1))) for whole, side in zip(size, sides))
        if rng.random() < 0.5:
            mask[top : top + sides[0], left : left + sides[1]] = True
        else:
            (y, x), (b, a) = (top + sides[0] / 2, left + sides[1] / 2), sides / 2
            mask[:] = ((rows + 0.5 - y) / b) ** 2 + ((columns + 0.5 - x) / a) ** 2 <= 1
    return masks
