"""Whether a graph is traced for an export; without Keras, which opened exports do not need."""

import contextlib
import contextvars

_is_exporting = contextvars.ContextVar("is_exporting", default=False)


@contextlib.contextmanager
def exported_graph():
    """A context, or a decorator, within which models are traced for an export: without loops over heads.

    Example:
        >>> with exported_graph():
        ...     is_exporting()
        True
    """
    token = _is_exporting.set(True)
    try:
        yield
    finally:
        _is_exporting.reset(token)


def is_exporting():
    """Whether a graph is traced for an export.

    >>> is_exporting()
    False
    """
    return _is_exporting.get()
