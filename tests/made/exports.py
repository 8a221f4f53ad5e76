"""The model and the export that tests share, and images for them."""

import dataclasses
import shutil

import numpy as np
import tensorflow as tf
from reference.small import one_block, penalized

from keras_vit.data.datasets import load_dataset
from keras_vit.export.folder import export_folder
from keras_vit.export.hub import Facts
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
FILES = {  # of each format in an export folder
    "saved_model": "saved_model/1",
    "tflite_float32": "model_float32.tflite",
    "tflite_float16": "model_float16.tflite",
    "tflite_dynamic_int8": "model_dynamic_int8.tflite",
    "tflite_int8": "model_int8.tflite",
    "onnx": "model.onnx",
    "onnx_int8": "model_int8.onnx",
    "hub": "hub/vit.tar.gz",
    "web": "web",
}


def shared_model():
    """A model with dropout, class names, a preprocessing of its own and a weight penalty."""
    return penalized(**OPTIONS)


def export_everything(folder):
    """Export it in every format."""
    options = {"precisions": ("float32", "float16", "dynamic_int8", "int8"), "dataset": digits(40)}
    facts = Facts(licence="Apache-2.0", trained_on="scanned digits")
    formats = ("saved_model", "tflite", "onnx", "onnx_int8", "hub", "web")
    export_folder(shared_model(), folder / "export", formats, **options, publisher="me", facts=facts)


def any_size_model():
    """A model that takes images of any size, and patches of 8 × 8."""
    return one_block(image_size=(None, None), position_grid=(4, 4))


def export_any_size(folder):
    export_saved_model(any_size_model(), folder / "1", warmup=())


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
