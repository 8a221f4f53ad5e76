"""Files of `flax.serialization`: msgpack with arrays as extensions."""

import math

import ml_dtypes
import numpy as np

from keras_vit.lazy import optional_package

_ARRAY, _SCALAR = 1, 3  # types of extensions
_CHUNKED = "__msgpack_chunked_array__"  # in the dict that stands for an array of more than a gigabyte


def is_msgpack(start):
    """Whether the first nine bytes of a file begin a map that is not empty.

    A safetensors file, which begins with a number of eight bytes and a brace, may have the same first byte.

    >>> is_msgpack(bytes([0x82])), is_msgpack(bytes([0x88]) + bytes(7) + b"{"), is_msgpack(b"PK")
    (True, False, False)
    """
    begins_map = start[:1] != b"" and (0x81 <= start[0] <= 0x8F or start[0] in (0xDE, 0xDF))
    return begins_map and start[8:9] != b"{"


def read_msgpack(path):
    """The values of a file by their paths, joined by "/".

    Raises:
        ImportError: if msgpack is missing, with the command that installs it.
        ValueError: for keys that are no strings, or types that Flax does not write.
    """
    msgpack = _msgpack()

    def value(kind, content):
        if kind not in (_ARRAY, _SCALAR):
            raise ValueError(f"it has a msgpack extension of type {kind}; expected arrays of Flax")
        shape, dtype, buffer = msgpack.unpackb(content, raw=False)
        dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(buffer):
            raise ValueError(f"it has {len(buffer)} bytes for an array {tuple(shape)} of {dtype}")
        return np.frombuffer(buffer, dtype).reshape(shape)

    with open(path, "rb") as file:
        tree = msgpack.unpackb(file.read(), ext_hook=value, raw=False, strict_map_key=False)
    values = {}
    _flatten(tree, "", values)
    return values


def write_msgpack(arrays, path, first=()):
    """Write arrays as Flax does.

    Args:
        arrays: Iterable of pairs of a path, joined by "/", and an array.
        path: The file.
        first: dict of strings that precede the arrays.
    """
    msgpack, tree = _msgpack(), dict(first)
    for key, array in arrays:
        *above, name = key.split("/")
        inside = tree
        for part in above:
            inside = inside.setdefault(part, {})
        content = msgpack.packb((array.shape, array.dtype.name, array.tobytes()), use_bin_type=True)
        inside[name] = msgpack.ExtType(_ARRAY, content)
    with open(path, "wb") as file:
        file.write(msgpack.packb(tree, use_bin_type=True))


def first_entry(path):
    """The first key of a file, and its value."""
    with open(path, "rb") as file:
        unpacker = _msgpack().Unpacker(file, raw=False, read_size=1024)
        unpacker.read_map_header()
        return unpacker.unpack(), unpacker.unpack()


def _flatten(tree, prefix, values):
    if _CHUNKED in tree:
        chunks = [tree["chunks"][str(i)] for i in range(len(tree["chunks"]))]
        shape = [tree["shape"][str(i)] for i in range(len(tree["shape"]))]
        values[prefix[:-1]] = np.concatenate(chunks).reshape(shape)
        return
    for key, value in tree.items():
        if not isinstance(key, str):
            raise ValueError(f"its keys must be strings; got {key!r}")
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{key}/", values)
        else:
            values[prefix + key] = value


def _msgpack():
    return optional_package("msgpack", "a checkpoint of Flax", ("msgpack",))
