"""What a checkpoint's arrays tell about the model that they belong to."""

import collections
import itertools
import math
import re

from keras_vit.models.arguments import grid_of, prefix_tokens
from keras_vit.variants import VARIANTS

_SIZES = ("hidden_size", "num_layers", "mlp_dim")


def infer_arguments(arrays, told=None, heads_apart=True):
    """The constructor arguments that the arrays' names and shapes imply.

    Args:
        arrays: dict of arrays (or anything with a shape) by our variables' names.
        told: What is known otherwise, by argument: `position_grid` or `image_size` of the stored
            table, `prefix_positions`, `num_heads`, and `position_embedding` for files without a
            table.
        heads_apart: Whether the kernels of attention have an axis of heads, as ours do; if not,
            `num_heads` is told, or that of the variant with the same sizes.

    Returns:
        dict of `VisionTransformer` arguments, without `image_size`, and with `position_grid` as it
        is stored in the file.

    Raises:
        ValueError: if the arrays lack what every Vision Transformer has, or leave the heads or the
            grid open; the message says which argument to give.
    """
    told = told or {}
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    for name, ndim in (("patch_embedding/kernel", 4), *_ranks(shapes, heads_apart)):
        if len(shapes.get(name, ())) != ndim or 0 in shapes[name]:
            raise ValueError(
                f"the checkpoint's {name} must have {ndim} axes; got {shapes.get(name, 'no such array')}"
            )
    *patch_size, embedded_channels, hidden_size = shapes["patch_embedding/kernel"]
    arguments = {
        "patch_size": tuple(patch_size),
        "hidden_size": hidden_size,
        "num_classes": shapes["head/kernel"][1] if "head/kernel" in shapes else None,
        "representation_size": shapes["pre_logits/kernel"][1] if "pre_logits/kernel" in shapes else None,
        "in_channels": embedded_channels,
    }
    if "conv_root/kernel" in shapes:
        *_, arguments["in_channels"], arguments["resnet_width"] = shapes["conv_root/kernel"]
        arguments["resnet"] = tuple(
            _count(shapes, rf"block{stage}_unit(\d+)(_conv1/kernel)")
            for stage in range(1, 1 + _count(shapes, r"block(\d+)_unit1(_conv1/kernel)"))
        )

    num_layers = _count(shapes, r"encoder_block_(\d+)(/.*)", start=0)
    if not any(name.startswith("encoder_block_") for name in shapes):
        return {
            **arguments,
            "num_layers": None,
            "mlp_dim": None,
            "num_heads": None,
            "pooling": _pooling(shapes, False, False, told),
        }
    block = "encoder_block_0"
    pooled_norm = "pooled_norm/gamma" in shapes
    class_token = "class_token/token" in shapes
    arguments |= {
        "num_layers": num_layers,
        "mlp_dim": shapes[f"{block}/mlp/dense_0/kernel"][1],
        "qkv_bias": f"{block}/attention/query/bias" in shapes,
        "class_token": class_token,
        "num_registers": shapes.get("register_tokens/token", (1, 0))[1],
        "distillation": "head_distillation/kernel" in shapes or "distillation_token/token" in shapes,
        "pre_norm": "pre_norm/gamma" in shapes,
        "norm_after_pooling": pooled_norm,
        "pooling": _pooling(shapes, class_token, pooled_norm, told),
    }
    if f"{block}/attention_scale/gamma" in shapes:
        # How it starts, which no array tells and nothing computes with.
        arguments["layer_scale"] = told.get("layer_scale") or 1e-5
    if shapes.get(f"{block}/mlp/dense_1/kernel") == (arguments["mlp_dim"] / 2, hidden_size):
        raise ValueError(
            f"{block}/mlp/dense_1/kernel takes half of what dense_0 gives: a gated MLP (SwiGLU), which "
            "VisionTransformer does not have"
        )
    arguments["num_heads"] = (
        shapes[f"{block}/attention/query/kernel"][1] if heads_apart else _heads(arguments, told)
    )
    return arguments | _positions(shapes, {**told, **arguments})


def _pooling(shapes, class_token, pooled_norm, told):
    """What the arrays allow: pooling by attention has arrays of its own, the others have none."""
    if "attention_pooling/probe" in shapes:
        return "map"
    usual = "token" if class_token and not pooled_norm else "gap"
    possible = ("token", "gap", None) if class_token else ("gap", None)
    return told["pooling"] if told.get("pooling", "") in possible else usual


def _heads(arguments, told):
    if told.get("num_heads"):
        return told["num_heads"]
    sizes = tuple(arguments[name] for name in _SIZES)
    found = {heads for (*known, heads) in VARIANTS.values() if tuple(known) == sizes}
    if len(found) != 1:
        raise ValueError(
            "the file does not tell the number of attention heads, and no named variant has its sizes "
            f"({', '.join(f'{name} {size}' for name, size in zip(_SIZES, sizes))}); give num_heads"
        )
    return found.pop()


def _positions(shapes, told):
    if "position_embedding/table" not in shapes:
        if "position_embedding" not in told:
            raise ValueError(
                "the file holds no positions, and its layout has none that are fixed; give "
                "position_embedding='none' or 'sincos2d' if the model was made so"
            )
        return {"position_embedding": told["position_embedding"]}
    count = shapes["position_embedding/table"][1]
    prefix = sum(number for _, number, _ in prefix_tokens(told))
    ways = [told["prefix_positions"]] if "prefix_positions" in told else [True, False]
    ways = [way for way in ways if way or prefix] or [True]  # the same where nothing stands in front
    grid, origin = told.get("position_grid"), "position_grid"
    if grid is None and told.get("image_size"):
        grid = grid_of(told["image_size"], told["patch_size"], told.get("resnet"))
        origin = f"an image of {told['image_size'][0]}×{told['image_size'][1]}, a grid of"
    found = {}
    for way in ways:
        cells = count - prefix * way
        rows, columns = grid or (math.isqrt(max(cells, 0)),) * 2
        if rows * columns == cells and cells > 0:
            found[way] = (rows, columns)
    if len(found) == 2:
        raise ValueError(
            f"{count} positions may be {found[False][0]}×{found[False][1]} cells, or {prefix} prefix tokens "
            f"and {found[True][0]}×{found[True][1]} cells; give prefix_positions=True or False"
        )
    if not found:
        cells = count - prefix * ways[0]
        if grid is None:
            raise ValueError(
                f"the checkpoint's {cells} grid positions are no square; give position_grid=(rows, columns)"
            )
        raise ValueError(f"{origin} {grid[0]}×{grid[1]} does not fit the checkpoint's {cells} positions")
    ((way, grid),) = found.items()
    way = way if prefix else told.get("prefix_positions", True)
    return {"position_embedding": "learned", "prefix_positions": way, "position_grid": grid}


def _ranks(shapes, heads_apart):
    """The arrays whose shapes are read here, each with its number of axes, where they are due."""
    if "conv_root/kernel" in shapes:
        yield "conv_root/kernel", 4
    for name in ("head/kernel", "pre_logits/kernel"):
        if name in shapes:
            yield name, 2
    if any(name.startswith("encoder_block_") for name in shapes):
        yield "encoder_block_0/mlp/dense_0/kernel", 2
        yield "encoder_block_0/attention/query/kernel", 3 if heads_apart else 2
    for name in ("class_token/token", "register_tokens/token", "position_embedding/table"):
        if name in shapes:
            yield name, 3


def _count(names, pattern, start=1):
    """How many numbers follow one another from `start`, by what most of the names that count say."""
    numbers = collections.defaultdict(set)
    for match in (re.fullmatch(pattern, name) for name in names):
        if match:
            numbers[match[2]].add(int(match[1]))
    runs = [next(n for n in itertools.count(start) if n not in found) - start for found in numbers.values()]
    return max(runs, key=lambda run: (runs.count(run), run), default=0)
