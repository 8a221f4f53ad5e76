"""Checkpoints in several safetensors files."""

import hashlib
import json

import numpy as np
import pytest
from made.checkpoints import base
from made.servers import asked_hub
from made.tables import by_table
from reference.comparing import arrays, assert_same_arrays
from safetensors.numpy import save_file

from keras_vit import from_pretrained
from keras_vit.weights.array_files import read_arrays
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.fetch import fetch, is_cached

INDEX, NAMES = "model.safetensors.index.json", [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]


def split(folder, change=lambda index: index):
    """A golden checkpoint in two files, and its index with a change."""
    original = base("hf_vit")
    folder.mkdir(exist_ok=True)
    for name, text in original.metadata.items():
        (folder / name).write_text(text)
    files = {key: NAMES[n % 2] for n, key in enumerate(original.arrays)}
    for name in NAMES:
        part = {key: array for key, array in original.arrays.items() if files[key] == name}
        save_file(part, folder / name)
    index = change({"metadata": {"total_size": 1}, "weight_map": files})
    (folder / INDEX).write_text(index if isinstance(index, str) else json.dumps(index))
    return folder / INDEX


def test_the_files_of_an_index_are_one_checkpoint(tmp_path):
    path = split(tmp_path / "split")
    assert_same_arrays(read_arrays(path), base("hf_vit").arrays)
    assert read_checkpoint(path.parent).configuration == "config.json"
    whole = from_pretrained(base("hf_vit").write(tmp_path / "whole"))
    again = from_pretrained(path.parent)
    assert again.get_config() | {"name": whole.name} == whole.get_config()
    assert_same_arrays(arrays(again), arrays(whole))


def with_files(**changes):
    return lambda index: {"weight_map": {**index["weight_map"], **changes}}


@by_table(
    "change, message",
    [
        *(
            (with_files(a=name), "expected the name of a safetensors file next to it")
            for name in ("../a", "/a", "a.bin", "..safetensors", 3, "é.safetensors", "a\nb", None)
        ),
        (with_files(a=NAMES[0]), f"{NAMES[0]} and the index differ in a"),
        (with_files(a="other.safetensors"), "other.safetensors"),
        (lambda index: {"weight_map": {}}, "without the weight_map of an index"),
        (lambda index: {"weight_map": [NAMES[0]]}, "without the weight_map of an index"),
        (lambda index: {"metadata": {}}, "without the weight_map of an index"),
        (lambda index: "{", "is no checkpoint that can be read"),
        (lambda index: "[" * 10**5, "is no checkpoint that can be read"),
        (lambda index: " " * (1 << 24) + json.dumps(index), "is no checkpoint that can be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_or_hostile_index_is_refused(change, message, tmp_path):
    path = split(tmp_path, change)
    with pytest.raises(ValueError, match=message) as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value) and INDEX in str(caught.value)


def test_an_array_that_the_index_does_not_list_is_refused(tmp_path):
    path = split(tmp_path)
    save_file({"classifier.bias": np.zeros(7, "float32")}, tmp_path / NAMES[1])
    with pytest.raises(ValueError, match=f"{NAMES[1]} and the index differ in "):
        read_checkpoint(path)


def test_a_digest_of_the_index_is_refused(tmp_path):
    path = split(tmp_path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match="sha256 would not cover the files that the index lists"):
        read_checkpoint(path, sha256=digest)


def test_a_repository_is_downloaded_with_all_files(tmp_path, monkeypatch):
    path = split(tmp_path / "split")
    files = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    lost = {name: content for name, content in files.items() if name != NAMES[1]}
    with asked_hub(tmp_path / "hub", monkeypatch) as server:
        for name, commit, held in (("whole", "a" * 40, files), ("lost", "b" * 40, lost)):
            server.repositories[f"org/{name}"] = {"main": (commit, held), commit: (commit, held)}
        assert not is_cached("hf://org/whole")
        path = fetch("hf://org/whole")
        assert path.name == INDEX and {file.name for file in path.parent.iterdir()} == {*files}
        assert is_cached("hf://org/whole")
        (path.parent / NAMES[0]).unlink()
        assert not is_cached("hf://org/whole")
        missing = f"org/lost: the repository has no {NAMES[1]}, which {INDEX} lists"
        with pytest.raises(ValueError, match=missing):
            fetch("hf://org/lost")
