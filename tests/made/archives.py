"""Hostile archives, each drawn by a number: checkpoints of every container, and SavedModels as `.tar.gz`.

A kind is a function (rng, folder) → path. KINDS says what has to become of it: "refused", "sound" (refused,
or loaded as the sound file is) or "any" (refused, or loaded with finite numbers: another valid file may come
out, as where no checksum covers the numbers).
"""

import functools
import gzip
import io
import json
import math
import os
import pathlib
import pickle
import struct
import tarfile
import tempfile
import warnings
import zipfile
import zlib

import h5py
import numpy as np
import pytest
from made.checkpoints import base
from reference.small import small
from safetensors.numpy import save

CANARY = pathlib.Path(tempfile.gettempdir()) / f"keras-vit-canary-{os.getpid()}"
TORCH, NPZ = "timm_mu", "token_mu"  # bases that need no arguments
HUGE = (2**31, 2**40, 2**50, 2**62, 2**63 - 1)


class Runs:
    """An object whose unpickling writes a file."""

    def __init__(self, how):
        self.how = how

    def __reduce__(self):
        command = f"touch {CANARY}"
        ways = [(os.system, (command,)), (open, (str(CANARY), "w")), (exec, (f"open({str(CANARY)!r}, 'w')",))]
        return ways[self.how % len(ways)]


def chosen(rng, options):
    return options[rng.integers(len(options))]


@functools.cache
def sound(container):
    """The bytes of a file that loads."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if container == "keras":
            small().save(folder / "model.keras")
            return (folder / "model.keras").read_bytes()
        if container == "tar.gz":
            return _packed([(tarfile.TarInfo(name), content) for name, content in PARTS.items()])
        if container == "pth":
            return _torch(_tensors())
        return base({"npz": NPZ, "safetensors": TORCH}[container]).write(folder).read_bytes()


def at(folder, container, content):
    path = folder / f"model.{container}"
    path.write_bytes(content)
    return path


# Of any container -----------------------------------------------------------------------------------


def _cut(container):
    def cut(rng, folder):
        content = sound(container)
        return at(folder, container, content[: rng.integers(len(content))])

    return cut


def _flipped(container):
    def flipped(rng, folder):
        content = bytearray(sound(container))
        start, stop = chosen(rng, [(0, 64), (0, len(content)), (len(content) - 256, len(content))])
        for place in rng.integers(start, stop, rng.integers(1, 6)):
            content[place] ^= 1 << rng.integers(8)
        return at(folder, container, bytes(content))

    return flipped


def _filled(container):
    """A run of bytes overwritten, left out or put in."""

    def filled(rng, folder):
        content = sound(container)
        start = int(rng.integers(len(content)))
        size = int(rng.integers(1, 64))
        put = chosen(rng, [b"", b"\0" * size, b"\xff" * size, rng.bytes(size), content[:size] * 2])
        return at(folder, container, content[:start] + put + content[start + size :])

    return filled


# .npz -----------------------------------------------------------------------------------------------


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def npz(entries, method=zipfile.ZIP_STORED):
    """A zip of (name, content); names may be given twice."""
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", method) as archive:
        warnings.simplefilter("ignore")  # of a name that is given twice
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return file.getvalue()


def _entries():
    return [(f"{key}.npy", npy(array)) for key, array in base(NPZ).arrays.items()]


def zip_method(rng, folder):
    """One entry by a method that packs a million bytes in one."""
    file = io.BytesIO()
    which = rng.integers(len(_entries()))
    with zipfile.ZipFile(file, "w") as archive:
        for i, (name, content) in enumerate(_entries()):
            method = chosen(rng, [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]) if i == which else zipfile.ZIP_STORED
            content += bytes((1 << 24) * int(i == which and rng.integers(2)))
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return at(folder, "npz", file.getvalue())


def zip_sizes(rng, folder):
    """Declared sizes of an entry that are not so, in the directory, in front of the entry or in both."""
    content = bytearray(sound("npz"))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        info, start = chosen(rng, archive.infolist()), archive.start_dir
    central = content.index(info.filename.encode(), start) - 46
    size = struct.pack("<I", int(chosen(rng, [0, 1, 2**20, 2**31, 2**32 - 2, 2**32 - 1])))
    for place in chosen(rng, [[central + 24], [central + 20], [central + 20, central + 24]]):
        content[place : place + 4] = size
    return at(folder, "npz", bytes(content))


def zip_bomb(rng, folder):
    """An array of zeros that takes a thousandth of its size, made without packing all of it."""
    size = int(chosen(rng, [2, 3, 8])) << 30
    header = npy(np.zeros(0, "float32")).replace(b"(0,)", f"({size // 4},)".encode())
    return at(folder, "npz", _bomb_zip(f"{chosen(rng, ['extra', 'cls'])}.npy", header[:128], size))


def _bomb_zip(name, start, size):
    """A zip of one entry: `start`, and then so many zeros, a MiB of them packed once."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    packed = first + block * (size >> 20) + packer.flush()
    name = name.encode()
    whole = len(start) + size
    extra = struct.pack("<HHQQ", 1, 16, whole, len(packed))
    sizes = struct.pack("<III", 0, 2**32 - 1, 2**32 - 1)
    local = b"PK\x03\x04" + struct.pack("<5H", 45, 0, 8, 0, 33) + sizes
    local += struct.pack("<HH", len(name), len(extra)) + name + extra
    central = b"PK\x01\x02" + struct.pack("<6H", 45, 45, 0, 8, 0, 33) + sizes
    central += struct.pack("<5HII", len(name), len(extra), 0, 0, 0, 0, 0) + name + extra
    end = b"PK\x05\x06" + struct.pack("<4HIIH", 0, 0, 1, 1, len(central), len(local) + len(packed), 0)
    return local + packed + central + end


def npy_header(rng, folder):
    """An array's header that is too large, no header, or an expression."""
    key = chosen(rng, [*base(NPZ).arrays])
    array = base(NPZ).arrays[key]
    shape, huge = array.shape, int(chosen(rng, HUGE))
    wrong = [
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({huge},)}}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({huge}, {huge})}}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({huge}, 0)}}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': (-1, {array.size})}}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': {10**400}}}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'1,' * 200})}}",
        f"{{'descr': '<f4', 'fortran_order': None, 'shape': {shape}}}",
        f"{{'descr': '|O', 'fortran_order': False, 'shape': {shape}}}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, 'more': 1}}",
        f"{{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': {shape}}}",
        f"{{'descr': '<f{huge}', 'fortran_order': False, 'shape': {shape}}}",
        f"{{'descr': '<U{huge}', 'fortran_order': False, 'shape': {shape}}}",
        f"{{'descr': '|V0', 'fortran_order': False, 'shape': ({huge},)}}",
        f"__import__('os').system('touch {CANARY}')",
        "(" * 5000,
        "[" * 90 + "]" * 90,
        "{" + "'a': 1, " * 2000 + "}",
        "\0" * 100,
    ]
    text = (chosen(rng, wrong) + "\n").encode()
    version = chosen(rng, [(1, 0), (1, 0), (2, 0), (3, 0), (9, 9)])
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    made = b"\x93NUMPY" + bytes(version) + length + text + array.tobytes()
    return at(folder, "npz", npz([(n, made if n == f"{key}.npy" else c) for n, c in _entries()]))


def zip_names(rng, folder):
    """Names that leave the folder, are there twice, or are no names."""
    entries = _entries()
    name, content = chosen(rng, entries)
    wrong = ["../../canary.npy", f"{CANARY}", "C:\\a.npy", "a\n.npy", "\x1b[31m.npy", ".npy", "a" * 60_000]
    wrong += [name, name.removesuffix(".npy"), name + ".npy", "cls/", "data.pkl", "a/data.pkl", "model.json"]
    return at(folder, "npz", npz([*entries, (chosen(rng, wrong), content)]))


def zip_many(rng, folder):
    """Very many entries."""
    empty = npy(np.zeros(0, "float32"))
    return at(folder, "npz", npz([*_entries(), *((f"a/{i}.npy", empty) for i in range(5000))]))


def values(rng, folder):
    """Numbers that are none, or none in float32."""
    arrays = {key: array.astype("float64") for key, array in base(NPZ).arrays.items()}
    array = arrays[chosen(rng, [*arrays])]
    array.reshape(-1)[rng.integers(array.size)] = chosen(rng, [math.nan, math.inf, -math.inf, 1e39, -1e300])
    file = io.BytesIO()
    np.savez(file, **arrays)
    return at(folder, "npz", file.getvalue())


def ranks(rng, folder):
    """An array without axes, with very many, or without numbers, of some type."""
    arrays = dict(base(NPZ).arrays)
    key = chosen(rng, [*arrays])
    shape = chosen(rng, [(), (0,), (1,) * 60, (0, 2**40), (2**20, 0, 2**20)])
    arrays[key] = np.zeros(shape, chosen(rng, ["float32", "float16", "float64", "V2", "int8", "bool"]))
    file = io.BytesIO()
    np.savez(file, **arrays)
    return at(folder, "npz", file.getvalue())


def tall(rng, folder):
    """A few rows that ask for a model much larger than they are."""
    arrays = dict(base(NPZ).arrays)
    key = chosen(rng, ["head/bias", "head/kernel", "cls", "embedding/bias", "embedding/kernel"])
    axis = rng.integers(arrays[key].ndim)
    shape = [*arrays[key].shape]
    shape[axis] = 2**24
    size = math.prod(shape) * 2
    header = str({"descr": "<f2", "fortran_order": False, "shape": tuple(shape)}).encode() + b"\n"
    start = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header
    if size < 2**30:  # it has what it declares
        return at(
            folder, "npz", npz([*_entries(), (f"{key}.npy", start + bytes(size))], zipfile.ZIP_DEFLATED)
        )
    return at(folder, "npz", _bomb_zip(f"{key}.npy", start, size))


def pickled(rng, folder):
    """Objects that run code, in an array, alone, or in torch's containers."""
    how = int(rng.integers(30))
    evil = Runs(how)
    contents = {
        "npz": lambda: npz([*_entries(), ("a.npy", npy(np.array([evil], object)))]),
        "npy": lambda: npy(np.array([evil], object)),
        "bin": lambda: pickle.dumps({"head.weight": evil}, protocol=how % 6),
        "pth": lambda: _torch({"head.weight": evil}),
        "pt": lambda: _torch({"head.weight": evil}, _use_new_zipfile_serialization=False),
        "tar": lambda: _torch({"model": {**_tensors(), "more": [evil]}}),
        "safetensors": lambda: pickle.dumps(evil),
        "keras": lambda: pickle.dumps(evil),
    }
    container = chosen(rng, [*contents])
    return at(folder, container, contents[container]())


# safetensors ----------------------------------------------------------------------------------------


def _safetensors(header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensors_header(rng, folder):
    content = sound("safetensors")
    (length,) = struct.unpack_from("<Q", content)
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    key = chosen(rng, [k for k in header if k != "__metadata__"])
    entry, huge = header[key], int(chosen(rng, HUGE))
    start, end = entry["data_offsets"]
    text = content[8 : 8 + length]
    how = rng.integers(14)
    if how == 0:
        made = _safetensors(text, data, huge)
    elif how == 1:
        made = _safetensors(b"{" * 50_000, data)
    elif how == 2:
        made = _safetensors(text[:-1] + b", " + text[1:], data)  # each key twice
    elif how == 3:
        made = _safetensors(text + b" " * chosen(rng, [1, 10**6, 9 * 10**7]), data)
    else:
        entry.update(
            [
                {"shape": [huge, huge]},
                {"shape": [huge, 0], "data_offsets": [start, start]},
                {"shape": [2**32, 2**32]},
                {"shape": [-1]},
                {"shape": [1.5]},
                {"shape": [10**400]},
                {"dtype": chosen(rng, ["BOOL", "I64", "F4", "F8_E4M3", "F128", 3, None])},
                {"data_offsets": [start, huge]},
                {"data_offsets": [0, end - start]},
                {"data_offsets": [end, start]},
            ][how - 4]
        )
        made = _safetensors(header, data)
    return at(folder, "safetensors", made)


def tensors_names(rng, folder):
    """Names beside the model's, of several lines or very long, or metadata of another kind."""
    arrays = dict(base(TORCH).arrays)
    arrays[chosen(rng, ["a\nb", "\x1b[2J", "", "../x", "a" * 10**6, "\u202e", "head.weight\0"])] = np.zeros(
        3, "f4"
    )
    return at(folder, "safetensors", save(arrays))


def tensors_values(rng, folder):
    arrays = {key: array.copy() for key, array in base(TORCH).arrays.items()}
    array = arrays[chosen(rng, [*arrays])]
    array.reshape(-1)[rng.integers(array.size)] = chosen(rng, [math.nan, math.inf, -math.inf])
    return at(folder, "safetensors", save(arrays))


# torch ----------------------------------------------------------------------------------------------


def _tensors():
    torch = pytest.importorskip("torch")
    return {key: torch.from_numpy(array.copy()) for key, array in base(TORCH).arrays.items()}


def _torch(state, **options):
    file = io.BytesIO()
    pytest.importorskip("torch").save(state, file, **options)
    return file.getvalue()


def torch_forms(rng, folder):
    """Tensors that declare more than they hold, of other kinds, under names of other kinds."""
    torch, state = pytest.importorskip("torch"), _tensors()
    key = chosen(rng, [*state])
    tensor = state[key]
    huge = (2**36, *tensor.shape[1:])
    deep = state
    for _ in range(200):
        deep = {"model": deep}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tensors that torch will not have any more
        forms = [
            {**state, key: torch.zeros(1).expand(2**36)},
            {**state, key: torch.zeros(1).expand(huge)},
            {**state, key: torch.zeros((), dtype=torch.float16).expand(huge)},
            {**state, key: torch.empty(huge, device="meta")},
            {**state, key: tensor.to_sparse()},
            {**state, key: torch.sparse_coo_tensor(torch.zeros((1, 1), dtype=int), torch.zeros(1), (2**40,))},
            {**state, key: tensor.to(torch.complex64)},
            {**state, key: tensor.to(torch.int64)},
            {**state, key: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)},
            {**state, key: torch.full_like(tensor, math.nan)},
            {**state, key: tensor.double() * 1e300},
            {**state, key: tensor.tolist()},
            {**state, key: None},
            {**state, key: "text"},
            {**state, 3: tensor},
            {**state, None: tensor},
            {**state, ("a", "b"): tensor},
            [*state.values()],
            tensor,
            deep,
            {"model": None},
            {"model": [], "state_dict": state},
            {},
            None,
        ]
    return at(folder, "pth", _torch(chosen(rng, forms)))


def torch_sizes(rng, folder):
    """A storage that is said to be larger than its entry."""
    content = io.BytesIO(sound("pth"))
    made = io.BytesIO()
    with zipfile.ZipFile(content) as archive, zipfile.ZipFile(made, "w") as out:
        for info in archive.infolist():
            data = archive.read(info)
            if info.filename.endswith("data.pkl"):
                size = base(TORCH).arrays["head.weight"].size
                small_size = b"M" + struct.pack("<H", size) if size > 255 else b"K" + bytes([size])
                data = data.replace(small_size, b"\x8a\x08" + struct.pack("<q", int(chosen(rng, HUGE))))
            out.writestr(info.filename, data)
    return at(folder, "pth", made.getvalue())


# .keras ---------------------------------------------------------------------------------------------


def _keras(changes, extra=()):
    """The sound `.keras` file with other contents of members."""
    with zipfile.ZipFile(io.BytesIO(sound("keras"))) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | changes
    return npz([*((name, content) for name, content in members.items() if content is not None), *extra])


def _weights():
    with zipfile.ZipFile(io.BytesIO(sound("keras"))) as archive:
        return archive.read("model.weights.h5")


def keras_weights(rng, folder):
    """HDF5 that refers elsewhere, declares more than it holds, or is of another kind."""
    file = io.BytesIO(_weights())
    secret = folder / "secret"
    secret.write_bytes(bytes(10_000))
    with h5py.File(file, "r+") as h5:
        names = []
        h5.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        name = chosen(rng, names)
        shape, values, parent = h5[name].shape, h5[name][...], h5[name].parent
        del h5[name]
        how = rng.integers(16)
        if how == 0:
            h5.create_dataset(name, shape, "f4", external=[(str(secret), 0, 4 * values.size)])
        elif how == 1:
            h5[name] = h5py.ExternalLink(str(secret), "x")
        elif how == 2:
            h5[name] = h5py.SoftLink(f"/{name}")  # to itself
        elif how == 3:
            h5[name] = h5py.SoftLink("/nowhere")
        elif how == 4:
            h5.create_dataset(name, (2**36,), "f4", chunks=(1024,))
        elif how == 5:
            h5.create_dataset(name, (2**20, *shape), "f4", chunks=(1, *shape))
        elif how == 6:
            h5.create_dataset(name, shape, h5py.string_dtype())
        elif how == 7:
            h5.create_dataset(name, shape, np.dtype([("a", "f4"), ("b", "f4")]))
        elif how == 8:
            h5.create_dataset(name, data=np.full(shape, chosen(rng, [math.nan, math.inf]), "f4"))
        elif how == 9:
            h5.create_dataset(name, data=np.full(shape, 1e300))
        elif how == 10:
            h5.create_group(name)
        elif how == 11:
            h5[name] = parent  # a group that holds itself
        elif how == 12:
            h5.create_dataset(name, data=values.T if values.ndim > 1 else values[:-1])
        elif how == 13:
            layout = h5py.VirtualLayout(shape, "f4")
            layout[...] = h5py.VirtualSource(str(secret), "x", shape)
            h5.create_virtual_dataset(name, layout)
        elif how == 14:
            h5.create_dataset(name, data=values[()] if values.ndim == 0 else np.float32(0))
        else:
            h5.create_dataset(name, (2**34,), "f4", chunks=(2**20,), compression="gzip")
    return at(folder, "keras", _keras({"model.weights.h5": file.getvalue()}))


def keras_weights_damaged(rng, folder):
    """HDF5 with other bytes, under a right checksum."""
    content = bytearray(_weights())
    if rng.integers(3) == 0:
        content = content[: rng.integers(len(content))]
    else:
        for place in rng.integers(0, chosen(rng, [200, 4000, len(content)]), rng.integers(1, 9)):
            content[place] ^= 1 << rng.integers(8)
    return at(folder, "keras", _keras({"model.weights.h5": bytes(content)}))


def keras_members(rng, folder):
    """Members that are missing, twice, elsewhere or much larger than the file."""
    big = b"\0" * (1 << 20)
    made = [
        lambda: _keras({"model.weights.h5": None}),
        lambda: _keras({"config.json": None}),
        lambda: _keras({"model.weights.h5": None}, [("model.weights.npz", npz(_entries()))]),
        lambda: _keras({"model.weights.h5": None}, [("model.weights.json", b"{}")]),
        lambda: _keras({}, [("config.json", b"{}")]),
        lambda: _bomb_zip("model.weights.h5", b"", 4 << 30),
        lambda: _bomb_zip("config.json", b"{", 4 << 30),
        lambda: _keras({}, [("config.json/x", big)]),
        lambda: _keras({"metadata.json": b"[" * 100_000}),
    ]
    return at(folder, "keras", chosen(rng, made)())


def keras_extras(rng, folder):
    """Members beside the model's, which a reader might unpack."""
    names = ["../../canary", str(CANARY), "assets/../../../canary", "assets/x", "a\n", "assets/head/0"]
    return at(folder, "keras", _keras({}, [(chosen(rng, names), b"1")]))


def keras_classes(rng, folder):
    """A configuration that names a class or function that could run code."""
    with zipfile.ZipFile(io.BytesIO(sound("keras"))) as archive:
        config = json.loads(archive.read("config.json"))
    code = {
        **{"module": "builtins", "class_name": "function", "registered_name": "function"},
        "config": chosen(rng, ["exec", "os.system", f"open({str(CANARY)!r}, 'w')"]),
    }
    function = {"class_name": "__lambda__", "config": {"value": ["4wAAAAA=", None, None]}}
    layer = {"module": "keras.layers", "class_name": "Lambda", "config": {"function": function}}
    foreign = {"module": "os", "class_name": "system", "config": {"command": f"touch {CANARY}"}}
    call = {"module": "subprocess", "class_name": "Popen", "config": {"args": ["touch", str(CANARY)]}}
    evil = chosen(
        rng, [code, layer, foreign, call, {"class_name": "__tensor__", "config": {"value": [1] * 9}}]
    )
    how = rng.integers(6)
    if how == 0:
        config = evil
    elif how == 1:
        config = {**config, **{k: v for k, v in evil.items() if k != "registered_name"}}
    elif how == 2:
        config["config"] = {**config["config"], chosen(rng, [*config["config"]]): evil}
    elif how == 3:
        config["build_config"] = evil
    elif how == 4:
        config["compile_config"] = {"optimizer": evil, "loss": evil}
    else:
        config["config"]["dtype"] = evil
    return at(folder, "keras", _keras({"config.json": json.dumps(config)}))


# .tar.gz --------------------------------------------------------------------------------------------

PARTS = {
    "saved_model.pb": b"a graph" * 99,
    "variables/variables.index": b"i" * 9,
    "assets/labels.txt": b"a\n",
}


def _packed(entries, format=tarfile.GNU_FORMAT, level=6):
    """A `.tar.gz` of (TarInfo, content)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        for info, content in entries:
            if content is not None:
                info.size = len(content)
            tar.addfile(info, None if content is None else io.BytesIO(content))
    return gzip.compress(file.getvalue(), level, mtime=0)


def entry(name, kind=tarfile.REGTYPE, size=0, link="", pax=()):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.pax_headers = kind, size, link, dict(pax)
    return info


def _sound_entries():
    return [(tarfile.TarInfo(name), content) for name, content in PARTS.items()]


def tar_kinds(rng, folder):
    """Links, pipes, devices, and kinds that there are not."""
    targets = [str(CANARY), "../../canary", "saved_model.pb", "/etc/passwd", "/dev/zero", "link"]
    kinds = [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]
    kind = chosen(rng, [*kinds, tarfile.GNUTYPE_SPARSE])
    evil = entry(chosen(rng, ["link", "assets/link", "variables"]), kind, link=chosen(rng, targets))
    evil.devmajor, evil.devminor = 1, 5
    through = [(tarfile.TarInfo("link/x"), b"1")] * int(rng.integers(2))
    return at(folder, "tar.gz", _packed([(evil, None), *through, *_sound_entries()]))


def tar_names(rng, folder):
    """Names that leave the folder or are files and folders at once."""
    names = [
        "../canary",
        "assets/../../canary",
        str(CANARY),
        "C:\\x",
        "..\\canary",
        "/",
        "..",
        "saved_model.pb",
    ]
    names += ["saved_model.pb/x", "assets/labels.txt/x", "a\0b", "a:b", "./../x"]
    evil = (tarfile.TarInfo(chosen(rng, names)), b"1")
    format = chosen(rng, [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    where = [[evil, *_sound_entries()], [*_sound_entries(), evil]]
    return at(folder, "tar.gz", _packed(chosen(rng, where), format))


def tar_long_names(rng, folder):
    """Names of a length or depth that no file system takes."""
    names = ["a" * 300, "a" * 10**5, "a/" * 3000 + "x", "a/" * 60 + "x" * 300]
    evil = (tarfile.TarInfo(chosen(rng, names)), b"1")
    return at(folder, "tar.gz", _packed([*_sound_entries(), evil], tarfile.PAX_FORMAT))


def tar_sizes(rng, folder):
    """An entry that declares more than follows."""
    size = int(chosen(rng, [2**30 + 1, *HUGE]))
    if rng.integers(2):
        evil = entry("variables/variables.data", size=size)
        content = _packed([*_sound_entries(), (evil, None)])
    else:
        evil = entry(
            "variables/variables.data", pax={"size": chosen(rng, [str(size), "-1", str(-size), "9" * 400])}
        )
        content = _packed([*_sound_entries(), (evil, None)], tarfile.PAX_FORMAT)
    return at(folder, "tar.gz", content)


def tar_sparse(rng, folder):
    """Files of holes: a few bytes that become gigabytes, in the formats that tar has for them."""
    size = int(chosen(rng, [3 << 30, 2**40, 2**50, 2**62]))
    how = rng.integers(4)
    name = chosen(rng, ["saved_model.pb", "variables/variables.data"])
    if how == 0:
        evil = entry(name, pax={"GNU.sparse.map": "0,0", "GNU.sparse.size": str(size)})
    elif how == 1:
        evil = entry(
            name, pax={"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(size)}
        )
        evil.pax_headers |= {"GNU.sparse.map": f"{size - 1},1", "GNU.sparse.name": name}
    elif how == 2:
        evil = entry(name, pax={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})
        evil.pax_headers |= {"GNU.sparse.realsize": str(size), "GNU.sparse.name": name}
        file = f"1\n{size - 1}\n1\n".encode().ljust(512, b"\0") + b"x"
        return at(folder, "tar.gz", _packed([(evil, file), *_sound_entries()], tarfile.PAX_FORMAT))
    else:
        block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT))
        block[156:157] = tarfile.GNUTYPE_SPARSE
        block[386:398] = b"00000000000\0"
        block[483:495] = b"%011o\0" % min(size, 8**11 - 1)
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        return at(folder, "tar.gz", gzip.compress(bytes(block) + bytes(10240), mtime=0))
    return at(folder, "tar.gz", _packed([(evil, b"x"), *_sound_entries()], tarfile.PAX_FORMAT))


def tar_bomb(rng, folder):
    """Zeros that take a thousandth of their size: a file's, a name's, a header's, or after the end."""
    size = int(chosen(rng, [2, 8])) << 30
    kind = chosen(rng, [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE, None])
    start = _headers([*_sound_entries()])
    if kind is not None:
        start += entry("variables/variables.data", kind, size).tobuf(tarfile.GNU_FORMAT)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return at(folder, "tar.gz", first + block * (size >> 20) + packer.flush())


def _headers(entries):
    """The entries as in a tar that is not at its end."""
    return b"".join(
        info.tobuf() + content + bytes(-len(content) % 512)
        for info, content in ((entry(i.name, size=len(c)), c) for i, c in entries)
    )


def tar_many(rng, folder):
    """Very many entries."""
    kind = chosen(rng, [tarfile.DIRTYPE, tarfile.REGTYPE])
    many = [(entry(f"assets/{i}", kind), None) for i in range(20_000)]
    return at(folder, "tar.gz", _packed([*_sound_entries(), *many], level=1))


def tar_without(rng, folder):
    """An archive that holds no SavedModel, or is none."""
    made = [
        lambda: _packed([]),
        lambda: _packed(_sound_entries()[1:]),
        lambda: _packed([(entry("saved_model.pb", tarfile.DIRTYPE), None)]),
        lambda: _packed([(entry("model/saved_model.pb"), b"1")]),
        lambda: gzip.compress(b""),
        lambda: gzip.compress(rng.bytes(3000)),
        lambda: b"",
        lambda: sound("npz"),
        lambda: gzip.compress(sound("tar.gz")),
        lambda: sound("tar.gz")[:-8] + bytes(8),
        lambda: sound("tar.gz") + b"and more",
    ]
    return at(folder, "tar.gz", chosen(rng, made)())


# kind → (what has to become of it, how many)
KINDS = {
    **{_cut("npz"): ("refused", 15), _flipped("npz"): ("sound", 20), _filled("npz"): ("sound", 20)},
    **{zip_method: ("refused", 8), zip_sizes: ("sound", 15), zip_bomb: ("refused", 3), tall: ("refused", 8)},
    **{npy_header: ("refused", 30), zip_names: ("refused", 16), zip_many: ("refused", 1)},
    **{values: ("refused", 10), ranks: ("refused", 20), pickled: ("refused", 30)},
    **{_cut("safetensors"): ("refused", 15), _flipped("safetensors"): ("any", 20)},
    **{_filled("safetensors"): ("any", 20), tensors_header: ("sound", 30), tensors_names: ("refused", 8)},
    **{tensors_values: ("refused", 6), torch_forms: ("refused", 36), torch_sizes: ("refused", 6)},
    **{_cut("pth"): ("refused", 15), _flipped("pth"): ("sound", 20), _filled("pth"): ("sound", 20)},
    **{_cut("keras"): ("refused", 15), _flipped("keras"): ("sound", 20), _filled("keras"): ("sound", 20)},
    **{keras_weights: ("refused", 32), keras_weights_damaged: ("any", 40), keras_members: ("sound", 14)},
    **{keras_extras: ("sound", 8), keras_classes: ("sound", 30)},
    **{_cut("tar.gz"): ("refused", 12), _flipped("tar.gz"): ("sound", 16), _filled("tar.gz"): ("sound", 12)},
    **{tar_kinds: ("refused", 24), tar_names: ("refused", 18), tar_long_names: ("refused", 4)},
    **{tar_sizes: ("refused", 10), tar_sparse: ("refused", 12), tar_bomb: ("refused", 8)},
    **{tar_many: ("refused", 2), tar_without: ("refused", 14)},
}
CASES = [(kind, wanted) for kind, (wanted, count) in KINDS.items() for _ in range(count)]
