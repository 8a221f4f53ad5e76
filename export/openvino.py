"""A SavedModel as an OpenVINO model, an `.xml` file with its weights in a `.bin` file, for CPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import json
import os
import pathlib
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from keras_vit.export import tflite
from keras_vit.export.checks import check_calibration, check_finite, damaged, new_file
from keras_vit.export.description import Description, parse_description, read_description
from keras_vit.export.outputs import outputs_of
from keras_vit.lazy import optional_package
from keras_vit.messages import one_line
from keras_vit.models.vit.geometry import DYNAMIC_SIZE
from keras_vit.rules import one_of
from keras_vit.types import Path, Size
from keras_vit.weights.cache import file_sha256
from keras_vit.writing import atomic_path

if TYPE_CHECKING:
    from openvino import Core, InferRequest, Model, Node
    from openvino.passes import Matcher

    from keras_vit.export.formats import ExportJob

_Compiled = TypeVar("_Compiled")

PACKAGES = ("openvino", "nncf")
PRECISIONS = ("float32", "bfloat16", "int8")
TELEMETRY = "openvino_telemetry"
_PRODUCTS = ("MatMul", "Convolution", "GroupConvolution", "ConvolutionBackpropData")
# Where the `Description`, the precision and the digest of the weights lie in the .xml file.
_INFO = "keras_vit"
_DESCRIPTION, _PRECISION, _DIGEST = "description", "precision", "weights_sha256"


def export_openvino(
    saved_model: Path,
    path: Path,
    *,
    precision: str = "float32",
    image_size: Size | None = None,
    calibration: np.ndarray | Sequence[np.ndarray] | None = None,
) -> pathlib.Path:
    """Convert the `serving_default` signature of a SavedModel to an OpenVINO model.

    Images go in as float32 in [0, 1], in batches of any size; the outputs have the SavedModel's names. The
    weights lie next to the file, under the same name with the suffix .bin. Requires `pip install openvino`,
    and for "int8" `nncf`. Their reports of use to their maker are switched off.

    Args:
        saved_model: Folder that `export_saved_model` wrote.
        path: File to write, ending in .xml; neither it nor its .bin file may exist.
        precision: "float32"; "bfloat16", weights of 16 bits, with which `open_exported` computes in bfloat16
            where the processor can; or "int8", dense layers and convolutions of 8 bits, and the rest, such
            as the products of attention, as "bfloat16": the fastest on CPUs with VNNI or AMX.
        image_size: (height, width) to fix for a model of any size; None keeps it.
        calibration: For "int8", as for `export_tflite`.

    Returns:
        pathlib.Path of the .xml file.

    Raises:
        ImportError: if a required package is missing.
        ValueError: if a file exists, an argument does not fit, keras_vit did not write the SavedModel, it
            cannot be converted, or computes NaN.
        OSError: if it cannot be written, as on a full disk. Nothing is left under its name then.

    Example:
        >>> folder = export_saved_model(model, "export/saved_model/1")
        >>> export_openvino(folder, "export/model.xml").name
        'model.xml'

    Source: OpenVINO's model conversion; NNCF's post-training quantization with SmoothQuant (Xiao et al. 2023,
    arXiv 2211.10438) and fast bias correction.
    """
    saved_model, xml = pathlib.Path(saved_model).expanduser(), new_file(path, ".xml", "an OpenVINO file")
    one_of(PRECISIONS).check("precision", precision)
    check_calibration(precision, calibration)
    description = read_description(saved_model)
    if image_size is not None:
        description = description.with_size(image_size)
    openvino, *_ = packages(precision)
    with atomic_path(xml, overwrite=False) as file, atomic_path(_weights(xml), overwrite=False) as weights:
        with contextlib.redirect_stdout(io.StringIO()):  # NNCF shows its progress there.
            model = _convert(openvino, saved_model, description, calibration)
        model.set_rt_info(json.dumps(dataclasses.asdict(description)), [_INFO, _DESCRIPTION])
        model.set_rt_info(precision, [_INFO, _PRECISION])
        # It is written twice, because the file contains the digest of its weights.
        for _ in range(2):
            model.set_rt_info(file_sha256(weights) if weights.exists() else "", [_INFO, _DIGEST])
            openvino.save_model(model, file, compress_to_fp16=precision == "bfloat16")
            os.replace(_weights(file), weights)
        shape = (2, *description.native_image_size, description.channels)
        noise = np.random.default_rng(0).random(shape, "float32")
        check_finite(open_openvino(file, weights=weights)[1](noise), "OpenVINO")
    return xml


def write_job(job: ExportJob, path: pathlib.Path, precision: str) -> None:
    """Write the model of an `ExportJob`."""
    size, calibration = job.image_size, job.calibration_of(precision)
    export_openvino(job.saved_model, path, precision=precision, image_size=size, calibration=calibration)


def check_job(job: ExportJob, precision: str) -> None:
    """Raise ValueError for options that do not fit together, ImportError if a package is missing."""
    check_calibration(precision, job.calibration_of(precision))
    packages(precision)


def open_openvino(
    path: Path, threads: int | None = None, weights: Path | None = None
) -> tuple[Description, tflite.Compute]:
    """The arguments of `ExportedModel` for an `.xml` file and its weights, by default next to it."""
    (openvino,), weights = packages(), weights or _weights(path)
    core = openvino.Core()
    try:
        model = core.read_model(path, weights)
        info = {
            name: model.get_rt_info([_INFO, name]).astype(str)
            for name in (_DESCRIPTION, _PRECISION, _DIGEST)
            if model.has_rt_info([_INFO, name])
        }
    except Exception as error:  # OpenVINO's exceptions have no common class.
        raise damaged(path, error) from None
    description = parse_description(info.get(_DESCRIPTION), path)
    if info.get(_DIGEST) != file_sha256(weights):
        raise damaged(path, ValueError(f"{os.path.basename(weights)} is not the file that belongs to it"))
    names = [output.any_name for output in model.outputs]
    settings = runtime_settings(core, model, info.get(_PRECISION), threads)
    # With a known batch size int8 is a fifth faster; to compile for each size of images would be slow.
    fixed = description.image_size != DYNAMIC_SIZE
    lock = threading.Lock()  # A request holds the tensors of one call, which already uses all threads.

    def compiled(shape: tuple[int, ...] | None) -> InferRequest:
        known = model.clone()
        if shape is not None:
            known.reshape({"images": shape})
        return core.compile_model(known, "CPU", settings).create_infer_request()

    request = few_shapes(compiled)

    def compute(images: np.ndarray) -> dict[str, np.ndarray]:
        with lock:
            running = request(images.shape if fixed else None)
            running.infer({"images": images})
            return {name: np.array(running.get_tensor(name).data) for name in names}

    return description, compute


def few_shapes(
    compiled: Callable[[tuple[int, ...] | None], _Compiled], count: int = 2
) -> Callable[[tuple[int, ...] | None], _Compiled]:
    """A function from the shape of a batch to a compiled model, of which it makes and keeps few.

    Args:
        compiled: A function from a shape, or from None for any shape, to a compiled model.
        count: The number of shapes that get a model of their own, the first ones: those of batches, and of a
            last one of fewer images. All others are computed by the model for any shape.

    Example:
        >>> shapes = []
        >>> model_for = few_shapes(lambda shape: shapes.append(shape) or shape)
        >>> [model_for(size) for size in (16, 3, 1, 7, 3)], shapes
        ([16, 3, None, None, 3], [16, 3, None])
    """
    compiled = functools.cache(compiled)
    compiled_shapes: set[tuple[int, ...] | None] = set()

    def model_for(shape: tuple[int, ...] | None) -> _Compiled:
        if len(compiled_shapes) < count:
            compiled_shapes.add(shape)
        return compiled(shape if shape in compiled_shapes else None)

    return model_for


def runtime_settings(
    core: Core, model: Model, precision: str | None, threads: int | None
) -> dict[str, str | int]:
    """Options of the runtime, whose own default is bfloat16 for models of any precision."""
    low = precision != "float32" and "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    low = low and not any(map(_transposes_attention, model.get_ops()))
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "bf16" if low else "f32"}
    return settings | ({} if threads is None else {"INFERENCE_NUM_THREADS": threads})


def _transposes_attention(node: Node) -> bool:
    """Whether an operation is attention with as many tokens as heads.

    OpenVINO 2026.4 confuses these two axes in bfloat16: logits were off by 0.9 of their largest value.
    """
    if node.get_type_name() != "ScaledDotProductAttention":
        return False
    _, heads, tokens, _ = node.get_output_partial_shape(0)
    return heads == tokens


def packages(precision: str | None = None) -> list[ModuleType]:
    """The packages for a precision; None for opening files only.

    Raises:
        ImportError: if one is missing; the message has the command that installs it.
    """
    needed = PACKAGES if precision == "int8" else PACKAGES[:1]
    with _without_telemetry():
        modules = [optional_package(name, "OpenVINO", PACKAGES) for name in needed]
        if precision is not None:
            importlib.import_module("openvino.tools.ovc")
    return modules


@contextlib.contextmanager
def _without_telemetry() -> Iterator[None]:
    """Import OpenVINO and NNCF as if the package were missing by which they report what is done with them."""
    before = sys.modules.get(TELEMETRY)
    sys.modules[TELEMETRY] = None  # type: ignore[assignment]  # Python then takes it for missing.
    try:
        yield
    finally:
        del sys.modules[TELEMETRY]
        if before is not None:
            sys.modules[TELEMETRY] = before


@contextlib.contextmanager
def _without_comma(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A path of a folder that has no comma, at which OpenVINO would split it."""
    if "," not in os.fspath(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory() as parent:
        link = pathlib.Path(parent) / "saved_model"
        link.symlink_to(folder.absolute(), target_is_directory=True)
        yield link


def _convert(
    openvino: ModuleType,
    saved_model: pathlib.Path,
    description: Description,
    calibration: np.ndarray | Sequence[np.ndarray] | None,
) -> Model:
    """The OpenVINO model of a SavedModel's signature, with calibration images in int8."""
    sides = (*description.image_size, description.channels)
    try:
        with _without_comma(saved_model) as folder:
            model = openvino.convert_model(os.fspath(folder))
        del model.rt_info["conversion_parameters"]  # the path on this machine
        model.reshape({"images": [-1, *(-1 if side is None else side for side in sides)]})
        _fuse_norms(openvino, model)
    except Exception as error:
        raise ValueError(f"OpenVINO cannot hold this model: {one_line(error)[:300]}") from error
    if calibration is None:
        return model
    _, nncf = packages("int8")
    nncf.set_log_level("ERROR")
    shape = (1, *description.native_image_size, description.channels)
    images = [image for (image,) in tflite.calibration_samples(calibration, shape)]
    ranges = importlib.import_module("nncf.quantization.range_estimator").RangeEstimatorParametersSet
    names = {
        *_all_but_products(model),
        *_ends(model, {*outputs_of(description).in_float}),
        *_overlapping(model),
        *_of_means(model),
    }
    # For models of any size, whose attention is in the bodies of an If, `nncf.quantize` calls another
    # function, which also quantizes the bodies, though they have no kernels, and needs names of their inputs.
    quantize = importlib.import_module("nncf.openvino.quantization.quantize_model").native_quantize_impl
    return quantize(
        model,
        nncf.Dataset(images),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(images),
        ignored_scope=nncf.IgnoredScope(sorted(names), validate=False),
        # NNCF's default, the mean over images, cuts off the outliers of transformers.
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            activations_range_estimator_params=ranges.MINMAX
        ),
    )


def _all_but_products(model: Model) -> set[str]:
    """The names of all operations but the matmuls and convolutions of 8 bits.

    These multiply what depends on the images by a constant kernel; the first one stays in float. Positions of
    images of any size are products, too, but depend on the shape alone.
    """
    image_tensors, constants, products, names = set[str](), set[str](), list[str](), set[str]()
    for node in model.get_ordered_ops():
        name, operation = node.get_friendly_name(), node.get_type_name()
        inputs = [value.get_source_output().get_node().get_friendly_name() for value in node.inputs()]
        names.add(name)
        if operation == "Parameter" or (operation != "ShapeOf" and not image_tensors.isdisjoint(inputs)):
            image_tensors.add(name)
        elif constants.issuperset(inputs):
            constants.add(name)
        if _is_product(node) and inputs[0] in image_tensors and inputs[1] in constants:
            products.append(name)
    return names - {*products[1:]}


def _overlapping(model: Model) -> list[str]:
    """The names of the convolutions whose kernels overlap.

    OpenVINO 2026.4 computes them wrong in 8 bits if the batch size is unknown: depths were off by 17 %.
    """
    convolutions = []
    for node in model.get_ops():
        if node.get_type_name() in ("Convolution", "GroupConvolution"):
            strides = node.get_attributes()["strides"]
            sides = node.input_value(1).get_partial_shape().to_shape()[-len(strides) :]
            if any(side > stride for side, stride in zip(sides, strides)):
                convolutions.append(node.get_friendly_name())
    return convolutions


def _of_means(model: Model) -> list[str]:
    """The names of the products of means, such as the head's after average pooling.

    OpenVINO 2026.4 scales the channels of a mean wrong if the same kernel rounds them: logits were off by
    more than their largest value.
    """
    return [
        node.get_friendly_name()
        for node in model.get_ops()
        if _is_product(node) and node.input_value(0).get_node().get_type_name() == "ReduceMean"
    ]


def _ends(model: Model, names: set[str]) -> list[str]:
    """The names of the operations of some outputs from their last matmul or convolution on."""
    operations = []
    for output in model.outputs:
        node = output.get_node() if names & output.get_names() else None
        while node is not None and node.get_input_size():
            operations.append(node.get_friendly_name())
            node = None if _is_product(node) else node.input_value(0).get_node()
    return operations


def _is_product(node: Node) -> bool:
    """Whether an operation is a matmul or a convolution."""
    return node.get_type_name() in _PRODUCTS


def _fuse_norms(openvino: ModuleType, model: Model) -> None:
    """Replace the operations of each layer norm by one, which int8 computes 2 % faster (S/16).

    OpenVINO recognizes other forms of a layer norm than that of `LayerNormalization`.
    """
    passes: Any = importlib.import_module("openvino.passes")
    operations = importlib.import_module("openvino.opset13")

    def node(kind: str, *inputs: Any) -> Any:
        return passes.WrapType(f"opset13.{kind}", [*inputs])

    x, any_axes = passes.AnyInput(), passes.AnyInput()
    axes, epsilon = node("Constant"), node("Constant")
    centered = node("Subtract", x, node("ReduceMean", x, axes))
    variance = node("ReduceMean", node("Multiply", centered, centered), any_axes)
    inverse = node("Power", node("Add", variance, epsilon), node("Constant"))
    normalized = node("Multiply", centered, inverse)

    def replace(matcher: Matcher) -> bool:
        matched, root = matcher.get_pattern_value_map(), matcher.get_match_root()
        axis, last = int(matched[axes].get_node().data.item()), len(matched[x].get_partial_shape()) - 1
        if axis not in (-1, last):
            return False
        smallest = float(matched[epsilon].get_node().data.item())
        fused = operations.mvn(matched[x], operations.constant([-1]), True, smallest, "inside_sqrt")
        fused.set_friendly_name(root.get_friendly_name())
        openvino.utils.replace_node(root, fused)
        return True

    class Fuse(passes.MatcherPass):
        def __init__(self) -> None:
            super().__init__()
            self.register_matcher(passes.Matcher(normalized, "norm"), replace)

    manager = passes.Manager()
    manager.register_pass(Fuse())
    manager.run_passes(model)


def _weights(path: Path) -> pathlib.Path:
    return pathlib.Path(path).with_suffix(".bin")
