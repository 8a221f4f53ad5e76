import errno
import io
import pathlib
import pickle
import struct
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from keras_vit.weights import archive as archive_module
from keras_vit.weights.archive import FLOATS, read_arrays, write_arrays

SUFFIXES = (".npz", ".safetensors")
TYPES = {name: ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name) for name in FLOATS}


def some(dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"embedding/kernel": (4, 4, 3, 6), "head.bias": (7,), "scalar": (), "none": (0, 3)}
    return {name: rng.normal(size=shape).astype(TYPES[dtype]) for name, shape in shapes.items()}


def assert_identical(found, expected):
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        assert found[key].dtype == array.dtype, key
        assert found[key].shape == array.shape, key
        assert found[key].tobytes() == array.tobytes(), key  # NaN and -0.0 too


def refused(path, *patterns, **options):
    with pytest.raises(ValueError) as caught:
        read_arrays(path, **options)
    message = str(caught.value)
    assert type(caught.value) is ValueError and "\n" not in message and str(path) in message, message
    for pattern in patterns:
        assert pattern in message, message


# What is written is read back ---------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_written_is_read_back_bit_by_bit_in_its_type(suffix, dtype, tmp_path):
    write_arrays(some(dtype), tmp_path / f"a{suffix}", dtype)
    assert_identical(read_arrays(tmp_path / f"a{suffix}"), some(dtype))
    assert [p.name for p in tmp_path.iterdir()] == [f"a{suffix}"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_array_is_stored_in_the_type_that_is_asked_for(suffix, tmp_path):
    array = np.array([1.0, 1 / 3, 65504.0, -0.0], "float64")
    for dtype, kind in TYPES.items():
        write_arrays({"a": array}, tmp_path / f"{dtype}{suffix}", dtype)
        assert_identical(read_arrays(tmp_path / f"{dtype}{suffix}"), {"a": array.astype(kind)})
    write_arrays({"a": array}, tmp_path / f"default{suffix}")
    assert read_arrays(tmp_path / f"default{suffix}")["a"].dtype == "float32"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_that_lie_otherwise_in_memory_are_written_in_the_order_of_their_axes(suffix, tmp_path):
    array = np.arange(24, dtype="float32").reshape(2, 3, 4)
    ways = {
        "F": np.asfortranarray(array),
        "turned": array.T,
        "steps": array[:, ::-2],
        "swapped": array.astype(">f4"),
    }
    for dtype in ("float32", "bfloat16"):
        write_arrays(ways, tmp_path / f"a{suffix}", dtype)
        found = read_arrays(tmp_path / f"a{suffix}")
        for key, way in ways.items():
            np.testing.assert_array_equal(found[key].astype("float32"), way.astype("float32"), err_msg=key)


def test_an_npz_stores_bfloat16_as_two_raw_bytes_as_big_vision_does(tmp_path):
    array = np.array([1.0, -2.5, np.nan], ml_dtypes.bfloat16)
    write_arrays({"params/a": array}, tmp_path / "a.npz", "bfloat16")
    with np.load(tmp_path / "a.npz") as file:
        assert file["params/a"].dtype == np.dtype("V2")
        assert file["params/a"].tobytes() == array.tobytes()


def test_a_safetensors_file_is_one_that_its_library_reads(tmp_path):
    for dtype in FLOATS:
        write_arrays(some(dtype), tmp_path / "a.safetensors", dtype)
        assert_identical(load_file(tmp_path / "a.safetensors"), some(dtype))
    with safe_open(tmp_path / "a.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt"}  # which transformers asks for


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
plain = names.filter(lambda name: name not in ("file", ".", "..") and not name.endswith((".npy", "/")))
shapes = nps.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def dicts(draw):
    """dict of arrays of one float type, with any numbers in them, and the name of the type."""
    dtype = draw(st.sampled_from(FLOATS))
    raw = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(TYPES[dtype]).itemsize]
    arrays = draw(st.dictionaries(plain, nps.arrays(raw, shapes), min_size=0, max_size=5))
    return {key: array.view(TYPES[dtype]) for key, array in arrays.items()}, dtype


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(made=dicts())
@example(made=({"signalling": np.array(0x7F81, "uint16").view(TYPES["bfloat16"])}, "bfloat16"))
def test_any_arrays_are_read_back_bit_by_bit(suffix, made, tmp_path_factory):
    arrays, dtype = made
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    write_arrays(arrays, path, dtype)
    assert_identical(read_arrays(path), arrays)


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(
    arrays=st.dictionaries(
        plain,
        nps.arrays("float32", shapes, elements=st.floats(width=32, allow_subnormal=True)),
        max_size=3,
    )
)
def test_any_numbers_are_read_back_in_float64(suffix, arrays, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / f"any64{suffix}"
    write_arrays(arrays, path, "float64")
    assert_identical(read_arrays(path), {key: array.astype("float64") for key, array in arrays.items()})


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "key", ["file", "a.npy", "args", "kwds", "path", "__metadata__x", "ключ", "a b", "self", "allow_pickle"]
)
def test_a_key_may_be_called_as_it_likes(suffix, key, tmp_path):
    write_arrays({key: np.ones(2), "other": np.zeros(2)}, tmp_path / f"a{suffix}")
    assert {*read_arrays(tmp_path / f"a{suffix}")} == {key, "other"}


# What a file is, its bytes tell -------------------------------------------------------------------


def test_a_file_is_told_by_what_it_holds_not_by_its_name(tmp_path):
    arrays = some()
    np.savez(tmp_path / "a.npz", **arrays)
    save_file(arrays, tmp_path / "b.safetensors")
    for old, new in (("a.npz", "a.safetensors"), ("b.safetensors", "b.npz")):
        for name in (new, f"{new}.bin", "weights", "model.pth"):
            (tmp_path / old).rename(tmp_path / name)
            assert_identical(read_arrays(tmp_path / name), arrays)
            (tmp_path / name).rename(tmp_path / old)


def test_a_path_may_be_a_string(tmp_path):
    np.savez(tmp_path / "a.npz", **some())
    assert_identical(read_arrays(str(tmp_path / "a.npz")), some())
    write_arrays(some(), str(tmp_path / "b.npz"))
    assert_identical(read_arrays(tmp_path / "b.npz"), some())


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "it is no archive of arrays"),
        (b"PK", "is not a zip file"),
        (b"PK\x03\x04", "is not a zip file"),
        (b"not a checkpoint", "it is no archive of arrays"),
        (b"\xff\xd8\xff\xe0 and so on", "it is no archive of arrays"),
        (b"\x89PNG\r\n\x1a\n and so on", "it is no archive of arrays"),
        (b"\x89HDF\r\n\x1a\n and so on", "it is no archive of arrays"),
        (b"\x93NUMPY\x01\x00v\x00{'descr'", "it is no archive of arrays"),
        (b'{"a": 1}', "it is no archive of arrays"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "it is no archive of arrays"),
        (b"12345678{", "is no checkpoint that can be read"),
        (struct.pack("<Q", 2) + b"{x", "is no checkpoint that can be read"),
        (pickle.dumps({"a": 1}), "pickled objects, which are refused"),
        (pickle.dumps({"a": 1}, 2), "pickled objects, which are refused"),
    ],
)
@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.bin"])
def test_what_holds_no_arrays_is_refused(content, reason, name, tmp_path):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, "is no checkpoint that can be read", reason)


def test_what_is_no_file_is_refused(tmp_path):
    refused(tmp_path, "is no checkpoint that can be read")
    refused(tmp_path / "missing.npz", "is no checkpoint that can be read")


def test_an_archive_of_other_things_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "notes.zip", "w") as archive:
        archive.writestr("notes.txt", "hello")
    refused(tmp_path / "notes.zip", "notes.txt holds bytes; expected floating-point arrays")


def test_an_archive_without_arrays_has_none(tmp_path):
    np.savez(tmp_path / "a.npz")
    assert read_arrays(tmp_path / "a.npz") == {}
    save_file({}, tmp_path / "a.safetensors")
    assert read_arrays(tmp_path / "a.safetensors") == {}


# Types --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3)), np.zeros(()), np.zeros((2, 0, 2)), np.array(np.nan)], ids=str
)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_without_numbers_or_axes_keep_their_shape(array, suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    if suffix == ".npz":
        np.savez(path, a=array)
    else:
        save_file({"a": array}, path)
    assert_identical(read_arrays(path), {"a": array})


@pytest.mark.parametrize(
    "array, kind",
    [
        (np.zeros(3, ">f4"), "'>f4'"),
        (np.zeros(3, ">f8"), "'>f8'"),
        (np.zeros(3, ">f2"), "'>f2'"),
        (np.zeros(3, "complex64"), "'<c8'"),
        (np.zeros(3, "int64"), "'<i8'"),
        (np.zeros(3, "uint8"), "'|u1'"),
        (np.zeros(3, bool), "'|b1'"),
        (np.array(["a"]), "'<U1'"),
        (np.array([b"a"]), "'|S1'"),
        (np.zeros(3, "V4"), "'|V4'"),
        (np.zeros(3, [("a", "<f4")]), "'|V4'"),
        (np.zeros(3, "datetime64[s]"), "'<M8[s]'"),
        (np.zeros(3, "longdouble"), f"'{np.dtype('longdouble').str}'"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_an_array_of_another_type_is_refused_by_name(array, kind, tmp_path):
    np.savez(tmp_path / "a.npz", **{"head/bias": array, "head/kernel": np.zeros(3)})
    refused(
        tmp_path / "a.npz",
        f"head/bias holds {kind}; expected floating-point arrays in this machine's byte order",
    )


def test_objects_are_refused_and_nothing_of_them_is_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trap"), "w"))

    np.savez(tmp_path / "a.npz", a=np.array([Trap()], dtype=object))
    refused(tmp_path / "a.npz", "pickled objects, which are refused because loading them can run code")
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Trap()))
    refused(tmp_path / "b.npz", "pickled objects, which are refused because loading them can run code")
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("a.npy", pickle.dumps(Trap()))
    refused(tmp_path / "c.npz")
    assert not (tmp_path / "trap").exists()


def test_integers_of_safetensors_are_refused_by_name(tmp_path):
    for kind in ("int8", "int64", "uint8", "bool", "complex64"):
        save_file({"head.bias": np.zeros(3, kind)}, tmp_path / "a.safetensors")
        refused(tmp_path / "a.safetensors", f"head.bias holds '{np.dtype(kind).str}'")


# Zip archives -------------------------------------------------------------------------------------


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("a.npy", "a.npy"), ("a.npy", "a"), ("a", "a.npy")])
def test_two_entries_of_one_name_are_refused(names, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for i, name in enumerate(names):
            archive.writestr(name, npy(np.full(3, i, "float32")))
    refused(tmp_path / "a.npz", "two of its entries have the same name")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("size", [10, 10_000])
def test_no_byte_of_an_entry_can_be_another(method, size, tmp_path):
    array = np.random.default_rng(0).normal(size=size).astype("float32")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.writestr("a.npy", npy(array))
        start, end = 30 + len("a.npy"), archive.start_dir
    content = (tmp_path / "a.npz").read_bytes()
    for place in np.random.default_rng(1).integers(start, end, size=30):
        damage = bytearray(content)
        damage[place] ^= 1 << place % 8
        (tmp_path / "b.npz").write_bytes(damage)
        refused(tmp_path / "b.npz", "is no checkpoint that can be read")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_method_that_no_writer_of_arrays_uses_is_refused(method, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.writestr("a.npy", npy(np.zeros(3, "float32")))
    refused(tmp_path / "a.npz", "compressed by a method that no writer of weights uses")


def test_a_compressed_file_may_not_hold_much_more_than_its_size(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(100_000, "float32"))
    assert read_arrays(tmp_path / "a.npz")["a"].size == 100_000
    monkeypatch.setattr(archive_module, "UNPACKED", 300_000)
    refused(tmp_path / "a.npz", "bytes declare 400,128; at most 300,000 are accepted")


def test_a_torch_tensor_that_repeats_its_numbers_is_counted_in_full(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"table": torch.zeros(1, 1).expand(2**36, 192)}, tmp_path / "a.pth")
    refused(tmp_path / "a.pth", "bytes declare 52,776,558,133,248; at most 1,073,741,824 are accepted")
    tied = torch.ones(2, 3)
    torch.save({"a": tied, "b": tied}, tmp_path / "b.pth")
    assert {*read_arrays(tmp_path / "b.pth")} == {"a", "b"}


def test_an_entry_with_more_bytes_than_its_array_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", npy(np.zeros(3, "float32")) + bytes(4))
    refused(tmp_path / "a.npz", "is no checkpoint that can be read")


# A part of a file ---------------------------------------------------------------------------------


def test_a_part_of_a_file_is_what_stands_under_its_name(tmp_path):
    stored = {
        "img/a": np.zeros(2),
        "img/b/c": np.ones(2),
        "imgs/a": np.ones(3),
        "txt/a": np.ones(4),
        "t": np.ones(1),
    }
    np.savez(tmp_path / "a.npz", **stored)
    assert_identical(read_arrays(tmp_path / "a.npz", "img"), {"a": stored["img/a"], "b/c": stored["img/b/c"]})
    assert_identical(read_arrays(tmp_path / "a.npz", "img/b"), {"c": stored["img/b/c"]})
    assert_identical(read_arrays(tmp_path / "a.npz", None), stored)
    refused(tmp_path / "a.npz", "has nothing under 'im'; it has img, imgs, t, txt", subtree="im")
    refused(tmp_path / "a.npz", "has nothing under 't'", subtree="t")
    np.savez(tmp_path / "none.npz")
    refused(tmp_path / "none.npz", "has nothing under 'img'; it has no arrays", subtree="img")


def test_what_stands_beside_the_part_need_not_be_arrays_of_floats(tmp_path):
    np.savez(tmp_path / "a.npz", **{"img/a": np.zeros(2), "opt/count": np.int64(3)})
    assert {*read_arrays(tmp_path / "a.npz", "img")} == {"a"}


# torch's files ------------------------------------------------------------------------------------


def torch_zip(path, folder="archive"):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{folder}/data.pkl", pickle.dumps({}))
        archive.writestr(f"{folder}/version", "3")
    return path


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "a.npz"])
def test_a_torch_file_without_torch_says_that_torch_is_needed(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(torch_zip(tmp_path / name), "torch is not installed; install torch, or take the safetensors file")
    refused(torch_zip(tmp_path / name, "pytorch_model"), "torch is not installed")


@pytest.mark.parametrize("wrapped", [None, "model", "state_dict"])
def test_a_torch_file_is_read_where_torch_is_installed(wrapped, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    state = {
        "a": torch.ones(2, 3),
        "half": torch.ones(2, dtype=torch.float16),
        "b": torch.arange(4, dtype=torch.float32).to(torch.bfloat16),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "trained": torch.nn.Parameter(torch.ones(2)),
    }
    torch.save({wrapped: state} if wrapped else state, tmp_path / "a.bin")
    found = read_arrays(tmp_path / "a.bin")
    expected = {
        "a": np.ones((2, 3), "float32"),
        "half": np.ones(2, "float16"),
        "b": np.arange(4).astype(ml_dtypes.bfloat16),
        "turned": np.arange(6, dtype="float32").reshape(2, 3).T,
        "trained": np.ones(2, "float32"),
    }
    assert_identical(found, expected)


def test_a_torch_file_of_other_things_is_refused(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trap"), "w"))

    others = {"an object": Trap(), "a number": 3, "a text": "text", "nothing": None}
    others |= {"a sparse one": torch.eye(3).to_sparse(), "an 8-bit one": torch.ones(2).to(torch.float8_e5m2)}
    for state in (*({"a": other} for other in others.values()), {3: torch.ones(1)}):
        torch.save(state, tmp_path / "a.pth")
        refused(tmp_path / "a.pth", "is no checkpoint")
    torch.save({"a": torch.ones(2, dtype=torch.int64)}, tmp_path / "a.pth")
    refused(tmp_path / "a.pth", "a holds '<i8'")
    for state in ([1, 2], 3, torch.ones(2), {}):
        torch.save(state, tmp_path / "a.pth")
        assert read_arrays(tmp_path / "a.pth") == {}
    assert not (tmp_path / "trap").exists()


def test_a_torch_file_from_before_its_archives_is_refused(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    refused(tmp_path / "a.pth", "pickled objects, which are refused")


def test_no_byte_of_an_array_in_a_torch_file_can_be_another(tmp_path):
    """torch itself does not compare the checksums that it writes."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.save({"a": torch.arange(1000.0)}, tmp_path / "a.bin")
    content = (tmp_path / "a.bin").read_bytes()
    start = content.index(np.arange(1000, dtype="float32").tobytes())
    for place in (start + 2, start + 2000, start + 3999):
        damage = bytearray(content)
        damage[place] ^= 1
        (tmp_path / "b.bin").write_bytes(damage)
        refused(tmp_path / "b.bin", "is no checkpoint that can be read")


# Writing ------------------------------------------------------------------------------------------


def test_an_unknown_type_or_ending_is_refused_before_anything_is_written(tmp_path):
    for dtype in ("int8", "float8_e4m3fn", "f4", None):
        with pytest.raises(
            ValueError, match=f"dtype {dtype!r} cannot be stored; choose one of float16, bfloat16"
        ):
            write_arrays(some(), tmp_path / "a.npz", dtype)
    for name in ("a.bin", "a", "a.npy", "a.NPZ", "npz"):
        with pytest.raises(ValueError, match=r"written as \.npz or \.safetensors; got '.*'"):
            write_arrays(some(), tmp_path / name)
    assert [*tmp_path.iterdir()] == []


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def full_at_the_second_array(file, array, *args, **kwargs):
    file.write(b"half of it")
    full_at_the_second_array.calls = getattr(full_at_the_second_array, "calls", 0) + 1
    if full_at_the_second_array.calls % 2 == 0:
        full()


def half_safetensors(arrays, path, *args, **kwargs):
    pathlib.Path(path).write_bytes(b"half of it")
    full()


FAILURES = [
    ("numpy.lib.format.write_array", full_at_the_second_array, ".npz"),
    ("os.replace", full, ".npz"),
    ("safetensors.numpy.save_file", half_safetensors, ".safetensors"),
    ("os.replace", full, ".safetensors"),
]


@pytest.mark.parametrize("what, failure, suffix", FAILURES)
@pytest.mark.parametrize("there", [False, True])
def test_a_write_that_fails_leaves_nothing_new_and_what_was_there(
    what, failure, suffix, there, tmp_path, monkeypatch
):
    path = tmp_path / f"a{suffix}"
    if there:
        write_arrays(some(seed=1), path)
        before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(what, failure)
        with pytest.raises(OSError, match="No space left"):
            write_arrays(some(), path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name] * there
    assert not there or path.read_bytes() == before
    write_arrays(some(), path)
    assert_identical(read_arrays(path), some())


def test_a_write_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_arrays(some(), tmp_path / "a.npz")
    assert [*tmp_path.iterdir()] == []


def test_a_file_that_is_there_is_replaced_whole(tmp_path):
    write_arrays({"a": np.zeros(100)}, tmp_path / "a.npz")
    write_arrays({"b": np.ones(2)}, tmp_path / "a.npz")
    assert {*read_arrays(tmp_path / "a.npz")} == {"b"}


def test_a_safetensors_header_that_states_a_key_twice_is_refused(tmp_path):
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
    text = f'{{"a":{entry % (0, 4)},"a":{entry % (4, 8)}}}'.encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    refused(tmp_path / "a.safetensors", "is no checkpoint that can be read")
