"""Scores of depth maps and of other maps of numbers, and the alignment of those without a scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.models.windows import resized_outputs
from keras_vit.tasks.depth.estimating import WITHOUT_SCALE, fitted

SCORES = ("a1", "a2", "a3", "abs_rel", "rmse", "log10", "silog", "mae")
RATIO = 1.25  # of the larger to the smaller depth, below which a pixel counts for a1
MIN_DEPTH, MAX_DEPTH = 1e-3, np.inf


@dataclasses.dataclass(frozen=True)
class DepthPredictions:
    """What is stored of estimated maps: the scores of each image, whatever its size.

    Args:
        image_scores: float64 (samples, 8), the `SCORES` of each image, NaN where one is undefined.
        pixels: int64 (samples,), the number of pixels with a label.

    Example:
        >>> depths = np.array([[[1.0], [2.0], [np.nan]]])
        >>> DepthPredictions.of([depths * 1.1], [depths]).pixels.tolist()
        [2]
    """

    image_scores: np.ndarray
    pixels: np.ndarray

    @classmethod
    def of(
        cls,
        outputs: Sequence[np.ndarray],
        labels: Sequence[np.ndarray],
        quantity: str = "metric",
        min_depth: float = MIN_DEPTH,
        max_depth: float = MAX_DEPTH,
    ) -> DepthPredictions:
        """Of maps of images of any sizes, resized bilinearly to the labels' sizes.

        Args:
            outputs: (height, width, channels) of each image: what a `DepthEstimator` predicts.
            labels: The same of its label, of any size; NaN where there is none.
            quantity: "metric", "relative", "disparity" or "values", as of `DepthEstimator`.
            min_depth, max_depth: Labels outside of this range do not count, and depths are clipped to it;
                without a `max_depth`, those of disparities to the farthest label of the image.
        """
        scores, pixels = [], []
        for output, label in zip(outputs, labels):
            if label.shape[:2] != output.shape[:2]:
                output = resized_outputs(output, label.shape[:2])
            if label.shape != output.shape:
                raise ValueError(
                    f"expected labels of {output.shape[-1]} channel(s), as the outputs have; got "
                    f"{label.shape[-1]}"
                )
            scores_of_image, count = _scores(output, label, quantity, min_depth, max_depth)
            scores.append(scores_of_image)
            pixels.append(count)
        return cls(np.array(scores, "float64").reshape(-1, len(SCORES)), np.array(pixels, "int64"))

    @property
    def errors(self) -> np.ndarray:
        """float64 (samples,): the `abs_rel` of each image, of values its `mae`; 0 without a label."""
        relative, absolute = (self.image_scores[:, SCORES.index(name)] for name in ("abs_rel", "mae"))
        return np.nan_to_num(np.where(np.isnan(relative), absolute, relative))


def depth_scores(predictions: DepthPredictions) -> dict[str, Any]:
    """The scores of depth maps: the means of those of the images that have a label.

    Args:
        predictions: DepthPredictions.

    Returns:
        dict of `samples`; `a1`, `a2` and `a3`, the fraction of pixels whose depth is wrong by a factor below
        1.25, 1.25² and 1.25³; `abs_rel`, the mean of |output − depth| / depth; `rmse`, the root of the mean
        squared error; `log10`, the mean absolute difference of the decimal logarithms; `silog`, 100 times the
        standard deviation of the difference of the natural logarithms; and `mae`, the mean absolute error.
        Of values that are no depths only `rmse` and `mae`; the others are None.

    Example:
        >>> depths = np.array([[[1.0], [2.0], [np.nan]]])
        >>> scores = depth_scores(DepthPredictions.of([depths * 1.1], [depths]))
        >>> scores["a1"], round(scores["abs_rel"], 6), round(scores["silog"], 6)
        (1.0, 0.1, 0.0)

    Source: Eigen et al. 2014 (arXiv 1406.2283), section 4.2; `silog` as of the KITTI benchmark.
    """
    counted = predictions.image_scores[predictions.pixels > 0]
    means = counted.mean(axis=0) if len(counted) else np.full(len(SCORES), np.nan)
    scores = {name: None if np.isnan(mean) else float(mean) for name, mean in zip(SCORES, means)}
    return {"samples": len(predictions.pixels), **scores}


def aligned(output: np.ndarray, label: np.ndarray, quantity: str = "disparity") -> np.ndarray:
    """Depths from a map whose scale and shift are unknown, by those that fit a label best.

    They minimize the squared differences from the label, or from its inverse for "disparity", in the pixels
    that have one.

    Args:
        output: What a `DepthEstimator` predicts, of any shape.
        label: Depths of the same shape; NaN, 0 and negative numbers where there are none.
        quantity: "relative" or "disparity".

    Returns:
        float64 of the same shape: depths in the unit of the label, at least 0; infinity where a disparity is
        0 or less.

    Example:
        >>> depths = np.array([1.0, 2.0, 4.0, np.nan])
        >>> aligned(np.array([9.0, 5.0, 3.0, 1.0]), depths).round(6).tolist()
        [1.0, 2.0, 4.0, inf]

    Source: Ranftl et al. 2020 (MiDaS, arXiv 1907.01341), section 5.
    """
    valid = np.isfinite(label) & (label > 0)
    output, label = np.asarray(output, "float64"), np.asarray(label, "float64")
    target = label[valid] if quantity == "relative" else 1 / label[valid]
    if not target.size:
        return np.full(output.shape, np.nan)
    factor, addend = fitted(output[valid], target, least=-np.inf)
    closest = factor * output + addend
    if quantity == "relative":
        return np.maximum(closest, 0)
    with np.errstate(divide="ignore"):
        return np.where(closest > 0, 1 / np.maximum(closest, 0), np.inf)


def _scores(output, label, quantity, min_depth, max_depth):
    """The `SCORES` of an image, and the number of its pixels with a label."""
    output, label = np.asarray(output, "float64"), np.asarray(label, "float64")
    valid = np.isfinite(label)
    if quantity != "values":
        valid &= (label >= min_depth) & (label <= max_depth)
    count = int(valid.any(axis=-1).sum())
    scores = dict.fromkeys(SCORES, np.nan)
    if not count:
        return [*scores.values()], 0
    if quantity in WITHOUT_SCALE:
        output = aligned(output, np.where(valid, label, np.nan), quantity)
    estimate, true = output[valid], label[valid]
    if quantity != "values":
        # Depths of disparities near 0 have no bound, and MiDaS's authors cap them at that of the data set.
        has_bound = quantity != "disparity" or np.isfinite(max_depth)
        estimate = np.clip(estimate, min_depth, max_depth if has_bound else true.max())
    difference = estimate - true
    scores |= {"rmse": np.sqrt((difference**2).mean()), "mae": np.abs(difference).mean()}
    if quantity != "values":
        ratio, log = np.maximum(estimate / true, true / estimate), np.log(estimate) - np.log(true)
        scores |= {f"a{power}": (ratio < RATIO**power).mean() for power in (1, 2, 3)}
        scores["abs_rel"] = (np.abs(difference) / true).mean()
        scores["log10"] = np.abs(log).mean() / np.log(10)
        scores["silog"] = 100 * np.sqrt(max((log**2).mean() - log.mean() ** 2, 0.0))
    return [*scores.values()], count
