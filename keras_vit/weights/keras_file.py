"""The weights in a `.keras` file, read one after another: a large model is not in memory twice."""

import contextlib
import io
import os
import struct
import zipfile
from collections import UserDict

import h5py
import keras
from keras.src.backend.common import global_state  # not public, as what follows
from keras.src.saving import saving_lib, serialization_lib

from keras_vit.weights.array_files import check_unpacked_size

WEIGHTS = "model.weights.h5"
_CHUNK = 1 << 20  # bytes


class StoredArrays(UserDict):
    """Arrays by name that stay in a file until they are asked for, and others that replace them.

    Args:
        places: dict from names to (group, name of a dataset) in the file.
        store: Keras's `H5IOStore`.
    """

    def __init__(self, places, store):
        super().__init__(places)
        self._store = store

    def __getitem__(self, name):
        value = self.data[name]
        return self._store.get(value[0])[value[1]] if isinstance(value, tuple) else value


class _Archive:
    """A zipfile.ZipFile whose stored entries can be read in any order, as h5py does, at no cost."""

    def __init__(self, path):
        self.path = path

    def open(self, name, mode):
        with zipfile.ZipFile(self.path) as archive:
            entry = archive.getinfo(name)
            with archive.open(entry) as file:
                if entry.compress_type != zipfile.ZIP_STORED:
                    return io.BytesIO(file.read())
                while file.read(_CHUNK):  # At the end zipfile compares the checksum.
                    pass
        return io.BufferedReader(_Entry(self.path, entry))


class _Entry(io.RawIOBase):
    """The bytes of a stored entry of an archive."""

    def __init__(self, path, entry):
        self._file, self._size, self._at = open(path, "rb"), entry.file_size, 0  # noqa: SIM115
        self._file.seek(entry.header_offset + 26)  # of the lengths of the entry's own name and extra field
        name, extra = struct.unpack("<HH", self._file.read(4))
        self._start = entry.header_offset + 30 + name + extra

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=os.SEEK_SET):
        self._at = max(0, {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence] + offset)
        return self._at

    def readinto(self, buffer):
        size = max(0, min(len(buffer), self._size - self._at))
        self._file.seek(self._start + self._at)
        count = self._file.readinto(memoryview(buffer)[:size])
        self._at += count
        return count

    def close(self):
        self._file.close()
        super().close()


class _Places(saving_lib.H5IOStore):
    """Where Keras would write each variable of a model."""

    def __init__(self):
        self.group, self.places = None, {}

    def __bool__(self):
        return True

    def make(self, path, metadata=None):
        self.group = path
        return self

    def __setitem__(self, key, value):
        self.places[id(value)] = (self.group, key)


def opened(path):
    """Keras's store of the weights of a `.keras` file, and the paths of its arrays, which are bounded.

    Raises:
        ValueError: if they are no numbers, declare more bytes than the archive can hold, or its checksum is
            wrong.
    """
    store, sizes = saving_lib.H5IOStore(WEIGHTS, archive=_Archive(path)), {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            if item.dtype.names or item.dtype.kind not in "fiubV":
                raise ValueError(f"expected numbers in {name}; got {item.dtype}")
            sizes[name] = item.nbytes

    store.h5_file.visititems(visit)
    check_unpacked_size(sum(sizes.values()), os.path.getsize(path))
    return store, [name for name in sizes if name.startswith(("layers/", "vars/"))]


def model_of(path):
    """The model of the configuration in a `.keras` file, with initial values and not compiled.

    It is safe even after `keras.config.enable_unsafe_deserialization()`.
    """
    with zipfile.ZipFile(path) as archive, serialization_lib.SafeModeScope(True):
        return saving_lib._model_from_config(archive.read("config.json"), None, False, True)


def assign_weights(model, store):
    """Assign the weights of a file to a model, variable by variable."""
    failed, messages = set(), {}
    saving_lib._load_state(
        model,
        weights_store=store,
        assets_store=None,
        inner_path="",
        visited_saveables=set(),
        failed_saveables=failed,
        error_msgs=messages,
    )
    if failed:
        saving_lib._raise_loading_failure(messages)


@contextlib.contextmanager
def without_values():
    """A context in which models have variables without values, and so take no memory."""
    waiting = [*global_state.get_global_attribute("uninitialized_variables", [])]
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        global_state.set_global_attribute("uninitialized_variables", waiting)


def stored_arrays(whole, model, store, names):
    """The arrays of a model's variables in a file, as `StoredArrays` by the variables' paths.

    Args:
        whole: The model in the file, perhaps of `without_values`.
        model: It, or a model in it.
        store, names: As for `opened`.

    Returns:
        StoredArrays; None unless the file holds exactly the variables of the model with their shapes.
    """
    recorder = _Places()
    saving_lib._save_state(
        whole, weights_store=recorder, assets_store=None, inner_path="", visited_saveables=set()
    )
    variables = {id(variable): variable for variable in whole.variables}
    expected = {
        f"{group}/vars/{key}".lstrip("/"): tuple(variables[number].shape) if number in variables else None
        for number, (group, key) in recorder.places.items()
    }
    if {name: store.h5_file[name].shape for name in names} != expected:
        return None
    places = {weight.path: recorder.places[id(weight)] for weight in model.weights if "float" in weight.dtype}
    return StoredArrays(places, store)
