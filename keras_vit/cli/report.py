"""What verbs print and write."""

import json
import pathlib


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


def write_whole(path, content):
    """Write a file's bytes beside it and rename, so that it appears whole, in the place of one that is there.

    >>> write_whole(pathlib.Path("whole.txt"), b"all of it")
    """
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def report(args, value, text):
    """Print the text, or the value as JSON with --json; write the JSON with --output."""
    encoded = json.dumps(value, indent=2)
    if args.output:
        pathlib.Path(args.output).write_text(encoded + "\n")
    print(encoded if args.json else text)
