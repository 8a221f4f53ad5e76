"""A SavedModel as a LiteRT (`.tflite`) file with built-in operations only."""

from __future__ import annotations

import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from ai_edge_litert.interpreter import Interpreter, SignatureRunner

from keras_vit.export.checks import (
    CALIBRATED,
    check_backend,
    check_calibration,
    check_finite,
    damaged,
    new_file,
)
from keras_vit.export.description import Description, read_description
from keras_vit.export.litert import ml_drift
from keras_vit.export.litert.metadata import read_tflite_description, write_tflite
from keras_vit.export.outputs import outputs_of
from keras_vit.exporting import exported_graph
from keras_vit.lazy import LazyModule
from keras_vit.messages import one_line
from keras_vit.rules import integer, one_of, optional
from keras_vit.startup_logs import quiet_startup_logs
from keras_vit.types import Path, Shape, Size, Tensor
from keras_vit.writing import atomic_path

if TYPE_CHECKING:
    import keras
    from tensorflow import TensorSpec
    from tensorflow.train import Checkpoint

    from keras_vit.export.formats import ExportJob

graph_form = LazyModule("keras_vit.export.litert.graph_form")
float_operations = LazyModule("keras_vit.export.litert.float_operations")
signatures, tf = LazyModule("keras_vit.export.signatures"), LazyModule("tensorflow")
conversion = LazyModule("tensorflow.lite.python.convert")
# Bytes per parameter of the largest intermediate flatbuffer; what is calibrated is converted from float32.
PRECISIONS = {"float32": 4, "float16": 2, "dynamic_int8": 1, "int8": 4, "full_int8": 4}
INTEGER_IO = ("uint8", "int8")
# From images (batch, height, width, channels) in [0, 1] to all outputs by name.
Compute: TypeAlias = Callable[[np.ndarray], dict[str, np.ndarray]]
_ROUNDING = 1e-5  # by which resized images of white may exceed 1
_LIMIT = 0.99 * 2**31  # bytes of a flatbuffer, with 1 % reserved for everything but weights


def export_tflite(
    saved_model: Path,
    path: Path,
    *,
    precision: str = "dynamic_int8",
    batch_size: int = 1,
    image_size: Size | None = None,
    calibration: np.ndarray | Sequence[np.ndarray] | None = None,
    integer_io: str | None = None,
    rollout: bool = False,
) -> pathlib.Path:
    """Write the model of a SavedModel for LiteRT, with the signature `serving_default`.

    Images go in as float32 in [0, 1]; the outputs have the SavedModel's names. Of a segmenter the only output
    is `class_map`, so that bytes are read and not the logits of all pixels. The file contains the class
    names and the `Description`, see `tflite_metadata`. CPUs (XNNPACK) and GPUs (ML Drift: Android, and
    WebGPU in browsers) compute it; see `litert_form`.

    Args:
        saved_model: Folder that `export_saved_model` wrote.
        path: File to write, ending in .tflite; it must not exist.
        precision: "float32"; "float16", weights of half the size; "dynamic_int8", weights of a quarter
            of the size and the fastest on CPUs; "int8", with dense layers and convolutions of 8 bits, and
            norms, softmax, sums and the products of attention in float32; or "full_int8", all in 8 bits, for
            accelerators that support nothing else: less accurate, and slower on CPUs, because XNNPACK has no
            integer kernel for the two matmuls and the softmax of the attention.
        batch_size: Images in a batch, which runtimes other than Python's cannot change.
        image_size: (height, width) to fix for a model of any size; None for that of its position grid.
        calibration: For "int8" and "full_int8", 100 to 500 images like those to be predicted, from which the
            ranges of all values are measured: a float32 array (images, height, width, channels) in [0, 1], or
            batches of such.
        integer_io: With "full_int8", "uint8" or "int8" for integer inputs and outputs. "uint8" takes pixels
            0…255, "int8" pixels minus 128. A detector's boxes are less accurate then: otherwise their last
            layer computes in float32.
        rollout: Whether attention rollout is another output, `rollout` (1, patches): as
            `inspection.attention_rollout`, but not scaled to a sum of 1. It needs batches of one image.

    Returns:
        pathlib.Path of the file.

    Raises:
        ValueError: if the file exists, an argument does not fit, or the model is too large for the
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

    Source: LiteRT's conversion and quantization guides.
    """
    saved_model, file = pathlib.Path(saved_model).expanduser(), new_file(path, ".tflite", "a LiteRT file")
    check_options(precision, batch_size, calibration, integer_io)
    check_backend("LiteRT files", "start the program where KERAS_BACKEND=tensorflow")
    description = read_description(saved_model)
    description = description.with_size(image_size)
    check_parameters(description.parameters, precision)
    shape = (batch_size, *description.image_size, description.channels)
    samples = None if calibration is None else [*calibration_samples(calibration, shape)]
    with atomic_path(file, overwrite=False) as temporary, quiet_startup_logs(drop_on_error=True):
        model = _model(saved_model, description)
        outputs = outputs_of(description)
        compute = signatures.forward(model, rollout)

        def serve(images: Tensor) -> dict[str, Tensor]:
            return outputs.of_litert(images, lambda images: compute(images, False))

        spec = tf.TensorSpec(shape, tf.float32, name="images")
        in_float = () if integer_io else outputs.in_float
        content = convert(serve, spec, model, precision, integer_io, samples, in_float)
        if refused := ml_drift.refusals(content):
            raise ValueError(f"LiteRT's delegate for GPUs cannot compute this model: {'; '.join(refused)}")
        write_tflite(temporary, content, description)
        check_outputs(temporary)
    return file


def write_job(job: ExportJob, path: pathlib.Path, precision: str) -> None:
    """Write the model of an `ExportJob`."""
    export_tflite(job.saved_model, path, image_size=job.image_size, **_options(job, precision))


def check_job(job: ExportJob, precision: str) -> None:
    """Raise ValueError for options of an `ExportJob` that do not fit together."""
    check_options(**_options(job, precision))


def _options(job: ExportJob, precision: str) -> dict[str, Any]:
    return {
        "precision": precision,
        "batch_size": job.batch_size,
        "calibration": job.calibration_of(precision),
        "integer_io": job.integer_io if precision == "full_int8" else None,
    }


def open_tflite(path: Path, threads: int | None = None) -> tuple[Description, Compute, int | None]:
    """The arguments of `ExportedModel` for a `.tflite` file."""
    description = read_tflite_description(path)
    runner = open_runner(path, threads)
    source = runner.get_input_details()["images"]
    results = runner.get_output_details()
    batch = int(source["shape_signature"][0])
    # The interpreter's buffers hold one batch, so calls are serialized; a single call already uses all cores.
    lock = threading.Lock()

    def compute(images: np.ndarray) -> dict[str, np.ndarray]:
        with lock:
            outputs = runner(images=_quantize(images, source))
        return {name: _dequantize(values, results[name]) for name, values in outputs.items()}

    return description, compute, None if batch < 0 else batch


def open_runner(path: Path, threads: int | None = None) -> SignatureRunner:
    """The function of a `.tflite` file in LiteRT's interpreter; ValueError for a damaged file."""
    try:
        with quiet_startup_logs(drop_on_error=True):
            # LiteRT's default is one thread, whereas TensorFlow and onnxruntime use all cores. A process may
            # use fewer cores than the machine has; more threads than these take several times longer.
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            interpreter = Interpreter(model_path=os.fspath(path), num_threads=threads or cores)
            interpreter.allocate_tensors()  # This creates its delegate, which writes to the log.
            return interpreter.get_signature_runner("serving_default")
    except (ValueError, RuntimeError) as error:
        raise damaged(path, error) from None


def _quantize(images: np.ndarray, tensor: Mapping[str, Any]) -> np.ndarray:
    """Images as the integers of a quantized LiteRT tensor."""
    if not np.issubdtype(tensor["dtype"], np.integer):
        return images
    scale, zero = tensor["quantization"]
    limits = np.iinfo(tensor["dtype"])
    return np.clip(np.round(images / scale) + zero, limits.min, limits.max).astype(tensor["dtype"])


def _dequantize(values: np.ndarray, tensor: Mapping[str, Any]) -> np.ndarray:
    """The integers of a quantized LiteRT tensor as float32."""
    if not np.issubdtype(tensor["dtype"], np.integer) or tensor["quantization"] == (0.0, 0):  # class numbers
        return values
    scale, zero = tensor["quantization"]
    return (values.astype("float32") - zero) * np.float32(scale)


def check_options(
    precision: str,
    batch_size: int = 1,
    calibration: np.ndarray | Sequence[np.ndarray] | None = None,
    integer_io: str | None = None,
) -> None:
    """Raise ValueError for options of `export_tflite` that do not fit together."""
    one_of(PRECISIONS).check("precision", precision)
    integer(at_least=1).check("batch_size", batch_size)
    optional(one_of(INTEGER_IO)).check("integer_io", integer_io)
    check_calibration(precision, calibration)
    if precision != "full_int8" and integer_io is not None:
        raise ValueError(f"integer_io is an option of full_int8 only; got precision {precision!r}")


def check_parameters(parameters: int, precision: str) -> None:
    """Raise ValueError for more parameters than a LiteRT file holds."""
    fitting = [name for name, width in PRECISIONS.items() if parameters * width < _LIMIT]
    if precision not in fitting:
        raise ValueError(
            f"a LiteRT file must be below 2 GiB; {parameters:,} parameters fit with precision "
            f"{' or '.join(fitting) or 'none'}; got {precision!r}"
        )


def _model(saved_model: pathlib.Path, description: Description) -> keras.Model:
    """A SavedModel's model in LiteRT's form: built from its description, with its variables."""
    prepare = description.live_preprocessing
    with tf.device("cpu:0"):
        try:
            model = description.build(prepare)
            stored = _variables(model).restore(os.fspath(saved_model / "variables" / "variables"))
            stored.assert_existing_objects_matched()
        except (tf.errors.OpError, AssertionError, ValueError, TypeError) as error:
            raise damaged(saved_model, error) from None
        graph_form.litert_form(model)
    return model


def _variables(model: keras.Model) -> Checkpoint:
    """TensorFlow's variables in a list, as in the SavedModel."""
    return tf.train.Checkpoint(variables=[variable.value for variable in model.variables])


@exported_graph()
def convert(
    serve: Callable[[Tensor], dict[str, Tensor]],
    spec: TensorSpec,
    model: keras.Model,
    precision: str,
    integer_io: str | None = None,
    samples: Sequence[list[np.ndarray]] | None = None,
    in_float: Sequence[str] = (),
) -> bytes:
    """Convert a function of a model in LiteRT's form.

    Args:
        serve: A function from one tensor to a dict of tensors.
        spec: `tf.TensorSpec` of the tensor.
        model: It has the variables. The converter is given them in a list: those reached through other
            objects would stay variables in the LiteRT file.
        precision, integer_io: As for `export_tflite`.
        samples: Batches for the calibration of "int8" and "full_int8".
        in_float: Names of outputs that these compute in float32 from their last matmul on.

    Returns:
        bytes of the flatbuffer.

    Raises:
        ValueError: if LiteRT has no such operations.
    """
    function = tf.function(serve, input_signature=[spec], autograph=False)
    concrete = [function.get_concrete_function()]
    converter = tf.lite.TFLiteConverter.from_concrete_functions(concrete, _variables(model))
    converter.exclude_conversion_metadata = True  # Adding it would unpack all weights in Python.
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    is_mixed = precision == "int8" or bool(in_float)
    if precision in CALIBRATED:
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.representative_dataset = lambda: samples
        converter._experimental_calibrate_only = is_mixed
    if integer_io is not None:
        converter.inference_input_type = converter.inference_output_type = getattr(tf, integer_io)
    try:
        content = converter.convert()
        if precision in CALIBRATED and is_mixed:
            names = float_operations.last_operations(content, in_float) if in_float else []
            names += float_operations.all_but_products(content) if precision == "int8" else []
            # What `tf.lite.experimental.QuantizationDebugger` does with its option `denylisted_nodes`.
            content = conversion.mlir_quantize(content, denylisted_nodes=names)
        return content
    except Exception as error:  # The converter's class has no public name.
        raise ValueError(f"LiteRT cannot hold this model: {one_line(error)[:300]}") from error


def calibration_samples(
    calibration: np.ndarray | Iterable[np.ndarray], shape: tuple[int, *Shape]
) -> Iterator[list[np.ndarray]]:
    """Calibration images in the batches that the converter takes.

    A side that is None may have any length, the same in each batch.

    A black and a white value are put into the first image's corners. The range of the input is then [0, 1]
    for any images, and the integer of a pixel is the pixel itself.
    """
    count, *sides = shape
    seen = 0
    for batch in [calibration] if isinstance(calibration, np.ndarray) else calibration:
        batch = np.asarray(batch)
        known = [size if side is None else side for side, size in zip(sides, batch.shape[1:])]
        fits = batch.ndim == 4 and [*batch.shape[1:]] == known
        within = np.all((batch >= -_ROUNDING) & (batch <= 1 + _ROUNDING))
        if not (fits and batch.dtype == np.float32 and within):
            values = "" if within else " with values outside of it"
            raise ValueError(
                f"calibration images must be float32 in [0, 1], of shape {(None, *sides)}; got {batch.dtype} "
                f"of shape {batch.shape}{values}"
            )
        for start in range(0, len(batch), count):
            # A copy; a last batch repeats its images.
            images = np.resize(batch[start : start + count], (count, *batch.shape[1:])).clip(0, 1)
            if not seen:
                images[0, 0, 0, 0], images[0, -1, -1, -1] = 0, 1
            seen += count
            yield [images]
    if not seen:
        raise ValueError("expected 100 to 500 calibration images; got none")


def check_outputs(path: Path) -> None:
    """Run the file once: its outputs must be finite."""
    runner = Interpreter(model_path=os.fspath(path)).get_signature_runner("serving_default")
    details = runner.get_input_details().items()
    ones = {name: np.ones(detail["shape"], detail["dtype"]) for name, detail in details}
    check_finite(runner(**ones), "LiteRT")
