"""A SavedModel as a LiteRT (`.tflite`) file with built-in operations only."""

import os
import pathlib
import threading

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from _keras_vit_cli import quiet_startup_logs
from keras_vit.export.description import damaged, read_description
from keras_vit.export.tflite_metadata import read_tflite_description, write_tflite
from keras_vit.messages import one_line
from keras_vit.rules import integer, one_of, optional
from keras_vit.writing import atomic_path

# Bytes per parameter of the largest intermediate flatbuffer; full int8 is converted from float32.
PRECISIONS = {"float32": 4, "float16": 2, "dynamic_int8": 1, "int8": 4}
INTEGER_IO = ("uint8", "int8")
_LIMIT = 0.99 * 2**31  # bytes of a flatbuffer, with 1 % reserved for everything but weights


def export_tflite(
    saved_model,
    path,
    *,
    precision="dynamic_int8",
    batch_size=None,
    image_size=None,
    calibration=None,
    integer_io=None,
):
    """Convert the `serving_default` signature of a SavedModel to LiteRT.

    Images go in as float32 in [0, 1]; the outputs have the SavedModel's names. The file contains the class
    names and the `Description`, see `tflite_metadata`.

    Args:
        saved_model: Folder that `export_saved_model` wrote.
        path: File to write, ending in .tflite; it must not exist.
        precision: "float32"; "float16", weights of half the size; "dynamic_int8", weights of a quarter
            of the size and the fastest on CPUs; or "int8", with integer activations, for accelerators that
            support nothing else: less accurate, and slower on CPUs.
        batch_size: Images in a batch; None for any number.
        image_size: (height, width) to fix for a model of any size; None keeps it.
        calibration: For "int8", 100 to 500 images like those to be predicted, from which the ranges of all
            values are measured: a float32 array (images, height, width, channels) in [0, 1], or batches of
            such.
        integer_io: With "int8", "uint8" or "int8" for integer inputs and outputs. "uint8" takes pixels
            0…255, "int8" pixels minus 128.

    Returns:
        pathlib.Path of the file.

    Raises:
        ValueError: if the file exists, an argument does not fit, the model is too large for the
            precision, cannot be converted, or computes NaN.
        OSError: if it cannot be written, as on a full disk. Nothing is left under its name then.

    Example:
        >>> folder = export_saved_model(model, "export/saved_model/1")
        >>> small, large = (
        ...     export_tflite(folder, f"export/{name}.tflite", precision=name).stat().st_size
        ...     for name in ("dynamic_int8", "float32")
        ... )
        >>> small < large
        True

    Source: LiteRT's conversion and quantisation guides.
    """
    saved_model, path = (pathlib.Path(name).expanduser() for name in (saved_model, path))
    if path.suffix != ".tflite":
        raise ValueError(f"the name of a LiteRT file must end in .tflite; got {os.fspath(path)!r}")
    check_options(precision, batch_size, calibration, integer_io)
    stored = read_description(saved_model)
    _check_size(stored.parameters, precision)
    description = stored if image_size is None else stored.with_size(image_size)
    shape = (batch_size, *description.image_size, description.channels)
    samples = [*_samples(calibration, shape)] if precision == "int8" else None
    with atomic_path(path, overwrite=False) as temporary, quiet_startup_logs(drop_on_error=True):
        if batch_size is None and description == stored:
            converter = tf.lite.TFLiteConverter.from_saved_model(
                os.fspath(saved_model), signature_keys=["serving_default"]
            )
        else:
            converter = _converter(saved_model, shape)
        write_tflite(temporary, _convert(converter, precision, integer_io, samples), description)
        _check_outputs(temporary, description)
    return path


def open_tflite(path, threads=None):
    """The arguments of `ExportedModel` for a `.tflite` file."""
    description = read_tflite_description(path)
    try:
        with quiet_startup_logs(drop_on_error=True):
            # LiteRT's default is one thread, whereas TensorFlow and onnxruntime use all cores.
            interpreter = Interpreter(model_path=os.fspath(path), num_threads=threads or os.cpu_count())
            interpreter.allocate_tensors()  # This creates its delegate, which writes to the log.
            runner = interpreter.get_signature_runner("serving_default")
    except (ValueError, RuntimeError) as error:
        raise damaged(path, error) from None
    source = runner.get_input_details()["images"]
    results = runner.get_output_details()
    batch = int(source["shape_signature"][0])
    # The interpreter's buffers hold one batch, so calls are serialised; a single call already uses all cores.
    lock = threading.Lock()

    def compute(images):
        with lock:
            found = runner(images=_quantize(images, source))
        return {name: _dequantize(values, results[name]) for name, values in found.items()}

    return description, compute, None if batch < 0 else batch


def _quantize(images, tensor):
    """Images as the integers of a quantized LiteRT tensor."""
    if not np.issubdtype(tensor["dtype"], np.integer):
        return images
    scale, zero = tensor["quantization"]
    limits = np.iinfo(tensor["dtype"])
    return np.clip(np.round(images / scale) + zero, limits.min, limits.max).astype(tensor["dtype"])


def _dequantize(values, tensor):
    """The integers of a quantized LiteRT tensor as float32."""
    if not np.issubdtype(tensor["dtype"], np.integer):
        return values
    scale, zero = tensor["quantization"]
    return (values.astype("float32") - zero) * np.float32(scale)


def check_options(precision, batch_size=None, calibration=None, integer_io=None):
    """Raise ValueError for options of `export_tflite` that do not fit together."""
    one_of(PRECISIONS).check("precision", precision)
    optional(integer(at_least=1)).check("batch_size", batch_size)
    optional(one_of(INTEGER_IO)).check("integer_io", integer_io)
    if precision == "int8" and calibration is None:
        raise ValueError("int8 is calibrated on images: give some, such as a data set with a train split")
    if precision != "int8" and (calibration is not None or integer_io is not None):
        raise ValueError(f"calibration and integer_io are options of int8 only; got precision {precision!r}")


def _check_size(parameters, precision):
    fitting = [name for name, width in PRECISIONS.items() if parameters * width < _LIMIT]
    if precision not in fitting:
        raise ValueError(
            f"a LiteRT file must be below 2 GiB; {parameters:,} parameters fit with precision "
            f"{' or '.join(fitting) or 'none'}; got {precision!r}"
        )


def _converter(saved_model, shape):
    """A converter for images of a given shape, where the SavedModel takes any.

    It is given TensorFlow's variables in a list: those reached through other objects would stay variables in
    the LiteRT file.
    """
    loaded = tf.saved_model.load(os.fspath(saved_model))
    serve = loaded.signatures["serving_default"]
    spec = tf.TensorSpec(shape, tf.float32, name="images")
    function = tf.function(lambda images: serve(images=images), input_signature=[spec], autograph=False)
    holder = tf.train.Checkpoint(variables=[*serve.variables])
    return tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], holder)


def _convert(converter, precision, integer_io, samples):
    """The bytes of the flatbuffer."""
    converter.exclude_conversion_metadata = True  # Adding it would unpack all weights in Python.
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if precision == "int8":
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.representative_dataset = lambda: samples
    if integer_io is not None:
        converter.inference_input_type = converter.inference_output_type = getattr(tf, integer_io)
    try:
        return converter.convert()
    except Exception as error:  # The converter's class has no public name.
        raise ValueError(f"LiteRT cannot hold this model: {one_line(error)[:300]}") from error


def _samples(calibration, shape):
    """Calibration images in the batches that the converter takes.

    A black and a white value are put into the first image's corners. The range of the input is then [0, 1]
    for any images, and the integer of a pixel is the pixel itself.
    """
    count, *sides = shape
    count, seen = count or 1, 0
    for batch in [calibration] if isinstance(calibration, np.ndarray) else calibration:
        batch = np.array(batch)
        fits = batch.ndim == 4 and all(side in (None, n) for side, n in zip(sides, batch.shape[1:]))
        if not (fits and batch.dtype == np.float32 and np.all((batch >= 0) & (batch <= 1))):
            raise ValueError(
                f"calibration images must be float32 in [0, 1], of shape {(None, *sides)}; got {batch.dtype} "
                f"of shape {batch.shape}"
            )
        if not seen and len(batch):
            batch[0, 0, 0, 0], batch[0, -1, -1, -1] = 0, 1
        seen += len(batch)
        for start in range(0, len(batch), count):
            images = batch[start : start + count]
            yield [np.resize(images, (count, *images.shape[1:]))]  # A last batch repeats its images.
    if not seen:
        raise ValueError("expected 100 to 500 calibration images; got none")


def _check_outputs(path, description):
    """Run the file once: its outputs must be finite."""
    runner = Interpreter(model_path=os.fspath(path)).get_signature_runner("serving_default")
    (details,) = runner.get_input_details().values()
    usual = (1, *description.usual_size, description.channels)
    shape = [own if side < 0 else side for side, own in zip(details["shape_signature"], usual)]
    outputs = runner(images=np.ones(shape, details["dtype"]))
    broken = [name for name, values in outputs.items() if not np.isfinite(values).all()]
    if broken:
        raise ValueError(f"the converted LiteRT model computes NaN or infinite {', '.join(sorted(broken))}")
