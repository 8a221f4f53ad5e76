"""Show the contents of a checkpoint file without building its model."""

from __future__ import annotations

import math
from typing import Any

from keras_vit.models import VisionTransformer
from keras_vit.types import Path
from keras_vit.variants import variant_of
from keras_vit.weights.checkpoint import not_finite, read_checkpoint
from keras_vit.weights.dense_heads import drop_head, stored_kind


def show_checkpoint(source: Path, **given: Any) -> dict[str, Any]:
    """Describe a checkpoint: its layout, its architecture, and missing or extra arrays.

    Args:
        source, **given: As for `read_checkpoint`.

    Returns:
        dict of `file`, `layout`, `variant` (or None), `arguments` of `VisionTransformer`, `grid`
        (rows, columns) of the stored positions or None, `parameters`, `dtypes`, `only_in_file`,
        `only_in_model`, `wrong_shape`, `not_finite` (keys of arrays with NaN or infinity), `left_out`
        (keys that do not belong to the model) and `configuration` (name of the metadata file that was read,
        or None).

    Raises:
        ValueError: as `read_checkpoint`.

    Example:
        >>> show_checkpoint("tests/golden/token.npz")["parameters"]
        14247
    """
    checkpoint = read_checkpoint(source, **given)
    arguments, arrays = dict(checkpoint.arguments), checkpoint.arrays
    grid = arguments.pop("position_grid", None)
    parameters = sum(math.prod(array.shape) for array in arrays.values())
    bad = not_finite(checkpoint)
    if stored_kind(checkpoint):  # Its head is not among the arrays of a VisionTransformer.
        drop_head(arrays)
    return {
        "file": str(checkpoint.path),
        "layout": checkpoint.layout,
        "variant": variant_of(arguments),
        "arguments": arguments,
        "grid": grid,
        "parameters": parameters,
        "dtypes": sorted({array.dtype.name for array in arrays.values()}),
        **checkpoint.mismatches(expected_shapes(arguments, grid)),
        "not_finite": bad,
        "left_out": sorted(checkpoint.skipped),
        "configuration": checkpoint.configuration,
    }


def expected_shapes(arguments, grid=None):
    """The shapes of a model's variables by name; only one block of each shape is built.

    Args:
        arguments: dict of `VisionTransformer` arguments; `image_size` may be missing.
        grid: (rows, columns) of the position table.

    Example:
        >>> expected_shapes(model.get_config())["head/kernel"]
        (24, 10)
    """
    arguments = {name: value for name, value in arguments.items() if name != "class_names"}
    number, known = arguments["num_layers"], arguments.get("image_size")
    heads = arguments.get("num_kv_heads")
    kinds = sorted({*heads}) if isinstance(heads, tuple | list) else [heads]  # of blocks, with other shapes
    arguments |= {"image_size": known or (None, None), "preprocessing": None}
    if number:
        arguments |= {"num_layers": len(kinds), "num_kv_heads": kinds if len(kinds) > 1 else kinds[0]}
    if grid:
        arguments["position_grid"] = grid
    model = VisionTransformer.from_config(arguments)
    shapes = {w.path: tuple(w.shape) for w in model.weights if "float" in w.dtype}
    blocks = []
    for i in range(len(kinds)):
        prefix = f"encoder_block_{i}/"
        names = [name for name in shapes if name.startswith(prefix)]
        blocks.append({name.removeprefix(prefix): shapes.pop(name) for name in names})
    for i in range(number or 0):
        block = blocks[kinds.index(heads[i]) if len(kinds) > 1 else 0]
        shapes |= {f"encoder_block_{i}/{name}": shape for name, shape in block.items()}
    if frequencies := shapes.get("rotary_positions/frequencies"):  # of all blocks
        shapes["rotary_positions/frequencies"] = (frequencies[0], number, *frequencies[2:])
    return shapes
