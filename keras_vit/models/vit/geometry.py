"""What follows from a model's options: its grid of patches, its tokens, and a bound of its parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from keras_vit.rules import pair

if TYPE_CHECKING:
    import keras

    from keras_vit.models.vit.schema import TransformerConfig

DYNAMIC_SIZE = (None, None)  # the image size of a model that accepts any


class _Patched(Protocol):
    """A model or its configuration: what its patches are cut from."""

    @property
    def patch_size(self) -> tuple[int, int]: ...
    @property
    def resnet(self) -> tuple[int, ...] | None: ...


def is_dynamic(image_size: object) -> bool:
    """Whether this is the image size of a model that accepts any size: (None, None)."""
    return isinstance(image_size, tuple | list) and tuple(image_size) == DYNAMIC_SIZE


def prefix_tokens(options: Mapping[str, Any]) -> list[tuple[str, int, keras.Initializer | str]]:
    """(layer name, count, initializer) of the tokens before the patches' tokens, the innermost first.

    Args:
        options: Mapping with `num_registers`, `distillation` and `class_token`.
    """
    import keras  # not at the top: exported models are opened without it

    normal = keras.initializers.RandomNormal(stddev=0.02)
    tokens = (
        ("register_tokens", options["num_registers"], normal),
        ("distillation_token", int(options["distillation"]), normal),
        ("class_token", int(options["class_token"]), "zeros"),
    )
    return [token for token in tokens if token[1]]


def kv_heads_of_blocks(config: TransformerConfig) -> tuple[int | None, ...]:
    """The number of key and value heads of each block, None for that of the queries.

    >>> from keras_vit.models.vit.schema import ViTConfig
    >>> config = ViTConfig(32, 8, 24, num_layers=2, mlp_dim=48, num_heads=4, num_kv_heads=(4, 2))
    >>> kv_heads_of_blocks(config)
    (4, 2)
    """
    heads = config.num_kv_heads
    return heads if isinstance(heads, tuple) else (heads,) * config.num_layers


def stem_stride(resnet: Sequence[int] | None) -> int:
    """The side in pixels of a position in the grid that the stem outputs; 1 without a stem.

    >>> stem_stride(None), stem_stride(()), stem_stride((3, 4, 9))
    (1, 4, 16)
    """
    return 1 if resnet is None else 4 * 2 ** max(len(resnet) - 1, 0)


def patched_size(image_size: Sequence[Any], resnet: Sequence[int] | None) -> tuple[int, int]:
    """(height, width) of what is cut into patches: the image, or the output of the stem, which rounds up.

    >>> patched_size((224, 384), None), patched_size((225, 225), (2, 2, 2, 2))
    ((224, 384), (8, 8))
    """
    stride = stem_stride(resnet)
    height, width = image_size
    return -(-height // stride), -(-width // stride)


def patch_pixels(model: _Patched) -> tuple[int, int]:
    """(height, width) in pixels of the image region of one patch token.

    >>> patch_pixels(model)
    (8, 8)
    """
    stride = stem_stride(model.resnet)
    height, width = model.patch_size
    return height * stride, width * stride


def grid_shape(
    image_size: Sequence[Any], patch_size: Sequence[int], resnet: Sequence[int] | None
) -> tuple[int, int]:
    """(rows, columns) of the patches of an image.

    >>> grid_shape((224, 384), (16, 16), None), grid_shape((225, 225), (1, 1), (2, 2, 2, 2))
    ((14, 24), (8, 8))
    """
    height, width = patched_size(image_size, resnet)
    return height // patch_size[0], width // patch_size[1]


def min_parameters(options: Mapping[str, Any]) -> int:
    """A lower bound of a model's number of parameters, without building it: its larger kernels and tables.

    >>> from keras_vit.models.vit.schema import ViTConfig
    >>> config = ViTConfig(224, 16, 768, num_layers=12, mlp_dim=3072, num_heads=12, num_classes=1000)
    >>> min_parameters({**vars(config), "position_grid": (14, 14)})
    86443008
    """
    c, hidden = options, options["hidden_size"]
    grid, size = c["position_grid"], c.get("image_size")
    if grid is None and size is not None and not is_dynamic(size):
        grid = grid_shape(pair(size, "image_size"), pair(c["patch_size"], "patch_size"), c["resnet"])
    rows, columns = grid or (0, 0)
    layers, heads = c["num_layers"] or 0, c["num_heads"] or 0
    stem = sum(
        units * (3 * c["resnet_width"] * 2**stage) ** 2 for stage, units in enumerate(c["resnet"] or ())
    )
    patch = math.prod(pair(c["patch_size"], "patch_size")) * (1 if c["resnet"] else c["in_channels"])
    patch = c.get("palette") or patch
    kernels = (2 if c["num_kv_heads"] else 4) * hidden + (2 + c["gated_mlp"]) * (c["mlp_dim"] or 0)
    offsets = layers * heads * (2 * rows - 1) * (2 * columns - 1) if c["relative_positions"] else 0
    tokens = rows * columns * (layers > 0 and c["position_embedding"] == "learned") + c["num_registers"]
    pooling = 4 * hidden + 2 * (c["pooling_mlp_dim"] or c["mlp_dim"] or 0) if c["pooling"] == "map" else 0
    before_head = c["representation_size"] or hidden
    head = before_head * (c["num_classes"] or 0) + hidden * (c["representation_size"] or 0)
    return stem + hidden * (patch + layers * kernels + tokens + pooling) + offsets + head
