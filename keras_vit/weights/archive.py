"""A file of arrays ↔ a dict of arrays: `.npz`, safetensors, torch's `.bin` and `.pth`.

What a file is, its first bytes tell, never its name. No code in a file is run: pickled objects
are refused, and torch's files are read by its weights-only loader.
"""

import io
import json
import lzma
import os
import pathlib
import struct
import tokenize
import unicodedata
import warnings
import zipfile
import zlib

import ml_dtypes
import numpy as np

from keras_vit.messages import listed
from keras_vit.writing import atomic_path

FLOATS = ("float16", "bfloat16", "float32", "float64")
_DAMAGED = (OSError, EOFError, KeyError, ValueError, zlib.error, zipfile.BadZipFile, zipfile.LargeZipFile)
_DAMAGED += (NotImplementedError, RuntimeError, MemoryError, SyntaxError, UnicodeError, struct.error)
_DAMAGED += (
    OverflowError,
    TypeError,
    IndexError,
    AttributeError,
    lzma.LZMAError,
    tokenize.TokenError,
    Warning,
)
_DIGEST = "keras_vit_configuration_sha256"  # where a file of arrays holds the digest of its configuration
_HEADER = 10_000  # bytes of the longest header that NumPy reads as harmless
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # of the others one byte may hold a million
UNPACKED = 2**30  # bytes that a file of any size may declare
EXPANSION = 20  # how many times its size a larger file may; weights hardly compress


def read_arrays(path, subtree=None):
    """The arrays of a checkpoint file by its keys.

    Args:
        path: An `.npz`, safetensors or torch file.
        subtree: Only the keys under this name, "img" for those that begin with "img/".

    Returns:
        dict of NumPy arrays in their stored types: float16, bfloat16, float32 or float64.

    Raises:
        ValueError: if the file is damaged, holds pickled objects, or arrays of another type;
            the message is one line that names the file.

    Example:
        >>> read_arrays("tests/golden/token.npz")["cls"].shape
        (1, 1, 24)
    """
    return float_arrays(load_arrays(path, subtree), path)


def load_arrays(path, subtree=None):
    """As `read_arrays`, with arrays of any type."""
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("error")  # what NumPy only warns of was not written as a checkpoint
            arrays = _reader(path, file.read(9))(path)
    except ImportError as error:
        raise ValueError(f"{path} cannot be read here: {error}") from None
    except _DAMAGED as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if "pickle" in reason.lower() or "Object arrays" in reason:
            reason = "it holds pickled objects, which are refused because loading them can run code"
        raise ValueError(f"{path} is no checkpoint that can be read: {reason}") from None
    if subtree:
        inside = {k.removeprefix(f"{subtree}/"): a for k, a in arrays.items() if k.startswith(f"{subtree}/")}
        if not inside:
            tops = listed(sorted({key.split("/")[0] for key in arrays}))
            raise ValueError(f"{path} has nothing under {subtree!r}; it has {tops or 'no arrays'}")
        arrays = inside
    for key in arrays:
        if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in key):
            raise ValueError(f"{path} is no checkpoint: it has the key {ascii(key)}")
    return arrays


def float_arrays(arrays, path):
    """The arrays of a file as floating-point arrays, or ValueError for another type."""
    return {key: _floating(path, key, array) for key, array in arrays.items()}


def write_arrays(arrays, path, dtype="float32", digest=None):
    """Write arrays to an `.npz` or safetensors file, as the path ends.

    The file appears whole or not at all.

    Args:
        arrays: dict of arrays.
        path: Where to write; ends with `.npz` or `.safetensors`.
        dtype: "float32", "float16", "bfloat16" or "float64". In an `.npz`, which has no bfloat16,
            that is stored as two raw bytes a number, as `big_vision` does.
        digest: Text that `digest_in` finds in the file: the digest of the configuration beside it. It is
            the comment of an `.npz` and an entry of safetensors' metadata, which other readers ignore.

    Raises:
        ValueError: for another type or ending.

    Example:
        >>> write_arrays({"a/b": np.ones(3)}, tmp / "ones.npz")
        >>> read_arrays(tmp / "ones.npz")["a/b"].dtype
        dtype('float32')
    """
    path = pathlib.Path(path)
    if dtype not in FLOATS:
        raise ValueError(f"dtype {dtype!r} cannot be stored; choose one of {', '.join(FLOATS)}")
    writers = {".npz": _write_npz, ".safetensors": _write_safetensors}
    if path.suffix not in writers:
        raise ValueError(f"checkpoints are written as .npz or .safetensors; got {str(path)!r}")
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    stored = {}
    for key, array in arrays.items():
        with np.errstate(over="ignore", invalid="ignore"):  # said below, with the name; NaN is no fault
            stored[key] = np.asarray(array).astype(kind, order="C")
            too_large = not np.isfinite(stored[key]).all() and np.isfinite(array).all()
        if too_large:
            raise ValueError(f"{key} holds numbers that are too large for {dtype}")
    with atomic_path(path) as unfinished:
        writers[path.suffix](stored, unfinished, digest)


def digest_in(path):
    """The digest that `write_arrays` was given for a file that `read_arrays` reads, or None.

    Example:
        >>> write_arrays({"a": np.ones(3)}, tmp / "ones.npz", digest="0a1b")
        >>> digest_in(tmp / "ones.npz"), digest_in("tests/golden/token.npz")
        ('0a1b', None)
    """
    with open(path, "rb") as file:
        start = file.read(2)
    if start == b"PK":  # a zip archive
        with zipfile.ZipFile(path) as archive:
            name, _, digest = archive.comment.decode(errors="replace").partition(" ")
        return digest if name == _DIGEST else None
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return (file.metadata() or {}).get(_DIGEST)


def check_unpacked_size(declared, stored):
    """Raise ValueError if a file declares more than can be in it, before memory is taken for that.

    Args:
        declared: Bytes of what it holds, by its headers, shapes or configuration.
        stored: Bytes of the file.

    Example:
        >>> check_unpacked_size(10**9, stored=5000)
        >>> check_unpacked_size(10**10, stored=5000)
        Traceback (most recent call last):
        ValueError: its 5,000 bytes declare 10,000,000,000; at most 1,073,741,824 are accepted
    """
    limit = max(UNPACKED, EXPANSION * stored)
    if declared > limit:
        raise ValueError(f"its {stored:,} bytes declare {declared:,}; at most {limit:,} are accepted")


def check_zip(archive):
    """Raise ValueError if a zipfile.ZipFile declares more than it can hold, or cannot be read in parts."""
    entries = archive.infolist()
    if any(entry.compress_type not in _METHODS for entry in entries):
        raise ValueError("it is compressed by a method that no writer of weights uses")
    check_unpacked_size(sum(entry.file_size for entry in entries), os.path.getsize(archive.filename))


def check_hdf5(archive, name):
    """The paths of the arrays in an HDF5 file in a zipfile.ZipFile.

    Raises:
        ValueError: if it declares more than can be in it.
    """
    import h5py

    found, compressed = {}, archive.getinfo(name).compress_type != zipfile.ZIP_STORED

    def visit(path, item):
        if isinstance(item, h5py.Dataset):
            found[path] = item.nbytes

    with h5py.File(io.BytesIO(archive.read(name)) if compressed else _Stored(archive, name), "r") as file:
        file.visititems(visit)
    check_unpacked_size(sum(found.values()), os.path.getsize(archive.filename))
    return list(found)


class _Stored(io.RawIOBase):
    """An entry of a zip archive that is not compressed; zipfile's own reads everything before a position."""

    def __init__(self, archive, name):
        entry, self.file, self.position = archive.getinfo(name), archive.fp, 0
        self.file.seek(entry.header_offset + 26)
        self.start = entry.header_offset + 30 + sum(struct.unpack("<HH", self.file.read(4)))
        self.size = entry.file_size

    def seek(self, offset, whence=os.SEEK_SET):
        self.position = offset + (0, self.position, self.size)[whence]
        return self.position

    def readinto(self, buffer):
        self.file.seek(self.start + self.position)
        count = self.file.readinto(memoryview(buffer)[: max(self.size - self.position, 0)])
        self.position += count
        return count


def _write_npz(arrays, path, digest):
    # As np.savez does, whose own arguments some keys are called like.
    with zipfile.ZipFile(path, "w") as archive:
        if digest:
            archive.comment = f"{_DIGEST} {digest}".encode()
        for key, array in arrays.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                raw = array.view("V2") if array.dtype == ml_dtypes.bfloat16 else array
                np.lib.format.write_array(file, raw, allow_pickle=False)


def _write_safetensors(arrays, path, digest):
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    metadata = {"format": "pt", **({_DIGEST: digest} if digest else {})}
    try:
        save_file(arrays, path, metadata)
    except SafetensorError as error:  # as on a full disk
        raise OSError(str(error)) from None
    with open(path, "r+b") as file:  # the library writes the metadata in a random order
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size)) | {"__metadata__": metadata}
        file.seek(8)
        file.write(json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode().ljust(size))


def _reader(path, start):
    if start.startswith(b"PK"):  # a zip archive
        with zipfile.ZipFile(path) as archive:
            check_zip(archive)
            names = [name.removesuffix(".npy") for name in archive.namelist()]
        if len({*names}) < len(names):
            raise ValueError("two of its entries have one name")
        return _read_torch if any(name.endswith("/data.pkl") for name in names) else _read_npz
    if start[8:9] == b"{":  # eight bytes with the length of a header in JSON
        return _read_safetensors
    if start.startswith(b"\x80"):
        raise ValueError("pickle")
    raise ValueError("it is no archive of arrays (.npz, safetensors, or torch's .bin and .pth)")


def _read_npz(path):
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as file:
                name = entry.filename
                if name.endswith(".npy"):
                    array = np.lib.format.read_array(file, allow_pickle=False, max_header_size=_HEADER)
                else:
                    array = file.read()
                if file.read(1):  # also what has zipfile compare the checksum of the whole entry
                    raise ValueError(f"{name} holds more than its header says")
            arrays[name.removesuffix(".npy")] = array
    return arrays


def _read_safetensors(path):
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (it is no dict)
    except (SafetensorError, TypeError) as error:
        raise ValueError(str(error)) from None


def _read_torch(path):
    try:
        import torch
    except ImportError:
        raise ImportError(
            "it is a torch file, and torch is not installed; install torch, or take the safetensors file"
        ) from None
    import pickle

    with zipfile.ZipFile(path) as archive:  # torch does not compare the checksums
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} is damaged")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError("pickle") from None
    for name in ("model", "state_dict"):  # what training scripts wrap around it
        state = state.get(name, state) if isinstance(state, dict) else {}
    if not all(isinstance(key, str) for key in state):
        raise ValueError("its keys are no names")
    # A tensor may be one number that is repeated.
    declared = sum(value.numel() * value.element_size() for value in state.values())
    check_unpacked_size(declared, os.path.getsize(path))
    return {
        key: value.detach().to(torch.float32).numpy().astype(ml_dtypes.bfloat16)
        if value.dtype is torch.bfloat16
        else value.detach().numpy()
        for key, value in state.items()
    }


def _floating(path, key, array):
    if isinstance(array, np.ndarray):
        if array.dtype == np.dtype("V2"):  # as big_vision stores bfloat16
            return array.view(ml_dtypes.bfloat16)
        if array.dtype.name in FLOATS and array.dtype.isnative:
            return array
    kind = repr(array.dtype.str) if isinstance(array, np.ndarray) else type(array).__name__
    raise ValueError(
        f"{path} is no checkpoint: {key} holds {kind}; wanted floating-point arrays in this machine's "
        "byte order"
    )
