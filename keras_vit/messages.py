"""Lists and untrusted text in messages."""


def listed(names, most=5):
    """Join names by commas; of a long list the first ones and the count of the rest.

    >>> listed(["a", "b", "c"]), listed(range(128))
    ('a, b, c', '0, 1, 2, 3, 4 and 123 more')
    """
    names = [printable(str(name)) for name in names]
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def printable(text):
    """Escape control characters, which a terminal would execute.

    >>> print(printable("rose\\x1b[31m\\n"))
    rose\\x1b[31m\\n
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(text):
    """The text on one line, with single spaces.

    >>> one_line(ValueError("two\\n  lines"))
    'two lines'
    """
    return " ".join(str(text).split())
