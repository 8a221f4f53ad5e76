"""What a checkpoint's arrays tell about the model that they belong to."""

import math
import re


def infer_arguments(arrays, position_grid=None):
    """The constructor arguments that the arrays' names and shapes imply.

    Args:
        arrays: dict of arrays (or anything with a shape) by our variables' names.
        position_grid: (rows, columns) of the stored position table, if it is not square.

    Returns:
        dict of `VisionTransformer` arguments, without `image_size`, and with `position_grid` as it
        is stored in the file.

    Raises:
        ValueError: if the arrays lack what every Vision Transformer has, or do not tell the grid.
    """
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    for name, ndim in (("patch_embedding/kernel", 4), *_ranks(shapes)):
        if len(shapes.get(name, ())) != ndim:
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
            _count(shapes, rf"block{stage}_unit(\d+)_conv1/kernel")
            for stage in range(1, 1 + _count(shapes, r"block(\d+)_unit\d+_conv1/kernel"))
        )

    num_layers = _count(shapes, r"encoder_block_(\d+)/.*", start=0)
    if not num_layers:
        return {
            **arguments,
            "num_layers": None,
            "mlp_dim": None,
            "num_heads": None,
            "pooling": "gap",
        }
    token = "class_token/token" in shapes
    arguments |= {
        "num_layers": num_layers,
        "mlp_dim": shapes["encoder_block_0/mlp/dense_0/kernel"][1],
        "num_heads": shapes["encoder_block_0/attention/query/kernel"][1],
        "pooling": "token" if token else "gap",
    }
    if "position_embedding/table" in shapes:
        cells = shapes["position_embedding/table"][1] - token
        side = math.isqrt(cells)
        if position_grid is None and side * side != cells:
            raise ValueError(
                f"the checkpoint's {cells} grid positions are no square; give position_grid=(rows, columns)"
            )
        rows, columns = position_grid or (side, side)
        if rows * columns != cells:
            raise ValueError(
                f"position_grid {rows}×{columns} does not fit the checkpoint's {cells} positions"
            )
        arguments["position_grid"] = (rows, columns)
    else:
        arguments["position_embedding"] = "none"
    return arguments


def _ranks(shapes):
    """The arrays whose shapes are read here, each with its number of axes, where they are due."""
    if "conv_root/kernel" in shapes:
        yield "conv_root/kernel", 4
    for name in ("head/kernel", "pre_logits/kernel"):
        if name in shapes:
            yield name, 2
    if any(name.startswith("encoder_block_") for name in shapes):
        yield "encoder_block_0/mlp/dense_0/kernel", 2
        yield "encoder_block_0/attention/query/kernel", 3
    for name in ("class_token/token", "position_embedding/table"):
        if name in shapes:
            yield name, 3


def _count(names, pattern, start=1):
    """The highest number that the pattern finds in the names, as a count from `start`."""
    found = [int(match[1]) for match in (re.fullmatch(pattern, name) for name in names) if match]
    return max(found) + 1 - start if found else 0
