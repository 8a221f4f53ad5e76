"""Each pixel of an image has a depth, or several numbers, or no measurement."""

import math

import numpy as np

from keras_vit.labels.label_kind import LabelKind

# The fractions of height and width, (first row, last row, first column, last column), that are scored.
CROPS = {
    "nyu_eigen": (45 / 480, 471 / 480, 41 / 640, 601 / 640),
    "kitti_eigen": (0.3324324, 0.91351351, 0.0359477, 0.96405229),
    "kitti_garg": (0.40810811, 0.99189189, 0.03594771, 0.96405229),
}


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
    map_folders = ("depths", "disparities", "values")

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

    def shared_values(self, values):
        # A reader has made depths of disparities, and applied the scale and the range of the measurements.
        quantity = "values" if values["quantity"] == "values" else "depth"
        return {"quantity": quantity, "unit": values.get("unit"), "crop": values.get("crop")}

    def parse(self, text):
        raise ValueError(f"expected a depth map, which a table cannot hold; got {text!r}")

    def format(self, label, names):
        """The smallest and the largest measurement of each channel."""
        channels = [values[np.isfinite(values)] for values in np.moveaxis(np.asarray(label), -1, 0)]
        ends = [(name, own.min(), own.max()) for name, own in zip(names, channels) if own.size]
        return ", ".join(f"{name} {low:.4g} to {high:.4g}" for name, low, high in ends) or "none"


def cropped(label: np.ndarray, crop: str) -> np.ndarray:
    """A depth map that is NaN outside of the part that published evaluations score.

    Args:
        label: (height, width, …).
        crop: "nyu_eigen" (rows 45 to 470 and columns 41 to 600 of 480 × 640 pixels), "kitti_eigen" or
            "kitti_garg".

    Example:
        >>> kept = np.isfinite(cropped(np.ones((480, 640)), "nyu_eigen"))
        >>> int(kept.sum()) == (471 - 45) * (601 - 41)
        True

    Source: the evaluation of Eigen et al. 2014 and of Garg et al. 2016, as in the code of BTS
    (`cleinc/bts`).
    """
    height, width = label.shape[:2]
    top, bottom, left, right = CROPS[crop]
    rows = slice(int(top * height + 1e-6), int(bottom * height + 1e-6))
    columns = slice(int(left * width + 1e-6), int(right * width + 1e-6))
    kept = np.full(label.shape, np.nan, label.dtype)
    kept[rows, columns] = label[rows, columns]
    return kept


KIND = DepthMaps()
