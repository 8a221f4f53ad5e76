"""What verbs print and write."""

import contextlib
import json
import pathlib
import sys


def table(rows, columns):
    """Rows of values under column titles, in aligned columns; numbers to the right.

    >>> print(table([("S/16", 22.1), ("B/16", 86.6)], ("variant", "million")))
    variant  million
    S/16        22.1
    B/16        86.6
    """
    cells = [[str(value) for value in row] for row in (columns, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    numeric = [all(isinstance(value, int | float) for value in column) for column in zip(*rows)]
    lines = []
    for row in cells:
        padded = [c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


@contextlib.contextmanager
def whole_file(path, mode="w"):
    """A file to write, which appears under its name at the end and then replaces one that is there.

    Raises:
        ValueError: if its folder does not exist.

    >>> with whole_file("whole.txt") as file:
    ...     _ = file.write("all of it")
    >>> pathlib.Path("whole.txt").read_text()
    'all of it'
    """
    path = pathlib.Path(path).expanduser()
    if not path.parent.is_dir():
        raise ValueError(f"no such folder for {str(path)!r}")
    unfinished = path.with_name(f".{path.name}")
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    try:
        with open(unfinished, mode, **text) as file:
            yield file
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_whole(path, content):
    """Write a file's bytes through `whole_file`.

    >>> write_whole("whole.bin", b"all of it")
    """
    with whole_file(path, "wb") as file:
        file.write(content)


def introduce(args, dataset):
    """Print the line that says what was found in a data set; with --json to standard error."""
    print(dataset.summary(), file=sys.stderr if args.json else sys.stdout)


def report(args, value, text):
    """Print the text, or the value as JSON with --json; write the JSON with --output."""
    encoded = json.dumps(value, indent=2)
    if args.output:
        with whole_file(args.output) as file:
            file.write(encoded + "\n")
    print(encoded if args.json else text)
