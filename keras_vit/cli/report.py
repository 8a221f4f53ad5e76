"""What subcommands print and write."""

import json
import pathlib
import sys

from keras_vit.messages import printable, redact_urls
from keras_vit.writing import atomic_write, check_writable

STDOUT = "-"  # the --json that prints


def text_table(rows, columns=()):
    """Return rows of values under column titles, in aligned columns; columns of numbers to the right.

    >>> print(text_table([("S/16", 22.1), ("B/16", 86.6)], ("variant", "million")))
    variant  million
    S/16        22.1
    B/16        86.6
    """
    titles = [columns] if columns else []
    cells = [[printable(str(value)) for value in row] for row in (*titles, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    numeric = [all(isinstance(value, int | float) for value in column) for column in zip(*rows)]
    lines = []
    for row in cells:
        padded = [c.rjust(w) if n and columns else c.ljust(w) for c, w, n in zip(row, widths, numeric)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def cell_text(value):
    """Return a score as the text of a cell.

    >>> [cell_text(value) for value in (0.5, 355, None)]
    ['0.5000', '355', '-']
    """
    return f"{value:.4f}" if isinstance(value, float) else "-" if value is None else str(value)


def print_now(text, end="\n"):
    """Print to standard output, which an error names.

    >>> print_now("found")
    found
    """
    try:
        print(text, end=end, flush=True)
    except OSError as error:
        error.filename = "standard output"
        raise


def introduce(args, dataset):
    """Print the classes and sizes of a data set; with --json - to standard error."""
    print(dataset.summary(), file=sys.stderr if args.json == STDOUT else sys.stdout)


def check_json(args):
    """Refuse a file of --json that cannot be written, before anything is computed."""
    if getattr(args, "json", None) not in (None, STDOUT):
        check_writable(args.json)


def check_png(option, file):
    """Refuse a figure's file that is no .png or cannot be written, before anything is computed.

    Args:
        option: The option that names it.
        file: A path, or None.
    """
    if file is None:
        return
    if pathlib.Path(file).suffix != ".png":
        raise ValueError(f"expected {option} to be a .png file; got {file!r}")
    check_writable(file)


def report(args, value, text):
    """Print the text and write the value as JSON to the file of --json; with --json - print the JSON alone.

    Each is done even if the other fails. URLs are without their secrets.
    """
    encoded = encode(value)
    try:
        print_now(encoded if args.json == STDOUT else redact_urls(text))
    finally:
        if args.json not in (None, STDOUT):
            atomic_write(args.json, encoded + "\n")


def encode(value):
    """Return a result as JSON, with URLs without their secrets."""
    return redact_urls(json.dumps(value, indent=2, allow_nan=False))
