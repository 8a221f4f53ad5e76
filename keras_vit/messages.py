"""Names in messages."""


def listed(names, most=5):
    """The names, separated by commas; of a long list the first, and the count of the rest.

    >>> listed(["a", "b", "c"]), listed(range(128))
    ('a, b, c', '0, 1, 2, 3, 4 and 123 more')
    """
    names = [printable(str(name)) for name in names]
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def printable(text):
    """The text with control characters escaped, which a terminal would obey.

    >>> print(printable("rose\\x1b[31m\\n"))
    rose\\x1b[31m\\n
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
