"""Files of boxes of objects: COCO's JSON, and the tables and lists that `predict` of a detector writes."""

import csv
import io
import os
import pathlib

from keras_vit.data.files import json_lines, parse_json, read_text
from keras_vit.labels.box_rows import COLUMNS
from keras_vit.tasks.detection.coco import KEYS, by_id, value_of
from keras_vit.tasks.detection.image_boxes import BoxFile, image_key
from keras_vit.tasks.detection.labeled import size_of_labels
from keras_vit.tasks.detection.stored_boxes import class_of, is_crowd, numbers_of, with_extent

SIDES = COLUMNS[:4]
FORMS = (
    "COCO's JSON of images, annotations and categories, a list of COCO's results, or what predict --output "
    "writes for a detector"
)


def read_box_file(path):
    """Read a file of boxes.

    Args:
        path: Of a `.json`, `.jsonl`, `.csv` or `.parquet` file:

            * COCO's JSON of `images`, `annotations` and `categories`, with or without a `score` of each
              annotation. Crowds are left out.
            * A JSON list of COCO's results: `image_id`, the number or the name of the image's file
              without its suffix; `category_id`, `bbox` and `score`.
            * What `keras-vit predict --output` writes for a detector, in any of its formats.

    Returns:
        `BoxFile`.

    Raises:
        ValueError: for a file that cannot be read or has another form, with the place.

    Example:
        >>> result = '[{"image_id": 7, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]'
        >>> _ = (tmp / "found.json").write_text(result)
        >>> boxes, scores, _ = read_box_file(tmp / "found.json").of("photos/0007.jpg", (20, 30))
        >>> boxes.tolist(), scores.tolist()
        ([[1.0, 2.0, 4.0, 6.0]], [0.5])

    Source: COCO's formats of data and of results (cocodataset.org, "Data format" and "Results format").
    """
    path = pathlib.Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"no such file of boxes: {os.fspath(path)!r}")
    return READERS[path.suffix.lower()](path)


def _read_json(path):
    content = parse_json(read_text(path), repr(os.fspath(path)))
    if isinstance(content, dict) and content.keys() >= KEYS:
        return _of_coco(path, content)
    if isinstance(content, list) and content and all(isinstance(row, dict) for row in content):
        return _of_results(path, content) if "image_id" in content[0] else _of_rows(path, content)
    raise _other(path, [*content] if isinstance(content, dict) else str(content)[:40])


def _read_lines(path):
    return _of_rows(path, [row for _, row in json_lines(path)])


def _read_csv(path):
    return _of_table(path, [*csv.DictReader(io.StringIO(read_text(path)))])


def _read_parquet(path):
    import pyarrow
    import pyarrow.parquet

    try:
        return _of_table(path, pyarrow.parquet.read_table(path).to_pylist())
    except pyarrow.ArrowException as error:
        raise ValueError(f"{os.fspath(path)!r} is no readable Parquet file: {error}") from None


def _of_coco(path, content):
    """The boxes of COCO's annotations."""
    file, images = BoxFile(path), {}
    names = {
        number: row.get("name", number)
        for number, (_, row) in by_id(content, "categories", f"{path}, category").items()
    }
    for number, (where, image) in by_id(content, "images", f"{path}, image").items():
        images[number] = str(value_of(image, "file_name", where))
        file.add_image(images[number], size_of_labels(image.get("width"), image.get("height"), where))
    for number, row in enumerate(content["annotations"]):
        where = f"{path}, annotation {number}"
        image = class_of(value_of(row, "image_id", where), where, "the id of an image")
        if image not in images:
            raise ValueError(f"{where}: expected the id of an image; got {image!r}")
        if not is_crowd(row.get("iscrowd"), where):
            category = class_of(value_of(row, "category_id", where), where)
            sides = with_extent(value_of(row, "bbox", where), where)
            file.add(images[image], sides, names.get(category, category), row.get("score"), where)
    return file


def _of_results(path, rows):
    """The boxes of a list of COCO's results, whose categories have numbers alone."""
    file = BoxFile(path, lists_images=False)
    for number, row in enumerate(rows):
        where = f"{path}, result {number}"
        image, category = (
            class_of(value_of(row, key, where), where, of)
            for key, of in (("image_id", "the id of an image"), ("category_id", "the number of a class"))
        )
        sides = with_extent(value_of(row, "bbox", where), where)
        file.add(image_key(str(image)), sides, category, row.get("score"), where)
    return file


def _of_rows(path, rows):
    """The boxes of what `predict` prints as JSON."""
    file = BoxFile(path)
    for number, row in enumerate(rows):
        where = f"{path}, image {number}"
        if not isinstance(row, dict) or not isinstance(row.get("objects"), list) or "image" not in row:
            raise _other(path, [*row] if isinstance(row, dict) else str(row)[:40])
        image = str(row["image"])
        file.add_image(image, size_of_labels(row.get("width"), row.get("height"), where))
        for one in row["objects"]:
            _add_object(file, image, one, "name", where)
    return file


def _of_table(path, rows):
    """The boxes of a table of `predict`."""
    file = BoxFile(path, lists_images=False)
    for number, row in enumerate(rows, 1):
        where = f"{path}, row {number}"
        _add_object(file, str(value_of(row, "image", where)), row, "class", where)
    return file


def _add_object(file, image, row, name, where):
    sides = numbers_of([value_of(row, side, where) for side in SIDES], 4, where)
    file.add(image, sides, value_of(row, name, where), row.get("score"), where)


def _other(path, got):
    return ValueError(f"{os.fspath(path)!r}: expected {FORMS}; got {got}")


READERS = {".json": _read_json, ".jsonl": _read_lines, ".csv": _read_csv, ".parquet": _read_parquet}
