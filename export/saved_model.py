"""A model as a reusable SavedModel: callable, fine-tunable, with serving signatures."""

import os
import pathlib

import tensorflow as tf

from keras_vit.export.description import FILE, LABELS, describe
from keras_vit.export.writing import new_path


def export_saved_model(model, path, *, task="single_label"):
    """Write a model as a SavedModel that TensorFlow, TF Hub and TF Serving load.

    The pixels' normalisation is part of what is written: images go in as float32 in [0, 1]. The
    loaded object is callable, `obj(images, training=False)`, has `variables`,
    `trainable_variables` and `regularization_losses`, the endpoints `serve` and `serve_training`
    for `keras.layers.TFSMLayer`, and the signature `serving_default`: `images` (batch, height, width,
    channels) to `logits` and `probabilities`, or to `representation` where there is no head.

    Args:
        model: A `VisionTransformer` on the TensorFlow backend.
        path: Folder to write; it must not exist. TF Serving wants a number as its last part.

    Returns:
        pathlib.Path of the folder.

    Raises:
        ValueError: if the folder exists. Nothing is left under its name if writing fails.

    Example:
        >>> folder = export_saved_model(model, "export/saved_model/1")
        >>> tf.saved_model.load(folder)(tf.zeros((1, 32, 32, 3))).shape
        TensorShape([1, 10])

    Source: TF Hub's reusable SavedModel interface and its common image API.
    """
    with new_path(path) as temporary:
        exported, signatures = _exported(model)
        tf.saved_model.save(exported, os.fspath(temporary), signatures=signatures)
        description = describe(model, task)
        (temporary / "assets" / FILE).write_text(description.as_json())
        if description.labels:
            (temporary / "assets" / LABELS).write_text("\n".join(description.labels) + "\n")
    return pathlib.Path(path)


def _exported(model):
    """The object to save, and its signatures.

    Its attributes hold TensorFlow's variables, not Keras's: saved through a Keras variable, they
    would not be found by the LiteRT converter.
    """
    height, width = model.image_size
    shape = (None, height, width, model.in_channels)

    def normalise(images):
        return model.preprocessing.normalise(images * 255.0)

    def spec(name):
        return tf.TensorSpec(shape, tf.float32, name=name)

    def penalty(variable):
        return tf.function(
            lambda: tf.convert_to_tensor(variable.regularizer(variable)), input_signature=[], autograph=False
        )

    def endpoint(training):
        return tf.function(
            lambda inputs: model(normalise(inputs), training=training),
            input_signature=[spec("inputs")],
            autograph=False,
        )

    def serving_default(images):
        outputs = model(normalise(images), training=False)
        if model.num_classes is None:
            return {"representation": outputs}
        return {"logits": outputs, "probabilities": tf.nn.softmax(outputs)}

    exported = tf.train.Checkpoint()
    exported.variables = [v.value for v in model.variables]
    exported.trainable_variables = [v.value for v in model.trainable_variables]
    exported.regularization_losses = [
        penalty(v) for v in model.trainable_variables if getattr(v, "regularizer", None)
    ]
    exported.__call__ = tf.function(
        lambda inputs, training=False: model(normalise(inputs), training=training), autograph=False
    )
    for training in (False, True):
        exported.__call__.get_concrete_function(spec("inputs"), training=training)
    exported.serve, exported.serve_training = endpoint(False), endpoint(True)
    exported.serving_default = tf.function(serving_default, input_signature=[spec("images")], autograph=False)
    return exported, {"serving_default": exported.serving_default}
