"""A SavedModel as an ONNX file, for onnxruntime and other runtimes."""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import os
import pathlib
import types
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit import rules
from keras_vit.export import tflite
from keras_vit.export.checks import check_calibration, check_finite, damaged, new_file
from keras_vit.export.description import FILE, Description, parse_description, read_description
from keras_vit.export.onnx_attention import fuse_attention, uses_of
from keras_vit.export.outputs import outputs_of
from keras_vit.lazy import LazyModule, optional_package
from keras_vit.messages import one_line
from keras_vit.types import Path
from keras_vit.writing import atomic_path

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto
    from onnxruntime import InferenceSession
    from tensorflow import Variable
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.types.experimental import ConcreteFunction

    from keras_vit.export.formats import ExportJob

tf, freezing = map(LazyModule, ("tensorflow", "tensorflow.python.framework.convert_to_constants"))
numbers, quantization = map(LazyModule, ("onnx.numpy_helper", "onnxruntime.quantization"))

PACKAGES = ("onnx", "onnxruntime", "tf2onnx")
OPSETS = range(13, 19)
PRECISIONS = ("float32", "dynamic_int8", "int8")
PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
MAX_BYTES = 2**31 - 1  # of a protocol buffer
DIMENSIONS = {"images": ("batch", "height", "width"), None: ("batch", "tokens")}  # names of dynamic sizes


def export_onnx(
    saved_model: Path,
    path: Path,
    *,
    opset: int | None = None,
    precision: str = "float32",
    calibration: np.ndarray | Sequence[np.ndarray] | None = None,
    fused_attention: bool = False,
) -> pathlib.Path:
    """Convert the `serving_default` signature of a SavedModel to ONNX.

    The file has the input `images` (float32 in [0, 1], in batches of any size), the signature's outputs,
    and in its metadata `keras_vit.json` and, of a classifier, `labels.txt`. Requires
    `pip install onnx onnxruntime tf2onnx`.

    Args:
        saved_model: Folder that `export_saved_model` wrote.
        path: File to write, ending in .onnx; it must not exist.
        opset: Version of ONNX's operations, from 13 to 18; None for the converter's default.
        precision: "float32"; "dynamic_int8", kernels of 8 bits with which ONNX Runtime multiplies
            activations that it rounds to 8 bits at run time, by a scale for all images of a batch; or "int8",
            with scales that are measured before: dense layers and convolutions of 8 bits, and the rest in
            float32.
        calibration: For "int8", as for `export_tflite`.
        fused_attention: Whether attention is `com.microsoft.MultiHeadAttention`, one operation of ONNX
            Runtime, which is faster for many tokens. Other runtimes may not know it.

    Returns:
        pathlib.Path of the file.

    Raises:
        ImportError: if a required package is missing.
        ValueError: if the file exists or would not be below 2 GiB, keras_vit did not write the
            SavedModel, or the converted model does not run or has outputs that are not finite; for
            `fused_attention`, if all attention has a bias, or the model takes images of any size.
        OSError: if it cannot be written, as on a full disk. Nothing is left under its name then.

    Example:
        >>> folder = export_saved_model(model, "export/saved_model/1")
        >>> export_onnx(folder, "export/model.onnx").name
        'model.onnx'

    Source: ONNX's intermediate representation; `tf2onnx.convert.from_function`; ONNX Runtime's dynamic and
    static quantization.
    """
    onnx, _, tf2onnx = packages()
    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)  # What it cannot convert is found below.
    saved_model, file = pathlib.Path(saved_model).expanduser(), new_file(path, ".onnx", "an ONNX file")
    rules.optional(rules.one_of(OPSETS)).check("opset", opset)
    rules.one_of(PRECISIONS).check("precision", precision)
    check_calibration(precision, calibration)
    description = read_description(saved_model)
    weights = (saved_model / "variables" / "variables.data-00000-of-00001").stat().st_size
    if weights >= MAX_BYTES:
        raise ValueError(
            f"an ONNX file must be below 2 GiB, and this model's weights have {weights / 2**30:.1f} GiB: "
            "export it as a SavedModel"
        )
    with atomic_path(file, overwrite=False) as temporary:
        loaded = tf.saved_model.load(os.fspath(saved_model))  # The reference keeps the variables alive.
        model = _convert(loaded.signatures["serving_default"], opset, tf2onnx, fused_attention)
        for value in (*model.graph.input, *model.graph.output):
            names = DIMENSIONS.get(value.name, DIMENSIONS[None])
            for size, name in zip(value.type.tensor_type.shape.dim, names):
                if not size.HasField("dim_value"):
                    size.dim_param = name
        onnx.helper.set_model_props(model, description.files)
        temporary.write_bytes(model.SerializeToString())
        if precision == "dynamic_int8":
            _quantize(temporary, "quantize_dynamic")
        elif calibration is not None:
            _calibrate(temporary, description, calibration)
        _check(temporary, description)
    return file


def write_job(job: ExportJob, path: pathlib.Path, precision: str) -> None:
    """Write the model of an `ExportJob`."""
    calibration, fused = job.calibration_of(precision), job.fused_attention
    export_onnx(job.saved_model, path, precision=precision, calibration=calibration, fused_attention=fused)


def check_job(job: ExportJob, precision: str) -> None:
    """Raise ValueError without the images for a precision, ImportError if a package is missing."""
    check_calibration(precision, job.calibration_of(precision))
    packages()


def open_onnx(path: Path, threads: int | None = None) -> tuple[Description, tflite.Compute]:
    """The arguments of `ExportedModel` for an `.onnx` file."""
    try:
        session = _session(path, threads)
    except Exception as error:  # onnxruntime's exceptions have no common class.
        raise damaged(path, error) from None
    description = parse_description(session.get_modelmeta().custom_metadata_map.get(FILE), path)
    names = [output.name for output in session.get_outputs()]
    return description, lambda images: dict(zip(names, session.run(names, {"images": images})))


def _session(path: Path, threads: int | None = None) -> InferenceSession:
    onnxruntime = optional_package("onnxruntime", "ONNX", PACKAGES)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(os.fspath(path), options, ["CPUExecutionProvider"])


def packages() -> list[ModuleType]:
    """The packages that `export_onnx` requires; ImportError if one is missing."""
    return [optional_package(name, "ONNX", PACKAGES) for name in PACKAGES]


def _convert(
    signature: ConcreteFunction, opset: int | None, tf2onnx: ModuleType, fused_attention: bool
) -> ModelProto:
    """The ONNX model of a SavedModel's signature."""
    (inputs,), outputs = signature.inputs[:1], signature.outputs
    names = {inputs.name: "images"}
    names |= {tensor.name: name for tensor, name in zip(outputs, sorted(signature.structured_outputs))}
    frozen, kernels = _frozen(signature)
    ends = {"input_names": [inputs.name, *kernels], "output_names": [tensor.name for tensor in outputs]}
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        tf.import_graph_def(frozen, name="")
        converted = tf2onnx.tfonnx.process_tf_graph(graph, opset=opset, tensors_to_rename=names, **ends)
    # tf2onnx's optimizer is skipped: each of its passes keeps another copy of the weights (18 GB for B/16),
    # and runtimes optimize the files that they open, to the same speed.
    model = converted.make_model("keras_vit")
    for value in [value for value in model.graph.input if value.name in kernels]:
        model.graph.input.remove(value)
        model.graph.initializer.append(numbers.from_array(kernels[value.name].numpy(), value.name))
    _reshape_kernels(model.graph)
    if fused_attention and not fuse_attention(model, converted.get_shape):
        raise ValueError(
            "the model has no attention that fused_attention replaces: without a bias, for images of one size"
        )
    return model


def _frozen(
    signature: ConcreteFunction, constants: frozenset[str] = frozenset()
) -> tuple[GraphDef, dict[str, Variable]]:
    """A signature's graph with constants in place of variables, but with the kernels of matmuls as inputs.

    TensorFlow and tf2onnx keep ten copies of each constant while they convert.

    Args:
        signature: A concrete function.
        constants: Names of variables that become constants in any case.

    Returns:
        `GraphDef`, and a dict from the names of these inputs to the kernels' variables.
    """
    # `convert_variables_to_constants_v2` offers no choice of variables, as the class that it uses does.
    variables = {id(variable.handle): variable for variable in signature.graph.variables}
    kernels = {}
    for handle, placeholder in signature.graph.captures:
        variable = variables.get(id(handle))
        # tf2onnx transposes the kernels of convolutions, if they are constants.
        is_matrix = variable is not None and len(variable.shape) in (2, 3)
        if is_matrix and placeholder.op.name not in constants:
            kernels[placeholder.op.name] = variable
    data = freezing._FunctionConverterDataInEager(signature, False, False, None, kernels)
    graph = freezing._replace_variables_by_constants(data)[0]
    if others := _read_values(graph, kernels):
        return _frozen(signature, constants | others)
    return graph, {f"{name}:0": variable for name, variable in kernels.items()}


def _read_values(graph: GraphDef, kernels: Mapping[str, Variable]) -> set[str]:
    """Let a graph read the values of variables in place of their handles.

    Args:
        graph: `GraphDef`, which is changed.
        kernels: A dict from the names of inputs to the variables.

    Returns:
        The names of the variables that are used otherwise, such as in a loop.
    """
    nodes: dict[str, Any] = {node.name: node for node in graph.node}
    readers: dict[str, list[Any]] = collections.defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name.partition(":")[0]].append(node)
    others = set()
    for name, variable in kernels.items():
        passed = [nodes[name]]  # the nodes that pass the variable on, and then its value
        for node in passed:
            passed += readers[node.name] if node.op != "ReadVariableOp" else []
        if not {node.op for node in passed[1:]} <= {"Identity", "ReadVariableOp"}:
            others.add(name)
            continue
        for node in passed:
            if node.op == "ReadVariableOp":
                node.op = "Identity"
                del node.attr["dtype"]
            node.attr["dtype" if node.op == "Placeholder" else "T"].type = variable.dtype.as_datatype_enum
        nodes[name].attr["shape"].shape.CopyFrom(variable.shape.as_proto())
    return others


def _quantize(path: pathlib.Path, method: str, *arguments: Any, **options: Any) -> None:
    """Round the constant kernels of a file to 8 bits, each channel with its own scale."""
    options |= {"weight_type": quantization.QuantType.QInt8, "per_channel": True}
    options["extra_options"] = {"MatMulConstBOnly": True, **options.get("extra_options", {})}
    with contextlib.ExitStack() as afterwards:  # It advises a preprocessing that this graph does not need.
        afterwards.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        getattr(quantization, method)(path, path, *arguments, **options)


def _calibrate(
    path: pathlib.Path, description: Description, calibration: np.ndarray | Sequence[np.ndarray]
) -> None:
    """Compute the matmuls and convolutions with constant kernels in 8 bits, but for those of `_in_float`.

    Matmuls get no scale for their outputs, which ONNX Runtime then computes in float32.
    """
    onnx = packages()[0]
    shape = (1, *description.image_size, description.channels)
    batches = iter([{"images": images} for (images,) in tflite.calibration_samples(calibration, shape)])
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    _add_biases(model.graph)
    onnx.save(model, path)
    _quantize(
        path,
        "quantize_static",
        types.SimpleNamespace(get_next=lambda: next(batches, None)),  # a CalibrationDataReader
        op_types_to_quantize=PRODUCTS,
        nodes_to_exclude=_in_float(model.graph, outputs_of(description).in_float),
        extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"]},
    )


def _add_biases(graph: GraphProto) -> None:
    """Let matmuls of two axes add their biases: ONNX Runtime does so itself, but then computes in float32."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in graph.value_info}
    uses = uses_of(graph)
    for node in [*graph.node]:
        if node.op_type != "MatMul" or node.input[1] not in constants or ranks.get(node.input[0]) != 2:
            continue
        [addition, *others] = uses[node.output[0]]
        bias = [name for name in addition.input if name in constants and len(constants[name].dims) == 1]
        if others or addition.op_type != "Add" or not bias:
            continue
        node.op_type = "Gemm"
        node.input.extend(bias)
        node.output[:] = addition.output
        graph.node.remove(addition)


def _in_float(graph: GraphProto, outputs: Iterable[str]) -> list[str]:
    """The names of the matmuls and convolutions in float32.

    They are the first one of the images, the last ones of some outputs, and those of two activations. Those
    of the shape alone, such as positions of images of any size, are among them, too.
    """
    constants = {tensor.name for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type in PRODUCTS]
    image_tensors = {"images"}
    for node in graph.node:
        if node.op_type != "Shape" and not image_tensors.isdisjoint(node.input):
            image_tensors.update(node.output)
    in_8_bits = [
        node.name for node in products if node.input[0] in image_tensors and node.input[1] in constants
    ]
    made_by = {name: node for node in graph.node for name in node.output}
    ends = []
    for output in outputs:
        node = made_by[output]
        while node.op_type not in PRODUCTS:
            node = made_by[node.input[0]]
        ends.append(node.name)
    return [node.name for node in products if node.name not in in_8_bits[1:]] + ends


def _reshape_kernels(graph: GraphProto) -> None:
    """Store each kernel in the shape that the graph gives it before the matmul, and let this read it.

    Quantizers expect a constant as the direct input of a matmul. With a reshape between them, ONNX Runtime's
    quantizer skips the matmul, and NNCF uses the axes of the constant before the reshape.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    _skip_identities(graph, constants)
    casts = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Cast"}
    uses = collections.Counter(name for node in graph.node for name in node.input)
    renamed = {}
    for node in [*graph.node]:
        if node.op_type != "Reshape" or node.input[0] not in constants or uses[node.input[0]] > 1:
            continue
        shape = constants.get(casts.get(node.input[1], node.input[1]))
        if shape is None:
            continue
        sides, kernel = numbers.to_array(shape).tolist(), constants[node.input[0]]
        rest = math.prod(kernel.dims) // max(math.prod(side for side in sides if side != -1), 1)
        kernel.dims[:] = [rest if side == -1 else side for side in sides]
        renamed[node.output[0]] = kernel.name
        graph.node.remove(node)
    _rename_inputs(graph, renamed)


def _skip_identities(graph: GraphProto, constants: Mapping[str, TensorProto]) -> None:
    """Let nodes read constants themselves, instead of an `Identity` of them."""
    sources, results = dict(zip(constants, constants)), {value.name for value in graph.output}
    for node in [*graph.node]:
        if node.op_type == "Identity" and node.input[0] in sources and node.output[0] not in results:
            sources[node.output[0]] = sources[node.input[0]]
            graph.node.remove(node)
    _rename_inputs(graph, sources)


def _rename_inputs(graph: GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]


def _check(path: Path, description: Description) -> None:
    """Raise ValueError unless onnxruntime opens a file and computes finite outputs."""
    shape = (2, *description.native_image_size, description.channels)
    try:
        session = _session(path)
    except Exception as error:
        raise ValueError(f"the converted ONNX model does not run: {one_line(error)[:300]}") from None
    names = [output.name for output in session.get_outputs()]
    outputs = session.run(names, {"images": np.random.default_rng(0).random(shape, "float32")})
    check_finite(dict(zip(names, outputs)), "ONNX")
