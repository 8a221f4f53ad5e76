"""A file of arrays ↔ a dict of arrays: `.npz`, safetensors and their index, `.bin`, `.pth` and msgpack.

The first bytes of a file determine its format, not its name. No code in a file is run: pickled objects
are refused, and torch's files are read by its weights-only loader.
"""

from __future__ import annotations

import os
import pathlib
import re
import warnings
import zipfile

import ml_dtypes
import numpy as np

from keras_vit.messages import listed, one_line
from keras_vit.types import Path
from keras_vit.weights.flax_files import first_entry, is_msgpack, read_msgpack, write_msgpack
from keras_vit.weights.shards import is_index, read_shards
from keras_vit.writing import atomic_path

FLOATS = ("float16", "bfloat16", "float32", "float64")
DIGEST_KEY = "keras_vit_configuration_sha256"  # of the digest of the configuration in a file of arrays
LONGEST_HEADER = 10_000  # bytes; NumPy's own bound for untrusted files
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # The others expand a byte to as much as a megabyte.
UNPACKED = 2**30  # bytes that a file of any size may declare
# What torch.compile, data parallelism and the recomputation of activations add to the names of modules.
_WRAPPERS = re.compile(r"(?<![^./])(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# Training scripts nest the weights under these; like timm, we prefer their moving averages.
_NESTED = ("state_dict_ema", "model_ema", "model", "state_dict", "model_state_dict")
EXPANSION = 20  # A larger file may declare this many times its size; weights hardly compress.


def read_arrays(path: Path, subtree: str | None = None) -> dict[str, np.ndarray]:
    """Read the arrays of a checkpoint file.

    Args:
        path: An `.npz`, safetensors or torch file, the index of several safetensors files, or Flax's msgpack.
        subtree: Read only the keys that begin with this name and a slash, and remove both from them.

    Returns:
        dict of NumPy arrays by key, with their stored dtype: float16, bfloat16, float32 or float64.

    Raises:
        ValueError: if the file is damaged, holds pickled objects, or arrays of another dtype. The
            message is one line that names the file.

    Example:
        >>> read_arrays("tests/golden/token.npz")["cls"].shape
        (1, 1, 24)
    """
    return float_arrays(load_arrays(path, subtree), path)


def load_arrays(path, subtree=None):
    """Read arrays like `read_arrays`, with any dtype."""
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy warns of headers that no checkpoint has.
            arrays = _reader(path, file.read(9))(path)
    except ImportError as error:
        raise ValueError(f"{path} cannot be read: {error}; install it, or take a safetensors file") from None
    except Exception as error:  # The readers raise many kinds for damaged files.
        reason = one_line(error) or type(error).__name__
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
        if not key.isprintable():
            raise ValueError(f"{path} is no checkpoint: it has the key {ascii(key)}")
    return arrays


def without_wrappers(arrays):
    """The arrays by their keys without what PyTorch's wrappers of modules add to them.

    Raises:
        ValueError: if a key occurs with and without these.

    Example:
        >>> without_wrappers({"_orig_mod.blocks.0._orig_mod.norm1.bias": 0})
        {'blocks.0.norm1.bias': 0}
    """
    keys = {}
    for key in arrays:
        short = _WRAPPERS.sub("", key)
        if short in keys:
            raise ValueError(f"the file holds {keys[short]} and {key}: two models, or one array twice")
        keys[short] = key
    return {short: arrays[key] for short, key in keys.items()}


def float_arrays(arrays, path):
    """Return the arrays, two raw bytes as bfloat16; raise ValueError for one that is not floating-point."""
    return {key: _floating(path, key, array) for key, array in arrays.items()}


def write_arrays(arrays, path, dtype="float32", digest=None):
    """Write arrays to an `.npz` or safetensors file atomically.

    Args:
        arrays: dict of arrays by key, or an iterable of such pairs, each of which is converted before the
            next one is asked for.
        path: File to write: an `.npz`, a `.msgpack`, or else safetensors.
        dtype: "float32", "float16", "bfloat16" or "float64". In an `.npz`, which has no bfloat16, each
            such number is stored as two raw bytes, as `big_vision` does.
        digest: Digest of the configuration in the sidecar, which `digest_in` reads. It is the comment of
            an `.npz`, an entry of safetensors' metadata, and the first of a msgpack file, which other readers
            ignore.

    Raises:
        ValueError: for a value that overflows the dtype.

    Example:
        >>> write_arrays({"a/b": np.ones(3)}, tmp / "ones.npz")
        >>> read_arrays(tmp / "ones.npz")["a/b"].dtype
        dtype('float32')
    """
    stored_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    pairs = arrays.items() if isinstance(arrays, dict) else arrays
    converted = ((key, _converted(key, array, stored_dtype)) for key, array in pairs)
    with atomic_path(path) as temporary:
        write = {".npz": _write_npz, ".msgpack": write_msgpack}.get(temporary.suffix, _write_safetensors)
        write(converted, temporary, {DIGEST_KEY: digest} if digest else {})


def _converted(key, array, kind):
    with np.errstate(over="ignore", invalid="ignore"):  # checked below, with the key; NaN is allowed
        stored = np.asarray(array).astype(kind, order="C", copy=False)
        if not np.isfinite(stored).all() and np.isfinite(array).all():
            raise ValueError(f"{key} holds values that are too large for {kind}")
    return stored


def digest_in(path):
    """Read the digest that `write_arrays` stored in a file, or None.

    Example:
        >>> write_arrays({"a": np.ones(3)}, tmp / "ones.npz", digest="0a1b")
        >>> digest_in(tmp / "ones.npz"), digest_in("tests/golden/token.npz")
        ('0a1b', None)
    """
    with open(path, "rb") as file:
        start = file.read(9)
    if is_msgpack(start):
        name, digest = first_entry(path)
        return digest if name == DIGEST_KEY else None
    if start.startswith(b"PK"):
        with zipfile.ZipFile(path) as archive:
            name, _, digest = archive.comment.decode(errors="replace").partition(" ")
        return digest if name == DIGEST_KEY else None
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return (file.metadata() or {}).get(DIGEST_KEY)


def check_unpacked_size(declared, stored):
    """Raise ValueError if a file declares more bytes than it can hold, before memory is allocated.

    Args:
        declared: Size of its contents in bytes, by its headers, shapes or configuration.
        stored: Size of the file in bytes.

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
    """Raise ValueError if a zipfile.ZipFile declares more bytes than it can hold."""
    entries = archive.infolist()
    if any(entry.compress_type not in METHODS for entry in entries):
        raise ValueError("it is compressed by a method that no writer of weights uses")
    check_unpacked_size(sum(entry.file_size for entry in entries), os.path.getsize(archive.filename))


def _write_npz(arrays, path, metadata):
    # np.savez takes keys as keyword arguments, which fails for keys such as "file".
    with zipfile.ZipFile(path, "w") as archive:
        for entry in metadata.items():
            archive.comment = " ".join(entry).encode()
        for key, array in arrays:
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                raw = array.view("V2") if array.dtype == ml_dtypes.bfloat16 else array
                np.lib.format.write_array(file, raw, allow_pickle=False)


def _write_safetensors(arrays, path, metadata):
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(dict(arrays), path, {"format": "pt", **metadata})
    except SafetensorError as error:  # for instance on a full disk
        raise OSError(str(error)) from None


def _reader(path, start):
    if start.startswith(b"PK"):  # zip
        with zipfile.ZipFile(path) as archive:
            check_zip(archive)
            names = [name.removesuffix(".npy") for name in archive.namelist()]
        if len({*names}) < len(names):
            raise ValueError("two of its entries have the same name")
        return _read_torch if any(name.endswith("/data.pkl") for name in names) else _read_npz
    if start[8:9] == b"{":  # safetensors: eight bytes with the length of a JSON header, and the header
        return _read_safetensors
    if start.startswith(b"{") and is_index(pathlib.Path(path)):
        return lambda index: read_shards(pathlib.Path(index), _read_safetensors)
    if start.startswith(b"\x80"):
        raise ValueError("pickle")
    if is_msgpack(start):
        return _read_flax
    raise ValueError("it is no archive of arrays (.npz, safetensors, torch's .bin and .pth, or msgpack)")


def _read_flax(path):
    arrays = read_msgpack(path)
    arrays.pop(DIGEST_KEY, None)
    return arrays


def _read_npz(path):
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as file:
                name = entry.filename
                if name.endswith(".npy"):
                    array = np.lib.format.read_array(file, allow_pickle=False, max_header_size=LONGEST_HEADER)
                else:
                    array = file.read()
                if file.read(1):  # At the end of the entry zipfile compares its checksum.
                    raise ValueError(f"{name} holds more than its header says")
            arrays[name.removesuffix(".npy")] = array
    return arrays


def _read_safetensors(path):
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)


def _read_torch(path):
    import torch

    with zipfile.ZipFile(path) as archive:  # torch ignores the checksums.
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} is damaged")
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name in _NESTED:
        state = state if not isinstance(state, dict) or state.get(name) is None else state[name]
    state = state if isinstance(state, dict) else {}
    if not all(isinstance(key, str) for key in state):
        raise ValueError("its keys are not strings")
    if objects := [key for key, value in state.items() if not isinstance(value, torch.Tensor)]:
        raise ValueError(
            f"expected tensors alone; got other objects as {listed(objects)}: save one state dict alone"
        )
    # An expanded tensor stores one number for many.
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
    stored_type = repr(array.dtype.str) if isinstance(array, np.ndarray) else type(array).__name__
    raise ValueError(
        f"{path} is no checkpoint: {key} holds {stored_type}; expected floating-point arrays in this "
        "machine's byte order"
    )
