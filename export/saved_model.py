"""A model as a reusable SavedModel: callable, fine-tunable, with serving signatures."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from keras import ops

from keras_vit.engine.adapting import plain_arrays
from keras_vit.export import signatures
from keras_vit.export.checks import check_backend, damaged
from keras_vit.export.description import LABELS, Description, describe, read_description
from keras_vit.export.outputs import outputs_of
from keras_vit.export.warmup import warmup_requests, write_warmup
from keras_vit.exporting import exported_graph
from keras_vit.messages import article
from keras_vit.models import VisionTransformer
from keras_vit.models.backbones import backbone
from keras_vit.models.configured import ConfiguredModel
from keras_vit.rules import integer, items
from keras_vit.types import Path, Shape, Tensor
from keras_vit.writing import atomic_path

if TYPE_CHECKING:
    import numpy as np
    from tensorflow.core.framework.tensor_pb2 import TensorProto

    from keras_vit.export.formats import ExportJob


@exported_graph()
def export_saved_model(
    model: keras.Model,
    path: Path,
    *,
    task: str | None = None,
    representation: bool = False,
    warmup: Sequence[int] = (1,),
    seed: int = 0,
) -> pathlib.Path:
    """Write a model as a SavedModel that TensorFlow, TF Hub and TF Serving load.

    It takes float32 images in [0, 1], normalizes the pixels itself, and computes in float32 whatever the
    model's dtype.

    The loaded object is callable, `obj(images, training=False)`, has `variables`, `trainable_variables`
    and `regularization_losses`, `labels` and `description` (with `asset_path`), the endpoints `serve`
    and `serve_training` for `keras.layers.TFSMLayer`, and these signatures:

    * `serving_default`: `images` (batch, height, width, channels) to `logits` and `probabilities` of a
      classifier, `values` of a regression, or `representation` of a model without a head;
    * `image_feature_vector`: the same `images` to `representation`;
    * `serving_uint8`: uint8 `images` of any height and width, resized as for evaluation, to the outputs of
      `serving_default`;
    * `serving_bytes`: `image_bytes`, the contents of JPEG, PNG, GIF, BMP or WebP files of any sizes, decoded
      and resized as for evaluation, to `scores`, `class_ids` and `classes` of the best 5 of each image, or to
      the outputs of `serving_default` if there are no classes. It requires 1 or 3 channels, and pooling or a
      fixed image size.

    Of a model with a head for pixels or objects, such as an `ImageSegmenter` or an `ObjectDetector`, the
    object returns what the model, in the form of its `exported()`, does. Its signatures `serving_default`,
    `serving_uint8` and `serving_bytes` take the same, and return the outputs that its page of the manual
    lists.

    A model of any size, `image_size=(None, None)`, computes each image at its own size.

    Args:
        model: A model of images on the TensorFlow backend. It is not changed.
        path: Folder to write; it must not exist. For TF Serving its name must be a number.
        task: "single_label" (the probabilities are a softmax), "multi_label" (sigmoids) or "regression" of a
            `VisionTransformer`; None for the model's task, "single_label" if it has none.
        representation: Whether to drop the head, so that the feature vector is the output.
        warmup: Batch sizes of the requests that TF Serving sends itself before it serves; () for none.
        seed: The seed of the split of the data that the model was trained on; stored in the `Description`.

    Returns:
        pathlib.Path of the folder.

    Raises:
        ValueError: if the folder exists, a weight is NaN or infinite, the model cannot be exported, or an
            argument is wrong.
        OSError: if it cannot be written, as on a full disk. Nothing is left under its name then.

    Example:
        >>> folder = export_saved_model(model, "export/saved_model/1")
        >>> loaded = tf.saved_model.load(folder)
        >>> loaded(tf.zeros((1, 32, 32, 3))).shape
        TensorShape([1, 10])
        >>> png = tf.io.encode_png(np.zeros((50, 40, 3), "uint8"))
        >>> loaded.signatures["serving_bytes"](image_bytes=tf.stack([png]))["classes"].shape
        TensorShape([1, 5])

    Source: TF Hub's reusable SavedModel interface and its common image API; TF Serving's warm-up.
    """
    check_exportable(model)
    items(integer(at_least=1)).check("warmup", warmup)
    check_weights(model)
    path = pathlib.Path(path).expanduser()
    copy = float32_copy(model, representation)
    description = describe(copy, task, seed)
    with atomic_path(path, overwrite=False) as temporary:
        exported, served = _exported(copy, description)
        requests = warmup_requests(description, warmup, "serving_bytes" in served) if warmup else None
        save(exported, temporary, served, description.files, requests)
    return path


def write_job(job: ExportJob, path: pathlib.Path) -> None:
    """Write the model of an `ExportJob`."""
    export_saved_model(job.model, path, task=job.task, representation=job.representation, seed=job.seed)


def save(
    exported: tf.train.Checkpoint,
    path: pathlib.Path,
    served: Mapping[str, Callable[..., dict[str, Tensor]]],
    files: Mapping[str, str],
    requests: Iterable[tuple[str, str, TensorProto]] | None = None,
) -> None:
    """Write an object with its signatures and, if there are some, TF Serving's warm-up requests.

    Args:
        exported: The object; it gets the attributes `description` and, with class names, `labels`.
        path: Folder in `atomic_path`.
        served: dict of its signatures by name.
        files: dict of the texts of its assets by file name.
        requests: As for `write_warmup`.

    Raises:
        OSError: if it cannot be written, with the reason in one line.
    """
    for file, text in files.items():
        asset = path.with_name(file)
        asset.write_text(text, encoding="utf-8")
        attribute = "labels" if file == LABELS else "description"
        setattr(exported, attribute, tf.saved_model.Asset(os.fspath(asset)))
    try:
        tf.saved_model.save(exported, os.fspath(path), signatures=served)
        if requests:
            write_warmup(path, requests)
    except tf.errors.OpError as error:
        reason = re.sub(r"\{\{.*?\}\} *", "", error.message.splitlines()[0])  # without graph nodes
        raise OSError(reason) from None


def set_threads(threads: int | None) -> None:
    """Set the threads of each operation; ValueError if TensorFlow has computed with another number.

    Args:
        threads: A positive int, or None for TensorFlow's own choice.
    """
    if threads is None:
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
        if threads != tf.config.threading.get_intra_op_parallelism_threads():
            raise ValueError("TensorFlow's threads can be set only before it computes") from None


def open_saved_model(
    path: Path, threads: int | None = None
) -> tuple[Description, Callable[..., dict[str, np.ndarray]]]:
    """The arguments of `ExportedModel` for the folder of a SavedModel."""
    return read_description(path), open_signature(path, "serving_default", threads)


def open_signature(path: Path, name: str, threads: int | None = None) -> Callable[..., dict[str, np.ndarray]]:
    """A signature of a SavedModel as a function from arrays, by name or the only one, to a dict of arrays.

    Raises:
        ValueError: if the SavedModel is damaged, or has no such signature.

    Example:
        >>> folder = export_saved_model(model, "export/saved_model/1")
        >>> open_signature(folder, "image_feature_vector")(images=images)["representation"].shape
        (4, 24)
    """
    set_threads(threads)
    try:
        loaded = tf.saved_model.load(os.fspath(path))
        signature = loaded.signatures[name]
        names = [*signature.structured_input_signature[1]]
    except Exception as error:  # TensorFlow raises exceptions of many classes for damaged files.
        raise damaged(path, error) from None

    # The reference keeps the variables alive.
    def compute(*arrays: np.ndarray, loaded: Any = loaded, **named: np.ndarray) -> dict[str, np.ndarray]:
        named |= zip(names, arrays)
        outputs = signature(**{name: tf.constant(array) for name, array in named.items()})
        return {name: values.numpy() for name, values in outputs.items()}

    return compute


def check_exportable(model: keras.Model) -> None:
    """Raise ValueError unless this is a model of a class that is exported."""
    if not isinstance(model, ConfiguredModel) or model.exported_stages is None:
        raise ValueError(f"expected a model of images to export; got {type(model).__name__}")


def check_weights(model: keras.Model) -> None:
    """Raise ValueError on another backend than TensorFlow, or if a weight of the model is not finite."""
    advice = "save the model as .keras, and load it where KERAS_BACKEND=tensorflow"
    check_backend("SavedModels", advice)
    bad = [weight.path for weight in model.weights if not ops.all(ops.isfinite(weight))]
    if bad:
        raise ValueError(f"these weights are not finite, so the model is not exported: {', '.join(bad)}")


def float32_copy(model: keras.Model, representation: bool = False) -> keras.Model:
    """A copy of a model, of whatever precision, that computes in float32, as exports do.

    Args:
        model: A `VisionTransformer`; its dropout, frozen weights and weight penalties are kept, quantized
            kernels are dequantized, and LoRA factors are merged. Or a model around one, as its `finished()`.
        representation: Whether to drop the head.

    Raises:
        ValueError: if the representation of a model around a `VisionTransformer` is asked for.

    Example:
        >>> float32_copy(model, representation=True).output.shape
        (None, 24)
    """
    if backbone(model) is not model:
        if representation:
            raise ValueError(
                f"{article(type(model).__name__)} has no representation of whole images: export its "
                f"{model.backbone_argument}"
            )
        with tf.device("cpu:0"):
            return model.exported()
    changes: dict[str, str | None] = {"dtype": "float32", "name": "vision_transformer"}
    if representation:
        changes |= {"num_classes": None, "class_names": None}
    with tf.device("cpu:0"):
        copy = VisionTransformer.from_config({**model._config(), **changes})
    arrays, stored = plain_arrays(model), {weight.path: weight for weight in model.weights}
    for weight in copy.weights:
        source = stored[weight.path]
        weight.assign(arrays[weight.path])
        weight.regularizer = source.regularizer
        weight.trainable = model.trainable and source.trainable
    return copy


def _exported(
    model: keras.Model, description: Description
) -> tuple[tf.train.Checkpoint, dict[str, Callable[..., dict[str, Tensor]]]]:
    """The object to save, and its signatures.

    Its attributes hold TensorFlow's variables, not Keras's: the LiteRT converter would not find those that
    are saved through a Keras variable.
    """
    forward = signatures.forward(model)
    outputs = outputs_of(description)
    channels = model.in_channels

    def spec(
        name: str, dtype: tf.DType = tf.float32, shape: Shape = (None, *model.image_size, channels)
    ) -> tf.TensorSpec:
        return tf.TensorSpec(shape, dtype, name=name)

    def function(compute: Callable[..., Any], *specs: tf.TensorSpec) -> Callable[..., Any]:
        return tf.function(compute, input_signature=specs, autograph=False)

    def penalty(variable: keras.Variable) -> Callable[[], Tensor]:
        return function(lambda: tf.convert_to_tensor(variable.regularizer(variable)))

    def call(inputs: Tensor, training: bool = False) -> Tensor:
        return outputs.of_call(forward(inputs, training))

    def stages(images: Tensor) -> dict[str, Tensor]:
        return forward(images, False)

    def feature_vector(images: Tensor) -> dict[str, Tensor]:
        return {"representation": stages(images)["representation"]}

    exported = tf.train.Checkpoint()
    exported.variables = [v.value for v in model.variables]
    exported.trainable_variables = [v.value for v in model.trainable_variables]
    penalized = [v for v in model.trainable_variables if getattr(v, "regularizer", None)]
    exported.regularization_losses = [*map(penalty, penalized)]
    exported.__call__ = tf.function(call, autograph=False)
    for training in (False, True):
        exported.__call__.get_concrete_function(spec("inputs"), training=training)
    exported.serve = function(lambda inputs: call(inputs, False), spec("inputs"))
    exported.serve_training = function(lambda inputs: call(inputs, True), spec("inputs"))
    served = {
        "serving_default": function(lambda images: outputs.of_images(images, stages), spec("images")),
        "serving_uint8": function(
            lambda images: outputs.of_uint8(images, stages),
            spec("images", tf.uint8, (None, None, None, channels)),
        ),
    }
    if "representation" in model.exported_stages:
        served["image_feature_vector"] = function(feature_vector, spec("images"))
    if outputs.takes_bytes:
        served["serving_bytes"] = function(
            lambda image_bytes: outputs.of_bytes(image_bytes, stages),
            spec("image_bytes", tf.string, (None,)),
        )
    for name, signature in served.items():
        setattr(exported, name, signature)
    return exported, served
