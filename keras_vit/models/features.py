"""A model's intermediate outputs as a model."""

import keras

from keras_vit.layers import TokensToGrid


def feature_extractor(model, stages, grid=False):
    """A model from images to the outputs of the named stages, sharing this model's weights.

    Args:
        stages: Names of layers. The stages are `patch_embedding`, `position_embedding`,
            `encoder_block_{i}`, `encoder_norm`, `tokens` (the input of the pooling, prefix tokens first),
            `pooled`, `representation` and `logits`; a stem's are `block{k}_unit{u}`.
        grid: Whether to remove the prefix tokens and reshape sequences to (batch, h, w, channels).

    Returns:
        keras.Model: images → dict of tensors by stage.

    Raises:
        ValueError: for an unknown stage, or with `grid` for one without a grid.

    Example:
        >>> dense = model.feature_extractor(["tokens"], grid=True)
        >>> dense(np.zeros((1, 32, 32, 3)))["tokens"].shape
        TensorShape([1, 4, 4, 24])
    """
    stages = [stages] if isinstance(stages, str) else list(stages)
    known = {layer.name: layer.output for layer in model.layers} | dict(model._stages)
    unknown = [stage for stage in stages if stage not in known]
    if unknown or not stages:
        raise ValueError(f"expected stages among {', '.join(known)}; unknown: {unknown or stages}")
    outputs = {stage: known[stage] for stage in stages}
    if grid:
        patches = known["patch_embedding"]
        for stage, x in outputs.items():
            if len(x.shape) == 3:
                outputs[stage] = TokensToGrid()(x, patches)
            elif len(x.shape) != 4:
                raise ValueError(f"stage {stage!r} holds no grid of tokens; its shape is {x.shape}")
    return keras.Model(model.input, outputs, name=f"{model.name}_features")
