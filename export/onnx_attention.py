"""Attention in an ONNX graph as one operation of ONNX Runtime."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_vit.lazy import LazyModule
from keras_vit.types import Shape

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

onnx = LazyModule("onnx")
helper, numbers = map(LazyModule, ("onnx.helper", "onnx.numpy_helper"))

DOMAIN = "com.microsoft"
TO_HEADS, TO_KEYS = (0, 2, 1, 3), (0, 2, 3, 1)  # the axes of (batch, tokens, heads, channels)


def fuse_attention(model: ModelProto, shape_of: Callable[[str], Sequence[int]]) -> int:
    """Replace softmax(Q·Kᵀ)·V by `MultiHeadAttention`, an operation that need not store all scores.

    Attention with a bias or a mask stays as it is.

    Args:
        model: `onnx.ModelProto`, which is changed.
        shape_of: Function from the name of a tensor to its shape.

    Returns:
        Number of replaced softmaxes.

    Source: ONNX Runtime's contrib operators, com.microsoft.MultiHeadAttention.
    """
    graph = model.graph
    made_by, uses = {name: node for node in graph.node for name in node.output}, uses_of(graph)
    fused: dict[str, list[NodeProto]] = {}
    removed: set[str] = set()
    sizes: dict[str, tuple[int, ...]] = {"merged_heads": (0, 0, -1)}
    for softmax in [node for node in graph.node if node.op_type == "Softmax"]:
        products = _products(softmax, made_by, uses)
        if products is None:
            continue
        inputs, ends = products
        (_, _, heads, channels), name = shape_of(inputs[2]), softmax.name
        split = f"{heads}_heads"
        sizes[split] = (0, 0, heads, -1)
        merged = [f"{name}/{part}" for part in ("query", "key", "value")]
        nodes = [helper.make_node("Reshape", [x, "merged_heads"], [y]) for x, y in zip(inputs, merged)]
        options = {"domain": DOMAIN, "num_heads": heads, "scale": 1.0, "name": f"{name}/fused"}
        nodes.append(helper.make_node("MultiHeadAttention", merged, [f"{name}/heads"], **options))
        nodes.append(helper.make_node("Reshape", [f"{name}/heads", split], ends[-1].output))
        # Quantizers ask for the types of all tensors, which ONNX infers for its own operations.
        shape: Shape = (None, None, heads * channels)
        graph.value_info.append(helper.make_tensor_value_info(f"{name}/heads", onnx.TensorProto.FLOAT, shape))
        fused[ends[-1].name] = nodes
        removed.update(node.name for node in ends)
    nodes = [new for node in graph.node for new in fused.get(node.name, [node]) if new.name not in removed]
    del graph.node[:]
    graph.node.extend(nodes)
    if fused:
        for name, shape in sizes.items():
            graph.initializer.append(numbers.from_array(np.array(shape, "int64"), name))
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return len(fused)


def uses_of(graph: GraphProto) -> dict[str, list[NodeProto]]:
    """The nodes that read a tensor, by its name."""
    uses = collections.defaultdict(list)
    for node in graph.node:
        for name in node.input:
            uses[name].append(node)
    return uses


def _products(
    softmax: NodeProto, made_by: Mapping[str, NodeProto], uses: Mapping[str, Sequence[NodeProto]]
) -> tuple[list[str], tuple[NodeProto, ...]] | None:
    """The tensors of query, key and value, and the nodes from the scores to the heads' outputs, or None."""
    scores = made_by.get(softmax.input[0])
    weighted = _only(uses[softmax.output[0]], "MatMul")
    heads = weighted and _only(uses[weighted.output[0]], "Transpose")
    if weighted is None or heads is None or scores is None or scores.op_type != "MatMul":
        return None
    transposes = [made_by.get(name) for name in (*scores.input, weighted.input[1])]
    if [*map(_axes, (*transposes, heads))] != [TO_HEADS, TO_KEYS, TO_HEADS, TO_HEADS]:
        return None
    return [node.input[0] for node in transposes if node], (scores, softmax, weighted, heads)


def _only(nodes: Sequence[NodeProto], kind: str) -> NodeProto | None:
    return nodes[0] if len(nodes) == 1 and nodes[0].op_type == kind else None


def _axes(node: NodeProto | None) -> tuple[int, ...] | None:
    if node is None or node.op_type != "Transpose":
        return None
    return next(tuple(attribute.ints) for attribute in node.attribute if attribute.name == "perm")
