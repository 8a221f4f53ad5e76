"""Low-rank adaptation of a model's dense layers, and the float weights of an adapted or quantized model."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from keras import ops

from keras_vit.layers.dense import adaptable_layers, float_kernel
from keras_vit.rules import integer

if TYPE_CHECKING:
    import keras
    import numpy as np

    from keras_vit.engine.distributed_model import DistributedModel
    from keras_vit.types import Array

_Model = TypeVar("_Model", bound="DistributedModel")


def enable_lora(
    model: keras.Model,
    rank: int,
    targets: Sequence[str] = ("query", "value"),
    alpha: float | None = None,
    train: Sequence[str] | str | None = None,
) -> None:
    """Prepare fine-tuning by low-rank adaptation (LoRA): train small factors of frozen kernels, and the head.

    The kernel W of a target becomes W + alpha / rank · A B, where A has W's shape with `rank` as its last
    axis, and B has `rank` rows. A starts random and B at zero, so that the outputs do not change at first.
    Compile the model afterwards.

    A `.keras` or `.weights.h5` file holds kernels and factors. Exports and
    `keras_vit.weights.save_weights` write merged kernels, and `merge_lora` merges them in the model itself.

    Args:
        model: A `VisionTransformer` or another `DistributedModel` with dense layers of this package.
        rank: Rank of the product A B, a positive int.
        targets: Names of the dense layers to adapt: in a block "query", "key", "value" and "out" of the
            attention and "dense_0" and "dense_1" of the MLP; also "pre_logits".
        alpha: Scale of the product A B, which is divided by `rank`; None for `rank`, a scale of 1.
        train: Names of layers that are trained in full, if the model has them; None for its heads, the layers
            whose attribute `is_head` is true. All other weights are frozen, including biases.

    Raises:
        ValueError: for a rank that is not a positive int, or a target that is not a dense layer of the
            model, has factors already or computes in float8.

    Example:
        >>> model = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3, num_classes=10)
        >>> model.enable_lora(rank=2)
        >>> sorted({weight.name for weight in model.trainable_weights})
        ['bias', 'kernel', 'lora_kernel_a', 'lora_kernel_b']
        >>> recipe = keras_vit.training.compile_model(model, total_steps=10, base_lr=0.01)

    Source: Hu et al. 2021, "LoRA" (arXiv 2106.09685), section 4; query and value as in its section 7.1; the
    head as in the image classification example of Hugging Face PEFT.
    """
    integer(at_least=1).check("rank", rank)
    targets = (targets,) if isinstance(targets, str) else tuple(targets)
    dense = [layer for layer in adaptable_layers(model) if not _is_never_trained(layer)]
    names = {layer.name for layer in dense}
    if not targets or not names.issuperset(targets):
        raise ValueError(
            f"targets must be names of dense layers; the model has {', '.join(sorted(names)) or 'none'}, "
            f"got {targets!r}"
        )
    chosen = [layer for layer in dense if layer.name in targets]
    for layer in chosen:
        if layer.lora_enabled:
            raise ValueError(f"layer {layer.path!r} has LoRA factors already; merge_lora() merges them")
        if layer.quantization_mode == "float8":
            raise ValueError(f"layer {layer.path!r} computes in float8, in which Keras does not support LoRA")
    _unfreeze(model)
    for layer in chosen:
        layer.enable_lora(rank, alpha)
        if layer.bias is not None:
            layer.bias.trainable = False
    if train is None:
        heads = [layer for layer in model._flatten_layers() if getattr(layer, "is_head", False)]
    else:
        names = {train} if isinstance(train, str) else {*train}
        heads = [layer for layer in model._flatten_layers() if layer.name in names]
    trained = {*map(id, [*chosen, *heads])}
    _freeze_all_but(trained, model)
    _forget_compiled(model)


def merge_lora(model: keras.Model) -> None:
    """Merge the LoRA factors into the kernels and make every weight trainable again.

    The outputs stay the same, except for the rounding of quantized kernels. Compile the model afterwards.

    Raises:
        ValueError: if the model has no LoRA factors.

    Example:
        >>> model = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3, num_classes=10)
        >>> before = model(np.zeros((1, 32, 32, 3)))
        >>> model.enable_lora(rank=2)
        >>> model.merge_lora()
        >>> bool(np.allclose(model(np.zeros((1, 32, 32, 3))), before, atol=1e-6))
        True

    Source: Hu et al. 2021, "LoRA" (arXiv 2106.09685), section 4.1, "No additional inference latency".
    """
    adapted = [layer for layer in adaptable_layers(model) if layer.lora_enabled]
    if not adapted:
        raise ValueError("the model has no LoRA factors to merge; enable_lora makes them")
    for layer in adapted:
        layer.merge_lora()
    _unfreeze(model)
    _forget_compiled(model)


def plain_arrays(model: keras.Model) -> dict[str, np.ndarray]:
    """The weights of a model without its quantization and LoRA factors, as float arrays by path.

    >>> quantized = keras_vit.VisionTransformer.from_config(model.get_config())
    >>> quantized.quantize("int8")
    >>> plain_arrays(quantized).keys() == plain_arrays(model).keys()
    True
    """
    changed = [layer for layer in adaptable_layers(model) if layer.lora_enabled or layer.quantization_mode]
    kernels = {layer._kernel.path: ops.convert_to_numpy(float_kernel(layer)) for layer in changed}
    adapted = {weight.path for layer in changed for weight in layer.weights if weight is not layer.bias}
    weights = {
        weight.path: weight.numpy()  # On several devices the value itself is no array.
        for weight in model.weights
        if weight.path not in adapted and "float" in weight.dtype
    }
    return {**weights, **kernels}


def copy_with_weights(
    model: _Model, config: Mapping[str, Any], arrays: Mapping[str, Array] | None = None
) -> _Model:
    """A model of the same class with the constructor's arguments `config`, and the weights of this one.

    Args:
        model: A `DistributedModel`.
        config: The arguments, with which it has the same weights.
        arrays: dict of the weights by path; None for the model's, as `plain_arrays` returns them.
    """
    copy = type(model)(**config)
    arrays = plain_arrays(model) if arrays is None else arrays
    for weight in copy.weights:
        if "float" in weight.dtype:
            weight.assign(arrays[weight.path])
    return copy


def parts_of(layer: keras.Layer) -> Iterator[keras.Layer | keras.Variable]:
    """Yield a layer and all layers and variables in it, each layer before its parts.

    A layer that sets its `trainable` sets that of its parts. Those that the recipe of `compile_model` has
    frozen have their earlier value as `before_freeze`.
    """
    for part in layer._flatten_layers():
        yield part
        yield from part._trainable_variables


def _is_never_trained(layer: keras.Layer) -> bool:
    return getattr(layer, "never_trained", False)


def _unfreeze(model: keras.Model) -> None:
    # On TensorFlow, setting a model's `trainable` has no effect if it is already True.
    for part in parts_of(model):
        part.trainable, part.before_freeze = True, None
    for layer in filter(_is_never_trained, model._flatten_layers()):
        layer.trainable = False


def _freeze_all_but(trained: Container[int], layer: keras.Layer) -> bool:
    """Freeze all but the trained layers; return whether the layer is or contains one of them."""
    if id(layer) in trained:
        return True
    if any([_freeze_all_but(trained, part) for part in layer._layers]):
        for variable in layer._trainable_variables:
            variable.trainable = False
        return True
    layer.trainable = False
    return False


def _forget_compiled(model: keras.Model) -> None:
    model.train_function = model.test_function = model.predict_function = None
