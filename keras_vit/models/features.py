"""What a model holds between the image and its output, as a model of its own."""

import keras

from keras_vit.layers import TokensToGrid


def feature_extractor(model, stages, grid=False):
    """A model from images to what the named stages hold, sharing this model's weights.

    Args:
        stages: Names of layers. The stages are `patch_embedding`, `position_embedding`,
            `encoder_block_{i}`, `encoder_norm`, `tokens` (what the pooling reads, prefix tokens
            first), `pooled`, `representation` and `logits`; a stem's are `block{k}_unit{u}`.
        grid: Whether to drop the prefix tokens and lay sequences out as (batch, h, w, channels).

    Returns:
        keras.Model: images → dict of tensors by stage.

    Raises:
        ValueError: for an unknown stage, or with `grid` for one that is no grid.

    Example:
        >>> dense = model.feature_extractor(["tokens"], grid=True)
        >>> dense(np.zeros((1, 32, 32, 3)))["tokens"].shape
        TensorShape([1, 4, 4, 24])
    """
    stages = [stages] if isinstance(stages, str) else list(stages)
    known = {layer.name: layer.output for layer in model.layers} | dict(model._stages)
    unknown = [stage for stage in stages if stage not in known]
    if unknown or not stages:
        raise ValueError(f"stages {unknown or stages} are unknown; the stages are {', '.join(known)}")
    outputs = {stage: known[stage] for stage in stages}
    if grid:
        patches = known["patch_embedding"]
        for stage, x in outputs.items():
            if len(x.shape) == 3:
                outputs[stage] = TokensToGrid()(x, patches)
            elif len(x.shape) != 4:
                raise ValueError(f"stage {stage!r} of shape {x.shape} holds no grid of tokens")
    return keras.Model(model.input, outputs, name=f"{model.name}_features")
