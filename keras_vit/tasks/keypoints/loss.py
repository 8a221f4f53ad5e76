"""The loss of heat maps: Gaussians around the points, computed where the model is."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.losses import MEAN
from keras_vit.rules import number
from keras_vit.types import Tensor

SIGMA, SIGMA_SIZE = 2.0, 48  # the standard deviation in pixels of a heat map, and the width of the authors'


def heat_maps(points: Tensor, size: tuple[int, int], stride: float = 4, sigma: float = SIGMA) -> Tensor:
    """A Gaussian around each point, at the point itself and not at the nearest pixel.

    Args:
        points: (batch, points, 3 or 2): x and y in fractions of the model's input from edge to edge.
        size: The (height, width) of a heat map.
        stride: The pixels of the input for each pixel of a heat map. The centers of the first and the last
            pixels of both are at the same places.
        sigma: The standard deviation in pixels of a heat map.

    Returns:
        (batch, height, width, points), at most 1.

    Example:
        >>> maps = heat_maps(np.array([[[0.5, 0.5, 2]]]), (9, 9))
        >>> maps.shape, float(ops.max(maps)), int(ops.argmax(maps))
        (TensorShape([1, 9, 9, 1]), 1.0, 40)

    Source: Huang et al. 2020 (UDP, arXiv 1911.07524); `_udp_generate_target` of `ViTAE-Transformer/ViTPose`,
    where a Gaussian ends at 3 sigma.
    """
    points = ops.convert_to_tensor(points)
    weights = []
    for axis, side in ((1, size[0]), (0, size[1])):
        last = side * stride - 1
        center = (points[..., axis] * (side * stride) - 0.5) * (max(side - 1, 1) / max(last, 1))
        distance = ops.reshape(ops.arange(side, dtype=points.dtype), (1, 1, side)) - ops.expand_dims(
            center, 2
        )
        weights.append(ops.exp(-ops.square(distance) / (2 * sigma**2)))
    rows, columns = weights
    return ops.einsum("bkh,bkw->bhwk", rows, columns)


@keras.saving.register_keras_serializable("keras_vit")
class KeypointLoss(keras.losses.Loss):
    """The mean squared error of heat maps, to which points without a label contribute 0.

    Args:
        sigma: Of `heat_maps`, for maps of 48 pixels in width; it scales with their width.
        stride: As for `heat_maps`.
        reduction: As of Keras's losses; by default the mean weighted by the sample weights.

    Call arguments:
        y_true: float32 (batch, points, 3): x, y and visibility, as of `labels.Keypoints`.
        y_pred: (batch, height, width, points), the model's heat maps.

    Raises:
        ValueError: for another number of points than heat maps.

    Example:
        >>> points = np.array([[[0.5, 0.5, 2], [0, 0, 0]]], "float32")
        >>> maps = heat_maps(points, (64, 48))
        >>> float(KeypointLoss()(points, maps))
        0.0

    Source: `JointsMSELoss` with target weights of `ViTAE-Transformer/ViTPose`.
    """

    def __init__(
        self,
        sigma: float = SIGMA,
        stride: float = 4,
        reduction: str = MEAN,
        name: str = "keypoint_loss",
        **kwargs: Any,
    ) -> None:
        super().__init__(reduction=reduction, name=name, **kwargs)
        self.sigma = number(above=0).check("sigma", sigma)
        self.stride = number(above=0).check("stride", stride)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        if tuple(y_true.shape[1:]) != (y_pred.shape[-1], 3):
            raise ValueError(
                f"expected labels of {y_pred.shape[-1]} keypoints (x, y, visibility), one for each heat map; "
                f"got labels of shape {tuple(y_true.shape[1:])}"
            )
        size = y_pred.shape[1:3]
        target = heat_maps(y_true, size, self.stride, self.sigma * size[1] / SIGMA_SIZE)
        is_labeled = ops.cast(y_true[..., 2] > 0, y_pred.dtype)
        errors = ops.mean(ops.square(y_pred - ops.cast(target, y_pred.dtype)), axis=(1, 2))
        return ops.mean(errors * is_labeled, axis=1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "sigma": self.sigma, "stride": self.stride}
