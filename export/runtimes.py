"""An exported model, opened in its own runtime as something to evaluate and to classify with."""

import dataclasses
import os
import pathlib
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from _keras_vit_cli import quiet_startup_logs
from keras_vit.export.archive import exported_file
from keras_vit.export.description import FILE, Description, parse_description, read_description
from keras_vit.export.onnx import optional
from keras_vit.export.tflite_metadata import read_tflite_description
from keras_vit.models.classifying import classify


@dataclasses.dataclass(frozen=True)
class ExportedModel:
    """What `keras_vit.evaluation` and `classify` take in place of a live model.

    Args:
        description: The file's `Description`.
        compute: Function from float32 images (batch, height, width, channels) in [0, 1] to a dict of
            all outputs.

    Example:
        >>> from keras_vit.evaluation import evaluate
        >>> exported = open_exported(export_saved_model(model, "served/1"))
        >>> evaluate(exported, load_dataset("digits").split("test"))["samples"]
        355
        >>> [len(best) for best in exported.classify(np.zeros((2, 40, 50, 3), "uint8"), top=3)]
        [3, 3]
    """

    description: Description
    compute: Callable

    preprocessing = property(lambda self: self.description.preprocessing)
    class_names = property(lambda self: self.description.class_names)
    num_classes = property(lambda self: self.description.num_classes)
    is_classifier = property(lambda self: self.description.is_classifier)
    image_size = property(lambda self: self.description.image_size)
    patch_size = property(lambda self: tuple(self.description.architecture["patch_size"]))
    resnet = property(lambda self: self.description.architecture["resnet"])

    @property
    def without_head(self):
        """Why there are no classes, where it is not a classifier: a message for `check_head`."""
        found = "tokens" if self.description.architecture["pooling"] is None else self.description.output
        return (
            f"this export has no classification head: it was exported to output {found} of "
            f"{self.description.num_outputs} numbers; export a model with a head by keras-vit export, "
            "without --representation"
        )

    def outputs(self, images):
        """All outputs for images in [0, 1]: dict of arrays, float32 whatever the file computes in.

        Raises:
            ValueError: if the images have another shape than the file takes.
        """
        images = np.ascontiguousarray(images, "float32")
        wanted = (None, *self.image_size, self.description.channels)
        if images.ndim != 4 or any(side not in (None, n) for side, n in zip(wanted, images.shape)):
            raise ValueError(f"images of the shape {wanted} are wanted; got {images.shape}")
        return self.compute(images)

    def predict_on_batch(self, images):
        """The output that is the live model's: logits, values or representation."""
        return self.outputs(images)[self.description.output]

    def classify(self, images, top=5, batch_size=32):
        """As `VisionTransformer.classify`, with the probabilities of the task that it was exported for."""
        return classify(self, images, top, batch_size, self.description.task)


def open_exported(path, threads=None, *, trust=False, sha256=None):
    """Open a SavedModel's folder, a `.tflite` or an `.onnx` file that keras_vit wrote.

    What is returned may be used from several threads at once. Calls of a SavedModel and of ONNX run side by
    side; those of a `.tflite` file run one at a time, each on all threads.

    A SavedModel is a program: its graph may read and write files. A `.tflite` or `.onnx` file is data.

    Args:
        path: The folder or file, or a URL as `saved_model_folder` takes it, or of such a file.
        threads: How many threads to compute with; None for one a core. TensorFlow's are the process's,
            so that a SavedModel's can be set only before anything is computed.
        trust: Whether the publisher of a URL is trusted; a SavedModel from there, and a file over plain
            `http://` without `sha256`, need it.
        sha256: Hexadecimal SHA-256 that the file or archive must have; None: any.

    Returns:
        ExportedModel.

    Raises:
        ImportError: if the file is ONNX, and onnxruntime is missing.
        ValueError: if keras_vit did not write it, it is damaged, `threads` cannot be had, or it needs trust.

    Example:
        >>> exported = open_exported(export_saved_model(model, "served/1"))
        >>> exported.predict_on_batch(images).shape
        (4, 10)
        >>> sorted(exported.outputs(images))
        ['logits', 'probabilities']
    """
    if "://" in os.fspath(path) or sha256 is not None:
        path = exported_file(path, trust=trust, sha256=sha256)
    path = pathlib.Path(path).expanduser()
    if threads is not None and not (type(threads) is int and threads > 0):
        raise ValueError(f"threads must be an int above 0 or None; got {threads!r}")
    suffix = "" if path.is_dir() else path.suffix
    if suffix not in OPENERS or not path.exists():
        raise ValueError(
            f"wanted a SavedModel's folder or a file that ends in {' or '.join(filter(None, OPENERS))}; "
            f"got {os.fspath(path)!r}" + ("" if path.exists() else ", which does not exist")
        )
    return ExportedModel(*OPENERS[suffix](path, threads))


def _open_saved_model(path, threads):
    description = read_description(path)
    if threads is not None:
        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        except RuntimeError:
            if threads != tf.config.threading.get_intra_op_parallelism_threads():
                raise ValueError(
                    "TensorFlow has begun to compute, and its threads cannot be set any more: do it first, "
                    "or in a process of its own"
                ) from None
    try:
        loaded = tf.saved_model.load(os.fspath(path))
        signature = loaded.signatures["serving_default"]
    except Exception as error:  # of many classes, as the damage is
        raise _damaged(path, error) from None

    def compute(images, keep=loaded):  # its variables would be gone with it
        return {name: values.numpy() for name, values in signature(images=tf.constant(images)).items()}

    return description, compute


def _open_tflite(path, threads):
    description = read_tflite_description(path)
    try:
        with quiet_startup_logs(drop_on_error=True):
            # LiteRT's own choice is one thread, where TensorFlow and onnxruntime take all.
            interpreter = Interpreter(model_path=os.fspath(path), num_threads=threads or os.cpu_count())
            interpreter.allocate_tensors()  # at which it creates its delegate and logs that
            runner = interpreter.get_signature_runner("serving_default")
    except (ValueError, RuntimeError) as error:
        raise _damaged(path, error) from None
    source = runner.get_input_details()["images"]
    results = runner.get_output_details()
    batch = int(source["shape_signature"][0])
    # An interpreter computes in buffers of its own, of one batch size at a time. One for each thread would
    # need its memory once a thread, and a single call already uses all cores.
    lock = threading.Lock()

    def run(images):
        with lock:
            found = runner(images=_quantised(images, source))
        return {name: _dequantised(values, results[name]) for name, values in found.items()}

    return description, in_pieces(run, None if batch < 0 else batch)


def _open_onnx(path, threads):
    onnxruntime = optional("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, ["CPUExecutionProvider"])
    except Exception as error:  # of the runtime's own classes
        raise _damaged(path, error) from None
    text = session.get_modelmeta().custom_metadata_map.get(FILE)
    names = [output.name for output in session.get_outputs()]

    def run(images):
        return dict(zip(names, session.run(names, {"images": images})))

    return parse_description(text, path), in_pieces(run)


OPENERS = {"": _open_saved_model, ".tflite": _open_tflite, ".onnx": _open_onnx}


def in_pieces(run, batch=None):
    """A function for any number of images from one for a fixed number; the last are filled up with zeros.

    Args:
        run: Function from images to a dict of arrays with as many rows.
        batch: How many images it takes; None for any number but none.

    Example:
        >>> add = in_pieces(lambda x: {"sum": x + 1}, batch=2)
        >>> add(np.arange(3.0))["sum"]
        array([1., 2., 3.])
    """

    def compute(images):
        size = batch or max(len(images), 1)
        count = max(-(-len(images) // size), 1)
        filled = np.concatenate(
            [images, np.zeros_like(images, shape=(count * size - len(images), *images.shape[1:]))]
        )
        found = [run(filled[i * size : (i + 1) * size]) for i in range(count)]
        return {name: np.concatenate([rows[name] for rows in found])[: len(images)] for name in found[0]}

    return compute


def _quantised(images, tensor):
    """Images as the numbers that a LiteRT tensor holds."""
    if not np.issubdtype(tensor["dtype"], np.integer):
        return images
    scale, zero = tensor["quantization"]
    limits = np.iinfo(tensor["dtype"])
    return np.clip(np.round(images / scale) + zero, limits.min, limits.max).astype(tensor["dtype"])


def _dequantised(values, tensor):
    """A LiteRT tensor's numbers as float32."""
    if not np.issubdtype(tensor["dtype"], np.integer):
        return values
    scale, zero = tensor["quantization"]
    return (values.astype("float32") - zero) * np.float32(scale)


def _damaged(path, error):
    line = " ".join(str(error).split())
    return ValueError(f"{os.fspath(path)!r} is damaged, or cannot be opened here: {line[:200]}")
