"""`metadata.jsonl` of Hugging Face's ImageFolder, with objects."""

import os
import pathlib

from keras_vit.data.files import file_of_row, parse_json, read_text
from keras_vit.tasks.detection.labeled import LabeledImage, size_of_labels
from keras_vit.tasks.detection.stored_boxes import objects_of

METADATA, OBJECTS = "metadata.jsonl", "objects"


def read_metadata(folder):
    """The images of all `metadata.jsonl`, whose splits are those of the images' folders.

    Args, Returns, Raises: See `coco.read_coco`; the names of the classes are None.
    """
    tables = [path for path in folder.paths[".jsonl"] if os.path.basename(path) == METADATA]
    labeled = [image for path in tables for image in _rows(folder.root, path)]
    return ({*tables}, labeled, None) if tables else None


def _rows(root, path):
    folder = os.path.relpath(path, root).rpartition(os.sep)[0]
    for line, text in enumerate(read_text(pathlib.Path(path)).splitlines(), 1):
        if not text.strip():
            continue
        where = f"{path}, line {line}"
        row = parse_json(text, where)
        if not isinstance(row, dict) or OBJECTS not in row or not isinstance(row.get("file_name"), str):
            got = ", ".join(row) if isinstance(row, dict) else str(row)[:40]
            raise ValueError(
                f"{where}: expected file_name and {OBJECTS} with bbox and category; got {got or 'none'}"
            )
        file = file_of_row(root, os.path.join(folder, row["file_name"].strip()), where)
        size = size_of_labels(row.get("width"), row.get("height"), where)
        yield LabeledImage(path, file, objects_of(row[OBJECTS], where), size=size)
