"""Lists, untrusted text and suggestions in messages."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import os
import re
import urllib.parse
from collections.abc import Callable
from typing import TypeVar, cast

from keras_vit.names_elsewhere import RENAMED

_Function = TypeVar("_Function", bound=Callable)

URL = re.compile(
    r"""([a-z][a-z0-9+.-]*://)(?:[^/\s?#'"]*@)?((?:\[[^\]\s]*\])?(?:(?!::)[^\s?#'"])*)"""  # user:password@
    r"""(\?…|[?#](?:(?!::)[^\s'"])*?(?=[;:,.)]*(?:[\s'"]|::|$)))?""",
    re.IGNORECASE,
)


def listed(names, most=5):
    """Join names by commas; of a long list the first ones and the count of the rest.

    >>> listed(["a", "b", "c"]), listed(range(128))
    ('a, b, c', '0, 1, 2, 3, 4 and 123 more')
    """
    names = [printable(str(name)) for name in names]
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def article(noun):
    """A noun, such as the name of a class, with its indefinite article.

    >>> article("ImageSegmenter"), article("DepthEstimator")
    ('an ImageSegmenter', 'a DepthEstimator')
    """
    return f"{'an' if noun[0] in 'AEIOUaeiou' else 'a'} {noun}"


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


def redact_url(url):
    """The URL without its secrets: a password, or a signature in the query. A path as it is."""
    if "://" not in url:
        return url
    parts = urllib.parse.urlsplit(url)
    netloc, query = parts.netloc.rpartition("@")[2], "…" if parts.query else ""
    return one_line(parts._replace(netloc=netloc, query=query, fragment="").geturl())


def redact_urls(text):
    """The text with each URL in it, up to a space or a quotation mark, as of `redact_url`.

    >>> redact_urls("no https://me:word@host/a.tar?key=5; it has 's3://a/b?c::d'")
    "no https://host/a.tar?…; it has 's3://a/b?…::d'"
    """
    return URL.sub(
        lambda match: match[1] + match[2] + ("?…" if (match[3] or "").startswith("?") else ""), text
    )


def did_you_mean(name, names, form="{}"):
    """The end of a message about an unknown name: the names that are most like it, or nothing.

    Case and punctuation are ignored. If no name is like it, those that begin with it are suggested. What
    other packages call a known name is like that name only.

    Args:
        name: The unknown name.
        names: The known ones.
        form: What is suggested of a known one.

    >>> did_you_mean("learning_rat", ["learning_rate", "momentum"])
    " (did you mean 'learning_rate'?)"
    >>> did_you_mean("val", ["train", "validation"]), did_you_mean("cifar-10", ["cifar10"], "tfds:{}")
    (" (did you mean 'validation'?)", " (did you mean 'tfds:cifar10'?)")
    >>> did_you_mean("embed_dim", ["hidden_size", "mlp_dim"])
    " (did you mean 'hidden_size'?)"
    """
    if not isinstance(name, str):
        return ""
    text, strings = _plain(name), [known for known in names if isinstance(known, str)]
    known = {_plain(string): string for string in reversed(strings)}  # of two the first
    ours = _plain(RENAMED.get(name.lower(), name))
    close = [ours] if ours in known else difflib.get_close_matches(text, known, 3, 0.7)
    close = close or [key for key in known if len(text) > 2 and key.startswith(text)][:3]
    return f" (did you mean {' or '.join(repr(form.format(known[key])) for key in close)}?)" if close else ""


def names_arguments(function: _Function) -> _Function:
    """A function whose error for a wrong call lists its arguments, and suggests one for an unknown name.

    >>> @names_arguments
    ... def detect(images, threshold=0.5): ...
    >>> detect([], conf=0.3)
    Traceback (most recent call last):
    TypeError: detect() has no argument conf (did you mean 'threshold'?); it has images, threshold
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            names = [name for name in signature.parameters if name not in ("self", "model")]
            unknown = [f"{name}{did_you_mean(name, names)}" for name in kwargs if name not in names]
            what = f"has no argument {', '.join(unknown)}" if unknown else f"is {error}"
            raise TypeError(f"{function.__name__}() {what}; it has {', '.join(names)}") from None
        return function(*args, **kwargs)

    return cast(_Function, call)


def similar_path(path):
    """The end of a message about a path that does not exist: the most similar names in its folder.

    >>> _ = (tmp / "flowers").mkdir()
    >>> similar_path(tmp / "flower") == f" (did you mean {str(tmp / 'flowers')!r}?)"
    True
    """
    folder, name = os.path.split(os.fspath(path))
    with contextlib.suppress(OSError):
        form = os.path.join(folder, "").replace("{", "{{").replace("}", "}}") + "{}"
        return did_you_mean(name, sorted(os.listdir(folder or ".")), form)
    return ""


def _plain(name):
    return "".join(c for c in name.lower() if c.isalnum())


def spelled(name):
    """The name of a score or of an option, in words.

    >>> spelled("mean_iou"), spelled("test_top5_accuracy"), spelled("knn_accuracy")
    ('mean IoU', 'test top-5 accuracy', 'k-NN accuracy')
    """
    spellings = {"iou": "IoU", "top5": "top-5", "knn": "k-NN"}
    return " ".join(spellings.get(word, word) for word in name.split("_"))
