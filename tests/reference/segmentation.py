"""Scores of segmentations computed in another way: by all pairs of pixels, and by loops over segments."""

import itertools

import numpy as np


def random_maps(rng, count, size, classes, ignored=0.2):
    """Blocks of classes, of 3 × 3 pixels, with ignored pixels: (count, height, width)."""
    coarse = rng.integers(0, classes, (count, -(-size[0] // 3), -(-size[1] // 3)))
    maps = coarse.repeat(3, axis=1).repeat(3, axis=2)[:, : size[0], : size[1]].copy()
    maps[rng.random(maps.shape) < ignored] = 255
    return maps


def boundary_f_of_pairs(predicted, label, tolerance):
    """As `boundary_f`, from the distances of all pairs of boundary pixels."""
    height, width = label.shape
    boundaries = []
    for classes in (predicted, label):
        points = {}
        for y, x in itertools.product(range(height), range(width)):
            if label[y, x] == 255:
                continue
            for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0)):
                v, u = y + down, x + right
                inside = 0 <= v < height and 0 <= u < width and label[v, u] != 255
                if inside and classes[v, u] != classes[y, x]:
                    points.setdefault(int(classes[y, x]), set()).add((y, x))
        boundaries.append(points)
    reach, scores = tolerance * np.sqrt(height**2 + width**2), []
    for number in boundaries[0].keys() | boundaries[1].keys():
        mine, true = (np.array(sorted(points.get(number, ()))).reshape(-1, 2) for points in boundaries)
        near = np.sqrt(((mine[:, None] - true[None]) ** 2).sum(-1)) <= reach
        precision = near.any(1).mean() if len(mine) else 0
        recall = near.any(0).mean() if len(true) else 0
        scores.append(2 * precision * recall / (precision + recall) if precision + recall else 0)
    return float(np.mean(scores)) if scores else None
