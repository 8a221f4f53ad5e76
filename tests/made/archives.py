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


class Runs:
    """An object whose unpickling writes a file."""

    def __init__(self, how):
        self.how = how

    def __reduce__(self):
        ways = [(os.system, f"touch {CANARY}"), (exec, f"open({str(CANARY)!r}, 'w')")]
        function, argument = ways[self.how % 2]
        return function, (argument,)


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

    @kind(container, expected, 20)
    def flipped(rng):
        content = bytearray(sound(container))
        start, stop = chosen(rng, [(0, 64), (0, len(content)), (len(content) - 256, len(content))])
        for place in rng.integers(start, stop, rng.integers(1, 6)):
            content[place] ^= 1 << rng.integers(8)
        return bytes(content)

    @kind(container, expected, 20)
    def replaced(rng):
        """A few bytes overwritten, removed or inserted."""
        content, size = sound(container), int(rng.integers(1, 64))
        start = int(rng.integers(len(content)))
        put = chosen(rng, [b"", b"\0" * size, b"\xff" * size, rng.bytes(size), content[:size] * 2])
        return content[:start] + put + content[start + size :]


for _container, _expected in (("npz", "sound"), ("safetensors", "any"), ("pth", "sound"), ("keras", "sound")):
    damages(_container, _expected)
damages("tar.gz", "sound")


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


def npz(**changes):
    file = io.BytesIO()
    np.savez(file, **{**base(NPZ).arrays, **changes})
    return file.getvalue()


def entries():
    return [(f"{key}.npy", npy(array)) for key, array in base(NPZ).arrays.items()]


def any_array(rng):
    key = chosen(rng, [*base(NPZ).arrays])
    return key, base(NPZ).arrays[key]


@kind("npz", "refused", 8)
def zip_method(rng):
    """Methods that compress a megabyte into a byte."""
    bomb = chosen(rng, [b"", bytes(1 << 24)])
    method = chosen(rng, [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    return zipped([(name, content + bomb) for name, content in entries()[:3]], method)


@kind("npz", "sound", 15)
def zip_sizes(rng):
    """Wrong sizes of an entry in the zip directory."""
    content = bytearray(sound("npz"))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        info, start = chosen(rng, archive.infolist()), archive.start_dir
    central = content.index(info.filename.encode(), start) - 46
    size = struct.pack("<I", int(chosen(rng, [0, 1, 2**20, 2**31, 2**32 - 2, 2**32 - 1])))
    for place in chosen(rng, [[central + 24], [central + 20], [central + 20, central + 24]]):
        content[place : place + 4] = size
    return bytes(content)


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


@kind("npz", "refused", 30)
def npy_header(rng):
    """A header that is too large, missing, or an expression."""
    key, array = any_array(rng)
    huge = int(chosen(rng, HUGE))
    header = {"descr": "<f4", "fortran_order": False, "shape": array.shape}
    changes = [
        {"shape": (huge,)},
        {"shape": (huge, 0)},
        {"shape": (-1, array.size)},
        {"shape": 10**400},
        {"shape": (1,) * 200},
        {"fortran_order": None},
        {"descr": "|O"},
        {"descr": [("a", "<f4")]},
        {"descr": f"<f{huge}"},
        {"descr": f"<U{huge}"},
        {"descr": "|V0", "shape": (huge,)},
        {"more": 1},
    ]
    texts = [*(str(header | change) for change in changes), f"__import__('os').system('touch {CANARY}')"]
    texts += ["(" * 5000, "[" * 90 + "]" * 90, "{" + "'a': 1, " * 2000 + "}", "\0" * 100]
    text = (chosen(rng, texts) + "\n").encode()
    version = chosen(rng, [(1, 0), (1, 0), (2, 0), (9, 9)])
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    content = b"\x93NUMPY" + bytes(version) + length + text + array.tobytes()
    return zipped([(name, content if name == f"{key}.npy" else other) for name, other in entries()])


@kind("npz", "refused", 16)
def zip_names(rng):
    """Names outside the folder, twice, or invalid."""
    name, content = chosen(rng, entries())
    names = ["../../canary.npy", str(CANARY), "C:\\a.npy", "a\n.npy", "\x1b[31m.npy", ".npy", "a" * 60_000]
    names += [name, name.removesuffix(".npy"), f"{name}.npy", "cls/", "a/data.pkl", "model.json"]
    return zipped([*entries(), (chosen(rng, names), content)])


@kind("npz", "refused", 1)
def zip_of_many_entries(rng):
    return zipped([*entries(), *((f"a/{i}.npy", npy(np.zeros(0, "float32"))) for i in range(5000))])


@kind("npz", "refused", 8)
def values(rng):
    """Values that are not finite in float32."""
    key, array = any_array(rng)
    array = array.astype("float64")
    array.reshape(-1)[rng.integers(array.size)] = chosen(rng, [math.nan, math.inf, -math.inf, 1e39])
    return npz(**{key: array})


@kind("npz", "refused", 12)
def shapes(rng):
    """An array without axes, with very many, or without values, of some dtype."""
    shape = chosen(rng, [(), (0,), (1,) * 60, (0, 2**40), (2**20, 0, 2**20)])
    return npz(
        **{any_array(rng)[0]: np.zeros(shape, chosen(rng, ["float32", "float16", "V2", "int8", "bool"]))}
    )


@kind("npz", "refused", 6)
def tall(rng):
    """An array with so many rows that the model would be much larger than the file."""
    key = chosen(rng, ["head/bias", "head/kernel", "cls", "embedding/bias", "embedding/kernel"])
    shape = [*base(NPZ).arrays[key].shape]
    shape[rng.integers(len(shape))] = 2**22
    header = str({"descr": "<f2", "fortran_order": False, "shape": tuple(shape)}).encode() + b"\n"
    start = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header
    return zip_of_zeros(f"{key}.npy", start, 2 * math.prod(shape))


@kind("bin", "refused", 24)
def pickled(rng):
    """Objects that run code, in an array, alone, or in torch's containers."""
    evil = Runs(int(rng.integers(2)))
    contents = [
        lambda: zipped([*entries(), ("a.npy", npy(np.array([evil], object)))]),
        lambda: npy(np.array([evil], object)),
        lambda: pickle.dumps({"head.weight": evil}, protocol=int(rng.integers(6))),
        lambda: torch_file({"head.weight": evil}),
        lambda: torch_file({"head.weight": evil}, _use_new_zipfile_serialization=False),
        lambda: torch_file({"model": {**tensors(), "more": [evil]}}),
    ]
    return chosen(rng, contents)()


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


@kind("safetensors", "refused", 12)
def tensors_names_and_values(rng):
    """An unknown key of several lines or very long, or a value that is not finite."""
    arrays = {key: array.copy() for key, array in base(TORCH).arrays.items()}
    if rng.integers(2):
        names = ["a\nb", "\x1b[2J", "", "../x", "a" * 10**6, "\u202e", "head.weight\0"]
        arrays[chosen(rng, names)] = np.zeros(3, "f4")
    else:
        array = arrays[chosen(rng, [*arrays])]
        array.reshape(-1)[rng.integers(array.size)] = chosen(rng, [math.nan, math.inf])
    return save(arrays)


# torch -----------------------------------------------------------------------------------------------


def tensors():
    torch = pytest.importorskip("torch")
    return {key: torch.from_numpy(array.copy()) for key, array in base(TORCH).arrays.items()}


def torch_file(state, **options):
    file = io.BytesIO()
    pytest.importorskip("torch").save(state, file, **options)
    return file.getvalue()


@kind("pth", "refused", 30)
def torch_states(rng):
    """Tensors that declare more than they hold, other objects, keys that are not strings."""
    torch, state = pytest.importorskip("torch"), tensors()
    key = chosen(rng, [*state])
    tensor = state[key]
    huge = (2**36, *tensor.shape[1:])
    deep = state
    for _ in range(200):
        deep = {"model": deep}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated kinds of tensors
        sparse = torch.sparse_coo_tensor(torch.zeros((1, 1), dtype=int), torch.zeros(1), (2**40,))
        quantised = torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)
    others = [
        torch.zeros(1).expand(huge),
        torch.zeros((), dtype=torch.float16).expand(huge),
        sparse,
        quantised,
    ]
    others += [torch.empty(huge, device="meta"), tensor.to_sparse(), tensor.to(torch.complex64)]
    others += [torch.full_like(tensor, math.nan), tensor.double() * 1e300, tensor.tolist(), None, "text"]
    states = [{**state, key: other} for other in others] + [
        {**state, other: tensor} for other in (3, ("a", "b"))
    ]
    states += [[*state.values()], tensor, deep, {"model": None}, {"model": [], "state_dict": state}, {}, None]
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


def keras_file(changes, extra=()):
    """The sound `.keras` file with other contents of members; None removes one."""
    changed = members() | changes
    return zipped([*((name, content) for name, content in changed.items() if content is not None), *extra])


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
    content = bytearray(members()["model.weights.h5"])
    if rng.integers(3) == 0:
        content = content[: rng.integers(len(content))]
    else:
        for place in rng.integers(0, chosen(rng, [200, 4000, len(content)]), rng.integers(1, 9)):
            content[place] ^= 1 << rng.integers(8)
    return keras_file({"model.weights.h5": bytes(content)})


@kind("keras", "sound", 20)
def keras_members(rng):
    """Members that are missing, twice, in another format, much too large, or outside the folder."""
    names = ["../../canary", str(CANARY), "assets/../../../canary", "assets/x", "a\n", "config.json/x"]
    contents = [
        lambda: keras_file({"model.weights.h5": None}),
        lambda: keras_file({"config.json": None}),
        lambda: keras_file({"model.weights.h5": None}, [("model.weights.npz", zipped(entries()))]),
        lambda: keras_file({}, [("config.json", b"{}")]),
        lambda: zip_of_zeros("model.weights.h5", b"", 4 << 30),
        lambda: zip_of_zeros("config.json", b"{", 4 << 30),
        lambda: keras_file({"metadata.json": b"[" * 100_000}),
        lambda: keras_file({}, [(chosen(rng, names), b"1")]),
    ]
    return chosen(rng, contents)()


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


def tar(entries, format=tarfile.GNU_FORMAT, level=6):
    """A `.tar.gz` of (TarInfo, content or None)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for info, content in entries:
            if content is not None:
                info.size = len(content)
            archive.addfile(info, None if content is None else io.BytesIO(content))
    return gzip.compress(file.getvalue(), level, mtime=0)


def entry(name, type=tarfile.REGTYPE, size=0, link="", pax=()):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.pax_headers = type, size, link, dict(pax)
    return info


def sound_entries():
    return [(entry(name), content) for name, content in SAVED_MODEL.items()]


@kind("tar.gz", "refused", 24)
def tar_types(rng):
    """Links, pipes and devices, and a file through a link."""
    targets = [str(CANARY), "../../canary", "saved_model.pb", "/etc/passwd", "/dev/zero", "link"]
    types = [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE]
    evil = entry(
        chosen(rng, ["link", "assets/link", "variables"]), chosen(rng, types), link=chosen(rng, targets)
    )
    evil.devmajor, evil.devminor = 1, 5
    through = [(entry("link/x"), b"1")] * int(rng.integers(2))
    return tar([(evil, None), *through, *sound_entries()])


@kind("tar.gz", "refused", 24)
def tar_names(rng):
    """Names outside the folder, both file and folder, or too long for a file system."""
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
    names += ["saved_model.pb/x", "assets/labels.txt/x", "a:b", "./../x"]
    names += ["a" * 300, "a" * 10**5, "a/" * 3000 + "x", "a/" * 60 + "x" * 300]
    evil = (entry(chosen(rng, names)), b"1")
    orders = [[evil, *sound_entries()], [*sound_entries(), evil]]
    return tar(chosen(rng, orders), chosen(rng, [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))


@kind("tar.gz", "refused", 10)
def tar_sizes(rng):
    """An entry that declares more than follows."""
    name, size = "variables/variables.data", int(chosen(rng, [2**30 + 1, *HUGE]))
    pax = entry(name, pax={"size": chosen(rng, [str(size), "-1", str(-size), "9" * 400])})
    evil, format = chosen(rng, [(entry(name, size=size), tarfile.GNU_FORMAT), (pax, tarfile.PAX_FORMAT)])
    return tar([*sound_entries(), (evil, None)], format)


@kind("tar.gz", "refused", 12)
def tar_sparse(rng):
    """Sparse files: a few bytes that become gigabytes, in tar's three formats for them."""
    size, name = chosen(rng, [3 << 30, 2**40, 2**62]), chosen(rng, ["saved_model.pb", "variables/x"])
    headers = [
        {"map": "0,0", "size": size},
        {"major": 0, "minor": 1, "size": size, "name": name, "map": f"{size - 1},1"},
        {"major": 1, "minor": 0, "realsize": size, "name": name},
    ]
    pax = {f"GNU.sparse.{key}": str(value) for key, value in chosen(rng, headers).items()}
    content = f"1\n{size - 1}\n1\n".encode().ljust(512, b"\0") + b"x"  # the third format's map
    return tar([(entry(name, pax=pax), content), *sound_entries()], tarfile.PAX_FORMAT)


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


@kind("tar.gz", "refused", 2)
def tar_of_many_entries(rng):
    type = chosen(rng, [tarfile.DIRTYPE, tarfile.REGTYPE])
    return tar([*sound_entries(), *((entry(f"assets/{i}", type), None) for i in range(20_000))], level=1)


@kind("tar.gz", "refused", 14)
def tar_without_a_saved_model(rng):
    """An archive without a SavedModel, or another file."""
    contents = [
        lambda: tar([]),
        lambda: tar(sound_entries()[1:]),
        lambda: tar([(entry("saved_model.pb", tarfile.DIRTYPE), None)]),
        lambda: tar([(entry("model/saved_model.pb"), b"1")]),
        lambda: gzip.compress(rng.bytes(3000)),
        lambda: b"",
        lambda: sound("npz"),
        lambda: gzip.compress(sound("tar.gz")),
        lambda: sound("tar.gz")[:-8] + bytes(8),
        lambda: sound("tar.gz") + b"and more",
    ]
    return chosen(rng, contents)()
