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
    rows = [*rows_of(folder, f"{OBJECTS} with bbox and category", (OBJECTS,))]
    labeled = []
    for path, where, row in rows:
        file, size = image_of_row(folder.root, path, row, where)
        labeled.append(LabeledImage(path, file, objects_of(row[OBJECTS], where), size=size))
    return ({path for path, *_ in rows}, labeled, None) if rows else None


def rows_of(folder, expected, keys=()):
    """Yield the path, the place and the row, with a `file_name`, of each line of all `metadata.jsonl`.

    Args:
        folder: The `BoxFiles`.
        expected: What else a row has, in words.
        keys: What else it has to have.
    """
    for path in folder.paths[".jsonl"]:
        for where, row in json_lines(path) if os.path.basename(path) == METADATA else ():
            is_row = isinstance(row, dict) and isinstance(row.get("file_name"), str)
            if not is_row or not row.keys() >= {*keys}:
                got = ", ".join(row) if isinstance(row, dict) else str(row)[:40]
                raise ValueError(f"{where}: expected file_name and {expected}; got {got or 'none'}")
            yield path, where, row


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
