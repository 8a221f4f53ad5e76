"""The axes of the attention heads, which torch's layouts merge with those of a head's channels."""

import re

from keras_vit.layers.attention import check_heads
from keras_vit.variants import SIZES, VARIANTS

_ATTENTION = re.compile(r".*attention/(query|key|value|out)/(kernel|bias)")
_HEAD_SIZE = 64  # of every published text tower whose sizes are no variant's: CLIP's


def heads_of_variant(options):
    """The number of heads of the named variants with these sizes, or None if there is none or several."""
    sizes = [options[name] for name in SIZES[:-1]]
    candidates = {heads for (*known, heads) in VARIANTS.values() if known == sizes}
    return candidates.pop() if len(candidates) == 1 else None


def usual_heads(options):
    """The number of heads of a text tower with these sizes, without a configuration file."""
    return heads_of_variant(options) or max(options["hidden_size"] // _HEAD_SIZE, 1)


def split_heads(mapped, arguments, inside=""):
    """Split the axis of all heads' channels in the attention arrays into two: heads and channels.

    Args:
        mapped: `MappedArrays`.
        arguments: dict of the sizes of the tower.
        inside: What the names of the tower's arrays begin with: "text/", or nothing for an image tower's.
    """
    size, heads = arguments["hidden_size"], arguments["num_heads"]
    pooling_heads = arguments.get("pooling_heads") or heads
    check_heads(size, heads)
    if any(name.startswith("attention_pooling/") for name in mapped.arrays):
        check_heads(size, pooling_heads)
    for name, array in mapped.arrays.items():
        match = _ATTENTION.fullmatch(name)
        if not match or name.startswith("text/") != (inside == "text/"):
            continue
        axes = 2 if match[2] == "kernel" else 1
        if array.ndim != axes:
            raise ValueError(f"expected {axes} axes of {mapped.keys[name]}; got {array.shape}")
        before, after = (0, 1) if match.groups() == ("out", "kernel") else (axes - 1, axes)
        head_size = size // (pooling_heads if name.startswith("attention_pooling/") else heads)
        if match.groups() != ("out", "bias") and array.shape[before] % head_size == 0:
            split = (array.shape[before] // head_size, head_size)
            mapped.arrays[name] = array.reshape(*array.shape[:before], *split, *array.shape[after:])


def merged_heads(arrays):
    """The arrays with the axes of heads and of a head's channels merged into one, as torch has it."""
    merged = dict(arrays)
    for name, array in arrays.items():
        match = _ATTENTION.fullmatch(name)
        if match and match.groups() == ("out", "kernel"):
            merged[name] = array.reshape(-1, array.shape[-1])
        elif match and match[1] != "out":
            merged[name] = array.reshape(*array.shape[:-2], -1)
    return merged
