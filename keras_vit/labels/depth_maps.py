"""Each pixel of an image has a depth, or several numbers, or no measurement."""

import math

import numpy as np

from keras_vit.labels.label_kind import LabelKind


class DepthMaps(LabelKind):
    """A map of numbers, float32 (height, width, channels), NaN where there is no measurement.

    Of one channel, a value is a depth along the optical axis, larger where it is farther, in the unit of the
    data set. Several channels, such as those of surface normals, are any numbers.

    Example:
        >>> kind = DepthMaps()
        >>> kind.format(np.float32([[[1.5], [np.nan]], [[2.0], [4.0]]]), ["depth"])
        'depth 1.5 to 4'
        >>> kind.zoomed(np.float32([[[4.0]]]), 2.0).tolist()
        [[[2.0]]]
    """

    name = "depth"
    noun = ("channel", "channels")
    axes = 3
    moves = is_map = has_channels = True
    dtype, outside = "float32", math.nan
    folder, map_folders = "depth_folder", ("depths", "disparities", "values")

    def check(self, labels, num_outputs):
        if labels.ndim != 4 or labels.shape[3] != num_outputs:
            raise ValueError(
                f"expected depth maps (height, width, {num_outputs}) per sample, a channel for each output; "
                f"got labels of shape {labels.shape[1:]}"
            )

    def zoomed(self, values, factor):
        """Depths divided by the factor: what is shown larger is as if it were nearer.

        Source: Eigen et al. 2014 (arXiv:1406.2283), section 3.4.
        """
        return values / factor if values.shape[-1] == 1 else values

    def parse(self, text):
        raise ValueError(f"expected a depth map, which a table cannot hold; got {text!r}")

    def format(self, label, names):
        """The smallest and the largest measurement of each channel."""
        channels = [values[np.isfinite(values)] for values in np.moveaxis(np.asarray(label), -1, 0)]
        ends = [(name, own.min(), own.max()) for name, own in zip(names, channels) if own.size]
        return ", ".join(f"{name} {low:.4g} to {high:.4g}" for name, low, high in ends) or "none"


KIND = DepthMaps()
