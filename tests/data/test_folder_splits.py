import json

import numpy as np
import pytest
from made.folders import write_classes
from made.tables import by_table
from PIL import Image

from keras_vit.data import load_dataset
from keras_vit.data.folder_splits import folder_splits, split_among, split_of_labels


@by_table(
    "names, expected",
    [
        (["images", "val"], ("validation", 1)),
        (["Valid"], ("validation", 0)),
        (["train2017"], ("train", 0)),
        (["02_test"], ("test", 0)),
        (["testing", "images"], ("test", 0)),
        (["images", "val", "train_station"], ("validation", 1)),
        (["val_images"], ("validation", 0)),
        (["train_val"], (None, None)),
        (["trainval", "contest"], (None, None)),
        ([], (None, None)),
    ],
    ids=str,
)
def test_names_of_folders_state_a_split(names, expected):
    assert split_among(names) == expected


@pytest.mark.parametrize("names", [["train", "val"], ["train_set", "val_set"]], ids=str)
def test_folders_of_two_splits_are_refused(names):
    with pytest.raises(ValueError, match=f"^expected folders of one split; got '{names[0]}/{names[1]}'$"):
        split_among(names)


def test_a_word_of_a_folder_is_a_split_if_all_folders_have_one():
    both = ["/a/train_images/1.png", "/a/val_images/1.png"]
    assert [split for split, _ in folder_splits("/a", both).values()] == ["train", "validation"]
    with pytest.raises(ValueError, match="'/a': expected all files in folders of .*; got test_track"):
        folder_splits("/a", ["/a/test_track/1.png", "/a/harbor/1.png"])


def test_the_folder_of_a_file_of_labels_comes_before_its_name():
    assert split_of_labels("/a", "/a/train/instances_val.json") == "train"
    assert split_of_labels("/a", "/a/annotations/instances_val.json") == "validation"
    assert split_of_labels("/a", "/a/annotations/instances_trainval.json") is None


OBJECTS = {"bbox": [[4, 2, 16, 10]], "category": ["cat"]}
XML = (
    "<annotation><filename>{}.png</filename><object><name>car</name><bndbox><xmin>5</xmin><ymin>3</ymin>"
    "<xmax>20</xmax><ymax>12</ymax></bndbox></object></annotation>"
)


def write_yolo(root, names):
    (root / "data.yaml").write_text("names: [cat]")
    return {f"images/{name}": (f"labels/{name}.txt", "0 0.5 0.5 0.5 0.5") for name in names}


def write_metadata(root, names):
    rows = [{"file_name": f"{name}.png", "objects": OBJECTS} for name in names]
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return dict.fromkeys(names)


def write_coco(root, names):
    numbers = range(len(names))
    images = [{"id": number, "file_name": f"{names[number]}.png"} for number in numbers]
    annotations = [{"image_id": number, "category_id": 1, "bbox": [4, 2, 16, 10]} for number in numbers]
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cat"}]}
    (root / "labels.json").write_text(json.dumps(content))
    return dict.fromkeys(names)


def write_voc(root, names):
    return {f"JPEGImages/{name}": (f"Annotations/{name}.xml", XML.format(name)) for name in names}


def write_masks(root, names):
    return {f"images/{name}": (f"masks/{name}.png", np.eye(40, dtype="uint8")[:20]) for name in names}


def write_depths(root, names):
    (root / "depth.json").write_text('{"scale": 1}')
    return {f"images/{name}": (f"depths/{name}.png", np.full((20, 40), 9, "uint8")) for name in names}


def write_captions(root, names):
    rows = [{"file_name": f"{name}.png", "text": name} for name in names]
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return dict.fromkeys(names)


def write_table(root, names):
    rows = [f"{name}.png,{'ab'[number % 2]}" for number, name in enumerate(names)]
    (root / "labels.csv").write_text("\n".join(["file,label", *rows]))
    return dict.fromkeys(names)


# A writer of a folder with some images, and options of `load_dataset`.
LAYOUTS = {
    "YOLO": (write_yolo, {"task": "detection"}),
    "metadata.jsonl": (write_metadata, {"task": "detection"}),
    "COCO": (write_coco, {"task": "detection"}),
    "VOC": (write_voc, {"task": "detection"}),
    "masks": (write_masks, {"task": "segmentation"}),
    "depths": (write_depths, {"task": "depth"}),
    "captions": (write_captions, {"texts": True}),
    "table": (write_table, {}),
    "no labels": (lambda root, names: dict.fromkeys(names), {"labels": False}),
}


@by_table("layout", LAYOUTS)
def test_the_split_of_an_image_is_that_of_its_folder_whatever_words_its_name_has(layout, tmp_path):
    write, options = LAYOUTS[layout]
    names = [*(f"Train/val_{n}" for n in range(4)), *(f"val2017/train_{n}" for n in range(3))]
    names += [f"test/train_station/{n}" for n in range(2)]
    for image, label in write(tmp_path, names).items():
        path = tmp_path / f"{image}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((20, 40, 3), "uint8")).save(path)
        if label:
            path = tmp_path / label[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(label[1]) if isinstance(label[1], str) else Image.fromarray(label[1]).save(path)
    data = load_dataset(tmp_path, **options)
    assert {split: len(of) for split, of in data.splits.items()} == {"train": 4, "validation": 3, "test": 2}
    folders = {"train": "Train", "validation": "val2017", "test": "test"}
    for split, folder in folders.items():
        assert all(f"/{folder}/" in path for path in data.split(split).images)
        assert data.split_sources[split].endswith(folder)
    assert "; train from " in data.summary()


def test_classes_may_have_folders_of_splits(tmp_path):
    for name in ("bottle", "cable"):
        write_classes(tmp_path / name, ("train/good", "Test/broken", "test/good"), count=5)
    data = load_dataset(tmp_path)
    assert data.class_names == ("bottle", "cable")
    assert {split: len(of) for split, of in data.splits.items()} == {"train": 8, "validation": 2, "test": 20}
    assert all("/test/" in path.lower() for path in data.split("test").images)
    assert "train from */train, validation held out, test from */Test, */test" in data.summary()


UNCLEAR = {
    "masks beside": ("cat/train", "cat/test", "cat/ground_truth", "dog/train", "dog/test"),
    "a class without": ("cat/train", "cat/test", "dog"),
    "deeper": ("cat/a/train", "cat/a/test", "dog/a/train"),
    "no training images": ("cat/test", "dog/test"),
    "years": ("cat/train2017", "cat/val2017", "dog"),
    "both": ("train/cat/train", "train/dog/test", "test/cat/train"),
}


@by_table("layout", UNCLEAR)
def test_folders_of_splits_in_classes_that_are_unclear_are_refused(layout, tmp_path):
    for name in UNCLEAR[layout]:
        write_classes(tmp_path, (name,), count=3)
    with pytest.raises(ValueError, match=r"^splits and classes cannot be distinguished .*\(CLASS/train/\*"):
        load_dataset(tmp_path)
