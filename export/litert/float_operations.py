"""A LiteRT file of 8 bits that computes some operations in float32."""

from __future__ import annotations

from collections.abc import Container

from ai_edge_litert import schema_py_generated as schema

from keras_vit.export.litert.ml_drift import name_of, read_graph

_MATMULS = {"FULLY_CONNECTED", "BATCH_MATMUL"}
_CONVOLUTIONS = {"CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"}


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
    model, graph = read_graph(content)

    def is_product(operation: schema.OperatorT) -> bool:
        has_kernel = any(
            model.buffers[graph.tensors[i].buffer].data is not None for i in operation.inputs[:2] if i >= 0
        )
        return name_of(model, operation) in _MATMULS | _CONVOLUTIONS and has_kernel

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
    model, graph = read_graph(content)
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
        if name_of(model, operation) not in _MATMULS:
            remaining += operation.inputs.tolist()
    return [*names.values()]
