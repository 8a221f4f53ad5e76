"""Keras's dense layers, with quantization and LoRA factors that files keep."""

from __future__ import annotations

import contextlib
import contextvars
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.types import Shape, Tensor

# The arguments of a built layer that `quantize` and `enable_lora` change.
CHANGED = ("dtype", "quantization_config", "lora_rank", "lora_alpha")
STATE = ("dense_layers", "frozen", "remat")  # the entries of `state_config`
FACTORS = ("lora_kernel_a", "lora_kernel_b")
_configs: contextvars.ContextVar[Mapping[str, Mapping[str, Any]]] = contextvars.ContextVar(
    "dense_configs", default=types.MappingProxyType({})
)
_Base: Any = keras.Layer if TYPE_CHECKING else object


class _Adaptable(_Base):
    """Save LoRA factors next to the kernel.

    Keras saves a kernel with its LoRA factors merged, which rounds a quantized kernel again, and loads
    zeros for both factors, so that no gradient reaches them.
    """

    layers_above = 0  # see `number_stack`

    def build(self, input_shape: Shape) -> None:
        for name, value in _configs.get().get(self.path, {}).items():
            setattr(self, "dtype_policy" if name == "dtype" else name, value)
        super().build(input_shape)

    def quantize(
        self,
        mode: str | None = None,
        type_check: bool = True,
        config: keras.quantizers.QuantizationConfig | None = None,
    ) -> None:
        super().quantize(mode, type_check=False, config=config)  # Keras's type check skips subclasses

    def enable_lora(self, rank: int, lora_alpha: float | None = None, **initializers: Any) -> None:
        # Keras's Dense ignores the alpha of its configuration.
        super().enable_lora(rank, self.lora_alpha if lora_alpha is None else lora_alpha, **initializers)
        for name in FACTORS:
            getattr(self, name).layers_above = self.layers_above

    def save_own_variables(self, store: Any) -> None:
        with _without_lora(self):
            super().save_own_variables(store)
        if self.lora_enabled:
            store["lora_alpha"] = self.lora_alpha
            for name in FACTORS:
                store[name] = getattr(self, name)

    def load_own_variables(self, store: Any) -> None:
        variables = {name: store[name] for name in store.keys()}  # noqa: SIM118 (a group in a file is not a dict)
        alpha = variables.pop("lora_alpha", None)
        factors = {name: variables.pop(name) for name in FACTORS if name in variables}
        merge = factors and not self.lora_enabled
        if merge:  # Only the file has LoRA factors.
            self.enable_lora(factors["lora_kernel_b"].shape[0], float(np.asarray(alpha)))
        elif self.lora_enabled and not factors:  # Only the layer has them: they are reset.
            factors = {"lora_kernel_a": self.lora_kernel_a + 0, "lora_kernel_b": self.lora_kernel_b * 0}
        super().load_own_variables(variables)
        for name, value in factors.items():
            getattr(self, name).assign(value)
        if merge:
            self.merge_lora()

    def merge_lora(self) -> None:
        """Add the product of the LoRA factors to the kernel and remove them."""
        if self.quantization_mode:
            kernel, *scales = self._get_kernel_with_merged_lora()
        else:
            kernel, scales = float_kernel(self), ()
        self._kernel.assign(kernel)
        for name, value in zip(("kernel_scale", "kernel_zero"), scales):
            if value is not None:
                getattr(self, name).assign(value)
        for name in FACTORS:
            self._untrack_variable(getattr(self, name))
            setattr(self, name, None)
        self._kernel.trainable = self.trainable and not self.quantization_mode
        self.lora_enabled, self.lora_rank, self.lora_alpha = False, None, None


@keras.saving.register_keras_serializable("keras_vit")
class Dense(_Adaptable, keras.layers.Dense):
    """`keras.layers.Dense` whose LoRA factors are saved.

    The class has Keras's name because files name layers by their classes.

    Args:
        units, …: As `keras.layers.Dense`.

    Input shape: (batch, …, channels).
    Output shape: (batch, …, units).

    Example:
        >>> Dense(4)(np.zeros((2, 3))).shape
        TensorShape([2, 4])

    Source: Hu et al. 2021, "LoRA" (arXiv 2106.09685), section 4.1, for the factors.
    """


@keras.saving.register_keras_serializable("keras_vit")
class EinsumDense(_Adaptable, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` whose LoRA factors are saved.

    Args:
        equation, output_shape, …: As `keras.layers.EinsumDense`.

    Input and output shape: As in the equation.

    Example:
        >>> EinsumDense("bc,cd->bd", (4,))(np.zeros((2, 3))).shape
        TensorShape([2, 4])

    Source: As `Dense`.
    """


def float_kernel(layer: keras.Layer) -> Tensor:
    """The kernel of a dense layer in float32: dequantized, with LoRA factors merged.

    Args:
        layer: A `Dense` or `EinsumDense` whose output has the kernel's axes in the same order.

    Example:
        >>> layer = Dense(4)
        >>> layer.build((None, 3))
        >>> before = layer.kernel.numpy()
        >>> layer.quantize("int8")
        >>> bool(np.abs(float_kernel(layer) - before).max() < 0.01)
        True
    """
    with _without_lora(layer):
        kernel = ops.cast(layer.kernel, "float32")
    if layer.quantization_mode in ("int8", "int4"):
        scale = ops.cast(layer.kernel_scale, "float32")
        if hasattr(layer, "kernel_zero"):  # one scale and zero point for each group of rows
            rows = ops.reshape(kernel, (layer.g_idx.shape[0], -1))
            groups = ops.cast(layer.g_idx, "int32")
            zero = ops.cast(layer.kernel_zero, "float32")
            rows = (rows - ops.take(zero, groups, axis=0)) * ops.take(scale, groups, axis=0)
        else:
            scale = ops.reshape(scale, (-1,))
            rows = ops.reshape(kernel, (-1, scale.shape[0])) / scale
        kernel = ops.reshape(rows, kernel.shape)
    if layer.lora_enabled:
        factors = ops.matmul(layer.lora_kernel_a, layer.lora_kernel_b)
        kernel = kernel + factors * (layer.lora_alpha / layer.lora_rank)
    return kernel


@contextlib.contextmanager
def _without_lora(layer: keras.Layer) -> Iterator[None]:
    enabled, layer.lora_enabled = layer.lora_enabled, False
    try:
        yield
    finally:
        layer.lora_enabled = enabled


def adaptable_layers(layer: keras.Layer) -> list[_Adaptable]:
    """The dense layers in a layer or model."""
    return [part for part in layer._flatten_layers() if isinstance(part, _Adaptable)]


def without_state(config: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a model's configuration that are arguments of its constructor.

    >>> without_state({"hidden_size": 8, "remat": ["encoder_block_0"]})
    {'hidden_size': 8}
    """
    return {name: value for name, value in config.items() if name not in STATE}


def state_config(layers: Iterable[keras.Layer]) -> dict[str, Any]:
    """The state that layers got after they were built, as entries of a configuration.

    Args:
        layers: Keras layers.

    Returns:
        dict of the entries that are not empty: `dense_layers`, the dtype policy, quantization and LoRA rank
        of dense layers by path; `frozen`, the paths of layers and weights that are not trained; `remat`, the
        paths of blocks that are recomputed in the backward pass.

    Example:
        >>> layer = keras_vit.layers.MlpBlock(8, name="mlp")
        >>> layer.build((None, 5, 4))
        >>> layer.dense_0.enable_lora(2)
        >>> list(state_config([layer])["dense_layers"])
        ['mlp/dense_0']
    """
    dense = {}
    for layer in layers:
        for part in adaptable_layers(layer):
            if part.quantization_mode or part.lora_enabled:
                config = part.get_config()
                dense[part.path] = {name: config[name] for name in CHANGED if config.get(name) is not None}
    state = {
        "dense_layers": dense,
        "frozen": [path for layer in layers for path in _frozen(layer)],
        "remat": [layer.path for layer in layers if getattr(layer, "remat", False)],
    }
    return {name: value for name, value in state.items() if value}


def _frozen(layer: keras.Layer) -> list[str]:
    if layer.weights and not layer.trainable:
        return [layer.path]
    base = layer._kernel if getattr(layer, "lora_enabled", False) else None  # frozen by enable_lora
    paths = [v.path for v in layer._trainable_variables if not v.trainable and v is not base]
    return paths + [path for part in layer._layers for path in _frozen(part)]


@contextlib.contextmanager
def restoring(state: Mapping[str, Any]) -> Iterator[Callable[[Iterable[keras.Layer]], None]]:
    """A context in which layers are built with the state that `state_config` returned, without weights.

    Args:
        state: The result of `state_config`; other entries are ignored.

    Yields:
        A function to call with the built layers, which applies `frozen` and `remat` and raises ValueError
        for a path in the state that no layer has.
    """
    configs = {
        path: {name: keras.saving.deserialize_keras_object(value) for name, value in config.items()}
        for path, config in state.get("dense_layers", {}).items()
    }

    def freeze(layers: Iterable[keras.Layer]) -> None:
        parts = {part.path: part for layer in layers for part in layer._flatten_layers()}
        parts |= {weight.path: weight for layer in layers for weight in layer.weights}
        frozen, remat = state.get("frozen", ()), state.get("remat", ())
        if unknown := sorted({*configs, *frozen, *remat} - {*parts}):
            raise ValueError(f"there are no layers {', '.join(unknown)}")
        for path in frozen:
            parts[path].trainable = False
        for path in remat:
            parts[path].remat = True

    token = _configs.set(configs)
    try:
        yield freeze
    finally:
        _configs.reset(token)


class CompositeLayer(Configurable):
    """A layer of layers that saves the quantization and LoRA state of its dense layers."""

    def get_build_config(self) -> dict[str, Any] | None:
        config = super().get_build_config()
        return config and {**config, **state_config([self])}

    def build_from_config(self, config: dict[str, Any]) -> None:
        with restoring(config) as freeze:
            super().build_from_config(config)
            freeze([self])
