"""A LiteRT file of 8 bits that computes some operations in float32."""

from __future__ import annotations

from collections.abc import Container, Sequence

from ai_edge_litert import schema_py_generated as schema
from tensorflow.lite.python.convert import mlir_quantize

_OPERATORS = schema.BuiltinOperator
_MATMULS = {_OPERATORS.FULLY_CONNECTED, _OPERATORS.BATCH_MATMUL}
_CONVOLUTIONS = {_OPERATORS.CONV_2D, _OPERATORS.DEPTHWISE_CONV_2D, _OPERATORS.TRANSPOSE_CONV}


def quantized(content: bytes, names: Sequence[str]) -> bytes:
    """Quantize a calibrated file to 8 bits, but for the operations with these names.

    Args:
        content: Bytes of the flatbuffer that the converter has calibrated.
        names: As `last_operations` and `all_but_products` return.

    Returns:
        bytes of the flatbuffer.

    Source: what `tf.lite.experimental.QuantizationDebugger` does with its option `denylisted_nodes`.
    """
    return mlir_quantize(content, denylisted_nodes=names)


def all_but_products(content: bytes) -> list[str]:
    """The names of all operations but the matmuls and convolutions with constant kernels after the first.

    The first one computes the patch embedding, of few weights, or the stem's first convolution.

    Args:
        content: As for `last_operations`.

    Returns:
        As `last_operations`.

    Example:
        >>> folder = export_saved_model(model, "saved")
        >>> content = export_tflite(folder, "model.tflite", precision="float32").read_bytes()
        >>> len(all_but_products(content)) > 50
        True
    """
    model, graph = _graph(content)

    def is_product(operation: schema.OperatorT) -> bool:
        has_kernel = any(
            model.buffers[graph.tensors[i].buffer].data is not None for i in operation.inputs[:2] if i >= 0
        )
        return _code(model, operation) in _MATMULS | _CONVOLUTIONS and has_kernel

    products = [operation for operation in graph.operators if is_product(operation)][1:]
    return [
        graph.tensors[tensor].name.decode()
        for operation in graph.operators
        if operation not in products
        for tensor in operation.outputs
    ]


def last_operations(content: bytes, outputs: Container[str]) -> list[str]:
    """The names of the operations that compute outputs from their last matmul on, with this matmul.

    Args:
        content: Bytes of a flatbuffer with one graph and one signature.
        outputs: Names of outputs.

    Returns:
        list of the names of the tensors that these operations return.

    Example:
        >>> folder = export_saved_model(model, "saved")
        >>> content = export_tflite(folder, "model.tflite", precision="float32").read_bytes()
        >>> len(last_operations(content, ["probabilities"]))  # a matmul and a softmax
        2
    """
    model, graph = _graph(content)
    [signature] = model.signatureDefs
    made_by = {tensor: operation for operation in graph.operators for tensor in operation.outputs}
    remaining = [output.tensorIndex for output in signature.outputs if output.name.decode() in outputs]
    names = {}
    while remaining:
        tensor = remaining.pop()
        operation = made_by.get(tensor)
        if operation is None or tensor in names:
            continue
        names[tensor] = graph.tensors[tensor].name.decode()
        if _code(model, operation) not in _MATMULS:
            remaining += operation.inputs.tolist()
    return [*names.values()]


def _graph(content: bytes) -> tuple[schema.ModelT, schema.SubGraphT]:
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    [graph] = model.subgraphs
    return model, graph


def _code(model: schema.ModelT, operation: schema.OperatorT) -> int:
    code = model.operatorCodes[operation.opcodeIndex]
    return max(code.builtinCode, code.deprecatedBuiltinCode)
