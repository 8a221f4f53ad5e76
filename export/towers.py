"""The text tower of an image-text model, and both towers, as SavedModel and LiteRT."""

from __future__ import annotations

import json
import pathlib
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

import keras_vit
from keras_vit.export import tflite
from keras_vit.export.checks import damaged, new_file
from keras_vit.export.litert.graph_form import litert_form
from keras_vit.export.saved_model import check_weights, float32_copy, open_signature, save
from keras_vit.export.verify import Reference, normalize_as_exports_do
from keras_vit.exporting import exported_graph
from keras_vit.rules import one_of
from keras_vit.startup_logs import quiet_startup_logs
from keras_vit.types import Path, Tensor
from keras_vit.writing import atomic_path

if TYPE_CHECKING:
    from keras_vit.export.formats import ExportJob
    from keras_vit.tasks.image_text.model import ImageTextModel

FILE = "image_text.json"  # in SavedModels and LiteRT files, and next to them
TEXTS = "text_preprocessing.json"
SIGNATURES = ("encode_images", "encode_text", "zero_shot")
TEXT = ("encode_text",)  # the signatures of a SavedModel of the text tower
PRECISIONS = ("float32", "float16", "dynamic_int8")
_TEXTS = 16  # that exports are compared on


@exported_graph()
def export_image_text(
    model: ImageTextModel, path: Path, signatures: Sequence[str] = SIGNATURES
) -> pathlib.Path:
    """Write the towers of an image-text model as a SavedModel with a signature for each use.

    It computes in float32 whatever the model's dtype, in the form of `ImageTextModel.finished`. Token ids are
    made by the model's `text_preprocessing`. The signatures are

    * `encode_images`: `images`, float32 (batch, height, width, channels) in [0, 1], to `embedding`, vectors
      of length 1; for a tower with `max_num_patches`, `patches` and `grids` as its `preprocessing` makes
      them, instead of `images`, here and in `zero_shot`;
    * `encode_text`: `ids`, int32 (texts, length), to `embedding`;
    * `zero_shot`: `images` and `ids`, a text for each class, to `logits` and `probabilities` (batch, texts).
      With the objective "sigmoid" each text has a probability of its own; with "softmax" the
      probabilities of an image sum to 1.

    Args:
        model: An `ImageTextModel` on the TensorFlow backend. It is not changed.
        path: Folder to write; it must not exist. For TF Serving its name must be a number.
        signatures: Any of these; `("encode_text",)` stores the variables of the text tower only.

    Returns:
        pathlib.Path of the folder.

    Raises:
        ValueError: if the folder exists, a weight is NaN or infinite, or a signature is unknown or missing.
        OSError: if it cannot be written, as on a full disk. Nothing is left under its name then.

    Example:
        >>> loaded = tf.saved_model.load(export_image_text(towers, "towers/1"))
        >>> found = loaded.zero_shot(images=tf.zeros((5, 32, 32, 3)), ids=tf.ones((2, 4), tf.int32))
        >>> found["probabilities"].shape
        TensorShape([5, 2])

    Source: Radford et al. 2021 (CLIP, arXiv 2103.00020), section 3.1; Zhai et al. 2023 (SigLIP, arXiv
    2303.15343).
    """
    check_weights(model)
    named: Sequence[Any] = signatures or [signatures]
    for name in named:
        one_of(SIGNATURES).check("signatures", name)
    path, copy = pathlib.Path(path).expanduser(), float32_copy(model)
    factors = copy.get_layer("logit_factors")
    activation = {"sigmoid": tf.nn.sigmoid, "softmax": tf.nn.softmax}[copy.objective]
    images = keras.tree.map_structure(
        lambda x: tf.TensorSpec((None, *x.shape[1:]), x.dtype, x.name), copy.image.input
    )
    ids = tf.TensorSpec((None, copy.text.length), tf.int32, "ids")

    def encode_images(images: Tensor) -> dict[str, Tensor]:
        images = images if copy.preprocessing.packs else normalize_as_exports_do(copy, images)
        return {"embedding": copy.image_encoder(images, training=False)}

    def encode_text(ids: Tensor) -> dict[str, Tensor]:
        return {"embedding": copy.text_encoder(ids, training=False)}

    def zero_shot(images: Tensor, ids: Tensor) -> dict[str, Tensor]:
        vectors, texts = image_function(images)["embedding"], text_function(ids)["embedding"]
        logits = tf.matmul(vectors, texts, transpose_b=True) * tf.exp(factors.scale.value)
        logits = logits if factors.bias is None else logits + factors.bias.value
        return {"logits": logits, "probabilities": activation(logits)}

    image_function = tf.function(encode_images, input_signature=[images], autograph=False)
    text_function = tf.function(encode_text, input_signature=[ids], autograph=False)
    both = tf.function(zero_shot, input_signature=[images, ids], autograph=False)
    functions = dict(zip(SIGNATURES, (image_function, text_function, both)))
    served = {name: functions[name] for name in SIGNATURES if name in signatures}
    part = copy.text_encoder if tuple(signatures) == TEXT else copy
    with atomic_path(path, overwrite=False) as temporary:
        # As in `export_saved_model`, the attributes hold TensorFlow's variables, not Keras's.
        exported = tf.train.Checkpoint(variables=[variable.value for variable in part.variables], **served)
        save(exported, temporary, served, {FILE: _description(copy)})
    return path


def export_text_tflite(model: ImageTextModel, path: Path, *, precision: str = "dynamic_int8") -> pathlib.Path:
    """Write the text tower of an image-text model for LiteRT, with the signature `serving_default`.

    `ids`, int32 (1, length), go in, and `embedding`, float32 (1, size), a vector of length 1, comes out. CPUs
    compute it; the delegate for GPUs has no operation that reads the embeddings of tokens.

    Args:
        model: An `ImageTextModel` on the TensorFlow backend. It is not changed.
        path: File to write, ending in .tflite; it must not exist.
        precision: "float32"; "float16", weights of half the size; or "dynamic_int8", of a quarter.

    Returns:
        pathlib.Path of the file.

    Raises:
        ValueError: if the file exists, an argument is wrong, a weight is NaN or infinite, or the tower is too
            large for the precision.
        OSError: if it cannot be written, as on a full disk. Nothing is left under its name then.

    Example:
        >>> file = export_text_tflite(towers, "text.tflite", precision="float32")
        >>> open_text(file)(np.ones((2, 4), "int32")).shape
        (2, 24)

    Source: LiteRT's conversion and quantization guides.
    """
    file = new_file(path, ".tflite", "a LiteRT file")
    one_of(PRECISIONS).check("precision", precision)
    check_weights(model)
    tflite.check_parameters(model.text_encoder.count_params(), precision)
    copy = float32_copy(model)
    encoder = copy.text_encoder
    litert_form(encoder)
    description = _description(copy)

    def encode_text(ids: Tensor) -> dict[str, Tensor]:
        return {"embedding": encoder(ids, training=False)}

    spec = tf.TensorSpec((1, copy.text.length), tf.int32, "ids")
    with atomic_path(file, overwrite=False) as temporary, quiet_startup_logs(drop_on_error=True):
        temporary.write_bytes(tflite.convert(encode_text, spec, encoder, precision))
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.writestr(zipfile.ZipInfo(FILE), description)
        tflite.check_outputs(temporary)
    return file


def open_text(path: Path, threads: int | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """Open an exported text tower, which needs neither Keras nor the model.

    The returned function may be used from several threads at once.

    Args:
        path: The folder of a SavedModel with `encode_text`, or a file of `export_text_tflite`.
        threads: A positive int, or None for all cores.

    Returns:
        Function from token ids, int (texts, length), to float32 vectors of length 1 (texts, size).

    Raises:
        ValueError: if it cannot be opened, or is another export.

    Example:
        >>> encode = open_text(export_image_text(towers, "text/1", ("encode_text",)))
        >>> encode(np.ones((2, 4), "int32")).shape
        (2, 24)
    """
    path = pathlib.Path(path).expanduser()
    if path.suffix == ".tflite":
        runner = tflite.open_runner(path, threads)
        if "ids" not in runner.get_input_details():
            raise damaged(path, "it has no input ids")
        [size] = runner.get_output_details()["embedding"]["shape"][1:]
        lock = threading.Lock()  # The interpreter's buffers hold one text.

        def encode(ids: np.ndarray) -> np.ndarray:
            vectors = np.zeros((len(ids), size), "float32")
            with lock:
                for vector, row in zip(vectors, np.asarray(ids, "int32")):
                    vector[:] = runner(ids=row[np.newaxis])["embedding"][0]
            return vectors

        return encode
    encode_text = open_signature(path, "encode_text", threads)
    return lambda ids: encode_text(np.asarray(ids, "int32"))["embedding"]


def open_zero_shot(path: pathlib.Path, threads: int | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """The SavedModel of both towers as a function from images in [0, 1] to their logits with `sample_ids`."""
    zero_shot = open_signature(path, "zero_shot", threads)
    about = json.loads((path / "assets" / FILE).read_text(encoding="utf-8"))
    ids = sample_ids(about["vocabulary_size"], about["length"])
    return lambda images: zero_shot(images=images, ids=ids)["logits"]


def write_towers(job: ExportJob, path: pathlib.Path, part: str) -> None:
    """Write the SavedModel of the "text" tower of an `ExportJob`, or of both."""
    export_image_text(job.towers, path, TEXT if part == "text" else SIGNATURES)


def write_text(job: ExportJob, path: pathlib.Path, precision: str) -> None:
    """Write the LiteRT file of the text tower of an `ExportJob`."""
    export_text_tflite(job.towers, path, precision=precision)


def references(model: ImageTextModel, reference: Reference) -> dict[str, Reference]:
    """What exports of the towers are compared with, as `Reference` of an image tower.

    Args:
        model: An `ImageTextModel`.
        reference: The `Reference` of its image tower.

    Returns:
        dict of a `Reference` of `text`, whose inputs are token ids, and of `image_text`, whose outputs are
        the logits of images with texts.
    """
    copy = float32_copy(model)
    ids = sample_ids(copy.text.vocabulary_size, copy.text.length)

    def logits(images: np.ndarray) -> np.ndarray:
        vectors = copy.image_encoder.predict_on_batch(normalize_as_exports_do(copy, images))
        return copy.similarity(np.asarray(vectors), ids)

    description, images = reference.description, reference.images
    return {
        "text": Reference(description, ids, None, copy.encode_text(ids), copy.encode_text),
        "image_text": Reference(description, images, None, logits(images), logits),
    }


def sample_ids(vocabulary_size: int, length: int) -> np.ndarray:
    """Token ids of texts that mean nothing.

    >>> sample_ids(9, 4).shape
    (16, 4)
    """
    return np.random.default_rng(0).integers(0, vocabulary_size, (_TEXTS, length), "int32")


def text_files(model: ImageTextModel) -> dict[str, bytes]:
    """The files next to exports of a text tower, as bytes by name.

    They are `image_text.json` and, if there is a tokenizer, its files, which other libraries read, and
    `text_preprocessing.json` with the arguments of `TextPreprocessing`.
    """
    files, prepare = {FILE: _description(model).encode()}, model.text_preprocessing
    if prepare is None:
        return files
    return {**files, TEXTS: _json(prepare.get_config()).encode(), **prepare.files()}


def _description(model: keras.Model) -> str:
    """What a program needs that computes logits from the vectors: exp(t) image · text + b."""
    factors = model.get_layer("logit_factors")
    values = {
        "objective": model.objective,
        "scale": float(np.exp(factors.scale.numpy())),
        "bias": 0.0 if factors.bias is None else float(factors.bias.numpy()),
        "image_size": model.image_size,
        "length": model.text.length,
        "vocabulary_size": model.text.vocabulary_size,
        "size": model.text_encoder.output.shape[-1],
        "version": keras_vit.__version__,
    }
    if model.preprocessing.packs:
        values["preprocessing"] = model.preprocessing.get_config()
    return _json(values)


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=1) + "\n"
