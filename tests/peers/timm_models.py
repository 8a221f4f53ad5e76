"""Small models of timm's classes with random weights: each kind that VisionTransformer can express."""

import functools

import torch
from peers.torch_models import channels_first, randomized
from timm.layers import LayerNorm, QuickGELU
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer_hybrid import _create_vision_transformer_hybrid, _resnetv2

SIZES = {
    **{"img_size": 32, "patch_size": 8, "num_classes": 5},
    **{"embed_dim": 24, "depth": 2, "num_heads": 3, "mlp_ratio": 2},
}
CLIP = {"pre_norm": True, "norm_layer": functools.partial(LayerNorm, eps=1e-5)}
SIGLIP = {"class_token": False, "global_pool": "map"}
TANH = functools.partial(torch.nn.GELU, approximate="tanh")
# Options besides SIZES, and arguments of from_pretrained besides num_heads.
MODELS = {
    "token": ({}, {}),
    "mean": ({"class_token": False, "global_pool": "avg"}, {}),
    "mean, with a class token": ({"global_pool": "avg"}, {}),
    "mean, with a class token, norm before": (
        {"global_pool": "avg", "fc_norm": False},
        {"pooling": "gap", "class_token": True},
    ),
    "token, norm after": ({"fc_norm": True}, {"pooling": "token"}),
    "mean, with registers": ({"class_token": False, "global_pool": "avg", "reg_tokens": 4}, {}),
    "token without position": ({"no_embed_class": True}, {}),
    "DeiT III": ({"init_values": 1e-6, "no_embed_class": True}, {}),
    "DINOv2 with registers": ({"init_values": 1e-5, "reg_tokens": 4, "no_embed_class": True}, {}),
    "CLIP": (CLIP, {"activation": "gelu_erf"}),
    "CLIP, quick": ({**CLIP, "act_layer": QuickGELU}, {"activation": "quick_gelu"}),
    "SigLIP": (SIGLIP, {"activation": "gelu_erf"}),
    "SigLIP, tanh": ({**SIGLIP, "act_layer": TANH}, {"activation": "gelu_tanh"}),
    "epsilon": ({"norm_layer": functools.partial(LayerNorm, eps=0.01)}, {"norm_epsilon": 0.01}),
    "no biases": ({"qkv_bias": False}, {}),
    "no positions": ({"pos_embed": "none"}, {"image_size": 32, "position_embedding": "none"}),
    "no head": ({"num_classes": 0}, {}),
    "gray": ({"in_chans": 1}, {}),
    "rectangle": ({"img_size": (16, 40), "patch_size": (8, 4)}, {"position_grid": (2, 10)}),
}
HYBRIDS = {
    "hybrid": ((1, 2), {"img_size": 64}),
    "hybrid, mean": ((2, 1), {"img_size": 64, "class_token": False, "global_pool": "avg"}),
    "hybrid, patches": ((1,), {"img_size": 32, "patch_size": 2}),
    "root": ((), {"img_size": 64, "patch_size": 8}),
}
DISTILLED = {
    "distilled": ({}, {}),
    "distilled, rectangle": ({"img_size": (16, 40)}, {"position_grid": (2, 5)}),
}
NAMES = (*MODELS, *HYBRIDS, *DISTILLED)


def made(name):
    """The model of this name."""
    if name in HYBRIDS:
        layers, changes = HYBRIDS[name]
        sizes = {**SIZES, "patch_size": 1, **changes}
        backbone = _resnetv2(layers, in_chans=3)
        model = _create_vision_transformer_hybrid("vit_small_r26_s32_224", backbone, **sizes)
    elif name in DISTILLED:
        model = VisionTransformerDistilled(**{**SIZES, **DISTILLED[name][0]})
    else:
        model = VisionTransformer(**{**SIZES, **MODELS[name][0]})
    return randomized(model)


def options_of(name):
    """The arguments of from_pretrained for the model."""
    return {"num_heads": SIZES["num_heads"], **{**MODELS, **DISTILLED}.get(name, ({}, {}))[1]}


def stages_of(model, images):
    """The outputs of the model by the names of our stages."""
    with torch.no_grad():
        tokens = model.forward_features(channels_first(images))
        if isinstance(model, VisionTransformerDistilled):
            return {"tokens": tokens, "logits": model.forward_head(tokens)}
        stages = {"tokens": tokens, "representation": model.forward_head(tokens, pre_logits=True)}
        return {**stages, "logits": model.forward_head(tokens)} if model.num_classes else stages
