import itertools
import os
import pathlib

import numpy as np
import pytest
from made.changes import CHANGES, exchange, replace_a_class, write_layout
from made.folders import write_classes, write_masks
from made.prepared import prepare
from made.sampling import some
from made.shards import encoded, tar_of, write_parquet
from made.tables import by_table

from keras_vit.data.datasets import load_dataset
from keras_vit.data.fingerprint import differences, fingerprint
from keras_vit.training.workdir import Workdir


@pytest.fixture
def root(tmp_path):
    return write_classes(tmp_path / "images", count=8, suffix=".bmp")


def fingerprint_of(root, **options):
    return fingerprint(load_dataset(f"folder:{root}", **options))


def test_a_fingerprint_has_the_classes_the_splits_and_every_file(root):
    found = fingerprint_of(root)
    assert found["classes"] == ["cat", "dog"] and found["version"] is None
    assert sum(found["splits"].values()) == 16
    file = root / "cat" / "03.bmp"
    rows = {row.pop("file"): [*row.values()] for row in found["files"].to_pylist()}
    split, label, size, time = rows["cat/03.bmp"]
    assert split in ("train", "validation", "test") and label == '"cat"'
    assert (size, time) == (file.stat().st_size, file.stat().st_mtime_ns)
    assert differences(found, fingerprint_of(root)) == []


@by_table("name", [".", "./", "../here", "folder:."])
def test_files_have_their_names_in_the_folder_however_it_is_named(name, tmp_path, monkeypatch):
    write_classes(tmp_path / "here", ("bat", "cat"), count=3)
    monkeypatch.chdir(tmp_path / "here")
    data = load_dataset(name if ":" in name else pathlib.Path(name))
    files = fingerprint(data)["files"].column("file").to_pylist()
    assert sorted(files) == [f"{folder}/{number:02}.png" for folder in ("bat", "cat") for number in range(3)]
    assert not data.ignored_files


def test_a_fingerprint_of_records_has_their_version_and_counts(tmp_path):
    prepare(tmp_path, {"train": 30, "test": 10})
    found = fingerprint(load_dataset("tfds:toy", data_dir=tmp_path))
    assert found["version"] == "toy/1.0.0" and found["classes"] == ["red", "green", "blue"]
    assert found["splits"] == {"train": 27, "validation": 3, "test": 10} and not len(found["files"])
    other = {**found, "version": "toy/2.0.0", "splits": {**found["splits"], "train": 26}}
    assert differences(found, other) == [
        "version: was toy/1.0.0, is toy/2.0.0",
        "splits: were (27 train, 3 validation, 10 test), are (26 train, 3 validation, 10 test)",
    ]


def test_changes_are_counted_with_the_first_file(root):
    before = fingerprint_of(root)
    exchange(root / "cat", root / "dog")
    for text in differences(before, fingerprint_of(root)):
        assert "files exchanged with another one in " in text
    exchange(root / "cat", root / "dog")
    assert differences(before, fingerprint_of(root)) == []
    for number in (1, 2):
        (root / "dog" / f"0{number}.bmp").rename(root / "dog" / f"0{number}.png")
    assert "first: dog/01.png" in " ".join(differences(before, fingerprint_of(root)))


def test_other_classes_of_mask_values_are_a_change(tmp_path):
    root = write_masks(tmp_path, classes=2)
    (root / "classes.txt").write_text("sky\t0\ntree\t1\n")
    before = fingerprint_of(root, task="segmentation")
    (root / "classes.txt").write_text("sky\t1\ntree\t0\n")
    now = fingerprint_of(root, task="segmentation")
    assert before["classes"] == now["classes"] and before["files"] == now["files"]
    assert differences(before, now) == ["how the labels' values are read"]


def write_shard(path, images, labels):
    """A tar or Parquet file of images."""
    if path.suffix == ".parquet":
        return write_parquet(path, {"image": [encoded(n) for n in images], "label": labels})
    return tar_of(path, map(encoded, images), cls=labels)


@pytest.mark.parametrize("source, suffix", [("webdataset", ".tar"), ("parquet", ".parquet")])
def test_a_shard_of_other_labels_or_images_is_a_change_and_a_copy_is_none(source, suffix, tmp_path):
    path, labels = tmp_path / f"a{suffix}", [0, 1] * 10

    def facts():
        return fingerprint(load_dataset(f"{source}:{path}"))

    write_shard(path, range(20), labels)
    before = facts()
    path.touch()
    assert differences(before, facts()) == []
    exchanged = [n ^ 1 for n in range(20)]
    for images, of_images in ((range(20), labels[::-1]), (exchanged, labels)):
        write_shard(path, images, of_images)
        now = facts()
        assert now["splits"] == before["splits"]
        assert differences(before, now) == ["the names, sizes, labels or contents of its files"]


def test_the_same_files_in_another_order_differ(root):
    before = fingerprint_of(root)
    reverse = before["files"].take([*reversed(range(16))])
    assert differences(before, {**before, "files": reverse}) == ["the order of the files"]


def content(root, task):
    """The data of a run: the classes, and in order the split, file, label and bytes of each sample."""
    dataset = load_dataset(f"folder:{root}", task=task)
    return dataset.class_names, [
        (split, os.path.relpath(path, root), label, pathlib.Path(path).read_bytes())
        for split, samples in dataset.splits.items()
        for path, label in zip(samples.images, samples.labels)
    ]


CASES = [
    (change, layout, suffix)
    for change, layouts in CHANGES.items()
    for layout, suffix in itertools.product(layouts, (".png", ".bmp"))
]


@pytest.mark.parametrize(
    "change, layout, suffix", some(CASES, 9), ids=lambda x: x if isinstance(x, str) else x.__name__
)
def test_a_run_is_resumed_if_and_only_if_it_would_compute_with_the_same(change, layout, suffix, tmp_path):
    rng = np.random.default_rng([0, *change.__name__.encode()])
    task = layout if layout == "multi_label" else "single_label"
    root = write_layout(tmp_path / "data", layout, rng, suffix)
    workdir = Workdir(tmp_path / "run", {})
    workdir.make()
    workdir.record_data(fingerprint_of(root, task=task))
    before = content(root, task)
    change(root, rng)
    after = content(root, task)
    if change is replace_a_class and suffix == ".bmp":  # files of the same names and sizes, with new times
        assert before != after
        after = before
    if before == after:
        workdir.check_data(fingerprint_of(root, task=task))
        return
    with pytest.raises(ValueError, match="the data of the run in .* have changed: ") as refused:
        workdir.check_data(fingerprint_of(root, task=task))
    names = {*(row[1] for row in {*before[1]} ^ {*after[1]}), "the order of the files", "classes: were"}
    assert any(name in str(refused.value) for name in names)
