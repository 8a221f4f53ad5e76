"""What a task adds to layouts."""

import types
from collections.abc import Callable
from typing import NamedTuple


class TimmAdditions(NamedTuple):
    """What a task adds to files whose encoder has timm's names.

    Attributes:
        forms: dict from the names of `ModelForm`s to these.
        rows: `Row`s of the arrays beside the encoder's.
        prefixes: What the keys of an encoder may begin with.
        without_prefix: A pattern of the keys that do not begin with it.
        others: A pattern of the keys of arrays that are left out.
        other_families: By description, a pattern of keys that only files have that cannot be read.
        read_config: A function from the contents of a config.json to options; None for other contents.
        renamed: A function of a file's arrays by its keys to these as `rows` name them, and options that
            no array shows.
    """

    forms: dict
    rows: tuple
    prefixes: tuple
    without_prefix: str
    others: str
    other_families: dict = types.MappingProxyType({})
    read_config: Callable = lambda config: None
    renamed: Callable = lambda arrays: (arrays, {})


class HuggingFaceAdditions(NamedTuple):
    """What a task adds to the layout of transformers.

    Attributes:
        forms: dict from the names of `ModelForm`s to these.
        processors: By type, the values of its image processor.
        other_families: By description, a pattern of keys that only files have that cannot be read.
    """

    forms: dict
    processors: dict = types.MappingProxyType({})
    other_families: dict = types.MappingProxyType({})


def merged(additions, field):
    """The union of a dict field of several additions.

    >>> other = HuggingFaceAdditions({"b": 2})
    >>> merged((HuggingFaceAdditions({"a": 1}), other), "forms")
    {'a': 1, 'b': 2}
    """
    return {key: value for each in additions for key, value in getattr(each, field).items()}
