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
from keras_vit.weights.archive import (
    FLOATS,
    check_hdf5,
    digest_in,
    load_arrays,
    read_arrays,
    write_arrays,
)

SUFFIXES = (".npz", ".safetensors")
DTYPES = {name: ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name) for name in FLOATS}
UNREADABLE = "is no checkpoint that can be read"
PICKLED = "pickled objects, which are refused because loading them can run code"


def arrays_of(dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"embedding/kernel": (4, 4, 3, 6), "head.bias": (7,), "scalar": (), "none": (0, 3)}
    return {name: rng.normal(size=shape).astype(DTYPES[dtype]) for name, shape in shapes.items()}


def assert_identical(found, expected):
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape), key
        assert found[key].tobytes() == array.tobytes(), key  # includes NaN and -0.0


def refused(path, *patterns, read=read_arrays, **options):
    with pytest.raises(ValueError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert type(caught.value) is ValueError and "\n" not in message and str(path) in message, message
    for pattern in patterns:
        assert pattern in message, message


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def zipped(path, *entries, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return path


class Trap:
    """An object whose unpickling makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


# Round trips ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_arrays_are_stored_in_the_given_dtype_and_read_back(suffix, dtype, tmp_path):
    path = tmp_path / f"a{suffix}"
    write_arrays(arrays_of(dtype), str(path), dtype)
    assert_identical(read_arrays(str(path)), arrays_of(dtype))
    assert [*tmp_path.iterdir()] == [path]
    array = np.array([1.0, 1 / 3, 65504.0, -0.0], "float64")
    write_arrays({"a": array}, path, dtype)
    assert_identical(read_arrays(path), {"a": array.astype(DTYPES[dtype])})
    write_arrays({"a": array}, path)
    assert read_arrays(path)["a"].dtype == "float32"


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_memory_order_of_an_array_does_not_matter(suffix, dtype, tmp_path):
    array = np.arange(24, dtype="float32").reshape(2, 3, 4)
    orders = {
        "F": np.asfortranarray(array),
        "T": array.T,
        "steps": array[:, ::-2],
        "big": array.astype(">f4"),
    }
    write_arrays(orders, tmp_path / f"a{suffix}", dtype)
    found = read_arrays(tmp_path / f"a{suffix}")
    for key, order in orders.items():
        np.testing.assert_array_equal(found[key].astype("float32"), order.astype("float32"), err_msg=key)


def test_an_npz_stores_bfloat16_as_two_raw_bytes_like_big_vision(tmp_path):
    array = np.array([1.0, -2.5, np.nan], ml_dtypes.bfloat16)
    write_arrays({"params/a": array}, tmp_path / "a.npz", "bfloat16")
    with np.load(tmp_path / "a.npz") as file:
        assert file["params/a"].dtype == np.dtype("V2")
        assert file["params/a"].tobytes() == array.tobytes()


def test_the_safetensors_library_reads_a_safetensors_file(tmp_path):
    for dtype in FLOATS:
        write_arrays(arrays_of(dtype), tmp_path / "a.safetensors", dtype)
        assert_identical(load_file(tmp_path / "a.safetensors"), arrays_of(dtype))
    with safe_open(tmp_path / "a.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt"}  # which transformers requires


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_holds_the_digest_of_its_configuration(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    for digest in ("0a1b", None):
        write_arrays(arrays_of(), path, digest=digest)
        assert digest_in(path) == digest
        assert_identical(read_arrays(path), arrays_of())


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
plain = names.filter(lambda name: name not in ("file", ".", "..") and not name.endswith((".npy", "/")))
shapes = nps.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def dicts(draw):
    """dict of arrays of one dtype with any bits, and the name of the dtype."""
    dtype = draw(st.sampled_from(FLOATS))
    raw = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(DTYPES[dtype]).itemsize]
    arrays = draw(st.dictionaries(plain, nps.arrays(raw, shapes), min_size=0, max_size=5))
    return {key: array.view(DTYPES[dtype]) for key, array in arrays.items()}, dtype


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(made=dicts())
@example(made=({"signalling": np.array(0x7F81, "uint16").view(DTYPES["bfloat16"])}, "bfloat16"))
def test_any_arrays_are_read_back_bit_by_bit(suffix, made, tmp_path_factory):
    arrays, dtype = made
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    write_arrays(arrays, path, dtype)
    assert_identical(read_arrays(path), arrays)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_key_is_possible(suffix, tmp_path):
    keys = ("file", "a.npy", "args", "kwds", "path", "__metadata__x", "ключ", "a b", "self", "allow_pickle")
    write_arrays({key: np.ones(2) for key in keys}, tmp_path / f"a{suffix}")
    assert {*read_arrays(tmp_path / f"a{suffix}")} == {*keys}


# Formats -------------------------------------------------------------------------------------------


def test_the_content_of_a_file_determines_its_format(tmp_path):
    with open(tmp_path / "a.safetensors", "wb") as file:
        np.savez(file, **arrays_of())
    save_file(arrays_of(), tmp_path / "a.npz")
    for name in ("a.safetensors", "a.npz"):
        assert_identical(read_arrays(tmp_path / name), arrays_of())
        assert_identical(read_arrays((tmp_path / name).rename(tmp_path / "model.pth")), arrays_of())


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "it is no archive of arrays"),
        (b"PK\x03\x04", "is not a zip file"),
        (b"not a checkpoint", "it is no archive of arrays"),
        (b"\x89PNG\r\n\x1a\n and so on", "it is no archive of arrays"),
        (b"\x93NUMPY\x01\x00v\x00{'descr'", "it is no archive of arrays"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "it is no archive of arrays"),
        (b"12345678{", UNREADABLE),
        (struct.pack("<Q", 2) + b"{x", UNREADABLE),
        (pickle.dumps({"a": 1}, 2), PICKLED),
    ],
)
@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.bin"])
def test_a_file_without_arrays_is_refused(content, reason, name, tmp_path):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, UNREADABLE, reason)


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    refused(tmp_path, UNREADABLE)
    refused(tmp_path / "missing.npz", UNREADABLE)


def test_an_archive_may_be_empty_but_hold_nothing_else(tmp_path):
    refused(zipped(tmp_path / "a.zip", ("notes.txt", "hello")), "notes.txt holds bytes; expected floating")
    np.savez(tmp_path / "a.npz")
    save_file({}, tmp_path / "a.safetensors")
    assert read_arrays(tmp_path / "a.npz") == read_arrays(tmp_path / "a.safetensors") == {}


@pytest.mark.parametrize(
    "array", [np.zeros((0, 3)), np.zeros(()), np.zeros((2, 0, 2)), np.array(np.nan)], ids=str
)
def test_arrays_without_values_or_axes_keep_their_shape(array, tmp_path):
    np.savez(tmp_path / "a.npz", a=array)
    save_file({"a": array}, tmp_path / "a.safetensors")
    for suffix in SUFFIXES:
        assert_identical(read_arrays(tmp_path / f"a{suffix}"), {"a": array})


@pytest.mark.parametrize(
    "dtype", [">f4", ">f2", "complex64", "int64", "uint8", "bool", "<U1", "V4", "M8[s]", "longdouble"]
)
def test_an_array_of_another_dtype_is_refused_with_its_key(dtype, tmp_path):
    np.savez(tmp_path / "a.npz", **{"head/bias": np.zeros(3, dtype), "head/kernel": np.zeros(3)})
    kind = np.dtype(dtype).str
    message = f"head/bias holds '{kind}'; expected floating-point arrays in this machine's byte order"
    refused(tmp_path / "a.npz", message)
    assert load_arrays(tmp_path / "a.npz")["head/bias"].dtype == dtype
    if dtype in ("int64", "bool"):
        save_file({"head.bias": np.zeros(3, dtype)}, tmp_path / "a.safetensors")
        refused(tmp_path / "a.safetensors", f"head.bias holds '{kind}'")


def test_pickled_objects_are_refused_and_not_run(tmp_path):
    trap = Trap(tmp_path / "trap")
    np.savez(tmp_path / "a.npz", a=np.array([trap], dtype=object))
    refused(tmp_path / "a.npz", PICKLED)
    (tmp_path / "b.npz").write_bytes(pickle.dumps(trap))
    refused(tmp_path / "b.npz", PICKLED)
    refused(zipped(tmp_path / "c.npz", ("a.npy", pickle.dumps(trap))))
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("key", ["a\nb", "\x1b[31m", "a\u2028b"])
def test_a_key_with_control_characters_is_refused(key, tmp_path):
    save_file({key: np.zeros(3, "float32")}, tmp_path / "a.safetensors")
    refused(tmp_path / "a.safetensors", f"it has the key {ascii(key)}")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("a.npy", "a.npy"), ("a.npy", "a")])
def test_two_entries_of_the_same_name_are_refused(names, tmp_path):
    path = zipped(tmp_path / "a.npz", *((name, npy(np.zeros(3, "float32"))) for name in names))
    refused(path, "two of its entries have the same name")


def test_a_safetensors_header_with_a_key_twice_is_refused(tmp_path):
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
    text = f'{{"a":{entry % (0, 4)},"a":{entry % (4, 8)}}}'.encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    refused(tmp_path / "a.safetensors", UNREADABLE)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("size", [10, 10_000])
def test_a_changed_byte_of_an_entry_is_refused(method, size, tmp_path):
    array = np.random.default_rng(0).normal(size=size).astype("float32")
    content = zipped(tmp_path / "a.npz", ("a.npy", npy(array)), method=method).read_bytes()
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        start, end = 30 + len("a.npy"), archive.start_dir
    for place in np.random.default_rng(1).integers(start, end, size=10):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "b.npz").write_bytes(damaged)
        refused(tmp_path / "b.npz", UNREADABLE)


def test_an_entry_with_more_bytes_than_its_array_is_refused(tmp_path):
    refused(zipped(tmp_path / "a.npz", ("a.npy", npy(np.zeros(3, "float32")) + bytes(4))), UNREADABLE)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_methods_are_refused(method, tmp_path):
    path = zipped(tmp_path / "a.npz", ("a.npy", npy(np.zeros(3, "float32"))), method=method)
    refused(path, "compressed by a method that no writer of weights uses")


def test_a_file_may_not_declare_much_more_than_its_size(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(100_000, "float32"))
    assert read_arrays(tmp_path / "a.npz")["a"].size == 100_000
    monkeypatch.setattr(archive_module, "UNPACKED", 300_000)
    refused(tmp_path / "a.npz", "bytes declare 400,128; at most 300,000 are accepted")
    monkeypatch.setattr(archive_module, "EXPANSION", 2000)  # of the size of the file
    assert read_arrays(tmp_path / "a.npz")["a"].size == 100_000


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_hdf5_file_may_not_declare_much_more_than_its_archive(method, tmp_path):
    h5py = pytest.importorskip("h5py")
    for length in (4, 2**36):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("layer/kernel", (length,), "f4", chunks=(4,))
        path = zipped(tmp_path / "a.keras", ("a.h5", (tmp_path / "a.h5").read_bytes()), method=method)
        with zipfile.ZipFile(path) as archive:
            if length == 4:
                assert check_hdf5(archive, "a.h5") == ["layer/kernel"]
            else:
                with pytest.raises(ValueError, match="bytes declare 274,877,906,944; at most"):
                    check_hdf5(archive, "a.h5")


def test_a_subtree_is_read_without_its_name(tmp_path):
    path = tmp_path / "a.npz"
    stored = {"img/a": np.zeros(2), "img/b/c": np.ones(2), "imgs/a": np.ones(3), "t": np.ones(1)}
    np.savez(path, **stored, **{"opt/count": np.int64(3)})
    assert_identical(read_arrays(path, "img"), {"a": stored["img/a"], "b/c": stored["img/b/c"]})
    assert_identical(read_arrays(path, "img/b"), {"c": stored["img/b/c"]})
    refused(path, "has nothing under 'im'; it has img, imgs, opt, t", subtree="im")
    refused(path, "has nothing under 't'", subtree="t")


# torch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["archive", "pytorch_model"])
def test_a_torch_file_without_torch_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    path = zipped(tmp_path / "a.npz", (f"{folder}/data.pkl", pickle.dumps({})), (f"{folder}/version", "3"))
    refused(path, "torch is not installed; install torch, or take the safetensors file")


@pytest.mark.parametrize("nested", [None, "model", "state_dict"])
def test_a_torch_file_is_read(nested, tmp_path):
    torch = pytest.importorskip("torch")
    state = {
        "a": torch.ones(2, 3),
        "half": torch.ones(2, dtype=torch.float16),
        "b": torch.arange(4, dtype=torch.float32).to(torch.bfloat16),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "trained": torch.nn.Parameter(torch.ones(2)),
    }
    torch.save({nested: state} if nested else state, tmp_path / "a.bin")
    expected = {
        "a": np.ones((2, 3), "float32"),
        "half": np.ones(2, "float16"),
        "b": np.arange(4).astype(ml_dtypes.bfloat16),
        "transposed": np.arange(6, dtype="float32").reshape(2, 3).T,
        "trained": np.ones(2, "float32"),
    }
    assert_identical(read_arrays(tmp_path / "a.bin"), expected)


def test_a_torch_file_of_other_objects_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pth"
    others = [Trap(tmp_path / "trap"), 3, "text", None, torch.eye(3).to_sparse()]
    for state in (*({"a": other} for other in others), {3: torch.ones(1)}):
        torch.save(state, path)
        refused(path, "is no checkpoint")
    torch.save({"a": torch.ones(2, dtype=torch.int64)}, path)
    refused(path, "a holds '<i8'")
    for state in ([1, 2], torch.ones(2), {}):
        torch.save(state, path)
        assert read_arrays(path) == {}
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    refused(path, PICKLED)
    assert not (tmp_path / "trap").exists()


def test_an_expanded_torch_tensor_is_counted_in_full(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"table": torch.zeros(1, 1).expand(2**36, 192)}, tmp_path / "a.pth")
    refused(tmp_path / "a.pth", "bytes declare 52,776,558,133,248; at most 1,073,741,824 are accepted")
    tied = torch.ones(2, 3)
    torch.save({"a": tied, "b": tied}, tmp_path / "b.pth")
    assert {*read_arrays(tmp_path / "b.pth")} == {"a", "b"}


def test_a_changed_byte_of_a_torch_tensor_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.arange(1000.0)}, tmp_path / "a.bin")
    content = (tmp_path / "a.bin").read_bytes()
    start = content.index(np.arange(1000, dtype="float32").tobytes())
    for place in (start + 2, start + 3999):
        damaged = bytearray(content)
        damaged[place] ^= 1
        (tmp_path / "b.bin").write_bytes(damaged)
        refused(tmp_path / "b.bin", UNREADABLE)


# Failed writes -------------------------------------------------------------------------------------


def test_an_unknown_dtype_or_suffix_and_an_overflow_are_refused_before_the_write(tmp_path):
    for dtype in ("int8", "f4", None):
        with pytest.raises(ValueError, match=f"dtype {dtype!r} cannot be stored; choose one of float16, bf"):
            write_arrays(arrays_of(), tmp_path / "a.npz", dtype)
    for name in ("a.bin", "a", "a.NPZ", "npz"):
        with pytest.raises(ValueError, match=r"written as \.npz or \.safetensors; got '.*'"):
            write_arrays(arrays_of(), tmp_path / name)
    with pytest.raises(ValueError, match="a holds values that are too large for float16"):
        write_arrays({"a": np.array([1e5])}, tmp_path / "a.npz", "float16")
    assert [*tmp_path.iterdir()] == []


def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def full_after_some_bytes(file, *args, **kwargs):
    file.write(b"half of it")
    full()


def half_safetensors(arrays, path, *args, **kwargs):
    pathlib.Path(path).write_bytes(b"half of it")
    full()


@pytest.mark.parametrize(
    "target, failure, suffix",
    [
        ("numpy.lib.format.write_array", full_after_some_bytes, ".npz"),
        ("os.replace", full, ".npz"),
        ("safetensors.numpy.save_file", half_safetensors, ".safetensors"),
    ],
)
def test_a_failed_write_leaves_the_old_file(target, failure, suffix, tmp_path, monkeypatch):
    path = tmp_path / f"a{suffix}"
    write_arrays(arrays_of(seed=1), path)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(target, failure)
        with pytest.raises(OSError, match="No space left"):
            write_arrays(arrays_of(), path)
    assert [*tmp_path.iterdir()] == [path] and path.read_bytes() == before
    write_arrays({"b": np.ones(2)}, path)
    assert {*read_arrays(path)} == {"b"}
