"""Lists, untrusted text and suggestions in messages."""

import difflib


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


def did_you_mean(name, names):
    """The end of a message about an unknown name: the names that are most like it, or nothing.

    >>> did_you_mean("learning_rat", ["learning_rate", "momentum"])
    " (did you mean 'learning_rate'?)"
    """
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(str(name).lower(), by_lower, 3, 0.7)
    return f" (did you mean {' or '.join(repr(by_lower[one]) for one in close)}?)" if close else ""
