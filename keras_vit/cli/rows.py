"""Predictions, image by image: a table, CSV, JSON lines, JSON, Parquet, or of objects COCO's JSON."""

import contextlib
import csv
import io
import itertools
import json
import pathlib
import textwrap

from keras_vit.cli.report import text_table
from keras_vit.tasks import coco_parts, prediction_folders
from keras_vit.writing import atomic_open, atomic_path

TABLE_IMAGES = 1000  # whose rows are aligned with each other
PARQUET_IMAGES = 10_000  # in a row group


def _table(results, names):
    """Yield all rows of 1,000 images together, since the widths of the columns depend on all of them."""
    results = iter(results)
    while first := next(results, None):
        columns, rows = names or ("class", *_keys(first)), []
        for found in itertools.chain([first], itertools.islice(results, TABLE_IMAGES - 1)):
            if names:
                rows.append((found["image"], *(f"{value:.4f}" for value in found["values"])))
            else:
                best = [_cells(row) for row in best_of(found)] or [("none", *[""] * len(_keys(found)))]
                rows += [(found["image"] if rank == 0 else "", *row) for rank, row in enumerate(best)]
            yield ""
        yield text_table(rows, ("image", *columns)) + "\n"


def _columns(found, names):
    """The names of the columns of CSV and Parquet, and the rows of an image."""
    if names:
        return ("image", *names), [(found["image"], *found["values"])]
    rows = [(found["image"], rank, *row.values()) for rank, row in enumerate(best_of(found), 1)]
    return ("image", "rank", "class", *_keys(found)), rows


def _csv(results, names):
    for number, found in enumerate(results):
        columns, rows = _columns(found, names)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows if number else [columns, *rows])
        yield text.getvalue()


def _json_lines(results, names):
    for found in results:
        yield json.dumps(found, allow_nan=False) + "\n"


def _json(results, names):
    before = "[\n"
    for found in results:
        yield before + textwrap.indent(json.dumps(found, indent=2, allow_nan=False), "  ")
        before = ",\n"
    yield "\n]\n" if before == ",\n" else "[]\n"


def best_of(found):
    """The dicts of the classes in an image, or of what its task finds there, such as objects."""
    folder = _folder_of(found)
    return folder.table_rows(found[folder.key]) if folder else found["classes"]


def _folder_of(found):
    """The `Folder` of a task whose predictions are not classes."""
    return next((folder for folder in prediction_folders() if folder.key in found), None)


def _keys(found):
    """What is known of each row of `best_of` beside its name, also where there is none.

    Of a class its "probability", or in a class map its "fraction" of the pixels.
    """
    folder = _folder_of(found)
    return folder.columns if folder else [*found["classes"][0]][1:]


def _cells(row):
    """The cells of a class or an object in a table: fractions in percent, pixels, and numbers of objects."""
    name, score, *rest = row.values()
    return name, f"{score:7.2%}", *(str(each) if isinstance(each, int) else f"{each:.1f}" for each in rest)


# Each is a generator of text, as early as possible, from an iterator of what `predicted` yields and the names
# of a regression's values, otherwise None.
FORMATS = {"table": _table, "csv": _csv, "jsonl": _json_lines, "json": _json}
COCO = "coco.json"
FILES = ("csv", "jsonl", "json", "parquet", COCO)  # the suffixes of files


def suffix_of(path):
    """The suffix of a file, in lower case and without the first dot.

    >>> suffix_of("a.b.CSV"), suffix_of("a.coco.json"), suffix_of("a.json")
    ('csv', 'coco.json', 'json')
    """
    name = pathlib.Path(path).name.lower()
    return COCO if name.endswith(f".{COCO}") else pathlib.Path(name).suffix[1:]


def write_rows(path, suffix, results, names, task="detection"):
    """Write a file of predictions atomically.

    Args:
        path: Of the file.
        suffix: One of `FILES`.
        results, names: As for the functions of `FORMATS`; for `COCO` the names of the classes or keypoints.
        task: The name of the task, for `COCO`.

    Raises:
        OSError: if it cannot be written.
    """
    if suffix == COCO:
        with atomic_open(path) as file:
            return file.writelines(coco_parts(task)(results, names, pathlib.Path(path).parent))
    if suffix == "parquet":
        return _write_parquet(path, results, names)
    with atomic_open(path) as file:
        file.writelines(FORMATS[suffix](results, names))


def _write_parquet(path, results, names):
    import pyarrow
    import pyarrow.parquet

    results = iter(results)
    with contextlib.ExitStack() as at_end:
        temporary, writer = at_end.enter_context(atomic_path(path)), None
        while group := [_columns(found, names) for found in itertools.islice(results, PARQUET_IMAGES)]:
            rows, columns = [row for _, rows in group for row in rows], group[0][0]
            if rows:
                table = pyarrow.table([*map(pyarrow.array, zip(*rows))], names=[*columns])
                writer = writer or at_end.enter_context(
                    pyarrow.parquet.ParquetWriter(temporary, table.schema)
                )
                writer.write_table(table)
        if writer is None:  # There are no objects, whose other columns are numbers.
            types = {"image": pyarrow.string(), "class": pyarrow.string()}
            types |= dict.fromkeys(("rank", "object"), pyarrow.int64())
            schema = pyarrow.schema([(name, types.get(name, pyarrow.float64())) for name in columns])
            at_end.enter_context(pyarrow.parquet.ParquetWriter(temporary, schema))
