"""The head "dpt" of depth estimators in files: what all layouts with one share."""

from keras_vit.layers.depth_head import FACTORS
from keras_vit.weights.layouts.table import CONV, Row

LEVELS = len(FACTORS)


def conv_rows(ours, theirs):
    """Rows of a convolution of torch.

    >>> [row.theirs for row in conv_rows("head_convolution", "conv2")]
    ['conv2.weight', 'conv2.bias']
    """
    return [Row(f"{ours}/kernel", f"{theirs}.weight", CONV), Row(f"{ours}/bias", f"{theirs}.bias")]


_SIZES = (
    *(f"reassemble_{i}/projection/kernel" for i in range(LEVELS)),
    *("reassemble_0/convolution/kernel", "head_convolution/kernel", "output_convolution/kernel"),
)


def has_dpt_head(arrays):
    """Whether arrays, by our names, have such a head."""
    return {"reassemble_0/projection/kernel", "decoder_convolution/kernel"} <= arrays.keys()


def sizes_of(arrays):
    """The arguments of a `DepthEstimator` that the arrays of its head show.

    Raises:
        ValueError: for a head without one of these arrays, as of another number of maps than four.
    """
    if missing := [name for name in _SIZES if name not in arrays]:
        raise ValueError(f"expected a head of {LEVELS} maps and three convolutions; it lacks {missing[0]}")
    return {
        "num_classes": arrays["output_convolution/kernel"].shape[-1],
        "head": "dpt",
        "neck_sizes": tuple(arrays[f"reassemble_{i}/projection/kernel"].shape[-1] for i in range(LEVELS)),
        "decoder_size": arrays["reassemble_0/convolution/kernel"].shape[-1],
        "head_size": arrays["head_convolution/kernel"].shape[-1],
    }
