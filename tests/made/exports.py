"""The model and the export that tests share, and images for them."""

import dataclasses
import shutil

import numpy as np
import tensorflow as tf
from PIL import Image
from reference.small import HYBRID, NEWER, NO_TRANSFORMER, one_block, penalized

from keras_vit import ImageSegmenter, VisionTransformer
from keras_vit.data.datasets import load_dataset
from keras_vit.export.description import describe, parse_description
from keras_vit.export.folder import export_folder
from keras_vit.export.formats import FORMATS
from keras_vit.export.hub import Facts
from keras_vit.export.hub_card import model_card
from keras_vit.export.saved_model import export_saved_model

NAMES = ("ant", "bee", "cät", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay")
OPTIONS = {
    "num_classes": len(NAMES),
    "class_names": NAMES,
    "dropout_rate": 0.5,
    "preprocessing": {
        **{"image_size": 16, "resize": "crop", "crop_fraction": 0.875, "interpolation": "bicubic"},
        **{"antialias": True, "mean": (0.4, 0.5, 0.6), "std": (0.4, 0.6, 0.5)},
    },
}
EVERYTHING = ("saved_model", "tflite", "onnx", "hub", "web")  # OpenVINO is not always installed
FILES = {  # of each format in an export folder
    format.name: format.path.format(version=1, name="vit", precision=format.precision)
    for format in FORMATS
    if format.option in EVERYTHING
}
SCENE = ("sky", "tree", "road", "car", "lake")  # the classes of `segmenter`
HEADS = {
    "linear": {},
    "multi": {"head_norm": "batch"},
    "up": {},
    "mask": {},
    "annealed": {"head": "mask"},
}

MODELS = {
    "quick_gelu": {"activation": "quick_gelu"},
    "sincos2d": {"position_embedding": "sincos2d", "prefix_positions": False},
    "erf": {"activation": "gelu_erf"},
    "tanh": {"activation": "gelu_tanh"},
    "gap": {"pooling": "gap", "representation_size": 6},
    "map": {"pooling": "map"},
    "token_gap": {"pooling": "token_gap", "activation": "gelu_erf"},
    "registers": {"num_registers": 2, "image_size": (16, 24), "layer_scale": 0.1},
    "distillation": {"distillation": True},
    "hybrid": {**HYBRID, "resnet": (1, 1)},
    "root block": {**HYBRID, "resnet": ()},
    "no transformer": {**HYBRID, **NO_TRANSFORMER, "resnet": (1,)},
    "dropout": {"dropout_rate": 0.3, "attention_dropout_rate": 0.3, "stochastic_depth_rate": 0.3},
    "no head": {"num_classes": None},
    "gray": {"in_channels": 1},
    "chunked attention": {},
    "any size": {
        **{"image_size": (None, None), "position_grid": (4, 4)},
        "position_interpolation": "bicubic_antialias_square",
    },
    "any size, bicubic": {
        **{"image_size": (None, None), "position_grid": (4, 4)},
        "position_interpolation": "bicubic",
    },
    **NEWER,
    "any size, rotary": {**NEWER["EVA-02-B"], "image_size": (None, None), "position_grid": (4, 4)},
    "mixed": {**NEWER["DINOv3-S"], "rotary": "mixed"},
    "rotary without prefix": {"rotary": "dinov3", "pooling": "gap"},
    "relative": {"relative_positions": True, "key_bias": False, "image_size": (19, 24)},
    "grouped queries": {"num_heads": 6, "num_kv_heads": 2, "qk_norm": True, "norm": "rms"},
    "padded patches": {"patch_padding": 2, "image_size": (19, 24), "pooling": "gap"},
    "post-norm": {"post_norm": True, "attention_sub_norm": True, "patch_norm": True},
    "no last norm": {
        **{"rotary": {"kind": "axial", "offset": 1, "reference_grid": 3}, "final_norm": False},
    },
    "palette": {
        **{"palette": 10, "causal": True, "image_size": (4, 6), "patch_size": 1},
        **{"pooling": "gap", "norm": "rms"},
    },
}
SEVERAL = {  # at once
    "several": ("EVA-02-B", "tanh", "map", "gray", "dropout", "chunked attention"),
    "others": ("DINOv3-S", "grouped queries", "post-norm", "distillation", "any size", "chunked attention"),
}
# How far the outputs of files may be from the live model's, relative to the largest. Rounding to integers
# costs such small models much; export/test_quantization.py has trained ones.
BOUNDS = {
    **{"float32": 1e-5, "float16": 5e-3, "bfloat16": 0.03},
    **{"dynamic_int8": 0.1, "int8": 0.2, "full_int8": 0.5},
}
EXPORTS = {  # the model's options, and those of its export
    **{name: (options, {}) for name, options in MODELS.items()},
    **{
        name: ({option: value for part in parts for option, value in MODELS[part].items()}, {})
        for name, parts in SEVERAL.items()
    },
    "multi_label": ({}, {"task": "multi_label"}),
    "regression": ({}, {"task": "regression"}),
    "representation": ({"pooling": "gap"}, {"representation": True}),
    "bfloat16": ({"dtype": "mixed_bfloat16"}, {}),
}


def shared_model():
    """A model with dropout, class names, a preprocessing of its own and a weight penalty."""
    return penalized(**OPTIONS)


def export_everything(folder):
    """Export it in every format."""
    options = {
        "precisions": ("float32", "float16", "dynamic_int8", "int8", "full_int8"),
        "dataset": digits(40),
    }
    facts = Facts(license="Apache-2.0", trained_on="scanned digits")
    export_folder(shared_model(), folder / "export", EVERYTHING, **options, publisher="me", facts=facts)


def any_size_model():
    """A model that takes images of any size, and patches of 8 × 8."""
    return one_block(image_size=(None, None), position_grid=(4, 4))


def export_any_size(folder):
    export_saved_model(any_size_model(), folder / "1", warmup=())


def segmenter(head="up", size=(16, 24), layers=2):
    """A small model of random weights; "annealed" is one whose masks do not restrict the attention."""
    parts = {"patch_size": 8, "hidden_size": 24, "num_layers": layers, "mlp_dim": 48, "num_heads": 3}
    parts |= {"position_grid": (2, 3), "pooling": None, "dropout_rate": 0.5}
    options = {"head": head, "decoder_size": 8, "num_queries": 7, "query_blocks": 1, **HEADS[head]}
    model = ImageSegmenter(VisionTransformer(size, **parts), len(SCENE), class_names=SCENE, **options)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "probability" in weight.path:
            weight.assign(float(head != "annealed"))
        elif "float" in weight.dtype:
            mean, is_variance = float("gamma" in weight.path), "variance" in weight.path
            weight.assign(rng.normal(mean or is_variance, 0.2, weight.shape) ** 2)
            weight.assign(weight * rng.choice([-1, 1], weight.shape) ** (not is_variance))
    return model


def photos(*sizes):
    """Smooth images of sizes (height, width)."""
    small = np.random.default_rng(1).integers(0, 256, (5, 7, 3), "uint8")
    return [np.asarray(Image.fromarray(small).resize(size[::-1], Image.Resampling.BICUBIC)) for size in sizes]


def described(model, task, words):
    """The `Description` of a model, after tests of its JSON, of what it builds and of words in its card."""
    description = describe(model, seed=3)
    assert parse_description(description.as_json(), "m.onnx") == description
    assert description.task == task
    built = description.build(description.live_preprocessing)
    assert type(built) is type(model) and built.output_shape == model.output_shape
    card = model_card(description, Facts(), "vit")
    assert all(word in card for word in words) and "None" not in card
    return description


def saved_function(compute, folder, assets, **variables):
    """A SavedModel of a function of images, with the `assets` of another one.

    Args:
        compute: A function from images (batch, 16, 16, 3) to logits.
        folder: To write.
        assets: A folder with `keras_vit.json`.
        **variables: The function's variables.
    """
    module = tf.train.Checkpoint(**variables)
    spec = tf.TensorSpec((None, 16, 16, 3), name="images")

    def serve(images):
        return {"logits": compute(images)}

    module.serve = tf.function(serve, input_signature=[spec], autograph=False)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    shutil.copytree(assets, folder / "assets", dirs_exist_ok=True)
    return folder


def digits(count):
    """The scanned digits with the given number of images a split, and the class names of `shared_model`."""
    dataset = load_dataset("digits")
    splits = {n: samples.take(range(count)) for n, samples in dataset.splits.items() if n != "validation"}
    return dataclasses.replace(dataset, splits=splits, class_names=NAMES)


def pixels(count=3, size=(16, 16), channels=3, seed=0):
    """Float32 images in [0, 1]."""
    return np.random.default_rng(seed).uniform(size=(count, *size, channels)).astype("float32")
