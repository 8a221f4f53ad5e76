"""Files that webdataset and datasets write, and how webdataset itself groups the members of tar files."""

import json
import pathlib

import numpy as np
import pytest
from made.folders import write_boxes, write_classes, write_masks, write_table
from made.shards import encoded, read, write_tar
from peers.packages import datasets, webdataset

from keras_vit.data.datasets import load_dataset
from keras_vit.data.shard_writing import write_shards
from keras_vit.data.sources.webdataset import grouped
from keras_vit.data.tar_samples import tar_index

# webdataset leaves files open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
NAMES = ["cat", "dog", "owl"]


def stored(dataset):
    """The bytes and labels of all samples of the training split."""
    samples = dataset.split("train").evaluation_records()
    return {image: int(label) for image, label in samples.as_numpy_iterator()}


@pytest.mark.parametrize("rows", [None, 7])
def test_parquet_files_of_datasets_are_read_with_equal_bytes_and_labels(rows, tmp_path):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    rows_of = {"train": range(30), "test": range(30, 36), "validation": range(36, 40)}
    for split, numbers in rows_of.items():
        columns = {
            "image": [{"bytes": encoded(n)} for n in numbers],
            "label": [NAMES[n % 3] for n in numbers],
        }
        written = datasets.Dataset.from_dict(columns, features=features)
        written.to_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet", batch_size=rows)
    data = load_dataset(f"parquet:{tmp_path}")
    assert data.summary().startswith("3 classes (cat, dog, owl): 30 train, 4 validation, 6 test; train from ")
    written = datasets.load_dataset(str(tmp_path), split="train", cache_dir=str(tmp_path / "cache"))
    theirs = written.cast_column("image", datasets.Image(decode=False))
    assert stored(data) == {row["image"]["bytes"]: row["label"] for row in theirs}


def test_several_labels_and_targets_of_datasets_have_their_columns(tmp_path):
    several = datasets.List(datasets.ClassLabel(names=NAMES))
    features = {
        "image": datasets.Image(),
        "labels": several,
        "box": datasets.List(datasets.Value("float32"), 4),
    }
    columns = {"image": [], "labels": [], "box": []}
    for number in range(20):
        columns["image"].append({"bytes": encoded(number)})
        columns["labels"].append([number % 3, 1][: 1 + number % 2])
        columns["box"].append([number, 0.5, 1, 2])
    written = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    written.to_parquet(tmp_path / "a.parquet")
    data = load_dataset(f"parquet:{tmp_path}", task="multi_label")
    assert data.class_names == tuple(NAMES)
    for number, label in read(data.split("train").evaluation_records()):
        assert label == [float(c in columns["labels"][number]) for c in range(3)]
    data = load_dataset(f"parquet:{tmp_path}", task="regression")
    for number, label in read(data.split("train").evaluation_records()):
        assert label == columns["box"][number]


def test_tar_files_of_webdataset_are_read_with_equal_bytes_and_labels(tmp_path):
    with webdataset.ShardWriter(str(tmp_path / "toy-train-%06d.tar"), maxcount=12, verbose=0) as writer:
        for n in range(30):
            sample = {"__key__": f"{n:05}", "png": encoded(n), "cls": n % 3, "json": {"y": n % 2}}
            writer.write(sample)
    with webdataset.TarWriter(str(tmp_path / "toy-val-0.tar")) as writer:
        for n in range(30, 36):
            writer.write({"__key__": f"{n:05}", "png": encoded(n), "cls": n % 3, "json": {"y": n % 2}})
    pattern = f"webdataset:{tmp_path}/toy-{{train-{{000000..000002}},val-0}}.tar"
    data = load_dataset(pattern)
    found = stored(data) | {image: label for split in ("test",) for image, label in data.split(split)}
    shards = [str(path) for path in sorted(tmp_path.glob("*train*.tar"))]
    theirs = webdataset.WebDataset(shards, shardshuffle=False)
    assert found == {sample["png"]: int(sample["cls"]) for sample in theirs}
    by_json = load_dataset(pattern, fields=["label=json:y"])
    assert all(label == n % 2 for n, label in read(by_json.split("train").evaluation_records()))


def test_members_are_grouped_as_webdataset_does(tmp_path):
    names = [
        "a.png",
        "a.cls",
        "b.PNG",
        "b.seg.png",
        "c/a.jpg",
        "c/a.json",
        "c.d/e.jpg",
        "c.d/e.x.y.txt",
        "f_1.0.png",
    ]
    path = write_tar(tmp_path / "a.tar", [(name, name.encode()) for name in names])
    ours = {name: {*parts} for name, parts in grouped(path, tar_index(path))}
    theirs = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
    assert ours == {s["__key__"]: {key for key in s if not key.startswith("__")} for s in theirs}


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_files_written_here_are_read_by_webdataset_and_datasets(split, tmp_path):
    data = load_dataset(f"folder:{write_classes(tmp_path / 'in', count=30)}")
    expected = {image: label for image, label in data.split(split).evaluation_records().as_numpy_iterator()}
    tars = write_shards(data, tmp_path / "tar", "webdataset", images_per_shard=9)
    shards = [path for path in tars if f"/{split}-" in path]
    theirs = [*webdataset.WebDataset(shards, shardshuffle=False)]
    assert {sample["png"]: int(sample["cls"]) for sample in theirs} == expected
    counts = json.loads((tmp_path / "tar" / "sizes.json").read_text())
    assert len(theirs) == sum(counts[pathlib.Path(path).name] for path in shards)
    write_shards(data, tmp_path / "parquet", "parquet", images_per_shard=9)
    files = str(tmp_path / "parquet" / f"{split}-*.parquet")
    found = datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert found.features["label"].names == ["cat", "dog"]
    found = found.cast_column("image", datasets.Image(decode=False))
    assert {row["image"]["bytes"]: row["label"] for row in found} == expected


def test_boxes_are_exchanged_with_datasets(tmp_path):
    """Ours in its columns, and its own in both forms of its nested features."""
    data = load_dataset(f"folder:{write_boxes(tmp_path / 'boxes', count=12)}", task="detection")
    write_shards(data, tmp_path / "ours", "parquet")
    files, cache = str(tmp_path / "ours" / "train-*.parquet"), str(tmp_path / "cache")
    found = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
    assert found.features["objects"]["category"] == datasets.List(datasets.ClassLabel(names=["red", "green"]))
    expected = {image: label for image, label in data.split("train")}
    as_bytes = found.cast_column("image", datasets.Image(decode=False))
    for row in as_bytes:
        boxes = np.array(row["objects"]["bbox"]) / np.tile([row["width"], row["height"]], 2)
        boxes[:, 2:] += boxes[:, :2]
        np.testing.assert_allclose(boxes, expected[row["image"]["bytes"]][:, :4], atol=1e-6)
    objects = {
        "bbox": datasets.List(datasets.Value("float32")),
        "category": datasets.ClassLabel(names=["red", "green"]),
    }
    lists = {name: datasets.List(feature) for name, feature in objects.items()}
    for name, feature in (("lists", lists), ("structs", datasets.List(objects))):
        features = datasets.Features({"image": datasets.Image(), "objects": feature})
        rows = [{"image": row["image"], "objects": row["objects"]} for row in as_bytes]
        for row in rows:
            own = {key: row["objects"][key] for key in objects}
            if name == "structs":
                own = [dict(zip(own, values)) for values in zip(*own.values())]
            row["objects"] = own
        theirs = datasets.Dataset.from_list(rows, features=features)
        theirs.to_parquet(tmp_path / name / "train.parquet")
        read = load_dataset(f"parquet:{tmp_path / name}", task="detection", seed=None)
        assert read.class_names == ("red", "green")
        for image, label in read.split("train").evaluation_records().as_numpy_iterator():
            np.testing.assert_allclose(label, expected[image], atol=1e-6)


def test_labels_of_other_tasks_written_here_are_read_by_datasets(tmp_path):
    images = [f"{number}.png" for number in range(12)]
    lines = [f"{number}.png,{number % 2},{number % 3 // 2}" for number in range(12)]
    table = write_table(tmp_path / "table", "file,hat,hair", *lines, images=images)
    folders = {"multi_label": table, "regression": table, "segmentation": write_masks(tmp_path / "masks")}
    types = {
        "multi_label": ("labels", datasets.List(datasets.ClassLabel(names=["hat", "hair"]))),
        "regression": ("target", datasets.List(datasets.Value("float32"))),
        "segmentation": ("mask", datasets.Image()),
    }
    for task, (column, expected) in types.items():
        write_shards(load_dataset(f"folder:{folders[task]}", task=task), tmp_path / task, "parquet")
        files = str(tmp_path / task / "train-*.parquet")
        cache = str(tmp_path / f"{task} cache")
        found = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
        assert found.features[column] == expected
        assert found[0][column] is not None
