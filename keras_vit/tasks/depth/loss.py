"""The loss of a depth estimator, by what it predicts, and its metric in training."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.losses import MEAN
from keras_vit.rules import integer, number, one_of
from keras_vit.tasks.depth.model import QUANTITIES
from keras_vit.types import Tensor

_FLOOR = 1e-6  # of depths, of scales, and of what a square root is taken of


@keras.saving.register_keras_serializable("keras_vit")
class DepthLoss(keras.losses.Loss):
    r"""The loss of a `DepthEstimator`, which compares maps in the pixels with a label.

    The loss of an image is a data term and `gradient_weight` times a gradient term, which compares the edges.
    With :math:`r` for the residual of a pixel, the data term is

    * of "metric" depth the scale-invariant logarithmic loss
      :math:`\sqrt{\mathrm{mean}(r^2) - \lambda \, \mathrm{mean}(r)^2}`, where :math:`r` is the difference of
      the logarithms and λ is `variance_focus`;
    * of "relative" depth the same with λ = 1, so that its scale has no influence;
    * of "disparity" the mean of :math:`|r|`, the difference of the inverse depths, each shifted by its median
      and divided by its mean absolute deviation from the median, so that neither scale nor shift has;
    * of "values" the mean of :math:`|r|`, the plain difference.

    The gradient term is the sum over `scales` resolutions, of which each has every second pixel of the one
    before, of the absolute differences of the residuals of neighbors, down and across, divided by the number
    of labeled pixels. Images without a label have the weight 0.

    Args:
        quantity: "metric", "relative", "disparity" or "values": what the model predicts.
        max_depth: Of "metric": greater depths count as unlabeled.
        variance_focus: λ of "metric", in [0, 1]: 0.5 in Depth Anything V2, 0.85 in DINOv2.
        gradient_weight: The factor of the gradient term, at least 0.
        scales: The number of its resolutions.
        reduction: As of Keras's losses; by default the mean weighted by the sample weights.

    Call arguments:
        y_true: Depths or values (batch, height, width, channels), NaN in pixels without a label. One channel
            unless `quantity` is "values".
        y_pred: The outputs of the model, of the same shape.
        sample_weight: (batch,).

    Example:
        >>> depths, outputs = np.array([[[[1.0], [2.0], [np.nan]]]]), np.array([[[[3.0], [6.0], [1.0]]]])
        >>> round(float(DepthLoss("relative", gradient_weight=0)(depths, outputs)), 3)
        0.001

    Source: Eigen et al. 2014 (arXiv 1406.2283), section 3.2; Ranftl et al. 2020 (MiDaS, arXiv 1907.01341),
    section 5; Oquab et al. 2023 (DINOv2, arXiv 2304.07193), section 7.4. They compute the logarithmic loss
    over all pixels of a batch, here it is the mean over its images, on any number of devices.
    """

    def __init__(
        self,
        quantity: str = "metric",
        max_depth: float | None = None,
        variance_focus: float = 0.5,
        gradient_weight: float = 0.5,
        scales: int = 4,
        reduction: str = MEAN,
        name: str = "depth_loss",
        **kwargs: Any,
    ) -> None:
        super().__init__(reduction=reduction, name=name, **kwargs)
        self.quantity = one_of(QUANTITIES).check("quantity", quantity)
        self.max_depth = max_depth
        self.variance_focus = number(0, 1).check("variance_focus", variance_focus)
        self.gradient_weight = number(0).check("gradient_weight", gradient_weight)
        self.scales = integer(at_least=1).check("scales", scales)

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        if tuple(y_true.shape[1:]) != tuple(y_pred.shape[1:]) and None not in y_true.shape[1:]:
            raise ValueError(
                f"expected maps (height, width, channels) of the shape of the outputs, "
                f"{tuple(y_pred.shape[1:])}; got labels of shape {tuple(y_true.shape[1:])}"
            )
        is_labeled = ops.any(labeled(y_true, self.quantity, self.max_depth), axis=(1, 2, 3))
        weights = ops.cast(is_labeled, "float32")
        if sample_weight is not None:
            weights = weights * ops.cast(sample_weight, "float32")
        return super().__call__(y_true, y_pred, sample_weight=weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        valid = labeled(y_true, self.quantity, self.max_depth)
        true = ops.where(valid, y_true, 1.0)
        counts = ops.cast(valid, y_pred.dtype)
        if self.quantity in ("metric", "relative"):
            residual = (ops.log(ops.maximum(y_pred, _FLOOR)) - ops.log(true)) * counts
            focus = self.variance_focus if self.quantity == "metric" else 1.0
            mean = _mean(residual, counts)
            variance = _mean(ops.square(residual - _spread(mean)), counts)
            data = ops.sqrt(variance + (1 - focus) * ops.square(mean) + _FLOOR)
        else:
            if self.quantity == "disparity":
                y_pred, true = _normalized(y_pred, valid), _normalized(1 / true, valid)
            residual = (y_pred - true) * counts
            data = _mean(ops.abs(residual), counts)
        if not self.gradient_weight:
            return data
        return data + self.gradient_weight * _gradients(residual, counts, self.scales)

    def get_config(self) -> dict[str, Any]:
        names = ("quantity", "max_depth", "variance_focus", "gradient_weight", "scales")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@keras.saving.register_keras_serializable("keras_vit")
class AbsoluteRelativeError(keras.metrics.MeanMetricWrapper):
    """The mean over the images of the mean of |output − depth| / depth over the pixels with a label.

    Images without a label need the weight 0.

    Args:
        max_depth: Greater depths count as unlabeled.

    Example:
        >>> float(AbsoluteRelativeError()(np.array([[[[2.0], [np.nan]]]]), np.array([[[[3.0], [1.0]]]])))
        0.5
    """

    _direction = "down"  # for callbacks with mode="auto"

    def __init__(
        self,
        max_depth: float | None = None,
        name: str = "abs_rel",
        dtype: str | keras.DTypePolicy | None = None,
    ) -> None:
        super().__init__(_relative_error, name=name, dtype=dtype, max_depth=max_depth)
        self.max_depth = max_depth

    def get_config(self) -> dict[str, Any]:
        return {"max_depth": self.max_depth, "name": self.name, "dtype": self.dtype}


def labeled(maps, quantity, max_depth=None):
    """The pixels of maps with a label, bool: those that are finite, of depths also positive.

    >>> labeled(np.array([0.0, 1.0, 3.0, np.nan]), "metric", max_depth=2.0).numpy().tolist()
    [False, True, False, False]
    """
    valid = ops.isfinite(maps)
    if quantity != "values":
        valid = valid & (maps > 0)
    return valid if max_depth is None or quantity != "metric" else valid & (maps <= max_depth)


def _relative_error(y_true, y_pred, max_depth):
    valid = labeled(y_true, "metric", max_depth)
    true = ops.where(valid, y_true, 1.0)
    counts = ops.cast(valid, y_pred.dtype)
    return _mean(ops.abs(y_pred - true) / true * counts, counts)


def _mean(values, counts):
    """The mean of each image's values over its pixels that count; others are 0."""
    axes = (1, 2, 3)
    return ops.sum(values * counts, axis=axes) / ops.maximum(ops.sum(counts, axis=axes), 1.0)


def _spread(numbers):
    """A number for each image as a map (batch, 1, 1, 1)."""
    return ops.reshape(numbers, (-1, 1, 1, 1))


def _normalized(maps, valid):
    """Maps without their median, divided by the mean absolute deviation from it."""
    counts = ops.cast(valid, maps.dtype)
    centered = ops.where(valid, maps - _spread(_median(maps, valid)), 0.0)
    return centered / _spread(ops.maximum(_mean(ops.abs(centered), counts), _FLOOR))


def _median(maps, valid):
    """The lower median of each image's valid pixels, 0 without any: by bisection, which sorts nothing."""
    width = 64 if keras.backend.standardize_dtype(maps.dtype) == "float64" else 32
    integer_dtype, most = f"int{width}", 2 ** (width - 1) - 1
    maps = ops.where(valid, ops.cast(maps, f"float{width}"), float("inf"))
    bits = ops.view(ops.stop_gradient(maps), integer_dtype)
    # Ints in the order of the floats: the bits of negative ones fall where these rise.
    keys = ops.where(bits >= 0, bits, ops.bitwise_xor(bits, ops.full_like(bits, most)))
    keys, flat = (ops.reshape(x, (ops.shape(maps)[0], -1)) for x in (keys, maps))
    middle = (ops.sum(ops.cast(valid, "int32"), axis=(1, 2, 3)) - 1) // 2

    def halve(_, bounds):
        low, high = bounds
        center = ops.bitwise_and(low, high) + ops.right_shift(ops.bitwise_xor(low, high), 1)  # overflows not
        below = ops.sum(ops.cast(keys <= ops.expand_dims(center, 1), "int32"), axis=1)
        return ops.where(below > middle, low, center + 1), ops.where(below > middle, center, high)

    bounds = [ops.full_like(keys[:, 0], bound) for bound in (-most - 1, most)]
    _, key = ops.fori_loop(0, width, halve, tuple(bounds))
    # Its pixel gets its gradient.
    index = ops.argmax(ops.cast(keys == ops.expand_dims(key, 1), "int32"), axis=1)
    median = ops.take_along_axis(flat, ops.expand_dims(index, 1), axis=1)[:, 0]
    return ops.where(middle >= 0, median, 0.0)


def _gradients(residual, counts, scales):
    """The gradient term of `DepthLoss`, from residuals that are 0 where nothing counts."""
    total = 0.0
    for scale in range(scales):
        differences, weights = residual[:, :: 2**scale, :: 2**scale], counts[:, :: 2**scale, :: 2**scale]
        down = ops.abs(differences[:, 1:] - differences[:, :-1]) * weights[:, 1:] * weights[:, :-1]
        across = (
            ops.abs(differences[:, :, 1:] - differences[:, :, :-1]) * weights[:, :, 1:] * weights[:, :, :-1]
        )
        edges = ops.sum(down, axis=(1, 2, 3)) + ops.sum(across, axis=(1, 2, 3))
        total = total + edges / ops.maximum(ops.sum(weights, axis=(1, 2, 3)), 1.0)
    return total
