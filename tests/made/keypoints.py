"""Random keypoints, with what evaluations get wrong: ties, crowds, objects without labels, sizes."""

import numpy as np

from keras_vit.tasks.keypoints.scores import KeypointPredictions


def random_keypoints(rng):
    """`KeypointPredictions` of a few images, with points at whole pixels."""
    count, images = int(rng.integers(1, 7)), int(rng.integers(1, 6))
    crowds, voids, noise = rng.choice([0.0, 0.3]), rng.choice([0.0, 0.3]), rng.choice([0, 1, 4, 30])
    most = int(rng.choice([3, 8, 30]))
    found, truth = [], []
    for image in range(images):
        objects = rng.integers(0, 6)
        places = rng.integers(0, 300, (objects, count, 2))
        marks = rng.integers(0, 3, (objects, count)) * (rng.random((objects, 1)) >= voids)
        corners, sides = rng.integers(0, 200, (objects, 2)), rng.integers(1, 150, (objects, 2))
        areas = np.where(
            rng.random(objects) < 0.5, rng.choice([1024, 9216, 1, 1e5], objects), sides.prod(axis=1) * 0.6
        )
        points = np.concatenate([places, marks[..., np.newaxis]], axis=2).astype("float64")
        boxes = np.concatenate([corners, corners + sides], axis=1)
        for row in zip(points, boxes, areas, rng.random(objects) < crowds):
            truth.append((*row, image))
        for _ in range(rng.integers(0, most)):
            own = rng.integers(0, 300, (count, 2))
            if objects and rng.random() < 0.7:
                own = places[rng.integers(objects)] + rng.integers(-noise, noise + 1, (count, 2))
            score = rng.random() if rng.random() < 0.5 else rng.choice([0.25, 0.5, 0.75])
            found.append((np.concatenate([own, np.ones((count, 1))], axis=1), score, image))
    columns = [*zip(*found)] or [np.zeros((0, count, 3)), (), ()]
    true = [*zip(*truth)] or [np.zeros((0, count, 3)), np.zeros((0, 4)), (), (), ()]
    kinds = ("float64", "float64", "int64", "float64", "float64", "float64", "bool", "int64")
    arrays = [np.array(column, kind) for column, kind in zip((*columns, *true), kinds)]
    return KeypointPredictions(*arrays, tuple(rng.choice([0.025, 0.05, 0.1], count).tolist()))
