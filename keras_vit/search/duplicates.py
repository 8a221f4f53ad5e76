"""Images that are nearly equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from keras_vit.progress import Progress
from keras_vit.rules import number

if TYPE_CHECKING:
    from keras_vit.search.image_index import ImageIndex

BLOCK = 4096  # vectors that are compared with as many others at a time
NEIGHBORS = 20  # of each image that an approximate engine finds
MOST_PAIRS = 10**7  # in memory
SLACK = 1e-6  # of cosines in float32, in which equal vectors have less than 1
OF_ENGINE = 1e-3  # of cosines of float16 vectors, whose lengths are not quite 1


def near_duplicates(
    index: ImageIndex, threshold: float = 0.95, conditions: Sequence[str] = ()
) -> list[list[tuple[str, float]]]:
    """Groups of images whose vectors are nearly equal.

    Two images are in one group if their cosine, or each on a chain of images between them, reaches the
    threshold. Without an engine of approximate search all pairs are compared. With one each image is compared
    with the 20 nearest that it finds and that meet the conditions. Images whose files are gone or have
    changed (`index.is_stale`) are left out.

    Args:
        index: `ImageIndex`.
        threshold: A cosine, above 0 and at most 1. Which one a copy reaches depends on the model:
            docs/search.md has those of a trained DINOv2.
        conditions: As for `ImageIndex.query`.

    Returns:
        List of groups of two images or more: (path, cosine to the first image of the group), in the order in
        which the images were added.

    Raises:
        ValueError: for another threshold, or as `ImageIndex.query`.

    Example:
        >>> index = keras_vit.search.ImageIndex(tmp / "index", "model.keras", digest="", size=2)
        >>> vectors = np.array([[1, 0], [0, 1], [0.1, 1]])
        >>> index.add(dict.fromkeys(["a.png", "b.png", "c.png"], (None, None)), vectors)
        >>> [[path for path, cosine in group] for group in near_duplicates(index)]
        [['b.png', 'c.png']]
    """
    number(high=1, above=0).check("threshold", threshold)
    rows = np.setdiff1d(index.used_rows(conditions), index.stale_rows(conditions))
    group = np.arange(len(rows))
    least = threshold - SLACK
    if index.engine == "exact":
        pairs = _exact_pairs(index, rows, least)
    else:
        pairs = _nearest_pairs(index, rows, least, conditions)
    waiting, size = [], 0
    for pair in pairs:
        waiting.append(pair)
        size += len(pair[0])
        if size > MOST_PAIRS:
            group, waiting, size = _joined(group, waiting), [], 0
    group = _joined(group, waiting)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    groups = [rows[members] for members in np.split(order, starts[1:]) if len(members) > 1]
    vectors, paths = index.vectors, index.rows["path"]
    described = []
    for members in sorted(groups, key=lambda members: members[0]):
        unit_vectors = _unit_vectors(vectors[members])
        cosines = np.minimum(unit_vectors @ unit_vectors[0], 1).astype("float64").round(4).tolist()
        described.append([*zip(paths.take(members).to_pylist(), cosines)])
    return described


def _exact_pairs(index, rows, threshold):
    """Pairs of positions in `rows` whose cosine reaches the threshold, block by block."""

    def block(start):
        return _unit_vectors(index.vectors[rows[start : start + BLOCK]])

    starts = range(0, len(rows), BLOCK)
    for first in Progress(starts, "comparing", unit="block"):
        first_rows = block(first)
        for second in range(first, len(rows), BLOCK):
            a, b = np.nonzero(first_rows @ block(second).T >= threshold)
            a, b = a + first, b + second
            yield a[a < b], b[a < b]


def _nearest_pairs(index, rows, threshold, conditions):
    position = np.full(len(index.vectors), -1)
    position[rows] = np.arange(len(rows))
    for start in Progress(range(0, len(rows), BLOCK), "comparing", unit="block"):
        vectors = index.vectors[rows[start : start + BLOCK]]
        near, cosines = index.nearest(vectors, NEIGHBORS + 1, conditions)
        a, column = np.nonzero((cosines >= threshold - OF_ENGINE) & (position[near] >= 0))
        a, b = a + start, position[near[a, column]]
        pairs = (_unit_vectors(index.vectors[rows[of]]) for of in (a, b))
        is_near = np.einsum("ij,ij->i", *pairs) >= threshold
        yield a[is_near], b[is_near]


def _unit_vectors(vectors):
    """Vectors of length 1 in float32: rounding to float16 changes lengths more than directions."""
    vectors = vectors.astype("float32")
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _joined(group, pairs):
    """The number of the group of each image, after the images of pairs were joined."""
    _, first = np.unique(group, return_index=True)
    a, b = (np.concatenate([np.zeros(0, int), *of]) for of in zip(*pairs)) if pairs else (group[:0],) * 2
    a, b = np.concatenate([a, np.arange(len(group))]), np.concatenate([b, first[group]])
    return connected_components(coo_matrix((np.ones(len(a), bool), (a, b)), 2 * (len(group),)), False)[1]
