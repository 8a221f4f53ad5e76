"""What ML Drift computes: LiteRT's delegate for the GPUs of Android and, by WebGPU, of browsers."""

from ai_edge_litert import schema_py_generated as schema

MAX_RANK = 4
# Those that exports of this package have been compared with the live model in, by LiteRT.js on WebGPU.
OPERATIONS = """
ADD ARG_MAX BATCH_MATMUL CAST CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEQUANTIZE FULLY_CONNECTED GELU GREATER
LOGISTIC MAX_POOL_2D MEAN MUL PACK PAD QUANTIZE RESHAPE RESIZE_BILINEAR RSQRT SELECT_V2 SOFTMAX SQUARE
SQUARED_DIFFERENCE STRIDED_SLICE SUB TANH TILE TRANSPOSE TRANSPOSE_CONV
"""
_NAMES = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}


def refusals(content):
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
    model = schema.Model.GetRootAs(content, 0)
    graph = model.Subgraphs(0)
    buffers = [model.Buffers(i) for i in range(model.BuffersLength())]
    tensors = [graph.Tensors(i) for i in range(graph.TensorsLength())]
    stored = [buffers[tensor.Buffer()] for tensor in tensors]
    constant = [buffer.DataLength() > 0 or buffer.Size() > 1 for buffer in stored]
    batch = _shape(tensors[graph.Inputs(0)])[0]
    reasons = {}  # as an ordered set
    for i in range(graph.OperatorsLength()):
        operation = graph.Operators(i)
        code = model.OperatorCodes(operation.OpcodeIndex())
        name = _NAMES[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
        inputs = [index for index in operation.InputsAsNumpy() if index >= 0]
        outputs = operation.OutputsAsNumpy()
        if name == "DEQUANTIZE" and constant[inputs[0]]:  # weights in float16
            constant[outputs[0]] = True
            continue
        shapes = [_shape(tensors[index]) for index in (*inputs, *outputs) if not constant[index]]
        first_is_constant = constant[inputs[0]]
        kernel = _shape(tensors[inputs[1]]) if name == "CONV_2D" else None
        reasons |= dict.fromkeys(_reasons(name, operation, shapes, kernel, first_is_constant, batch))
    return [*reasons]


def _reasons(name, operation, shapes, kernel, first_is_constant, batch):
    """The reasons in one operation, by the shapes of its tensors that are not constant."""
    table = operation.BuiltinOptions()
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
    if name == "BATCH_MATMUL" and first_is_constant:
        yield "it multiplies constants from the right only"
    if name == "BATCH_MATMUL" and len({len(shape) for shape in shapes}) > 1:
        yield "it multiplies tensors with as many axes as each other"
    if name == "ARG_MAX" and shapes[0][-1] % 4:
        yield f"its argmax is of channels in fours, not of {shapes[0][-1]}"
    if name == "CONV_2D" and kernel[1:3] == [1, 1]:
        options = schema.Conv2DOptions()
        options.Init(table.Bytes, table.Pos)
        if options.StrideH() > 1 or options.StrideW() > 1:
            yield "its 1×1 convolutions have no strides"
    if name == "STRIDED_SLICE":
        options = schema.StridedSliceOptions()
        options.Init(table.Bytes, table.Pos)
        if options.ShrinkAxisMask() or options.NewAxisMask() or options.EllipsisMask():
            yield "its slices keep all axes"


def _shape(tensor):
    """The shape, with -1 for sizes that are not fixed."""
    free = tensor.ShapeSignatureLength()
    return [int(size) for size in (tensor.ShapeSignatureAsNumpy() if free else tensor.ShapeAsNumpy())]
