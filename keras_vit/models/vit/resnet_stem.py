"""The ResNet stem of hybrids: post-activation bottlenecks, group norm, standardized weights."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from keras_vit.layers import StdConv2D
from keras_vit.layers.hints import FREE, sharded
from keras_vit.types import Tensor

GROUPS = 32  # in every group norm
# The epsilons by project: timm's conversions of the official hybrids use its own.
FORMS = {
    "vit_jax": {"norm": {"epsilon": 1e-6}, "conv": {"epsilon": 1e-5, "variance_epsilon": 0.0}},
    "timm": {"norm": {"epsilon": 1e-5}, "conv": {"epsilon": 0.0, "variance_epsilon": 1e-8}},
}


def resnet_stem(
    images: Tensor,
    stage_sizes: Sequence[int],
    width: int,
    form: str = "vit_jax",
    dtype: str | keras.DTypePolicy | None = None,
) -> Tensor:
    """Add the stem's layers to a functional model.

    Args:
        images: Keras tensor (batch, height, width, channels).
        stage_sizes: Bottleneck units in each stage, such as (3, 4, 9); () for the root block alone.
        width: Channels of the root block; stage k (from 1) ends with 4 · width · 2^(k-1). 32 must
            divide it.
        form: A key of `FORMS`: whose epsilons to use.
        dtype: The layers' dtype policy.

    Returns:
        Keras tensor (batch, height / s, width / s, channels), s = 4 · 2^(stages - 1), rounded up.
        A unit's output is the layer `block{stage}_unit{unit}`, both from 1.

    Example:
        >>> images = keras.Input((64, 64, 3))
        >>> resnet_stem(images, (1, 2), width=32).shape
        (None, 8, 8, 256)

    Source: Dosovitskiy et al. 2021, section 4.1; `vit_jax/models_resnet.py`.
    """

    def conv(x: Tensor, filters: int, kernel_size: int, strides: int, name: str) -> Tensor:
        return StdConv2D(
            filters,
            kernel_size,
            strides,
            padding="same",  # TensorFlow's: an odd pixel is added at the bottom and the right
            use_bias=False,
            kernel_initializer="lecun_normal",
            **FORMS[form]["conv"],
            dtype=dtype,
            name=name,
        )(x)

    def norm(x: Tensor, name: str, gamma: str = "ones") -> Tensor:
        layer = keras.layers.GroupNormalization(
            GROUPS, **FORMS[form]["norm"], gamma_initializer=gamma, dtype=dtype, name=name
        )
        return sharded(layer, FREE)(x)

    def relu(x: Tensor, name: str) -> Tensor:
        return keras.layers.Activation("relu", dtype=dtype, name=name)(x)

    def bottleneck(x: Tensor, filters: int, strides: int, name: str) -> Tensor:
        shortcut = x
        if strides != 1 or x.shape[-1] != 4 * filters:
            shortcut = conv(x, 4 * filters, 1, strides, f"{name}_conv_proj")
            shortcut = norm(shortcut, f"{name}_gn_proj")
        x = relu(norm(conv(x, filters, 1, 1, f"{name}_conv1"), f"{name}_gn1"), f"{name}_relu1")
        x = relu(norm(conv(x, filters, 3, strides, f"{name}_conv2"), f"{name}_gn2"), f"{name}_relu2")
        # With a scale of zero a new unit is the identity.
        x = norm(conv(x, 4 * filters, 1, 1, f"{name}_conv3"), f"{name}_gn3", gamma="zeros")
        return relu(keras.layers.Add(dtype=dtype, name=f"{name}_add")([shortcut, x]), name)

    x = conv(images, width, 7, 2, "conv_root")  # (b, H/2, W/2, width)
    x = relu(norm(x, "gn_root"), "relu_root")
    x = keras.layers.MaxPooling2D(3, 2, padding="same", dtype=dtype, name="pool_root")(x)  # H/4
    for stage, units in enumerate(stage_sizes, start=1):  # H/4, H/8, H/16, H/32
        for unit in range(1, units + 1):
            strides = 2 if stage > 1 and unit == 1 else 1
            x = bottleneck(x, width * 2 ** (stage - 1), strides, f"block{stage}_unit{unit}")
    return x
