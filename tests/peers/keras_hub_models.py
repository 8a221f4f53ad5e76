"""KerasHub's Vision Transformer with the weights of ours."""

import re

import keras_hub
from reference.comparing import arrays

_THEIRS = (
    (r"encoder_block_(\d+)/attention_norm", lambda i: f"vit_encoder/transformer_block_{int(i) + 1}/ln_1"),
    (r"encoder_block_(\d+)/mlp_norm", lambda i: f"vit_encoder/transformer_block_{int(i) + 1}/ln_2"),
    (
        r"encoder_block_(\d+)/attention/out",
        lambda i: f"vit_encoder/transformer_block_{int(i) + 1}/mha/attention_output",
    ),
    (r"encoder_block_(\d+)/attention", lambda i: f"vit_encoder/transformer_block_{int(i) + 1}/mha"),
    (r"encoder_block_(\d+)/mlp/dense_0", lambda i: f"vit_encoder/transformer_block_{int(i) + 1}/mlp/dense_1"),
    (r"encoder_block_(\d+)/mlp/dense_1", lambda i: f"vit_encoder/transformer_block_{int(i) + 1}/mlp/dense_2"),
    (r"encoder_norm", lambda: "vit_encoder/ln"),
    (r"patch_embedding", lambda: "vit_patching_and_embedding/patch_embedding"),
    (r"class_token/token", lambda: "vit_patching_and_embedding/class_token"),
    (r"position_embedding/table", lambda: "vit_patching_and_embedding/position_embedding/embeddings"),
    (r"head", lambda: "predictions"),
    (r"pre_logits", lambda: "pre_logits"),
)


def their_name(ours):
    for pattern, theirs in _THEIRS:
        if match := re.match(rf"{pattern}(?=/|$)", ours):
            return theirs(*match.groups()) + ours[match.end() :]
    raise KeyError(ours)


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
