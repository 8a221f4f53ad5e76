"""Tables that map our variable names to the keys of a layout, in both directions."""

import re
from typing import NamedTuple

import numpy as np


class AxisOrder(NamedTuple):
    """The axis permutations for reading an array from a file and for writing it."""

    read: tuple[int, ...]
    write: tuple[int, ...]


SAME = None
LINEAR = AxisOrder((1, 0), (1, 0))  # torch's (out, in) ↔ (in, out)
CONV = AxisOrder((2, 3, 1, 0), (3, 2, 0, 1))  # torch's (out, in, height, width) ↔ (height, width, in, out)


class Row(NamedTuple):
    """One line of a table; {i} and {j} stand for an index, {i+1} for the index after it.

    `part` is (index, count) if the file concatenates several of our arrays along their first axis.
    """

    ours: str
    theirs: str
    order: AxisOrder | None = SAME
    part: tuple[int, int] | None = None


def torch_norm(ours, theirs):
    """Rows of a norm with torch's names."""
    return [Row(f"{ours}/gamma", f"{theirs}.weight"), Row(f"{ours}/beta", f"{theirs}.bias")]


def torch_dense(ours, theirs, order=LINEAR, part=None):
    """Rows of a linear layer with torch's names, or with `CONV` of a convolution."""
    kernel = Row(f"{ours}/kernel", f"{theirs}.weight", order, part)
    return [kernel, Row(f"{ours}/bias", f"{theirs}.bias", SAME, part)]


class MappedArrays(NamedTuple):
    """The arrays of a file by our names.

    Attributes:
        arrays: dict of arrays by our names.
        keys: dict from our names to the file's keys.
        unknown: Keys that the layout does not have.
        skipped: Keys that the layout has but the model does not use, such as an unused pooler.
    """

    arrays: dict
    keys: dict
    unknown: list
    skipped: list


_INDEX = re.compile(r"\{([ij])(\+1)?\}")


class Table:
    """Rows that can be searched by our names and by the file's keys.

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
        """Map a file's arrays to our names, as `MappedArrays`.

        Args:
            arrays: dict of arrays by the file's keys.
            rename: Function from a key to the key in the table, for layouts with older names.

        Raises:
            ValueError: if two keys map to the same array, or a concatenated array cannot be split.
        """
        mapped, keys, unknown = {}, {}, []
        for key, array in arrays.items():
            found = _find(self._theirs, rename(key))
            if not found:
                unknown.append(key)
            for indices, row in found:
                name = _fill(row.ours, indices)
                if name in mapped:
                    raise ValueError(
                        f"{key} and {keys[name]} both map to {name}; expected each array once in a checkpoint"
                    )
                mapped[name] = _transposed(_part(key, array, row.part), row.order, "read")
                keys[name] = key
        return MappedArrays(mapped, keys, unknown, [])

    def write(self, arrays):
        """Map arrays by our names to arrays by the file's keys.

        Raises:
            KeyError: for a name that the table does not have.
        """
        written, parts = {}, {}
        for name, array in arrays.items():
            found = _find(self._ours, name)
            if not found:
                raise KeyError(name)
            ((indices, row),) = found
            key, array = _fill(row.theirs, indices), _transposed(array, row.order, "write")
            if row.part is None:
                written[key] = array
            else:
                parts.setdefault(key, {})[row.part[0]] = array
        for key, by_index in parts.items():
            written[key] = np.concatenate([by_index[index] for index in sorted(by_index)])
        return {key: np.ascontiguousarray(array) for key, array in written.items()}


def find_prefix(keys, anchors, prefixes):
    """Find the prefix of a file's keys.

    Args:
        keys: The file's keys.
        anchors: Keys, without the prefix, of which every file of the layout has one.
        prefixes: The prefixes that the layout is published with.

    Returns:
        str, or None if there is no anchor.

    Raises:
        ValueError: if there are two, because the file holds two models.

    Example:
        >>> find_prefix(["params/embedding/kernel"], ["embedding/kernel"], ["", "params/"])
        'params/'
    """
    found = {p: a for p in prefixes for a in anchors if p + a in keys}
    if len(found) > 1:
        both = " and ".join(prefix + anchor for prefix, anchor in found.items())
        raise ValueError(f"the file holds {both}: two models, or one array twice; select a subtree to read")
    return next(iter(found), None)


def without_prefix(key, prefix):
    """Remove the prefix of a key; a key without it gets a leading slash, which no row has.

    >>> without_prefix("params/cls", "params/"), without_prefix("cls", "params/")
    ('cls', '/cls')
    """
    return key.removeprefix(prefix) if key.startswith(prefix) else "/" + key


def _pattern(template):
    parts, last = [], 0
    for match in _INDEX.finditer(template):
        parts += [re.escape(template[last : match.start()]), rf"(?P<{match[1]}>0|[1-9]\d*)"]
        last = match.end()
    offsets = {match[1]: len(match[2] or "") // 2 for match in _INDEX.finditer(template)}
    return re.compile("".join([*parts, re.escape(template[last:])])), offsets


def _find(patterns, name):
    """(indices, row) of every row that matches the name."""
    found = []
    for (pattern, offsets), row in patterns:
        match = pattern.fullmatch(name)
        if match:
            indices = {group: int(text) - offsets[group] for group, text in match.groupdict().items()}
            if all(index >= 0 for index in indices.values()):
                found.append((indices, row))
    return found


def _fill(template, indices):
    return _INDEX.sub(lambda match: str(indices[match[1]] + bool(match[2])), template)


def _part(key, array, part):
    if part is None:
        return array
    index, count = part
    if not array.ndim or array.shape[0] % count:
        raise ValueError(f"expected {key} to hold {count} arrays of one size; got shape {array.shape}")
    size = array.shape[0] // count
    return array[index * size : (index + 1) * size]


def _transposed(array, order, direction):
    axes = order and getattr(order, direction)
    # An array of another rank stays as it is, and is later listed with the wrong shapes.
    return array.transpose(axes) if axes and len(axes) == array.ndim else array
