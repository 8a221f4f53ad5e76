# Written by `make stubs`.
from collections.abc import Sequence
from typing import Any, TypedDict

import keras

from keras_vit.preprocessing import Preprocessing
from keras_vit.types import Path, Size

class _Options(TypedDict, total=False):
    """The options that constructors and `from_pretrained` share."""

    patch_size: int | Sequence[int]
    hidden_size: int
    num_layers: int | None
    mlp_dim: int | None
    num_heads: int | None
    pooling_heads: int | None
    pooling_mlp_dim: int | None
    pool_prefix: bool
    representation_activation: str | None
    unit_representation: bool
    resnet: Sequence[int] | None
    resnet_width: int
    resnet_form: str
    position_embedding: str
    position_grid: int | Sequence[int] | None
    position_interpolation: str | None
    rotary: str | dict[str, Any] | None
    relative_positions: bool
    prefix_positions: bool
    activation: str
    gated_mlp: bool
    norm: str
    norm_epsilon: float
    qkv_bias: bool
    key_bias: bool
    linear_bias: bool
    num_kv_heads: int | Sequence[int] | None
    qk_norm: bool
    attention_sub_norm: bool
    mlp_sub_norm: bool
    class_token: bool | None
    num_registers: int
    distillation: bool
    layer_scale: float | None
    scale_mlp: bool
    patch_padding: int
    patch_norm: bool
    pre_norm: bool
    post_norm: bool
    final_norm: bool
    norm_after_pooling: bool
    in_channels: int
    preprocessing: Preprocessing | dict[str, Any] | None
    class_names: Sequence[str] | str | None
    task: str | None
    split_seed: int | None
    pretraining: str | None
    dropout_rate: float
    attention_dropout_rate: float
    max_rotary_rescale: float | None
    stochastic_depth_rate: float
    patch_dropout_rate: float
    max_num_patches: int | None
    palette: int | None
    causal: bool

class ViTOptions(_Options, total=False):
    """Of the constructors of transformers."""

    image_size: int | Sequence[int | None]
    num_classes: int | None
    pooling: str | None
    representation_size: int | None
    name: str
    trainable: bool

class VariantOptions(_Options, total=False):
    """Of `from_variant`."""

    pooling: str | None
    representation_size: int | None
    name: str
    trainable: bool
    dtype: str | keras.DTypePolicy | None

class LoadOptions(_Options, total=False):
    """Of `from_pretrained`."""

    image_size: Size | None
    num_classes: int | None
    pooling: str | None
    representation_size: int | str | None
    head: str
    variant: str | None
    sha256: str | None
    trust: bool
    check_finite: bool
    segmenter: dict[str, Any] | None
    detector: dict[str, Any] | None
    dtype: str | keras.DTypePolicy | None

class ViTAttributes:
    """Of a `VisionTransformer`."""

    image_size: tuple[int | None, int | None]
    patch_size: tuple[int, int]
    hidden_size: int
    num_layers: int | None
    mlp_dim: int | None
    num_heads: int | None
    num_classes: int | None
    pooling: str | None
    pooling_heads: int | None
    pooling_mlp_dim: int | None
    pool_prefix: bool
    representation_size: int | None
    representation_activation: str | None
    unit_representation: bool
    resnet: tuple[int, ...] | None
    resnet_width: int
    resnet_form: str
    position_embedding: str
    position_grid: tuple[int, int] | None
    position_interpolation: str | None
    rotary: dict[str, Any] | None
    relative_positions: bool
    prefix_positions: bool
    activation: str
    gated_mlp: bool
    norm: str
    norm_epsilon: float
    qkv_bias: bool
    key_bias: bool
    linear_bias: bool
    num_kv_heads: int | tuple[int, ...] | None
    qk_norm: bool
    attention_sub_norm: bool
    mlp_sub_norm: bool
    class_token: bool | None
    num_registers: int
    distillation: bool
    layer_scale: float | None
    scale_mlp: bool
    patch_padding: int
    patch_norm: bool
    pre_norm: bool
    post_norm: bool
    final_norm: bool
    norm_after_pooling: bool
    in_channels: int
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None
    task: str | None
    split_seed: int | None
    pretraining: str | None
    dropout_rate: float
    attention_dropout_rate: float
    max_rotary_rescale: float | None
    stochastic_depth_rate: float
    patch_dropout_rate: float

class PackedAttributes(ViTAttributes):
    """Of a `PackedVisionTransformer`."""

    max_num_patches: int | None

class PixelAttributes(ViTAttributes):
    """Of a `PixelTransformer`."""

    palette: int | None
    causal: bool
