"""Predictions as text, image by image: a table, CSV, JSON lines or JSON."""

import csv
import io
import json
import textwrap

from keras_vit.cli.report import text_table


def _table(results, names):
    """Yield all rows at the end, since the widths of the columns depend on all of them."""
    rows = []
    for found in results:
        if names:
            rows.append((found["image"], *(f"{value:.4f}" for value in found["values"])))
        else:
            score = _score(found)
            best = [(row["name"], f"{row[score]:7.2%}") for row in found["classes"]]
            rows += [(found["image"] if rank == 0 else "", *row) for rank, row in enumerate(best)]
        yield ""
    yield text_table(rows, ("image", *(names or ("class", score)))) + "\n"


def _csv(results, names):
    for number, found in enumerate(results):
        columns = ("image", *(names or ("rank", "class", _score(found))))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([] if number else [columns])
        if names:
            writer.writerow((found["image"], *found["values"]))
        else:
            best = enumerate(found["classes"], 1)
            writer.writerows((found["image"], rank, *row.values()) for rank, row in best)
        yield text.getvalue()


def _json_lines(results, names):
    for found in results:
        yield json.dumps(found, allow_nan=False) + "\n"


def _json(results, names):
    for number, found in enumerate(results):
        text = textwrap.indent(json.dumps(found, indent=2, allow_nan=False), "  ")
        yield (",\n" if number else "[\n") + text
    yield "\n]\n"


def _score(found):
    """What is known of each class: its "probability", or in a class map its "fraction" of the pixels."""
    return [*found["classes"][0]][1]


# Each is a generator of text, as early as possible, from an iterator of what `predicted` yields and the names
# of a regression's values, otherwise None.
FORMATS = {"table": _table, "csv": _csv, "jsonl": _json_lines, "json": _json}
