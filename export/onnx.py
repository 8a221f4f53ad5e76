"""A SavedModel as an ONNX file, for onnxruntime and whatever else reads it."""

import contextlib
import importlib
import logging
import os
import pathlib
import re

import numpy as np
import tensorflow as tf

from keras_vit.export.description import FILE, LABELS, damaged, parse_description, read_description
from keras_vit.writing import atomic_path

PACKAGES = ("onnx", "onnxruntime", "tf2onnx")
OPSETS = (13, 18)  # the first and last that are tried
LARGEST = 2**31 - 1  # bytes of a protocol buffer
WEIGHTED = ("Conv", "Gemm", "MatMul")  # named by their layers; the converter merges others across layers
SMALL = 1024  # bytes of a constant that is looked up by them
FREE = {"images": ("batch", "height", "width"), None: ("batch", "tokens")}  # names of sizes left open


def export_onnx(saved_model, path, *, opset=None):
    """Convert the `serving_default` signature of a SavedModel to ONNX, in float32.

    The file has the input `images` (float32 in [0, 1], in batches of any size), the signature's outputs,
    and among its metadata `keras_vit.json` and, of a classifier, `labels.txt`. A SavedModel of a fixed
    image size gives the same bytes each time. Wants `pip install onnx onnxruntime tf2onnx`.

    Args:
        saved_model: Folder that `export_saved_model` wrote.
        path: File to write, ending in .onnx; it must not exist.
        opset: Version of ONNX's operations, from 13 to 18; None for the converter's own choice.

    Returns:
        pathlib.Path of the file.

    Raises:
        ImportError: if a package that this needs is missing.
        ValueError: if the file exists or would not be below 2 GiB, keras_vit did not write the
            SavedModel, or what was converted does not run or computes numbers that are not finite.
        OSError: if it cannot be written, as on a full disk. Nothing is left under its name then.

    Example:
        >>> folder = export_saved_model(model, "export/saved_model/1")
        >>> export_onnx(folder, "export/model.onnx").name
        'model.onnx'

    Source: ONNX's intermediate representation; `tf2onnx.convert.from_function`.
    """
    onnx, _, tf2onnx = (optional(name) for name in PACKAGES)
    saved_model, path = (pathlib.Path(name).expanduser() for name in (saved_model, path))
    if path.suffix != ".onnx":
        raise ValueError(f"an ONNX file ends in .onnx; got {os.fspath(path)!r}")
    if opset is not None and not (type(opset) is int and OPSETS[0] <= opset <= OPSETS[1]):
        raise ValueError(f"opset must be an int from {OPSETS[0]} to {OPSETS[1]}, or None; got {opset!r}")
    description = read_description(saved_model)
    weights = (saved_model / "variables" / "variables.data-00000-of-00001").stat().st_size
    if weights >= LARGEST:
        raise ValueError(
            f"an ONNX file is below 2 GiB; this model's weights have {weights / 2**30:.1f}: "
            "export it as a SavedModel"
        )
    with atomic_path(path, overwrite=False) as temporary:
        loaded = tf.saved_model.load(os.fspath(saved_model))  # kept alive while its signature is read
        signature = loaded.signatures["serving_default"]
        with _quiet():
            model = _converted(signature, opset, tf2onnx)
        _canonical(model.graph)
        metadata = {FILE: description.as_json()}
        if description.labels:
            metadata[LABELS] = "\n".join(description.labels) + "\n"
        onnx.helper.set_model_props(model, metadata)
        content = model.SerializeToString()
        _check(content, description)
        temporary.write_bytes(content)
    return path


def read_onnx_description(path):
    """The Description in an ONNX file.

    Raises:
        ValueError: if it is no ONNX file that keras_vit wrote.

    Example:
        >>> folder = export_saved_model(model, "described/1")
        >>> read_onnx_description(export_onnx(folder, "described.onnx")).labels[:3]
        ('0', '1', '2')
    """
    onnx = optional("onnx")
    path = pathlib.Path(path).expanduser()
    try:
        model = onnx.load(os.fspath(path), load_external_data=False)
    except FileNotFoundError:
        raise ValueError(f"no such file: {os.fspath(path)!r}") from None
    except Exception:  # the protocol buffer library's own, of no common class
        raise ValueError(f"{os.fspath(path)!r} is damaged, or no ONNX file") from None
    return parse_description({entry.key: entry.value for entry in model.metadata_props}.get(FILE), path)


def open_onnx(path, threads=None):
    """The arguments of `ExportedModel` for an `.onnx` file."""
    onnxruntime = optional("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common class.
        raise damaged(path, error) from None
    description = parse_description(session.get_modelmeta().custom_metadata_map.get(FILE), path)
    names = [output.name for output in session.get_outputs()]
    return description, lambda images: dict(zip(names, session.run(names, {"images": images})))


def check_packages():
    """Raise ImportError if a package that `export_onnx` needs is missing."""
    for name in PACKAGES:
        optional(name)


def optional(name):
    """Import a package that only ONNX files need.

    Raises:
        ImportError: if it is missing; the message says how to install it.

    Example:
        >>> optional("onnx").__name__
        'onnx'
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # it is there, and broken
            raise
        raise ImportError(f"ONNX wants {name}: pip install onnx onnxruntime tf2onnx", name=name) from None


def _converted(signature, opset, tf2onnx):
    """The ONNX model of a SavedModel's signature."""
    (inputs,), outputs = signature.inputs[:1], signature.outputs
    names = {inputs.name: "images"}
    names |= {tensor.name: name for tensor, name in zip(outputs, sorted(signature.structured_outputs))}
    ends = {"input_names": [inputs.name], "output_names": [tensor.name for tensor in outputs]}
    # `tf_loader.from_function` would also have TensorFlow optimize it, at some more copies of the weights.
    freeze = tf2onnx.tf_loader.convert_variables_to_constants_v2
    frozen = freeze(signature, lower_control_flow=False).graph.as_graph_def(add_shapes=True)
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        tf.import_graph_def(frozen, name="")
        found = tf2onnx.tfonnx.process_tf_graph(graph, opset=opset, tensors_to_rename=names, **ends)
    # Not tf2onnx's optimizer, each pass of which keeps another copy of the weights (18 GB for B/16) and
    # takes an order by chance: runtimes optimize what they open, to the same speed.
    return found.make_model("")


@contextlib.contextmanager
def _quiet():
    """Without the converter's log: what it cannot convert, the check finds."""
    logger = logging.getLogger("tf2onnx")
    level, logger.level = logger.level, logging.CRITICAL
    try:
        yield
    finally:
        logger.setLevel(level)


def _canonical(graph):
    """Order and name what a graph holds by nothing but what it computes, and compute nothing twice.

    The converter's names have counters of the process in them; the order, and which of the same
    computations it merges, are by chance.
    """
    makers = {name: node for node in graph.node for name in node.output}
    stored = {constant.name: constant for constant in graph.initializer}
    kept = {value.name for value in graph.output}
    names = {name: name for name in ("", *(value.name for value in graph.input))}  # "": left out
    nodes, constants, found = [], [], {}
    waiting = [makers[output.name] for output in reversed(graph.output)]
    while waiting:  # from the outputs, whatever each needs before it
        node = waiting[-1]
        missing = [makers[name] for name in node.input if name in makers and name not in names]
        if missing:
            waiting.append(missing[0])
            continue
        waiting.pop()
        if node.output[0] in names:
            continue
        layer = _layer(node.name) if node.op_type in WEIGHTED else ""
        title = f"{layer}{node.op_type}_{len(nodes)}"
        for i, name in enumerate(node.input):
            if name not in names:
                constant = stored[name]
                small = len(constant.raw_data) <= SMALL
                key = (constant.data_type, *constant.dims, constant.raw_data) if small else name
                names[name] = found.setdefault(key, f"{title}/constant_{i}")
                if names[name] == f"{title}/constant_{i}":
                    constants.append(type(constant).FromString(constant.SerializeToString()))
                    constants[-1].name = names[name]
        node.input[:] = [names[name] for name in node.input]
        attributes = sorted(attribute.SerializeToString() for attribute in node.attribute)
        key = (node.op_type, node.domain, *node.input, *attributes)
        if key not in found or kept & {*node.output}:
            found[key] = [
                name if name in kept else f"{title}/output_{i}" for i, name in enumerate(node.output)
            ]
            nodes.append(type(node).FromString(node.SerializeToString()))
            nodes[-1].name = title
            nodes[-1].output[:] = found[key]
            nodes[-1].attribute.sort(key=lambda attribute: attribute.name)
        names |= zip(node.output, found[key])
    for field, values in (graph.node, nodes), (graph.initializer, constants):
        del field[:]
        field.extend(values)
    del graph.value_info[:]
    graph.name, graph.doc_string = "keras_vit", ""
    for value in (*graph.input, *graph.output):
        for size, name in zip(value.type.tensor_type.shape.dim, FREE.get(value.name, FREE[None])):
            if not size.HasField("dim_value"):
                size.dim_param = name


def _layer(name):
    """encoder_block_0/mlp/ of a converter's name for a node within it."""
    name = re.sub(r"StatefulPartitionedCall/|ConstantFolding/|__\d+", "", name)
    return "".join(f"{part}/" for part in name.split("/")[:-1])


def _check(content, description):
    """That the runtime opens a file's bytes and computes numbers."""
    onnx, onnxruntime, _ = (optional(name) for name in PACKAGES)
    try:
        onnx.checker.check_model(content, full_check=True)
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # each package has classes of its own
        line = " ".join(str(error).split())
        raise ValueError(f"the ONNX file would hold what does not run: {line[:300]}") from None
    shape = (2, *description.usual_size, description.channels)
    images = np.random.default_rng(0).random(shape, "float32")
    for name, values in zip(
        (output.name for output in session.get_outputs()), session.run(None, {"images": images})
    ):
        if not np.isfinite(values).all():
            raise ValueError(f"the ONNX file's {name} are not all finite, so it is not kept")
