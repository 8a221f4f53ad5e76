"""What ML Drift computes: LiteRT's delegate for the GPUs of Android and, by WebGPU, of browsers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

from ai_edge_litert import schema_py_generated as schema

MAX_RANK = 4
# Those that exports of this package have been compared with the live model in, by LiteRT.js on WebGPU.
OPERATIONS = """
ADD ARG_MAX BATCH_MATMUL CAST CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEQUANTIZE DIV EXP FULLY_CONNECTED GELU
GREATER LOGISTIC MAX_POOL_2D MEAN MUL PACK PAD QUANTIZE RELU RESHAPE RESIZE_BILINEAR RSQRT SELECT_V2 SOFTMAX
SQUARE SQUARED_DIFFERENCE STRIDED_SLICE SUB TANH TILE TRANSPOSE TRANSPOSE_CONV
"""
_NAMES = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}


def refusals(content: bytes) -> list[str]:
    """Why ML Drift would not compute a LiteRT file, or would compute something else without notice.

    Args:
        content: Bytes of a flatbuffer with one graph.

    Returns:
        list of sentences, one for each reason; empty for a file that it computes.

    Example:
        >>> folder = export_saved_model(model, "saved")
        >>> refusals(export_tflite(folder, "model.tflite").read_bytes())
        []

    Source: measured with `@litertjs/core` 2.5.3 in Chromium.
    """
    model, graph = read_graph(content)
    stored = [model.buffers[tensor.buffer] for tensor in graph.tensors]
    constant = [_has_items(buffer.data) or buffer.size > 1 for buffer in stored]
    shapes = [_shape(tensor) for tensor in graph.tensors]
    batch = shapes[graph.inputs[0]][0]
    reasons: dict[str, None] = {}  # as an ordered set
    for operation in graph.operators:
        name = name_of(model, operation)
        inputs = [index for index in operation.inputs if index >= 0]
        if name == "DEQUANTIZE" and constant[inputs[0]]:  # weights in float16
            constant[operation.outputs[0]] = True
            continue
        variable = [shapes[index] for index in (*inputs, *operation.outputs) if not constant[index]]
        kernel = shapes[inputs[1]] if name == "CONV_2D" else None
        options, first_is_constant = operation.builtinOptions, constant[inputs[0]]
        reasons |= dict.fromkeys(_reasons(name, options, variable, kernel, first_is_constant, batch))
    return [*reasons]


def read_graph(content: bytes) -> tuple[schema.ModelT, schema.SubGraphT]:
    """The model in a flatbuffer, and its only graph."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    [graph] = model.subgraphs
    return model, graph


def name_of(model: schema.ModelT, operation: schema.OperatorT) -> str:
    """The name of what an operation computes, such as "CONV_2D"."""
    code = model.operatorCodes[operation.opcodeIndex]
    return _NAMES[max(code.builtinCode, code.deprecatedBuiltinCode)]


def _reasons(
    name: str,
    options: Any,
    shapes: Sequence[list[int]],
    kernel: list[int] | None,
    first_is_constant: bool,
    batch: int,
) -> Iterator[str]:
    """The reasons in one operation, by the shapes of its tensors that are not constant."""
    if name not in OPERATIONS.split():
        yield f"it has no operation {name}"
    for shape in shapes:
        got = f"and one of {name} has the shape {shape}"
        if len(shape) > MAX_RANK:
            yield f"its tensors have at most {MAX_RANK} axes, {got}"
        elif min(shape, default=0) < 1:
            yield f"its tensors have fixed shapes, {got}"
        elif shape[0] != batch:
            yield f"its tensors begin with the batch of {batch}, {got}"
    if name == "BATCH_MATMUL":
        if first_is_constant:
            yield "it multiplies constants from the right only"
        if len({*map(len, shapes)}) > 1:
            yield "it multiplies tensors with as many axes as each other"
    if name == "ARG_MAX" and shapes[0][-1] % 4:
        yield f"its argmax is of channels in fours, not of {shapes[0][-1]}"
    if name == "CONV_2D" and kernel and kernel[1:3] == [1, 1] and max(options.strideH, options.strideW) > 1:
        yield "its 1×1 convolutions have no strides"
    if name == "STRIDED_SLICE" and (options.shrinkAxisMask or options.newAxisMask or options.ellipsisMask):
        yield "its slices keep all axes"


def _shape(tensor: schema.TensorT) -> list[int]:
    """The shape, with -1 for sizes that are not fixed."""
    sizes = next(filter(_has_items, (tensor.shapeSignature, tensor.shape)), ())
    return [int(size) for size in sizes]


def _has_items(vector: Sized | None) -> bool:
    """Whether a vector of a flatbuffer is there and not empty."""
    return vector is not None and len(vector) > 0
