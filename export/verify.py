"""What was exported, loaded in its own runtime and compared with the live model."""

import os

import numpy as np
import tensorflow as tf

FLOAT32_BOUND = 1e-5  # largest logit difference over the largest logit


def run_live(model, images):
    """The live model's logits for float32 images in [0, 1].

    Example:
        >>> run_live(model, images).shape
        (4, 10)
    """
    pixels = model.preprocessing.normalise(np.asarray(images, "float32") * 255.0)
    return np.asarray(model(pixels, training=False))


def run_saved_model(path, images):
    """The logits that a SavedModel's `serving_default` computes for float32 images in [0, 1].

    Example:
        >>> run_saved_model(export_saved_model(model, "served/1"), images).shape
        (4, 10)
    """
    loaded = tf.saved_model.load(os.fspath(path))  # kept alive while its signature runs
    outputs = loaded.signatures["serving_default"](images=tf.constant(images, tf.float32))
    return outputs["logits" if "logits" in outputs else "representation"].numpy()


def run_tflite(path, images):
    """The logits that a `.tflite` file computes in the LiteRT interpreter for images in [0, 1].

    Example:
        >>> folder = export_saved_model(model, "lite/1")
        >>> run_tflite(export_tflite(folder, "lite/model.tflite"), images).shape
        (4, 10)
    """
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=os.fspath(path)).get_signature_runner("serving_default")
    outputs = runner(images=np.asarray(images, "float32"))
    return outputs["logits" if "logits" in outputs else "representation"]


def compare(live, exported):
    """How far exported logits are from the live model's.

    Args:
        live, exported: Arrays (batch, classes).

    Returns:
        dict of `max_logit_difference` (relative to the largest live logit) and `top1_agreement`
        (the share of images with the same best class).

    Example:
        >>> compare(np.array([[1.0, 2.0]]), np.array([[1.0, 1.5]]))
        {'max_logit_difference': 0.25, 'top1_agreement': 1.0}
    """
    scale = max(float(np.abs(live).max()), float(np.finfo("float32").tiny))
    return {
        "max_logit_difference": float(np.abs(live - exported).max()) / scale,
        "top1_agreement": float(np.mean(live.argmax(-1) == exported.argmax(-1))),
    }
