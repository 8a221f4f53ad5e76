"""`metadata.jsonl` of Hugging Face's ImageFolder, with objects."""

import os

from keras_vit.data.files import file_of_row, json_lines
from keras_vit.tasks.detection.labeled import LabeledImage, size_of_labels
from keras_vit.tasks.detection.stored_boxes import objects_of

METADATA, OBJECTS = "metadata.jsonl", "objects"


def read_metadata(folder):
    """The images of all `metadata.jsonl`, whose splits are those of the images' folders.

    Args, Returns, Raises: See `coco.read_coco`; the names of the classes are None.
    """
    tables = [path for path in folder.paths[".jsonl"] if os.path.basename(path) == METADATA]
    labeled = [image for path in tables for image in _images(folder.root, path)]
    return ({*tables}, labeled, None) if tables else None


def image_of_row(root, path, row, where):
    """The path of a row's image and its (width, height), or None, by which the row's numbers are.

    Args:
        root: The folder, a pathlib.Path.
        path: Of the table.
        row: dict with `file_name`, and perhaps `width` and `height`.
        where: The row's place, for messages.
    """
    folder = os.path.relpath(path, root).rpartition(os.sep)[0]
    file = file_of_row(root, os.path.join(folder, row["file_name"].strip()), where)
    return file, size_of_labels(row.get("width"), row.get("height"), where)


def _images(root, path):
    for where, row in json_lines(path):
        if not isinstance(row, dict) or OBJECTS not in row or not isinstance(row.get("file_name"), str):
            got = ", ".join(row) if isinstance(row, dict) else str(row)[:40]
            raise ValueError(
                f"{where}: expected file_name and {OBJECTS} with bbox and category; got {got or 'none'}"
            )
        file, size = image_of_row(root, path, row, where)
        yield LabeledImage(path, file, objects_of(row[OBJECTS], where), size=size)
