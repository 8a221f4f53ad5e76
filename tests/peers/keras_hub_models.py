"""KerasHub's Vision Transformer with the weights of ours."""

import re

from peers.packages import keras_hub
from reference.comparing import arrays

_THEIRS = {  # of layers, and inside of blocks
    "encoder_norm": "vit_encoder/ln",
    "patch_embedding": "vit_patching_and_embedding/patch_embedding",
    "class_token/token": "vit_patching_and_embedding/class_token",
    "position_embedding/table": "vit_patching_and_embedding/position_embedding/embeddings",
    "head": "predictions",
    "attention_norm": "ln_1",
    "mlp_norm": "ln_2",
    "attention/out": "mha/attention_output",
    "attention": "mha",
    "mlp/dense_0": "mlp/dense_1",
    "mlp/dense_1": "mlp/dense_2",
}


def their_name(ours):
    if match := re.fullmatch(r"encoder_block_(\d+)/(.*)", ours):
        return f"vit_encoder/transformer_block_{int(match[1]) + 1}/{their_name(match[2])}"
    for layer, theirs in _THEIRS.items():
        if ours == layer or ours.startswith(f"{layer}/"):
            return theirs + ours.removeprefix(layer)
    return ours


def copied(model):
    """A ViTImageClassifier with the weights of a model with the exact GELU."""
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(*model.image_size, model.in_channels),
        patch_size=model.patch_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        hidden_dim=model.hidden_size,
        mlp_dim=model.mlp_dim,
        layer_norm_epsilon=model.norm_epsilon,
        use_class_token=model.class_token,
    )
    theirs = keras_hub.models.ViTImageClassifier(
        backbone, model.num_classes, pooling=model.pooling, intermediate_dim=model.representation_size
    )
    values = {their_name(name): array for name, array in arrays(model).items()}
    for weight in theirs.weights:
        weight.assign(values.pop(weight.path).reshape(weight.shape))
    if values:
        raise ValueError(f"KerasHub has no {', '.join(values)}")
    return theirs
