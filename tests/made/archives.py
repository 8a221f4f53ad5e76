"""Hostile archives, sampled by a seed: checkpoints in each container, and SavedModels as `.tar.gz`.

`@kind(container, expected, count)` registers a function from a NumPy generator to the bytes of a file.
`expected` is "refused", "sound" (refused, or read as the sound file is), or "any" (refused, or read with
finite outputs: where no checksum covers the values, a changed file can be another valid one).
"""

import functools
import gzip
import io
import json
import math
import os
import pathlib
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
from made.damage import damaged
from reference.small import small

CANARY = pathlib.Path(tempfile.gettempdir()) / f"keras-vit-canary-{os.getpid()}"  # written by code in a file
TORCH, NPZ = "timm_mu", "token_mu"  # bases that need no arguments
HUGE = (2**31, 2**40, 2**50, 2**62, 2**63 - 1)
SAVED_MODEL = {
    "saved_model.pb": b"a graph" * 99,
    "variables/variables.index": b"i" * 9,
    "assets/labels.txt": b"a\n",
}
CASES = []  # (function, container, expected)


def kind(container, expected, count):
    def register(function):
        CASES.extend([(function, container, expected)] * count)
        return function

    return register


def chosen(rng, options):
    return options[rng.integers(len(options))]


@functools.cache
def sound(container):
    """The bytes of a file that is accepted."""
    if container == "tar.gz":
        return tar(sound_entries())
    if container == "pth":
        return torch_file(tensors())
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if container != "keras":
            return base({"npz": NPZ, "safetensors": TORCH}[container]).write(folder).read_bytes()
        small().save(folder / "model.keras")
        return (folder / "model.keras").read_bytes()


# Any container ---------------------------------------------------------------------------------------


def damages(container, expected):
    @kind(container, "refused", 15)
    def cut(rng):
        return sound(container)[: rng.integers(len(sound(container)))]

    @kind(container, expected, 40)
    def changed(rng):
        """From the start of the file, or from its end, where a zip has its directory."""
        step = chosen(rng, [1, -1])
        return damaged(sound(container)[::step], rng)[::step]


for _container in ("npz", "safetensors", "pth", "keras", "tar.gz"):
    damages(_container, "any" if _container == "safetensors" else "sound")


# .npz ------------------------------------------------------------------------------------------------


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def zipped(entries, method=zipfile.ZIP_STORED):
    """A zip of (name, content); a name may occur twice."""
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", method) as archive:
        warnings.simplefilter("ignore")  # duplicate names
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return file.getvalue()


def rezipped(path, method=zipfile.ZIP_STORED, **changes):
    """Write a zip again with other contents of some entries; None leaves one out. Return the path."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()} | changes
    kept = [(name, content) for name, content in contents.items() if content is not None]
    path.write_bytes(zipped(kept, method))
    return path


def deflated(start, size, wbits=-15):
    """`start` and then a number of zeros, compressed one megabyte at a time."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + block * (size >> 20) + packer.flush()


def zip_of_zeros(name, start, size):
    """A zip64 of one entry of `start` and then a number of zeros."""
    packed, name = deflated(start, size), name.encode()
    extra = struct.pack("<HHQQ", 1, 16, len(start) + size, len(packed))
    sizes = struct.pack("<III", 0, 2**32 - 1, 2**32 - 1)
    local = b"PK\x03\x04" + struct.pack("<5H", 45, 0, 8, 0, 33) + sizes
    local += struct.pack("<HH", len(name), len(extra)) + name + extra
    central = b"PK\x01\x02" + struct.pack("<6H", 45, 45, 0, 8, 0, 33) + sizes
    central += struct.pack("<5HII", len(name), len(extra), 0, 0, 0, 0, 0) + name + extra
    end = b"PK\x05\x06" + struct.pack("<4HIIH", 0, 0, 1, 1, len(central), len(local) + len(packed), 0)
    return local + packed + central + end


@kind("npz", "refused", 6)
def zip_bomb(rng):
    """A few bytes that become gigabytes of one array."""
    shape = chosen(rng, [(2**29,), (2**31,), (2**24, 64)])
    header = str({"descr": "<f4", "fortran_order": False, "shape": shape}).encode() + b"\n"
    start = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header
    return zip_of_zeros(f"{chosen(rng, ['extra', 'cls', 'head/kernel'])}.npy", start, 4 * math.prod(shape))


@kind("npz", "refused", 6)
def tall(rng):
    """An array with so many rows that the model would be much larger than the file."""
    key = chosen(rng, ["head/bias", "head/kernel", "cls", "embedding/bias", "embedding/kernel"])
    shape = [*base(NPZ).arrays[key].shape]
    shape[rng.integers(len(shape))] = 2**22
    header = str({"descr": "<f2", "fortran_order": False, "shape": tuple(shape)}).encode() + b"\n"
    start = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header
    return zip_of_zeros(f"{key}.npy", start, 2 * math.prod(shape))


# safetensors -----------------------------------------------------------------------------------------


@kind("safetensors", "sound", 30)
def tensors_header(rng):
    content = sound("safetensors")
    (length,) = struct.unpack_from("<Q", content)
    text, data = content[8 : 8 + length], content[8 + length :]
    header, huge = json.loads(text), int(chosen(rng, HUGE))
    entry = header[chosen(rng, [key for key in header if key != "__metadata__"])]
    start, end = entry["data_offsets"]
    changes = [
        {"shape": [huge, huge]},
        {"shape": [huge, 0], "data_offsets": [start, start]},
        {"shape": [-1]},
        {"shape": [1.5]},
        {"shape": [1, 1, 32, 2]},
        {"shape": [10**400]},
        {"dtype": chosen(rng, ["BOOL", "I64", "F4", "F8_E4M3", 3, None])},
        {"data_offsets": [start, huge]},
        {"data_offsets": [0, end - start]},
        {"data_offsets": [end, start]},
    ]
    entry.update(chosen(rng, changes))
    texts = [b"{" * 50_000, text[:-1] + b", " + text[1:], text + b" " * chosen(rng, [1, 10**6, 9 * 10**7])]
    text = chosen(rng, [*texts, *[json.dumps(header).encode()] * 8])
    return struct.pack("<Q", chosen(rng, [len(text)] * 9 + [huge])) + text + data


# torch -----------------------------------------------------------------------------------------------


def tensors():
    torch = pytest.importorskip("torch")
    return {key: torch.from_numpy(array.copy()) for key, array in base(TORCH).arrays.items()}


def torch_file(state):
    file = io.BytesIO()
    pytest.importorskip("torch").save(state, file)
    return file.getvalue()


@kind("pth", "refused", 20)
def torch_states(rng):
    """Tensors that declare more than they hold, other objects, keys that are not strings."""
    torch, state = pytest.importorskip("torch"), tensors()
    key = chosen(rng, [*state])
    tensor = state[key]
    huge = (2**36, *tensor.shape[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated kinds of tensors
        sparse = torch.sparse_coo_tensor(torch.zeros((1, 1), dtype=int), torch.zeros(1), (2**40,))
        quantized = torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)
    others = [torch.zeros(1).expand(huge), torch.empty(huge, device="meta"), sparse, quantized, None, "text"]
    others += [tensor.to(torch.complex64), torch.full_like(tensor, math.nan), tensor.double() * 1e300]
    states = [*({**state, key: other} for other in others), {**state, 3: tensor}, [*state.values()], {}, None]
    return torch_file(chosen(rng, states))


@kind("pth", "refused", 6)
def torch_sizes(rng):
    """A storage that declares more than its entry holds."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(sound("pth"))) as archive, zipfile.ZipFile(file, "w") as out:
        for info in archive.infolist():
            data = archive.read(info)
            if info.filename.endswith("data.pkl"):
                size = base(TORCH).arrays["head.weight"].size
                size = b"M" + struct.pack("<H", size) if size > 255 else b"K" + bytes([size])
                data = data.replace(size, b"\x8a\x08" + struct.pack("<q", int(chosen(rng, HUGE))))
            out.writestr(info.filename, data)
    return file.getvalue()


# .keras ----------------------------------------------------------------------------------------------


def members():
    with zipfile.ZipFile(io.BytesIO(sound("keras"))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def keras_file(changes):
    """The sound `.keras` file with other contents of members."""
    return zipped([*(members() | changes).items()])


@kind("keras", "refused", 32)
def keras_weights(rng):
    """HDF5 that refers to other files, declares more than it holds, or has other objects."""
    file, other = io.BytesIO(members()["model.weights.h5"]), __file__
    with h5py.File(file, "r+") as h5:
        names = []
        h5.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        name = chosen(rng, names)
        shape, array, parent = h5[name].shape, h5[name][...], h5[name].parent
        del h5[name]
        virtual = h5py.VirtualLayout(shape, "f4")
        virtual[...] = h5py.VirtualSource(other, "x", shape)

        def put(item):
            h5[name] = item

        chosen(
            rng,
            [
                lambda: h5.create_dataset(name, shape, "f4", external=[(other, 0, 4 * array.size)]),
                lambda: put(h5py.ExternalLink(other, "x")),
                lambda: put(h5py.SoftLink(f"/{name}")),  # to itself
                lambda: put(parent),  # a group in itself
                lambda: h5.create_virtual_dataset(name, virtual),
                lambda: h5.create_group(name),
                lambda: h5.create_dataset(name, (2**36,), "f4", chunks=(1024,)),
                lambda: h5.create_dataset(name, (2**34,), "f4", chunks=(2**20,), compression="gzip"),
                lambda: h5.create_dataset(name, (2**18, *shape), "f4", chunks=(1, *shape)),
                lambda: h5.create_dataset(name, shape, h5py.string_dtype()),
                lambda: h5.create_dataset(name, shape, np.dtype([("a", "f4"), ("b", "f4")])),
                lambda: h5.create_dataset(name, data=np.full(shape, chosen(rng, [math.nan, math.inf]), "f4")),
                lambda: h5.create_dataset(name, data=np.full(shape, 1e300)),
                lambda: h5.create_dataset(name, data=array.T if array.ndim > 1 else array[:-1]),
            ],
        )()
    return keras_file({"model.weights.h5": file.getvalue()})


@kind("keras", "any", 40)
def keras_weights_damaged(rng):
    """Damaged HDF5 under a correct checksum."""
    content = damaged(members()["model.weights.h5"], rng, chosen(rng, [200, 4000]))
    return keras_file({"model.weights.h5": content})


@kind("keras", "sound", 30)
def keras_classes(rng):
    """A configuration with a class or function that could run code."""
    config = json.loads(members()["config.json"])
    code = chosen(rng, ["exec", "os.system", f"open({str(CANARY)!r}, 'w')"])
    function = {"class_name": "__lambda__", "config": {"value": ["4wAAAAA=", None, None]}}
    evil = chosen(
        rng,
        [
            {"module": "builtins", "class_name": "function", "config": code, "registered_name": "function"},
            {"module": "keras.layers", "class_name": "Lambda", "config": {"function": function}},
            {"module": "os", "class_name": "system", "config": {"command": f"touch {CANARY}"}},
            {"module": "subprocess", "class_name": "Popen", "config": {"args": ["touch", str(CANARY)]}},
            {"class_name": "__tensor__", "config": {"value": [1] * 9}},
        ],
    )
    arguments = config["config"]
    configs = [
        evil,
        {**config, **{name: value for name, value in evil.items() if name != "registered_name"}},
        {**config, "config": {**arguments, chosen(rng, [*arguments]): evil}},
        {**config, "build_config": evil},
        {**config, "compile_config": {"optimizer": evil, "loss": evil}},
    ]
    return keras_file({"config.json": json.dumps(chosen(rng, configs))})


# .tar.gz ---------------------------------------------------------------------------------------------


def tar(entries):
    """A `.tar.gz` of (TarInfo, content)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for info, content in entries:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(file.getvalue(), mtime=0)


def entry(name, type=tarfile.REGTYPE, size=0):
    info = tarfile.TarInfo(name)
    info.type, info.size = type, size
    return info


def sound_entries():
    return [(entry(name), content) for name, content in SAVED_MODEL.items()]


@kind("tar.gz", "refused", 8)
def tar_bomb(rng):
    """A few bytes that become gigabytes: of a file, a name, a header, or after the end."""
    size = int(chosen(rng, [2, 8])) << 30
    types = [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE]
    start = b"".join(
        entry(name, size=len(content)).tobuf() + content + bytes(-len(content) % 512)
        for name, content in SAVED_MODEL.items()
    )
    evil = entry("variables/variables.data", chosen(rng, types), size).tobuf(tarfile.GNU_FORMAT)
    return deflated(start + chosen(rng, [evil] * 4 + [b""]), size, wbits=31)
