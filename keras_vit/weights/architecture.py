"""Infer the arguments of a model from the names and shapes of its arrays."""

import collections
import functools
import itertools
import math
import re

from keras_vit.layers.relative_position_bias import PREFIX_PAIRS
from keras_vit.models.vit.geometry import grid_shape, prefix_tokens
from keras_vit.variants import SIZES
from keras_vit.weights.layouts.heads import heads_of_variant

# The shifts of the norms that the option `norm` chooses, which those inside of a pooling are not.
_NORM_SHIFT = re.compile(r"(encoder_block_\d+/)?\w*norm/beta")


def shape_of(arrays, name, ndim, default=None):
    """The shape of an array, or the default of one that is missing.

    Raises:
        ValueError: if it has other axes or no elements, or is missing without a default.
    """
    known = tuple(arrays[name].shape) if name in arrays else default
    if known is None or (known != default and (len(known) != ndim or 0 in known)):
        raise ValueError(f"expected {ndim} axes of the checkpoint's {name}; got {known or 'no such array'}")
    return known


def infer_arguments(arrays, metadata=None, split_heads=True):
    """Infer the constructor arguments of a model from its arrays.

    Args:
        arrays: dict of arrays (or anything with a shape) by our variables' names.
        metadata: dict of arguments known from other sources: `position_grid` or `image_size` of the
            stored table, `prefix_positions`, `num_heads`, and `position_embedding` for files without a
            table.
        split_heads: Whether the attention kernels have an axis of heads, as ours. If not, `num_heads` is
            that of the metadata or of the variant with the same sizes.

    Returns:
        dict of arguments for `VisionTransformer.from_config`, without `image_size`, and with the
        `position_grid` of the stored table.

    Raises:
        ValueError: if arrays are missing that every Vision Transformer has, or the heads or the grid
            are ambiguous; the message says which argument to give.
    """
    metadata = metadata or {}
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    block = "encoder_block_0"
    shape = functools.partial(shape_of, arrays)
    arguments = {
        **_patches(shapes, shape),
        "num_classes": shape("head/kernel", 2, (None, None))[1],
        "representation_size": shape("pre_logits/kernel", 2, (None, None))[1],
        "causal": "start_token/token" in shapes,
    }
    hidden_size = arguments["hidden_size"]
    class_token, pooled_norm = "class_token/token" in shapes, "pooled_norm/gamma" in shapes
    arguments["pooling"] = _pooling(shapes, class_token, pooled_norm, hidden_size, metadata)
    if not any(name.startswith("encoder_block_") for name in shapes):
        return {**arguments, "num_layers": None, "mlp_dim": None, "num_heads": None}
    # A part exists if any block has it: of a damaged file the lists of differences then name what is missing.
    in_blocks = {name.partition("/")[2] for name in shapes if name.startswith("encoder_block_")}
    gated, qkv_bias = "mlp/gate/kernel" in in_blocks, "attention/query/bias" in in_blocks
    scaled = "attention_scale/gamma" in in_blocks
    arguments |= {
        "num_layers": _count(shapes, r"encoder_block_(\d+)(/.*)", start=0),
        "mlp_dim": shape(f"{block}/mlp/{'gate' if gated else 'dense_0'}/kernel", 2)[1],
        "gated_mlp": gated,
        "norm": "layer" if any(_NORM_SHIFT.fullmatch(name) for name in shapes) else "rms",
        "qkv_bias": qkv_bias,
        "key_bias": not qkv_bias or "attention/key/bias" in in_blocks,
        "linear_bias": "attention/out/bias" in in_blocks,
        "qk_norm": "attention/query_norm/gamma" in in_blocks,
        "attention_sub_norm": "attention/output_norm/gamma" in in_blocks,
        "mlp_sub_norm": "mlp/hidden_norm/gamma" in in_blocks,
        "patch_norm": "patch_norm/gamma" in shapes,
        "final_norm": pooled_norm or "encoder_norm/gamma" in shapes,
        "scale_mlp": not scaled or "mlp_scale/gamma" in in_blocks,
        "relative_positions": "attention/position_bias/table" in in_blocks,
        "class_token": class_token,
        "num_registers": shape("register_tokens/token", 3, (1, 0, hidden_size))[1],
        "distillation": "head_distillation/kernel" in shapes or "distillation_token/token" in shapes,
        "pre_norm": "pre_norm/gamma" in shapes,
        "norm_after_pooling": pooled_norm,
    }
    pooling_mlp_dim = shape("attention_pooling/mlp/dense_0/kernel", 2, (None, arguments["mlp_dim"]))[1]
    if pooling_mlp_dim != arguments["mlp_dim"]:
        arguments["pooling_mlp_dim"] = pooling_mlp_dim
    if scaled:
        # Its initial value is unknown, and has no effect on a trained model.
        arguments["layer_scale"] = metadata.get("layer_scale") or 1e-5
    query = shape(f"{block}/attention/query/kernel", 2 + split_heads)
    arguments["num_heads"] = query[1] if split_heads else _heads(arguments, metadata)
    arguments["num_kv_heads"] = _kv_heads(shapes, arguments, split_heads)
    table = shape("position_embedding/table", 3, (1, None, hidden_size))
    if arguments["relative_positions"]:
        offsets = shape(f"{block}/attention/position_bias/table", 2)[0]
        arguments["position_grid"] = _relative_grid(offsets, class_token, {**metadata, **arguments})
        metadata = {"position_embedding": "none", **metadata}
    return arguments | _positions(table[1], {**metadata, **arguments})


def _pooling(shapes, class_token, pooled_norm, hidden_size, metadata):
    """The pooling: only some have shapes of their own; the metadata or the usual one decide otherwise."""
    if "attention_pooling/probe" in shapes:
        return "map"
    first, *_ = shapes.get("pre_logits/kernel", shapes.get("head/kernel", (None,)))
    both = metadata.get("pooling") == "token_gap" if first is None else first == 2 * hidden_size
    if class_token and both:
        return "token_gap"
    usual = "token" if class_token and not pooled_norm else "gap"
    possible = ("token", "gap", None) if class_token else ("gap", None)
    return metadata["pooling"] if metadata.get("pooling", "") in possible else usual


def _heads(arguments, metadata):
    if metadata.get("num_heads"):
        return metadata["num_heads"]
    if heads := heads_of_variant(arguments):
        return heads
    sizes = ", ".join(f"{name} {arguments[name]}" for name in SIZES[:-1])
    raise ValueError(
        f"the number of attention heads is unknown, because no named variant has the file's sizes ({sizes}); "
        "give num_heads"
    )


def _kv_heads(shapes, arguments, split_heads):
    """The number of key and value heads: None for that of the queries, an int, or one for each block."""
    hidden_size, heads = arguments["hidden_size"], []
    # More heads than channels are refused later.
    head_size = 1 if split_heads else max(hidden_size // arguments["num_heads"], 1)
    for i in range(arguments["num_layers"]):
        _, size, *_ = shapes.get(f"encoder_block_{i}/attention/key/kernel", (0, hidden_size))
        heads.append(size // head_size)
    if {*heads} == {arguments["num_heads"]} or 0 in heads:
        return None
    return heads[0] if len({*heads}) == 1 else tuple(heads)


def _relative_grid(offsets, class_token, metadata):
    """The grid of a table of relative positions with this number of rows."""
    offsets -= PREFIX_PAIRS * class_token
    if grid := metadata.get("position_grid"):
        return grid
    if metadata.get("image_size"):
        return grid_shape(metadata["image_size"], metadata["patch_size"], None)
    side = math.isqrt(max(offsets, 0))
    if side * side != offsets or side % 2 == 0:
        raise ValueError(
            f"the checkpoint's {offsets} relative positions do not belong to a square grid; give "
            "position_grid=(rows, columns)"
        )
    return ((side + 1) // 2,) * 2


def _patches(shapes, shape):
    """The options of what is before the tokens."""
    if "patch_embedding/table" in shapes:
        palette, hidden_size = shape("patch_embedding/table", 2)
        patch_size, channels = (1, 1), shape("patch_embedding/palette", 2, (palette, 3))[1]
    else:
        palette, (*patch_size, channels, hidden_size) = None, shape("patch_embedding/kernel", 4)
    options = {"patch_size": tuple(patch_size), "hidden_size": hidden_size, "palette": palette}
    if "conv_root/kernel" not in shapes:
        return {**options, "in_channels": channels}
    *_, options["in_channels"], options["resnet_width"] = shape("conv_root/kernel", 4)
    stages = range(1, 1 + _count(shapes, r"block(\d+)_unit1(_conv1/kernel)"))
    units = (_count(shapes, rf"block{stage}_unit(\d+)(_conv1/kernel)") for stage in stages)
    return {**options, "resnet": tuple(units)}


def _positions(count, metadata):
    """The options of the positions, whose table has `count` rows, or None without a table."""
    if count is None:
        if "position_embedding" not in metadata and not metadata.get("rotary"):
            raise ValueError(
                "expected a position table in the file; got none: give position_embedding='none' or "
                "'sincos2d' if the model has these"
            )
        return {"position_embedding": metadata.get("position_embedding", "none")}
    prefix = sum(number for _, number, _ in prefix_tokens(metadata))
    ways = [metadata["prefix_positions"]] if "prefix_positions" in metadata else [True, False]
    ways = [way for way in ways if way or prefix] or [True]  # the same without prefix tokens
    grid, origin = metadata.get("position_grid"), "position_grid"
    if grid is None and metadata.get("image_size"):
        grid = grid_shape(metadata["image_size"], metadata["patch_size"], metadata.get("resnet"))
        origin = f"an image of {metadata['image_size'][0]}×{metadata['image_size'][1]}, a grid of"
    grids = {}
    for way in ways:
        size = max(count - prefix * way, 0)
        rows, columns = grid or (math.isqrt(size),) * 2
        if size and rows * columns == size:
            grids[way] = (rows, columns)
    if len(grids) == 2:
        raise ValueError(
            f"{count} positions may be {grids[False][0]}×{grids[False][1]}, or {prefix} prefix tokens "
            f"and {grids[True][0]}×{grids[True][1]}; give prefix_positions=True or False"
        )
    if not grids:
        size = count - prefix * ways[0]
        if grid:
            raise ValueError(f"{origin} {grid[0]}×{grid[1]} does not fit the checkpoint's {size} positions")
        raise ValueError(
            f"the checkpoint's {size} grid positions are not a square; give position_grid=(rows, columns)"
        )
    ((way, grid),) = grids.items()
    way = way if prefix else metadata.get("prefix_positions", True)
    return {"position_embedding": "learned", "prefix_positions": way, "position_grid": grid}


def _count(names, pattern, start=1):
    """Count consecutive indices from `start`, by majority over the names that match."""
    indices = collections.defaultdict(set)
    for match in (re.fullmatch(pattern, name) for name in names):
        if match:
            indices[match[2]].add(int(match[1]))
    runs = [next(n for n in itertools.count(start) if n not in found) - start for found in indices.values()]
    return max(runs, key=lambda run: (runs.count(run), run), default=0)
