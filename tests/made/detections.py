"""Random detections and objects, with what evaluations get wrong: ties, crowds, empty images, limits."""

import numpy as np

from keras_vit.evaluation import DetectionPredictions


def random_predictions(rng):
    """`DetectionPredictions` of a few images, with boxes at whole pixels."""
    classes, images = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    crowds, noise = rng.choice([0.0, 0.3]), rng.choice([0, 1, 4, 30])
    most = int(rng.choice([3, 12, 130]))
    counts, detections, truth = [], [], []
    for _ in range(images):
        objects = random_boxes(rng, int(rng.integers(0, 8)))
        of_class, is_crowd = rng.integers(0, classes, len(objects)), rng.random(len(objects)) < crowds
        areas = np.prod(objects[:, 2:] - objects[:, :2], axis=1)
        areas = np.where(rng.random(len(areas)) < 0.3, rng.choice([1024, 9216, 1, 1e5], len(areas)), areas)
        truth.append(np.column_stack([objects, of_class, is_crowd, areas]).reshape(-1, 7))
        found = random_boxes(rng, int(rng.integers(0, most)))
        near = np.flatnonzero(rng.random(len(found)) < 0.6) if len(objects) else []
        found_class = rng.integers(0, classes, len(found))
        for row in near:  # An object, moved a little, and mostly with its class.
            chosen = rng.integers(0, len(objects))
            found[row] = objects[chosen] + rng.integers(-noise, noise + 1, 4)
            found_class[row] = of_class[chosen] if rng.random() < 0.8 else found_class[row]
        found[:, 2:] = np.maximum(found[:, 2:], found[:, :2] + 1)
        scores = rng.random(len(found)) if rng.random() < 0.5 else rng.choice([0.25, 0.5, 0.75], len(found))
        detections.append(np.column_stack([found, found_class, scores]).reshape(-1, 6))
        counts.append((len(found), len(objects)))
    return DetectionPredictions(np.array(counts), np.concatenate(detections), np.concatenate(truth), classes)


def random_boxes(rng, count):
    """Boxes (count, 4) of many sizes, float64, some of exactly 32² or 96² pixels."""
    corners = rng.integers(0, 200, (count, 2))
    sides = np.where(
        rng.random((count, 1)) < 0.3, rng.choice([32, 96], (count, 1)), rng.integers(1, 150, (count, 2))
    )
    return np.concatenate([corners, corners + sides], axis=1).astype("float64")


def images_of(predictions):
    """(detections, truth) of each image."""
    ends = np.cumsum(predictions.counts, axis=0)[:-1]
    rows = predictions.detections, predictions.truth
    return [*zip(*(np.split(of, end) for of, end in zip(rows, ends.T)))]
