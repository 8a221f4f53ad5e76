"""Tables that map our variable names to the keys of a layout, in both directions."""

import math
import re
from typing import NamedTuple

import numpy as np

LINEAR = (1, 0)  # torch's (out, in) → (in, out)
CONV = (2, 3, 1, 0)  # torch's (out, in, height, width) → (height, width, in, out)


class Row(NamedTuple):
    """One line of a table; {i} and {j} stand for an index, {i+1} for the index after it.

    `axes` is the permutation from the file's axes to ours. `part` is (index, count) if the file concatenates
    several of our arrays along their first axis. `leading` is the number of our first axes, of size 1, that
    the file's array does not have. Of several rows for an array, the first is written.
    """

    ours: str
    theirs: str
    axes: tuple[int, ...] | None = None
    part: tuple[int, int] | None = None
    leading: int = 0


_TORCH = {"kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"}
_FLAX = {"kernel": "/kernel", "bias": "/bias", "gamma": "/scale", "beta": "/bias"}
_ARRAY = re.compile(r".*/(token|table|probe|gamma|bias|frequencies)")
_NORM = re.compile(r".*(norm|gn\d|gn_\w+)")
# Both packages' transposed convolutions have the axes of a convolution in the other direction.
_CONV = re.compile(r"patch_embedding|.*conv\w*|.*/transposed")


def torch_rows(names, ours="", theirs="", part=None, leaves=_TORCH):
    """Rows of layers whose arrays have torch's names and axes.

    Args:
        names: dict from our names of layers to the file's. Names that end with "norm" are norms, names of
            arrays ("class_token/token") are those arrays, and other layers have a kernel and a bias.
        ours, theirs: What all of the names begin with.
        part: As in `Row`.
        leaves: dict from our arrays of a layer to the ends of their keys.

    Example:
        >>> [row.theirs for row in torch_rows({"mlp_norm": "norm2"}, "encoder_block_{i}/", "blocks.{i}.")]
        ['blocks.{i}.norm2.weight', 'blocks.{i}.norm2.bias']
    """
    rows = []
    for our, their in names.items():
        our, their = ours + our, theirs + their
        if _ARRAY.fullmatch(our):
            rows.append(Row(our, their))
            continue
        first, second, axes = "kernel", "bias", CONV if _CONV.fullmatch(our) else LINEAR
        if _NORM.fullmatch(our):
            first, second, axes = "gamma", "beta", None
        rows.append(Row(f"{our}/{first}", their + leaves[first], axes, part))
        rows.append(Row(f"{our}/{second}", their + leaves[second], None, part))
    return rows


def flax_rows(names, ours="", theirs=""):
    """Rows of layers whose arrays have flax's names, and our axes.

    >>> [row.theirs for row in flax_rows({"mlp_norm": "LayerNorm_1"})]
    ['LayerNorm_1/scale', 'LayerNorm_1/bias']
    """
    return [row._replace(axes=None) for row in torch_rows(names, ours, theirs, leaves=_FLAX)]


def fused_rows(ours, parts, theirs, leaves=_TORCH):
    """Rows of several dense layers that the file concatenates.

    >>> [row.part for row in fused_rows("attention/", ("key", "value"), "kv")]
    [(0, 2), (0, 2), (1, 2), (1, 2)]
    """
    return [
        row
        for index, part in enumerate(parts)
        for row in torch_rows({part: theirs}, ours, part=(index, len(parts)), leaves=leaves)
    ]


class MappedArrays(NamedTuple):
    """The arrays of a file by our names.

    Attributes:
        arrays: dict of arrays by our names.
        keys: dict from our names to the file's keys.
        unknown: Keys that the layout does not have.
        skipped: Keys that the layout has but the model does not use, such as an unused pooler.
        options: dict of options that only the layout's own shapes show, such as the grid of the positions.
    """

    arrays: dict
    keys: dict
    unknown: list
    skipped: list
    options: dict = {}

    def with_keys(self, stored_in):
        """The same, with the file's keys in place of those for which it was read: dict from these to them."""
        return self._replace(
            keys={name: stored_in[key] for name, key in self.keys.items()},
            unknown=list(dict.fromkeys(stored_in[key] for key in self.unknown)),
        )

    def leave_out(self, prefixes):
        """Move arrays whose names begin with one of the prefixes, a tuple, to the skipped keys."""
        for name in [name for name in self.arrays if name.startswith(prefixes)]:
            del self.arrays[name]
            key = self.keys.pop(name)
            if key not in self.skipped:  # a fused array has several names
                self.skipped.append(key)


def add_first_position(arrays):
    """Add the first row of the position table to the class token, the only prefix token with a position."""
    token, table = (arrays.get(name) for name in ("class_token/token", "position_embedding/table"))
    if token is not None and table is not None and table.ndim == 3 and token.shape == table[:, :1].shape:
        arrays["class_token/token"] = token + table[:, :1]
        arrays["position_embedding/table"] = table[:, 1:]


_INDEX = re.compile(r"\{([ij])(\+1)?\}")
_ESCAPED_INDEX = re.compile(r"\\\{([ij])(\\\+1)?\\\}")  # as `re.escape` writes it


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
            rename: Function from a key to the key in the table.

        Raises:
            ValueError: if two keys map to the same array, or a concatenated array cannot be split.
        """
        mapped, keys, unknown = {}, {}, []
        for key, array in arrays.items():
            match = _find(self._theirs, rename(key))
            if not match:
                unknown.append(key)
            for indices, row in match:
                name = _fill(row.ours, indices)
                if name in mapped:
                    raise ValueError(
                        f"{key} and {keys[name]} both map to {name}; expected each array once in a checkpoint"
                    )
                part = _part(key, array, row.part)
                mapped[name] = _transposed(part.reshape((1,) * row.leading + part.shape), row.axes)
                keys[name] = key
        return MappedArrays(mapped, keys, unknown, [])

    def write(self, arrays):
        """Map arrays by our names to arrays by the file's keys, as views of them where they are not joined.

        Raises:
            KeyError: for a name that the table does not have.
        """
        written, parts = {}, {}
        for name, array in arrays.items():
            match = _find(self._ours, name)
            if not match:
                raise KeyError(name)
            indices, row = match[0]
            key, array = _fill(row.theirs, indices), _transposed(array, row.axes and np.argsort(row.axes))
            if row.part is None:
                written[key] = array.reshape(array.shape[row.leading :])
            else:
                parts.setdefault(key, {})[row.part[0]] = array
        for key, by_index in parts.items():
            written[key] = np.concatenate([by_index[index] for index in sorted(by_index)])
        return {key: np.atleast_1d(array) for key, array in written.items()}


def _pattern(template):
    """The pattern of a template's names, and the smallest value of each index in them: 0, or 1 for {i+1}."""

    def number(match):
        return f"(?P<{match[1]}>{'' if match[2] else '0|'}[1-9][0-9]*)"

    least = {index: bool(plus_one) for index, plus_one in _INDEX.findall(template)}
    return re.compile(_ESCAPED_INDEX.sub(number, re.escape(template))), least


def _find(patterns, name):
    """(indices, row) of every row that matches the name."""
    return [
        ({index: int(text) - least[index] for index, text in match.groupdict().items()}, row)
        for (pattern, least), row in patterns
        if (match := pattern.fullmatch(name))
    ]


def _fill(template, indices):
    return _INDEX.sub(lambda match: str(indices[match[1]] + bool(match[2])), template)


def patch_kernel(key, weight):
    """A dense layer's kernel (hidden size, height · width · channels) of flat patches as a convolution's.

    Args:
        key: Its key in the file, for the message.
        weight: The array; one with another number of axes is returned unchanged.

    Returns:
        Array (hidden size, channels, height, width), as torch stores it.

    Raises:
        ValueError: if the patches are not squares of 3 channels or of 1.

    Example:
        >>> patch_kernel("embedding.weight", np.zeros((24, 8 * 8 * 3))).shape
        (24, 3, 8, 8)

    Source: big_vision's `naflex_vit.py`: patches are flattened by row, column and channel.
    """
    if weight.ndim != 2:
        return weight
    for channels in (3, 1):
        side = math.isqrt(weight.shape[1] // channels)
        if side * side * channels == weight.shape[1]:
            return weight.reshape(-1, side, side, channels).transpose(0, 3, 1, 2)
    raise ValueError(f"expected {key} to read square patches with 1 or 3 channels; got shape {weight.shape}")


def flat_patches(weight):
    """The inverse of `patch_kernel`.

    >>> flat_patches(patch_kernel("embedding.weight", np.zeros((24, 8 * 8 * 3)))).shape
    (24, 192)
    """
    return weight.transpose(0, 2, 3, 1).reshape(len(weight), -1)


def _part(key, array, part):
    if part is None:
        return array
    index, count = part
    if not array.ndim or array.shape[0] % count:
        raise ValueError(f"expected {key} to hold {count} arrays of one size; got shape {array.shape}")
    size = array.shape[0] // count
    return array[index * size : (index + 1) * size]


def _transposed(array, axes):
    # An array of another rank stays as it is, and is later listed with the wrong shapes.
    return array.transpose(axes) if axes is not None and len(axes) == array.ndim else array
