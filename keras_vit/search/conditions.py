"""Conditions on the columns of a table, such as `label=3`."""

import re

import numpy as np
import pyarrow
from pyarrow import compute, types

from keras_vit.messages import one_line

# Of texts, and of numbers.
OPERATORS = {
    "<=": (compute.less_equal, np.less_equal),
    ">=": (compute.greater_equal, np.greater_equal),
    "!=": (compute.not_equal, np.not_equal),
    **dict.fromkeys(("=", "=="), (compute.equal, np.equal)),
    "<": (compute.less, np.less),
    ">": (compute.greater, np.greater),
    "~": (compute.match_substring_regex, None),
}


def matching(table, conditions):
    """The rows of a table that meet all conditions.

    Args:
        table: A `pyarrow.Table`.
        conditions: Texts of a column's name, an operator and a value. The operators are `=` or `==`, `!=`,
            `<`, `<=`, `>`, `>=`, and for texts `~`, whose value is a regular expression for a part of the
            text. A row without a value does not meet a condition.

    Returns:
        bool (rows,).

    Raises:
        ValueError: for no such column, or a value that cannot be compared with it.

    Example:
        >>> import pyarrow
        >>> from keras_vit.search.conditions import matching
        >>> table = pyarrow.table({"path": ["a/1.png", "b/2.png"], "width": [640, 480]})
        >>> matching(table, ["width>=500", "path~^a/"]).tolist()
        [True, False]
    """
    is_match = np.ones(table.num_rows, bool)
    for condition in [conditions] if isinstance(conditions, str) else conditions:
        is_match &= _matching(table, condition)
    return is_match


def _matching(table, condition):
    match = re.fullmatch(r"\s*(\w+)\s*(<=|>=|!=|==?|<|>|~)\s*(.*?)\s*", condition, re.DOTALL)
    if match is None:
        raise ValueError(f"expected a condition such as label=3 or path~2024; got {condition!r}")
    name, operator, value = match.groups()
    if name not in table.column_names:
        raise ValueError(f"no column {name!r}; the index has {', '.join(table.column_names)}")
    column = table[name]
    is_text = types.is_string(column.type)
    if not (is_text or types.is_integer(column.type) or types.is_floating(column.type)):
        raise ValueError(f"the column {name!r} has values of type {column.type}, which are not compared")
    if operator == "~" and not is_text:
        raise ValueError(f"the operator ~ is for texts; the column {name!r} has numbers")
    compare_texts, compare_numbers = OPERATORS[operator]
    try:
        if not is_text:
            is_match = compare_numbers(
                compute.fill_null(column, 0).to_numpy(),
                _number(value) if types.is_integer(column.type) else float(value),
            )
            return is_match & column.is_valid().to_numpy()
        is_match = compare_texts(column, value)
    except ValueError as error:  # which ArrowInvalid is
        if operator == "~":
            raise ValueError(f"expected a regular expression in {condition!r}: {one_line(error)}") from None
        raise ValueError(f"expected a number in {condition!r}; got {value!r}") from None
    return np.asarray(compute.fill_null(is_match, pyarrow.scalar(False)))


def _number(text):
    """The number of a text: an integer where it is one, which NumPy compares with integers without rounding.

    >>> _number("9007199254740993"), _number("1e3"), _number("2.5")
    (9007199254740993, 1000, 2.5)
    """
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() else number
