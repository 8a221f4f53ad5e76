"""The uses of a file by users of the package, as functions from paths to JSON values, for `made.limited`."""

import contextlib
import functools
import hashlib
import json
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

from keras_vit import VisionTransformer, from_pretrained
from keras_vit.cli.source import finished_run, open_model, seed_of, task_of
from keras_vit.data.decoding.model_input import decode, decode_and_prepare, read
from keras_vit.export.description import describe
from keras_vit.export.exported_model import open_exported
from keras_vit.export.signatures import from_bytes
from keras_vit.export.tar_archive import extract_archive
from keras_vit.preprocessing import Preprocessing, read_image

with contextlib.suppress(ImportError):  # It is large, and optional.
    import torch  # noqa: F401

PICTURE = np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype("uint8")
# One for each kind of resizing.
PREPARED = [
    Preprocessing(24, interpolation="bilinear"),
    Preprocessing((24, 16), "crop", 0.875, "bicubic", antialias=True),
    Preprocessing(24, "crop", 0.9, "bilinear"),
    Preprocessing((16, 24), "crop", 1.0, "bilinear", antialias=True),
]


def load(path, options):
    """A checkpoint, loaded and used: its configuration, and the outputs for a picture."""
    model = from_pretrained(path, **options)
    pictures = np.repeat(PICTURE, model.in_channels, -1)[..., : model.in_channels]
    outputs = np.asarray(model(model.preprocessing(pictures), training=False))
    if model.is_classifier:
        model.classify(pictures)
    config = {name: value for name, value in model.get_config().items() if name != "name"}  # it has a number
    return {"config": json.loads(json.dumps(config)), "outputs": outputs.tolist()}


def unpack(path):
    """An archive of a SavedModel, unpacked: the digest of each file by its name."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            root = extract_archive(path, pathlib.Path(folder) / "unpacked")
        except OSError as error:  # which the command line shows like a ValueError
            raise ValueError(str(error)) from error
        files = [file for file in root.rglob("*") if file.is_file()]
        return {str(f.relative_to(root)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def run_export(path):
    """An exported model, opened and used: its description, and the outputs for a picture."""
    opened = open_exported(path)
    if opened.is_classifier:
        opened.classify(PICTURE[np.newaxis])
    outputs = opened.predict_on_batch(opened.preprocessing(PICTURE))
    return {"config": json.loads(opened.description.as_json()), "outputs": outputs.tolist()}


def read_run(path):
    """A finished run, used: seed and task of its configuration, and the outputs for a picture."""
    found = load(path, {})
    finished_run(path)
    model = open_model(path)
    recipe = {"seed": seed_of(path, model), "task": task_of(path, model)}
    return {"config": {"recipe": recipe}, "outputs": found["outputs"]}


@tf.function(input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
def _trained_on(path):
    return decode(read(path))


@functools.cache
def _graphs(number):
    """(training, serving) of a `Preprocessing`, to float32 in [0, 255]."""
    preprocessing = PREPARED[number]
    size = {"image_size": preprocessing.image_size, "patch_size": 8, "preprocessing": preprocessing}
    sizes = {"hidden_size": 12, "num_layers": 1, "mlp_dim": 12, "num_heads": 1, "num_classes": 2}
    description = describe(VisionTransformer(**size, **sizes))
    path, content = tf.TensorSpec((), tf.string), tf.TensorSpec((None,), tf.string)
    train = tf.function(lambda path: decode_and_prepare(read(path), preprocessing), [path], autograph=False)
    serve = tf.function(lambda content: from_bytes(content, description), [content], autograph=False)
    return train, serve


def decoded(path, number):
    """An image file as `predict`, training and `serving_bytes` read it.

    Args:
        path: The file.
        number: Chooses a `Preprocessing` of PREPARED.

    Returns:
        dict of what refused it ("predict", "train", "serve": the message, or None), its "shape", and of what
        did not refuse it the largest difference of "pixels" and "prepared" images from those of `predict`,
        in [0, 255].
    """
    number %= len(PREPARED)
    preprocessing, content = PREPARED[number], pathlib.Path(path).read_bytes()
    train, serve = _graphs(number)
    scale, refused, found = np.float32(127.5), {}, {}
    ways = {
        "predict": lambda: (read_image(path), preprocessing(path)[0] * scale + scale),
        "train": lambda: (_trained_on(path).numpy(), train(path).numpy() * scale + scale),
        "serve": lambda: (None, serve(tf.stack([content])).numpy()[0] * np.float32(255)),
    }
    for way, run in ways.items():
        expected = ValueError if way == "predict" else tf.errors.InvalidArgumentError
        try:
            found[way] = run()
        except expected as error:
            refused[way] = getattr(error, "message", str(error))[:300]
    answer = {"refused": refused, "pixels": 0.0, "prepared": 0.0}
    pixels = [pixels for pixels, _ in found.values() if pixels is not None]
    prepared = [prepared for _, prepared in found.values()]
    if pixels:
        answer["shape"] = pixels[0].shape
    if len(pixels) == 2:
        if pixels[0].shape != pixels[1].shape:
            raise AssertionError(f"shapes {pixels[0].shape} and {pixels[1].shape}")
        answer["pixels"] = float(np.abs(pixels[0].astype(int) - pixels[1]).max())
    answer["prepared"] = max([float(np.abs(one - prepared[0]).max()) for one in prepared], default=0.0)
    return answer


keras.config.disable_traceback_filtering()
load(pathlib.Path(__file__).parent.parent / "golden/token.npz", {})  # threads are started, kernels compiled
