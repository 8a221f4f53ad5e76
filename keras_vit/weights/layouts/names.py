"""Tables of names: our variables ↔ a layout's keys, and how the axes differ between them.

A layout is such a table. Reading and writing are the same rows taken in the two directions.
"""

import re
from typing import NamedTuple

import numpy as np


class Form(NamedTuple):
    """How an array's axes stand in a file: the order of its axes there, and here."""

    read: tuple[int, ...]
    write: tuple[int, ...]


SAME = None
LINEAR = Form((1, 0), (1, 0))  # torch's (out, in) ↔ (in, out)
CONV = Form((2, 3, 1, 0), (3, 2, 0, 1))  # torch's (out, in, height, width) ↔ (height, width, in, out)


class Row(NamedTuple):
    """One line of a table; {i} and {j} stand for numbers, {i+1} for the number after it.

    `part` is (place, count) where the file keeps several of our arrays in one, along its first axis.
    """

    ours: str
    theirs: str
    form: Form | None = SAME
    part: tuple[int, int] | None = None


def torch_norm(ours, theirs):
    """The rows of a norm as torch names it."""
    return [Row(f"{ours}/gamma", f"{theirs}.weight"), Row(f"{ours}/beta", f"{theirs}.bias")]


def torch_dense(ours, theirs, form=LINEAR, part=None):
    """The rows of a linear map, or with the form CONV of a convolution, as torch names it."""
    kernel = Row(f"{ours}/kernel", f"{theirs}.weight", form, part)
    return [kernel, Row(f"{ours}/bias", f"{theirs}.bias", SAME, part)]


class Reading(NamedTuple):
    """A file's arrays by our names, the file's key for each, and the keys that are left over.

    `unknown` are keys that the layout does not have, `left_out` those that it has but a model does
    not: an optimizer's state, the text tower of a pair.
    """

    arrays: dict
    keys: dict
    unknown: list
    left_out: list


_NUMBER = re.compile(r"\{([ij])(\+1)?\}")


class Table:
    """Rows, searchable from both sides.

    >>> table = Table([Row("block{i+1}/kernel", "blocks.{i}.weight", LINEAR)])
    >>> table.write({"block1/kernel": np.ones((2, 3))})["blocks.0.weight"].shape
    (3, 2)
    >>> table.read({"blocks.0.weight": np.ones((3, 2)), "x": np.ones(1)}).unknown
    ['x']
    """

    def __init__(self, rows):
        self.rows = tuple(rows)
        self._ours = [(_pattern(row.ours), row) for row in self.rows]
        self._theirs = [(_pattern(row.theirs), row) for row in self.rows]

    def read(self, arrays, rename=lambda key: key):
        """A file's arrays as a `Reading`.

        Args:
            arrays: dict of arrays by the file's keys.
            rename: The key that a key stands for, where a layout has had several.

        Raises:
            ValueError: if two keys stand for one array, or one that is to hold several cannot.
        """
        known, keys, unknown = {}, {}, []
        for key, array in arrays.items():
            found = _find(self._theirs, rename(key))
            if not found:
                unknown.append(key)
            for numbers, row in found:
                name = _fill(row.ours, numbers)
                if name in known:
                    raise ValueError(
                        f"{key} and {keys[name]} both stand for {name}; a checkpoint holds each array once"
                    )
                known[name], keys[name] = _turned(_part(key, array, row.part), row.form, "read"), key
        return Reading(known, keys, unknown, [])

    def write(self, arrays):
        """Arrays by our names as dict of arrays by the file's keys.

        Raises:
            KeyError: for a name that the table does not have.
        """
        written, parts = {}, {}
        for name, array in arrays.items():
            found = _find(self._ours, name)
            if not found:
                raise KeyError(name)
            ((numbers, row),) = found
            key, array = _fill(row.theirs, numbers), _turned(array, row.form, "write")
            if row.part is None:
                written[key] = array
            else:
                parts.setdefault(key, {})[row.part[0]] = array
        for key, pieces in parts.items():
            written[key] = np.concatenate([pieces[place] for place in sorted(pieces)])
        return {key: np.ascontiguousarray(array) for key, array in written.items()}

    def knows(self, name):
        """Whether one of our variables has a place in the layout."""
        return bool(_find(self._ours, name))


def find_prefix(keys, anchors, prefixes):
    """The prefix before the names: the one that an anchor key stands behind.

    Args:
        keys: The file's keys.
        anchors: Names of which every file of the layout has one.
        prefixes: Those that the layout is known with.

    Returns:
        str, or None if no anchor is there.

    Raises:
        ValueError: if there are two, so that a model stands in the file twice.

    Example:
        >>> find_prefix(["params/embedding/kernel"], ["embedding/kernel"], ["", "params/"])
        'params/'
    """
    found = {p: a for p in prefixes for a in anchors if p + a in keys}
    if len(found) > 1:
        twice = " and ".join(prefix + anchor for prefix, anchor in found.items())
        raise ValueError(f"the file holds {twice}: two models, or one array twice; give the part to read")
    return next(iter(found), None)


def without_prefix(key, prefix):
    """The key behind the prefix; one outside it begins with a slash, which no row has.

    >>> without_prefix("params/cls", "params/"), without_prefix("cls", "params/")
    ('cls', '/cls')
    """
    return key.removeprefix(prefix) if key.startswith(prefix) else "/" + key


def _pattern(template):
    parts, last = [], 0
    for match in _NUMBER.finditer(template):
        parts += [re.escape(template[last : match.start()]), rf"(?P<{match[1]}>0|[1-9]\d*)"]
        last = match.end()
    offsets = {match[1]: len(match[2] or "") // 2 for match in _NUMBER.finditer(template)}
    return re.compile("".join([*parts, re.escape(template[last:])])), offsets


def _find(patterns, name):
    """(numbers, row) of every row whose side matches the name."""
    found = []
    for (pattern, offsets), row in patterns:
        match = pattern.fullmatch(name)
        if match:
            numbers = {group: int(text) - offsets[group] for group, text in match.groupdict().items()}
            if all(number >= 0 for number in numbers.values()):
                found.append((numbers, row))
    return found


def _fill(template, numbers):
    return _NUMBER.sub(lambda match: str(numbers[match[1]] + bool(match[2])), template)


def _part(key, array, part):
    if part is None:
        return array
    place, count = part
    if not array.ndim or array.shape[0] % count:
        raise ValueError(f"{key} of shape {array.shape} is to hold {count} arrays of one size, but cannot")
    size = array.shape[0] // count
    return array[place * size : (place + 1) * size]


def _turned(array, form, direction):
    order = form and getattr(form, direction)
    # An array of another rank is handed on as it is, for the list of wrong shapes.
    return array.transpose(order) if order and len(order) == array.ndim else array
