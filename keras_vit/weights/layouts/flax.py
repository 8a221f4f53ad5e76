"""Names and stacks of blocks in flax's trees of parameters."""

import numpy as np


def block_names(attention=0, mlp_norm=1, mlp=0):
    """A block's layers by flax's numbers of them; before Linen, one count numbered all parts of a block."""
    parts = ("query", "key", "value", "out")
    return {
        **{f"attention/{part}": f"MultiHeadDotProductAttention_{attention}/{part}" for part in parts},
        "mlp_norm": f"LayerNorm_{mlp_norm}",
        **{f"mlp/dense_{n}": f"MlpBlock_{mlp}/Dense_{n}" for n in (0, 1)},
    }


def unstacked(arrays, start):
    """Divide arrays of all blocks, whose keys begin with `start`, into one array for each block.

    Args:
        arrays: dict of arrays by key.
        start: Such as "Transformer/encoderblock/".

    Returns:
        (dict of arrays by key, dict from these keys to the given ones).

    Raises:
        ValueError: if a block's array is there both ways.

    Example:
        >>> sorted(unstacked({"encoderblock/bias": np.zeros((2, 3))}, "encoderblock/")[0])
        ['encoderblock_0/bias', 'encoderblock_1/bias']
    """
    parts, stored_in = {}, {}
    for key, array in arrays.items():
        is_stack = key.startswith(start) and array.ndim and len(array)
        for i, part in enumerate(array) if is_stack else [(None, array)]:
            name = key if i is None else f"{start[:-1]}_{i}/{key.removeprefix(start)}"
            if name in parts:
                raise ValueError(f"{key} and {stored_in[name]} both hold {name}")
            parts[name], stored_in[name] = part, key
    return parts, stored_in


def stacked(arrays, start):
    """The inverse of `unstacked`: `start` ends with "_", before the number of a block."""
    single, blocks = {}, {}
    for key, array in arrays.items():
        if key.startswith(start):
            number, leaf = key.removeprefix(start).split("/", 1)
            blocks.setdefault(leaf, {})[int(number)] = array
        else:
            single[key] = array
    stacks = {leaf: np.stack([parts[i] for i in sorted(parts)]) for leaf, parts in blocks.items()}
    return {**single, **{f"{start[:-1]}/{leaf}": stack for leaf, stack in stacks.items()}}
