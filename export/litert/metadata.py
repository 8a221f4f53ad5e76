"""The metadata of LiteRT files: TFLITE_METADATA in the flatbuffer, and files in a ZIP archive at the end."""

from __future__ import annotations

import pathlib
import zipfile
from collections.abc import Sequence
from typing import Any, TypeAlias

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import number_types

from keras_vit.export.description import FILE, LABELS, Description, parse_description
from keras_vit.export.litert.ml_drift import read_graph
from keras_vit.types import Path

Table: TypeAlias = dict[int, Any]  # from the numbers of fields to strings, numbers, arrays, tables and lists

# Tables of the metadata schema (M001): their fields, in the order of their numbers.
_TABLES = {
    "ModelMetadata": "name description version subgraph_metadata author license associated_files",
    "SubGraphMetadata": "name description input_tensor_metadata output_tensor_metadata",
    "TensorMetadata": "name description dimension_names content process_units stats associated_files",
    "Content": "content_properties_type content_properties",
    "ImageProperties": "color_space default_size",
    "ImageSize": "width height",
    "ProcessUnit": "options_type options",
    "NormalizationOptions": "mean std",
    "Stats": "max min",
    "AssociatedFile": "name description type",
}
_IMAGE, _NORMALIZATION = np.uint8(2), np.uint8(1)  # ContentProperties, ProcessUnitOptions
_COLOR_SPACES = {1: np.uint8(2), 3: np.uint8(1)}  # by channels: gray, RGB
_AXIS_LABELS = np.uint8(2)  # AssociatedFileType
_ROOT_FIELDS = 10  # of the LiteRT schema's root table: version, operator_codes, subgraphs, …
_VERSION, _BUFFERS, _METADATA = 0, 4, 6  # the numbers of three of them


def write_tflite(path: Path, content: bytes, description: Description) -> None:
    """Write a LiteRT flatbuffer with its metadata.

    From the metadata, Android's and MediaPipe's image classifiers read the normalization of pixels and the
    class names. `labels.txt` and `keras_vit.json` are appended to the file as a ZIP archive, so that any
    unzip reads them.

    Args:
        path: File to write.
        content: Bytes of a flatbuffer with one signature.
        description: The `Description` of the model.

    Example:
        >>> folder = export_saved_model(model, "saved")
        >>> file = export_tflite(folder, "model.tflite")
        >>> zipfile.ZipFile(file).read("labels.txt").split()[:2]
        [b'0', b'1']

    Source: TensorFlow Lite's `metadata_schema.fbs` 1.1.0.
    """
    with open(path, "wb") as file:
        file.write(_front(content, _metadata(content, description)))
        file.write(content)
        with zipfile.ZipFile(file, "w") as archive:
            for name, text in description.files.items():
                archive.writestr(zipfile.ZipInfo(name), text)


def read_tflite_description(path: Path) -> Description:
    """The Description in a LiteRT file.

    Raises:
        ValueError: if keras_vit did not write it.

    Example:
        >>> folder = export_saved_model(model, "saved")
        >>> read_tflite_description(export_tflite(folder, "model.tflite")).num_classes
        10
    """
    path = pathlib.Path(path).expanduser()
    try:
        with zipfile.ZipFile(path) as archive:
            text: bytes | None = archive.read(FILE)
    except (zipfile.BadZipFile, KeyError):
        text = None
    return parse_description(text, path)


def _metadata(content: bytes, description: Description) -> bytes:
    """The bytes of the buffer TFLITE_METADATA."""
    model, graph = read_graph(content)
    names = {output.tensorIndex: output.name.decode() for output in model.signatureDefs[0].outputs}
    outputs = [_output(names[index], description) for index in graph.outputs]
    tensors = {"input_tensor_metadata": [_input(description)], "output_tensor_metadata": outputs}
    about = {"version": description.version, "subgraph_metadata": [_table("SubGraphMetadata", **tensors)]}
    root = _table("ModelMetadata", name="Vision Transformer", **about)
    builder = flatbuffers.Builder()
    builder.Finish(_packed(builder, root), file_identifier=b"M001")
    return bytes(builder.Output())


def _input(description: Description) -> Table:
    """The images: to be resized, and their pixels 0…255 to be divided by 255."""
    height, width = np.array(description.image_size, "uint32")
    size = _table("ImageSize", width=width, height=height)
    color_space = _COLOR_SPACES.get(description.channels, np.uint8(0))
    properties = _table("ImageProperties", color_space=color_space, default_size=size)
    normalization = _table(
        "NormalizationOptions", mean=np.array([0], "float32"), std=np.array([255], "float32")
    )
    return _table(
        "TensorMetadata",
        name="images",
        content=_table("Content", content_properties_type=_IMAGE, content_properties=properties),
        process_units=[_table("ProcessUnit", options_type=_NORMALIZATION, options=normalization)],
        stats=_UNIT_RANGE,
    )


def _output(name: str, description: Description) -> Table:
    fields: dict[str, Any] = {"stats": _UNIT_RANGE} if name == "probabilities" else {}
    if description.labels and name != "rollout":
        labels = _table("AssociatedFile", name=LABELS, type=_AXIS_LABELS)
        fields["associated_files"] = [labels]
    return _table("TensorMetadata", name=name, **fields)


def _table(table: str, /, **fields: Any) -> Table:
    """A table as {number of the field: value}."""
    numbers = _TABLES[table].split()
    return {numbers.index(field): value for field, value in fields.items()}


_UNIT_RANGE = _table("Stats", max=np.array([1], "float32"), min=np.array([0], "float32"))


def _packed(builder: flatbuffers.Builder, value: str | np.ndarray | list[Any] | Table) -> int:
    """Add a string, an array, a table or a list of tables to a flatbuffer; its offset."""
    if isinstance(value, str):
        return builder.CreateString(value)
    if isinstance(value, np.ndarray):
        return builder.CreateNumpyVector(value)
    if isinstance(value, list):
        return _references(builder, [_packed(builder, item) for item in value])
    numbers = {field: number for field, number in value.items() if isinstance(number, np.generic)}
    offsets = {field: _packed(builder, part) for field, part in value.items() if field not in numbers}
    builder.StartObject(max(value, default=-1) + 1)
    for field, number in numbers.items():
        flags = {1: number_types.Uint8Flags, 4: number_types.Uint32Flags}[number.itemsize]
        builder.Prepend(flags, int(number))
        builder.Slot(field)
    for field, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(field, offset, 0)
    return builder.EndObject()


def _references(builder: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    """Add a vector of references to a flatbuffer; its offset."""
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def _front(content: bytes, metadata: bytes) -> bytes:
    """The bytes that, put before a LiteRT flatbuffer, add a TFLITE_METADATA to it.

    References in a flatbuffer point forward only. A new root table in front can thus refer to all parts of
    the old one, which follows unchanged: no weight is unpacked, moved or copied. A place in it is a negative
    offset of the builder, which counts backwards from its own end.
    """
    old = schema.Model.GetRootAs(content, 0)._tab
    builder = flatbuffers.Builder()

    def tables(field: int) -> list[int]:
        vector = old.Offset(4 + 2 * field)
        start = old.Vector(vector)
        return [-old.Indirect(start + 4 * i) for i in range(old.VectorLen(vector))]

    buffers, entries = tables(_BUFFERS), tables(_METADATA)
    builder.Prep(16, len(metadata))  # The weights that follow are aligned to 16 bytes.
    buffer = _packed(builder, {0: np.frombuffer(metadata, "uint8")})
    entry = _packed(builder, {0: "TFLITE_METADATA", 1: np.uint32(len(buffers))})
    new = {
        _BUFFERS: _references(builder, [*buffers, buffer]),
        _METADATA: _references(builder, [*entries, entry]),
    }
    builder.StartObject(_ROOT_FIELDS)
    for field in range(_ROOT_FIELDS):
        offset = old.Offset(4 + 2 * field)
        if field in new:
            builder.PrependUOffsetTRelativeSlot(field, new[field], 0)
        elif offset and field == _VERSION:
            builder.PrependUint32Slot(field, old.Get(number_types.Uint32Flags, old.Pos + offset), 0)
        elif offset:
            builder.PrependUOffsetTRelativeSlot(field, -old.Indirect(old.Pos + offset), 0)
    builder.Finish(builder.EndObject(), file_identifier=b"TFL3")
    return bytes(builder.Output())
