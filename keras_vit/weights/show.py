"""Show the contents of a checkpoint file without building its model."""

from __future__ import annotations

import math
from typing import Any

from keras_vit.models import VisionTransformer
from keras_vit.types import Path
from keras_vit.variants import variant_of
from keras_vit.weights.checkpoint import not_finite, read_checkpoint
from keras_vit.weights.dense_heads import drop_head, stored_kind
from keras_vit.weights.keras_file import without_values


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
    bad = not_finite(checkpoint.by_keys())
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
    """The shapes of a model's variables by name; the variables have no values.

    Args:
        arguments: dict of `VisionTransformer` arguments; `image_size` may be missing.
        grid: (rows, columns) of the position table.

    Example:
        >>> expected_shapes(model.get_config())["head/kernel"]
        (24, 10)
    """
    size = arguments.get("image_size") or (None, None)
    arguments = {**arguments, "image_size": size, "preprocessing": None, "class_names": None}
    if grid:
        arguments["position_grid"] = grid
    with without_values():
        model = VisionTransformer.from_config(arguments)
    return {weight.path: tuple(weight.shape) for weight in model.weights if "float" in weight.dtype}
