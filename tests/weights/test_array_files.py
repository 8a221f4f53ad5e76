import functools
import pickle
import re
import struct
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest
from made import refusals
from made.archives import npy, zipped
from made.sampling import some
from made.tables import by_table
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from keras_vit.weights import array_files as archive_module
from keras_vit.weights.array_files import FLOATS, digest_in, load_arrays, read_arrays, write_arrays

SUFFIXES = (".npz", ".safetensors")
DTYPES = {name: ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name) for name in FLOATS}
UNREADABLE = "is no checkpoint that can be read"
PICKLED = "pickled objects, which are refused because loading them can run code"
ZEROS = npy(np.zeros(3, "float32"))
refused = functools.partial(refusals.refused, read_arrays)


def arrays_of(dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"embedding/kernel": (4, 4, 3, 6), "head.bias": (7,), "scalar": (), "none": (0, 3)}
    return {name: rng.normal(size=shape).astype(DTYPES[dtype]) for name, shape in shapes.items()}


def assert_identical(found, expected):
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape), key
        assert found[key].tobytes() == array.tobytes(), key  # includes NaN and -0.0


def written(path, content):
    path.write_bytes(content)
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
def test_arrays_are_stored_in_the_given_dtype(suffix, dtype, tmp_path):
    path = tmp_path / f"a{suffix}"
    array = np.array([[1.0, 1 / 3], [65504.0, -0.0]])
    orders = {"C": array, "F": np.asfortranarray(array), "steps": array[:, ::-1], "big": array.astype(">f8")}
    orders |= {"file": np.float64(np.nan), "ß/é": np.zeros((0, 3))}
    write_arrays(orders, str(path), dtype)
    assert_identical(
        read_arrays(str(path)), {key: value.astype(DTYPES[dtype], order="C") for key, value in orders.items()}
    )
    assert [*tmp_path.iterdir()] == [path]


def test_an_npz_stores_bfloat16_as_two_raw_bytes_like_big_vision(tmp_path):
    array = np.array([1.0, -2.5, np.nan], ml_dtypes.bfloat16)
    write_arrays({"params/a": array}, tmp_path / "a.npz", "bfloat16")
    with np.load(tmp_path / "a.npz") as file:
        assert file["params/a"].dtype == np.dtype("V2")
        assert file["params/a"].tobytes() == array.tobytes()


def test_the_safetensors_library_reads_a_safetensors_file(tmp_path):
    write_arrays(arrays_of("bfloat16"), tmp_path / "a.safetensors", "bfloat16")
    assert_identical(load_file(tmp_path / "a.safetensors"), arrays_of("bfloat16"))
    with safe_open(tmp_path / "a.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt"}  # which transformers requires


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_holds_the_digest_of_its_configuration(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    for digest in ("0a1b", None):
        write_arrays(arrays_of(), path, digest=digest)
        assert digest_in(path) == digest
        assert_identical(read_arrays(path), arrays_of())


# Formats -------------------------------------------------------------------------------------------


def test_the_content_of_a_file_determines_its_format(tmp_path):
    with open(tmp_path / "a.safetensors", "wb") as file:
        np.savez(file, **arrays_of())
    save_file(arrays_of(), tmp_path / "model.pth")
    for name in ("a.safetensors", "model.pth"):
        assert_identical(read_arrays(tmp_path / name), arrays_of())


@by_table(
    "content, reason",
    [
        (b"", "it is no archive of arrays"),
        (b"PK\x03\x04", "is not a zip file"),
        (b"\x93NUMPY\x01\x00v\x00{'descr'", "it is no archive of arrays"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "it is no archive of arrays"),
        (struct.pack("<Q", 2) + b"{x", UNREADABLE),
        (pickle.dumps({"a": 1}, 2), PICKLED),
        (zipped([("notes.txt", b"hello")]), "notes.txt holds bytes; expected floating"),
        (zipped([("a.npy", ZEROS), ("a.npy", ZEROS)]), "two of its entries have the same name"),
        (zipped([("a.npy", ZEROS), ("a", ZEROS)]), "two of its entries have the same name"),
        (zipped([("a.npy", ZEROS + bytes(4))]), UNREADABLE),
        (zipped([("a.npy", ZEROS)], zipfile.ZIP_LZMA), "compressed by a method that no writer of weights"),
    ],
)
def test_a_file_without_sound_arrays_is_refused(content, reason, tmp_path):
    refused(written(tmp_path / "a.npz", content), reason)


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    refused(tmp_path, UNREADABLE)
    refused(tmp_path / "missing.npz", UNREADABLE)


@by_table("dtype", [">f4", "complex64", "int64", "bool", "<U1", "V4", "longdouble"])
def test_an_array_of_another_dtype_is_refused_with_its_key(dtype, tmp_path):
    np.savez(tmp_path / "a.npz", **{"head/bias": np.zeros(3, dtype), "head/kernel": np.zeros(3)})
    kind = np.dtype(dtype).str
    message = f"head/bias holds '{kind}'; expected floating-point arrays in this machine's byte order"
    refused(tmp_path / "a.npz", re.escape(message))
    assert load_arrays(tmp_path / "a.npz")["head/bias"].dtype == dtype


def test_pickled_objects_are_refused_and_not_run(tmp_path):
    trap = Trap(tmp_path / "trap")
    np.savez(tmp_path / "a.npz", a=np.array([trap], dtype=object))
    refused(tmp_path / "a.npz", PICKLED)
    refused(written(tmp_path / "b.npz", pickle.dumps(trap)), PICKLED)
    refused(written(tmp_path / "c.npz", zipped([("a.npy", pickle.dumps(trap))])))
    assert not (tmp_path / "trap").exists()


@pytest.mark.parametrize("key", ["a\nb", "\x1b[31m", "a\u2028b"])
def test_a_key_with_control_characters_is_refused(key, tmp_path):
    save_file({key: np.zeros(3, "float32")}, tmp_path / "a.safetensors")
    refused(tmp_path / "a.safetensors", re.escape(f"it has the key {ascii(key)}"))


def test_a_safetensors_header_with_a_key_twice_is_refused(tmp_path):
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
    text = f'{{"a":{entry % (0, 4)},"a":{entry % (4, 8)}}}'.encode()
    refused(written(tmp_path / "a", struct.pack("<Q", len(text)) + text + bytes(8)), UNREADABLE)


def test_a_file_may_not_declare_much_more_than_its_size(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(100_000, "float32"))
    assert read_arrays(tmp_path / "a.npz")["a"].size == 100_000
    monkeypatch.setattr(archive_module, "UNPACKED", 300_000)
    refused(tmp_path / "a.npz", "bytes declare 400,128; at most 300,000 are accepted")
    monkeypatch.setattr(archive_module, "EXPANSION", 2000)  # of the size of the file
    assert read_arrays(tmp_path / "a.npz")["a"].size == 100_000


def test_a_subtree_is_read_without_its_name(tmp_path):
    path = tmp_path / "a.npz"
    stored = {"img/a": np.zeros(2), "img/b/c": np.ones(2), "imgs/a": np.ones(3), "t": np.ones(1)}
    np.savez(path, **stored, **{"opt/count": np.int64(3)})
    assert_identical(read_arrays(path, "img"), {"a": stored["img/a"], "b/c": stored["img/b/c"]})
    assert_identical(read_arrays(path, "img/b"), {"c": stored["img/b/c"]})
    refused(path, "has nothing under 'im'; it has img, imgs, opt, t", subtree="im")


# torch ---------------------------------------------------------------------------------------------


def test_a_torch_file_without_torch_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    path = written(tmp_path / "a.npz", zipped([("archive/data.pkl", pickle.dumps({}))]))
    refused(path, "torch", "install it, or take a safetensors file")


@pytest.mark.parametrize("nested", some([None, "model", "state_dict", "model_state_dict"], 3))
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


def test_the_moving_averages_in_a_torch_file_are_read_as_by_timm(tmp_path):
    torch = pytest.importorskip("torch")
    states = {name: {"a": torch.full((2,), value)} for name, value in (("model", 1.0), ("model_ema", 2.0))}
    for ema, expected in ((states["model_ema"], 2), (None, 1)):
        torch.save({**states, "model_ema": ema, "epoch": 3}, tmp_path / "a.pth")
        assert_identical(read_arrays(tmp_path / "a.pth"), {"a": np.full(2, expected, "float32")})


def test_a_torch_file_of_other_objects_is_refused(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pth"
    torch.save({"a": Trap(tmp_path / "trap")}, path)
    refused(path, PICKLED)
    torch.save({"a": torch.ones(2, dtype=torch.int64)}, path)
    refused(path, "a holds '<i8'")
    torch.save({"a": torch.ones(2), "student": {"a": torch.ones(2)}, "epoch": 3}, path)
    refused(path, "expected tensors alone; got other objects as student, epoch: save one state dict alone")
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    refused(path, PICKLED)
    assert not (tmp_path / "trap").exists()
