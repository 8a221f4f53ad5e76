"""The smallest model that has every part of a plain Vision Transformer, and its changes."""

import keras
import numpy as np
from reference.comparing import arrays, assert_close, randomize, without_initial_values
from reference.vit_numpy import forward

from keras_vit import VisionTransformer
from keras_vit.variants import parse_variant

SMALL = {
    "image_size": 16,
    "patch_size": 8,
    "hidden_size": 12,
    "num_layers": 2,
    "mlp_dim": 20,
    "num_heads": 3,
    "num_classes": 5,
}
# What small models of other classes have, alone or around SMALL.
PACKED = {"image_size": (None, None), "max_num_patches": 5, "position_grid": 2, "pooling": "map"}
PIXELS = {"image_size": (4, 4), "patch_size": 1, "pooling": "gap", "palette": 7, "causal": True}
TEXT = {"vocabulary_size": 11, "length": 5, "hidden_size": 12, "num_layers": 1, "mlp_dim": 20, "num_heads": 3}
DECODER = {"decoder_hidden_size": 8, "decoder_num_layers": 1, "decoder_num_heads": 2}
HEAD = {"out_dim": 6, "hidden_dim": 9, "bottleneck_dim": 5, "num_local": 1, "local_size": 8}
# Fields of a recipe whose runs are interrupted: a checkpoint every second step, and state of every kind.
INTERRUPTED = {
    **{"warmup_steps": 2, "eval_every": 4, "checkpoint_every": 2, "seed": 1},
    **{"ema": 0.8, "accumulation_steps": 2, "dropout_rate": 0.2},
}
NO_TRANSFORMER = {"num_layers": None, "mlp_dim": None, "num_heads": None, "pooling": "gap"}
# Two of the newer families: rotary positions alone, with registers; and with a table, gates and more norms.
_TINY = {"hidden_size": 24, "num_layers": 2, "mlp_dim": 20, "num_heads": 3}
NEWER = {name: {**parse_variant(f"{name}/8"), **_TINY} for name in ("DINOv3-S", "EVA-02-B")}
HYBRID = {"image_size": 32, "patch_size": 1, "num_layers": 1, "resnet_width": 32}
ENCODERS = {  # that differ in what surrounds the patch tokens
    "class_token": {},
    "gap": {"pooling": "gap", "final_norm": False},
    "registers": {"num_registers": 2, "prefix_positions": False},
    "sincos2d": {"position_embedding": "sincos2d"},
    "rectangle": {"image_size": (16, 24), "patch_size": (4, 8)},
    "any_size": {"image_size": (None, None), "position_grid": (3, 3)},
    "clip": {"pre_norm": True, "activation": "quick_gelu", "qkv_bias": False},
    "DINOv3": {**NEWER["DINOv3-S"], "patch_norm": True},
    "hybrid": {**HYBRID, "resnet": (1,), "image_size": 16},
}


def small(**options):
    """A small model, changed by the options, with random weights."""
    with without_initial_values():
        model = VisionTransformer.from_config({**SMALL, **options})
    return randomize(model)


def one_block(**options):
    """The same with one block: an export of it takes half the time, and is as hard to get right."""
    return small(**{**options, "num_layers": options.get("num_layers", 2) and 1})


def penalized(**options):
    """That with a penalty of 0.1 on the squares of the head's kernel."""
    model = one_block(**options)
    model.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.1)
    return model


def images_for(model, batch=2, size=None):
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (batch, *(size or model.image_size), model.in_channels)).astype("float32")


def run_live(model, images):
    """What the model puts out for images in [0, 1], as its exports take them."""
    return np.asarray(model(model.preprocessing.normalize(images * np.float32(255)), training=False))


def compute(model, images, stages=("tokens", "pooled", "representation", "logits")):
    """The stages that the model has, in one compiled step."""
    stages = [stage for stage in stages if stage != "logits" or model.num_classes]
    extractor = model.feature_extractor(stages)
    return extractor.predict_on_batch(images) if keras.backend.backend() == "jax" else extractor(images)


def assert_same_as_numpy(model, images=None):
    """Every stage equals the NumPy model's."""
    images = images_for(model) if images is None else images
    expected = forward(arrays(model), images, model.get_config())
    computed = compute(model, images)
    assert computed.keys() == expected.keys()
    for stage, array in computed.items():
        assert_close(array, expected[stage], 1e-5)
