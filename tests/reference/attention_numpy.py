"""Attention scores in float64 NumPy, and the models that inspection is compared with it on."""

import functools
import types

import keras
import numpy as np
from reference import vit_numpy as reference
from reference.comparing import arrays, numpy
from reference.small import NEWER, images_for, small

from keras_vit import from_pretrained

REGISTERS = {"num_registers": 3, "image_size": (16, 32)}
ROTARY = {"num_registers": 4, "num_heads": 3, "hidden_size": 24}
MODELS = {
    "token": lambda golden: from_pretrained(golden / "token.npz"),
    "gap": lambda golden: from_pretrained(golden / "gap.npz"),
    "map": lambda golden: from_pretrained(golden / "bigvision_map.npz"),
    "map, norm after pooling": lambda golden: small(pooling="map", norm_after_pooling=True, **REGISTERS),
    "hybrid": lambda golden: from_pretrained(golden / "hybrid.npz", image_size=(48, 32)),
    "timm": lambda golden: from_pretrained(golden / "timm_avg.safetensors", num_heads=3),
    "a rectangle": lambda golden: from_pretrained(golden / "token.npz", image_size=(24, 48)),
    "any size": lambda golden: from_pretrained(golden / "gap.npz", image_size=(None, None)),
    "registers": lambda golden: small(**REGISTERS),
    "registers and gap": lambda golden: small(**REGISTERS, pooling="gap"),
    "gap with a class token": lambda golden: small(pooling="gap", class_token=True),
    "every token": lambda golden: small(pooling=None, class_token=True, patch_size=(4, 8)),
    "distillation": lambda golden: small(distillation=True),
    "class token and mean": lambda golden: small(pooling="token_gap", num_registers=1, num_layers=1),
    "other blocks": lambda golden: small(layer_scale=0.5, qkv_bias=False, activation="quick_gelu"),
    "rotary": lambda golden: small(rotary="dinov3", qk_norm=True, **ROTARY, image_size=(16, 32)),
    "mixed": lambda golden: small(rotary={"kind": "mixed", "order": "xy"}, **ROTARY, image_size=(16, 32)),
    "EVA-02": lambda golden: small(**NEWER["EVA-02-B"], image_size=(16, 32)),
    "a probe without prefix": lambda golden: small(
        pooling="map", class_token=True, pool_prefix=False, num_layers=1
    ),
    "relative": lambda golden: small(relative_positions=True, post_norm=True, image_size=(16, 32)),
}


def attention_by_numpy(model, images):
    """Return the scores of each block, `blocks` of (batch, heads, tokens, tokens), and of the probe
    (batch, heads, tokens); the patch grid; the number of prefix tokens."""
    c, w = model.get_config(), {name: a.astype("float64") for name, a in arrays(model).items()}
    first = keras.Model(model.input, [model.get_layer(n).output for n in ("patch_embedding", "patch_tokens")])
    grid = first(images)[0].shape[1:3]
    tokens = keras.tree.flatten(model.get_layer("encoder_block_0").input)[0]
    x = numpy(keras.Model(model.input, tokens)(images)).astype("float64")
    blocks, probe, prefix = [], None, x.shape[1] - grid[0] * grid[1]
    for i in range(c["num_layers"]):
        name = f"encoder_block_{i}"
        y = x if c["post_norm"] else reference.norm(w, f"{name}/attention_norm", x, c)
        positions = reference.positions_of_block(w, i, *grid, c)
        blocks.append(reference.attention_scores(w, f"{name}/attention", y, y, c, positions)[0])
        x = reference.block(w, name, x, c, positions)
    if c["pooling"] == "map":
        y = x if c["norm_after_pooling"] else reference.norm(w, "encoder_norm", x, c)
        first = 0 if c["pool_prefix"] else prefix
        query = w["attention_pooling/probe"].repeat(len(y), 0)
        probe = reference.attention_scores(w, "attention_pooling/attention", query, y[:, first:], c)[0]
        probe = np.pad(probe[:, :, 0], ((0, 0), (0, 0), (first, 0)))
    return types.SimpleNamespace(blocks=blocks, probe=probe, grid=grid, prefix=prefix)


def query_tokens(model, expected):
    """Return the indices of the tokens that the pooling reads."""
    if model.pooling in ("token", "token_gap"):
        return [0, 1] if model.distillation else [0]
    return [*range(expected.prefix, expected.blocks[0].shape[-1])]


@functools.cache
def inspected(name, golden):
    """Return a model of the table, images for it, and its attention by NumPy; not to be changed."""
    model = MODELS[name](golden)
    images = images_for(model, 3, (40, 24) if model.image_size == (None, None) else None)
    return model, images, attention_by_numpy(model, images)


def set_attention(model, query, key, query_bias=0.0):
    """Set the (channels, head size) query and key kernels of every block, of one head each."""
    for i in range(model.num_layers):
        attention = model.get_layer(f"encoder_block_{i}").attention
        for layer, kernel, bias in ((attention.query, query, query_bias), (attention.key, key, 0.0)):
            layer.kernel.assign(np.reshape(kernel, layer.kernel.shape))
            layer.bias.assign(np.broadcast_to(bias, layer.bias.shape))
    return model


def set_uniform_attention(model):
    """Set the queries to zero, so that they attend uniformly."""
    for i in range(model.num_layers):
        layer = model.get_layer(f"encoder_block_{i}").attention.query
        layer.kernel.assign(np.zeros(layer.kernel.shape))
        layer.bias.assign(np.zeros(layer.bias.shape))
    return model
