"""The model and the export that tests share, and images for them."""

import dataclasses

import numpy as np
from reference.small import penalised

from keras_vit.data.datasets import load_dataset
from keras_vit.export.folder import export_folder
from keras_vit.export.hub import Facts

NAMES = ("ant", "bee", "cät", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay")
OPTIONS = {
    "num_classes": len(NAMES),
    "class_names": NAMES,
    "dropout_rate": 0.5,
    "preprocessing": {"image_size": 16, "mean": (0.4, 0.5, 0.6), "std": (0.4, 0.6, 0.5)},
}
FILES = {  # of each format in an export folder
    "saved_model": "saved_model/1",
    "tflite_float32": "model_float32.tflite",
    "tflite_float16": "model_float16.tflite",
    "tflite_dynamic_int8": "model_dynamic_int8.tflite",
    "tflite_int8": "model_int8.tflite",
    "onnx": "model.onnx",
    "hub": "hub/vit.tar.gz",
}


def shared_model():
    """A model with dropout, class names, a preprocessing of its own and a weight penalty."""
    return penalised(**OPTIONS)


def export_everything(folder):
    """Export it in every format."""
    options = {"precisions": ("float32", "float16", "dynamic_int8", "int8"), "dataset": digits(40)}
    facts = Facts(licence="Apache-2.0", trained_on="scanned digits")
    formats = ("saved_model", "tflite", "onnx", "hub")
    export_folder(shared_model(), folder / "export", formats, **options, publisher="me", facts=facts)


def digits(count):
    """The scanned digits with the given number of images a split, and the class names of `shared_model`."""
    dataset = load_dataset("digits")
    splits = {n: samples.take(range(count)) for n, samples in dataset.splits.items() if n != "validation"}
    return dataclasses.replace(dataset, splits=splits, class_names=NAMES)


def pixels(count=3, size=(16, 16), channels=3, seed=0):
    """Float32 images in [0, 1]."""
    return np.random.default_rng(seed).uniform(size=(count, *size, channels)).astype("float32")
