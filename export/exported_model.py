"""An exported model, opened to be evaluated and to classify with like the live one."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from keras_vit.export import tar_archive
from keras_vit.export.description import Description
from keras_vit.export.formats import ARCHIVES, SAVED_MODEL, format_of, suffix_of, suffixes
from keras_vit.export.outputs import outputs_of
from keras_vit.messages import did_you_mean, names_arguments
from keras_vit.models.classifying import classify
from keras_vit.preprocessing.inputs import is_raw
from keras_vit.rules import integer, optional
from keras_vit.tasks import export_outputs
from keras_vit.types import ArrayOrTensor, Images, Path
from keras_vit.weights.fetch import fetch

_Method = TypeVar("_Method", bound=Callable[..., Any])
_LOWEST, _HIGHEST = -1, 2  # of images in [0, 1], which bicubic resizing overshoots


def on_model_input(function: _Method) -> _Method:
    """The method of an export for a function of a live model and images."""

    @functools.wraps(function)
    def method(self: ExportedModel, *arguments: Any, **options: Any) -> Any:
        return function(self.of_model_input(), *arguments, **options)

    return cast(_Method, method)


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """What `keras_vit.evaluation` and `classify` take in place of a live model.

    Subclasses have the method of the live model's class, with the same arguments: `segment` of an
    `ImageSegmenter`, `detect` of an `ObjectDetector`, and so on.

    Args:
        description: The file's `Description`.
        compute: Function from float32 images (batch, height, width, channels) in [0, 1] to a dict of
            all outputs.
        batch_size: The number of images that `compute` takes; None for any but 0.

    Example:
        >>> from keras_vit.evaluation import evaluate
        >>> exported = open_exported(export_saved_model(model, "served/1"))
        >>> evaluate(exported, load_dataset("digits").split("test"))["samples"]
        355
        >>> [len(best) for best in exported.classify(np.zeros((2, 40, 50, 3), "uint8"), top=3)]
        [3, 3]
    """

    description: Description
    compute: Callable[[np.ndarray], dict[str, np.ndarray]]
    batch_size: int | None = None
    text = None  # The towers of a model of images and texts are exported apart.

    preprocessing = property(lambda self: self.description.preprocessing)
    task = property(lambda self: self.description.task)
    class_names = property(lambda self: self.description.class_names)
    num_classes = property(lambda self: self.description.num_classes)
    is_classifier = property(lambda self: self.description.is_classifier)
    image_size = property(lambda self: self.description.image_size)
    patch_size = property(lambda self: self.description.patch_size)
    resnet = property(lambda self: self.description.resnet)

    @property
    def without_head(self) -> str:
        """The message of `check_head` for an export that is no classifier."""
        outputs = outputs_of(self.description)
        if outputs.kind is not None:
            return outputs.advice
        output = "tokens" if self.description.architecture["pooling"] is None else self.description.output
        return (
            f"this export has no classification head: its output is {output} of "
            f"{self.description.num_outputs} values; export a model with a head by keras-vit export, "
            "without --representation"
        )

    def outputs(self, images: Images) -> dict[str, np.ndarray]:
        """All outputs for images: dict of arrays, float32 whatever the file computes in.

        Args:
            images: What `preprocessing` takes: a path, a URL, bytes, a Pillow image, uint8 pixels, or a list.
                Or what it returns: float (batch, height, width, channels) in [0, 1].

        Raises:
            ValueError: if an image cannot be read, or floats have another shape than the file takes, values
                far outside of [0, 1], as pixels of floats have, or NaN.

        Example:
            >>> exported = open_exported(export_saved_model(model, "served/1"))
            >>> keras.utils.save_img(tmp / "photo.png", np.zeros((40, 50, 3)))
            >>> exported.outputs(tmp / "photo.png")["logits"].shape
            (1, 10)
        """
        images = self.description.preprocessing(images) if is_raw(images) else np.asarray(images)
        images = np.ascontiguousarray(images, "float32")
        if images.size and not (images.min() >= _LOWEST and images.max() <= _HIGHEST):  # False for NaN
            values = f"{images.min():g} to {images.max():g}"
            raise ValueError(f"expected float images in [0, 1], or uint8; got values from {values}")
        expected = (None, *self.image_size, self.description.channels)
        if images.ndim != 4 or any(side not in (None, n) for side, n in zip(expected, images.shape)):
            raise ValueError(f"expected images of shape {expected}; got {images.shape}")
        size = self.batch_size or max(len(images), 1)
        missing = -len(images) % size if len(images) else size
        count, padding = len(images), np.zeros((missing, *images.shape[1:]), "float32")
        images = np.concatenate([images, padding]) if missing else images
        batches = [self.compute(images[i : i + size]) for i in range(0, len(images), size)]
        return {name: np.concatenate([b[name] for b in batches])[:count] for name in batches[0]}

    def main_output(self, images: Images) -> np.ndarray:
        """The output that is compared with the live model's: logits, values or representation.

        Some formats have only what is decided from it, such as a class map, which is returned then.
        """
        return outputs_of(self.description).compared(self.outputs(images))

    def predict_on_batch(self, images: Images) -> np.ndarray:
        """The output that is the live model's; of a class map the classes, one-hot, in place of logits."""
        return outputs_of(self.description).as_live(self.main_output(images))

    def __getattr__(self, name: str) -> Any:
        """An attribute that the `Description` has."""
        if name.startswith("_") or not hasattr(self.description, name):
            hint = did_you_mean(name, [known for known in dir(type(self)) if known[0] != "_"])
            if name in {outputs.method for outputs in export_outputs().values()}:
                hint = f": {outputs_of(self.description).advice}"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")
        return getattr(self.description, name)

    def of_model_input(self) -> ExportedModel:
        """This export as a function of the live model's input, which `preprocessing` then normalizes."""
        return _TakesModelInput(**vars(self))

    classify = classify


class _TakesModelInput(ExportedModel):
    """An `ExportedModel` of the live model's input, in which windows are padded by 0, the mean color."""

    preprocessing = property(lambda self: self.description.live_preprocessing)

    def predict_on_batch(self, images: ArrayOrTensor) -> np.ndarray:
        std, mean = (np.float32(values) for values in (self.preprocessing.std, self.preprocessing.mean))
        return super().predict_on_batch(images * std + mean)


@names_arguments
def open_exported(
    path: Path, threads: int | None = None, *, trust: bool = False, sha256: str | None = None
) -> ExportedModel:
    """Open a SavedModel, a `.tflite` or `.onnx` file, or the folder of a web page that keras_vit wrote.

    The returned object may be used from several threads at once. SavedModel and ONNX run concurrent calls in
    parallel; LiteRT and OpenVINO run one call at a time, on all threads.

    A SavedModel is a program: its graph may read and write files. Files of the other formats are data.

    Args:
        path: Path or URL of a `.tflite` or `.onnx` file, path of an OpenVINO model's `.xml` file, whose
            `.bin` file lies next to it, the folder of a web page, or a SavedModel as for
            `saved_model_folder`.
        threads: The number of threads to compute with; None for one a core. TensorFlow's threads belong to
            the process, so a SavedModel's can be set only before anything is computed.
        trust: Whether the publisher of a URL is trusted; a SavedModel from there, and a file over plain
            `http://` without `sha256`, need it.
        sha256: Hexadecimal SHA-256 that the file or archive must have; None: any.

    Returns:
        ExportedModel.

    Raises:
        ImportError: if the runtime of the file, onnxruntime or openvino, is missing.
        ValueError: if there is no such file, keras_vit did not write it, it is damaged, `threads` cannot be
            set, or it needs trust.

    Example:
        >>> exported = open_exported(export_saved_model(model, "served/1"))
        >>> exported.predict_on_batch(images).shape
        (4, 10)
        >>> sorted(exported.outputs(images))
        ['logits', 'probabilities']
    """
    optional(integer(at_least=1)).check("threads", threads)
    path = exported_path(path, trust=trust, sha256=sha256)
    return exported_model(*format_of(path).open(path, threads))


def exported_model(
    description: Description,
    compute: Callable[[np.ndarray], dict[str, np.ndarray]],
    batch_size: int | None = None,
) -> ExportedModel:
    """The `ExportedModel` of a `Description`, of the class of its outputs; the arguments are as of this."""
    return (outputs_of(description).exported or ExportedModel)(description, compute, batch_size)


def exported_path(source: Path, *, trust: bool = False, sha256: str | None = None) -> pathlib.Path:
    """The local file, or folder of a SavedModel, that a source names, downloaded and unpacked if needed.

    Args:
        source, trust, sha256: As `path`, `trust` and `sha256` of `open_exported`.

    Returns:
        pathlib.Path.

    Raises:
        ValueError: as `saved_model_folder`, or if there is no such file; for an export folder without a
            SavedModel, the message names the files in it.
    """
    suffix = suffix_of(source)
    if suffix and suffix not in ARCHIVES:
        beside = format_of(source).beside
        if beside and "://" in os.fspath(source):
            raise ValueError(f"{source!r} needs the {beside} file next to it: download both")
        return fetch(source, sha256=sha256, trust=trust)
    folder = pathlib.Path(source).expanduser()
    if folder.is_dir() and format_of(folder) is not SAVED_MODEL:
        return folder
    patterns = [f"{part}*{suffix}" for suffix in suffixes() for part in ("", "*/")]
    files = [str(file) for pattern in patterns for file in sorted(folder.glob(pattern))]
    if files and not any(folder.glob(f"**/{tar_archive.PROGRAM}")):
        raise ValueError(
            f"{os.fspath(source)!r} holds no SavedModel; give one of its files: {', '.join(map(repr, files))}"
        )
    return tar_archive.saved_model_folder(source, trust=trust, sha256=sha256)
