"""JSON files next to weights, and indices of weights."""

import json

from keras_vit.weights.cache import LARGEST_SIDECAR


def read_json(path, default=None):
    """Read a JSON object from a file of bounded size; the default, if given, is for a missing file."""
    if default is not None and not path.is_file():
        return default
    try:
        if path.stat().st_size > LARGEST_SIDECAR:
            raise ValueError(f"it has more than {LARGEST_SIDECAR} bytes")
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}; expected a configuration")
    return value
