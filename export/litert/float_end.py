"""A LiteRT file of 8 bits that computes the end of some outputs in float32."""

from ai_edge_litert import schema_py_generated as schema
from tensorflow.lite.python.convert import mlir_quantize

_MATMULS = {schema.BuiltinOperator.FULLY_CONNECTED, schema.BuiltinOperator.BATCH_MATMUL}


def quantized(content, outputs):
    """Quantize a calibrated file to 8 bits, but for the operations of `last_operations`.

    Args:
        content: Bytes of the flatbuffer that the converter has calibrated.
        outputs: Names of outputs.

    Returns:
        bytes of the flatbuffer.

    Source: what `tf.lite.experimental.QuantizationDebugger` does with its option `denylisted_nodes`.
    """
    return mlir_quantize(content, denylisted_nodes=last_operations(content, outputs))


def last_operations(content, outputs):
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
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    [graph], [signature] = model.subgraphs, model.signatureDefs
    made_by = {tensor: operation for operation in graph.operators for tensor in operation.outputs}
    remaining = [output.tensorIndex for output in signature.outputs if output.name.decode() in outputs]
    names = {}
    while remaining:
        tensor = remaining.pop()
        operation = made_by.get(tensor)
        if operation is None or tensor in names:
            continue
        names[tensor] = graph.tensors[tensor].name.decode()
        code = model.operatorCodes[operation.opcodeIndex]
        if max(code.builtinCode, code.deprecatedBuiltinCode) not in _MATMULS:
            remaining += operation.inputs.tolist()
    return [*names.values()]
