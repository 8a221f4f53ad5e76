"""Types of columns of Parquet files, and their features for the package datasets."""

from collections.abc import Callable
from typing import NamedTuple

import pyarrow
from pyarrow import types


class ColumnForm(NamedTuple):
    """Which column of a Parquet file has images or labels.

    Args:
        accepts: Whether a type may be that of the column.
        accepts_chosen: The same, of a column that a field names.
        usual: Its usual names.
    """

    accepts: Callable
    accepts_chosen: Callable
    usual: tuple[str, ...]


def is_image(type):
    """Whether a type is of bytes, or of structs of `bytes` and `path`.

    >>> is_image(pyarrow.binary()), is_image(pyarrow.int64())
    (True, False)
    """
    if types.is_struct(type):
        return {"bytes", "path"} <= {field.name for field in type}
    return types.is_binary(type) or types.is_large_binary(type)


def is_text(type):
    """Whether a type is of texts of any length.

    >>> is_text(pyarrow.large_string())
    True
    """
    return types.is_string(type) or types.is_large_string(type)


def is_list_of(accepts):
    """A function that says whether a type is of lists of a type that another one accepts.

    >>> is_list_of(is_text)(pyarrow.list_(pyarrow.string()))
    True
    """
    return lambda type: (
        (types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type))
        and accepts(type.value_type)
    )


def either(*accepted):
    """A function that says whether any of several functions accepts a type.

    >>> either(is_text, is_image)(pyarrow.binary())
    True
    """
    return lambda type: any(accepts(type) for accepts in accepted)


def one(dtype):
    """The feature of single values.

    >>> one("int64")
    {'dtype': 'int64', '_type': 'Value'}
    """
    return {"dtype": dtype, "_type": "Value"}


def several(feature):
    """The feature of lists.

    >>> several(one("int64"))["_type"]
    'Sequence'
    """
    return {"feature": feature, "_type": "Sequence"}


# (type, function from the class names to the feature) of images.
IMAGE = (
    pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]),
    lambda names: {"_type": "Image"},
)
IMAGES = ColumnForm(is_image, is_image, ("image", "img"))
