"""Low-rank adaptation of a model's dense layers, and the plain weights of an adapted or quantized one."""

from keras import ops

from keras_vit.layers.dense import adaptable_layers, float_kernel

HEADS = ("head", "head_distillation", "mask_token", "prediction")


def enable_lora(model, rank, targets=("query", "value"), alpha=None, train=HEADS):
    """Fine-tune by low-rank adaptation (LoRA): train small factors beside frozen kernels, and the head.

    The kernel W of a target becomes W + alpha / rank · A B, where A has W's shape with `rank` in the place of
    its last axis, and B has `rank` rows. A starts random and B at zero, so the outputs stay the same at
    first. Compile the model afterwards.

    A `.keras` or `.weights.h5` file holds the factors beside the kernels. Exports and
    `keras_vit.weights.save_weights` write merged kernels, and `merge_lora` makes them in the model itself.

    Args:
        model: A `VisionTransformer` or another `DistributedModel` with dense layers of this package.
        rank: Rank of the factors' product, an int above 0.
        targets: Names of the dense layers to adapt: in a block "query", "key", "value" and "out" of the
            attention and "dense_0" and "dense_1" of the MLP; also "pre_logits".
        alpha: Scale of the product A B, which is divided by `rank`; None: `rank`, a scale of 1.
        train: Names of the layers that are trained as a whole, where the model has them. All other
            weights are frozen, biases included.

    Raises:
        ValueError: for a rank that is no positive int, a target that is no dense layer of the model, or
            one that has factors already or computes in float8.

    Example:
        >>> model = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3, num_classes=10)
        >>> model.enable_lora(rank=2)
        >>> sorted({weight.name for weight in model.trainable_weights})
        ['bias', 'kernel', 'lora_kernel_a', 'lora_kernel_b']
        >>> recipe = keras_vit.training.compile_model(model, total_steps=10, base_lr=0.01)

    Source: Hu et al. 2021, "LoRA" (arXiv 2106.09685), section 4; query and value as in its section 7.1; the
    head as in the image classification example of Hugging Face PEFT.
    """
    if not isinstance(rank, int) or rank < 1:
        raise ValueError(f"rank must be a positive int; got {rank!r}")
    targets = (targets,) if isinstance(targets, str) else tuple(targets)
    dense = adaptable_layers(model)
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
    trained = {id(layer) for layer in model._flatten_layers() if layer.name in train} | {*map(id, chosen)}
    _freeze_all_but(trained, model)
    _forget_compiled(model)


def merge_lora(model):
    """Add the LoRA factors to the kernels, and make every weight trainable again.

    The outputs stay the same, but for the rounding of quantized kernels. Compile the model afterwards.

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


def plain_arrays(model):
    """The weights of a model as one without quantization and LoRA has them: float arrays by path.

    >>> quantized = keras_vit.VisionTransformer.from_config(model.get_config())
    >>> quantized.quantize("int8")
    >>> plain_arrays(quantized).keys() == plain_arrays(model).keys()
    True
    """
    changed = [layer for layer in adaptable_layers(model) if layer.lora_enabled or layer.quantization_mode]
    kernels = {layer._kernel.path: float_kernel(layer) for layer in changed}
    own = {weight.path for layer in changed for weight in layer.weights if weight is not layer.bias}
    weights = {
        weight.path: weight.value
        for weight in model.weights
        if weight.path not in own and "float" in weight.dtype
    }
    return {path: ops.convert_to_numpy(value) for path, value in {**weights, **kernels}.items()}


def _unfreeze(model):
    # Not by the model's own `trainable`, which on TensorFlow does nothing where it is True already.
    for layer in model._flatten_layers():
        layer.trainable = True
        for variable in layer._trainable_variables:
            variable.trainable = True


def _freeze_all_but(trained, layer):
    """Freeze what is in none of the trained layers; whether the layer is or holds one of them."""
    if id(layer) in trained:
        return True
    if any([_freeze_all_but(trained, part) for part in layer._layers]):
        for variable in layer._trainable_variables:
            variable.trainable = False
        return True
    layer.trainable = False
    return False


def _forget_compiled(model):
    model.train_function = model.test_function = model.predict_function = None
