import collections
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from made.folders import picture, write_broken, write_classes, write_table
from made.photos import photo
from made.tables import by_table
from PIL import Image

from keras_vit.data.datasets import load_dataset
from keras_vit.data.decoding.model_input import decode, read
from keras_vit.data.files import UNDECODABLE


def sizes(dataset):
    """The sample counts of the splits, which must be disjoint."""
    images = [image for samples in dataset.splits.values() for image in samples.images]
    assert len(set(images)) == len(images)
    return tuple(len(dataset.splits[split]) for split in ("train", "validation", "test"))


def test_a_folder_of_classes_is_split_class_by_class(tmp_path):
    dataset = load_dataset(write_classes(tmp_path / "images", ("b", "a", "c"), count=10))
    assert dataset.class_names == ("a", "b", "c") and sizes(dataset) == (21, 3, 6)
    for samples, count in zip(dataset.splits.values(), (7, 1, 2)):
        assert collections.Counter(samples.labels) == dict.fromkeys(range(3), count)
        for path, label in zip(samples.images, samples.labels):
            assert f"/{dataset.class_names[label]}/" in path


def held_out(dataset, root):
    return {
        split: [path.removeprefix(f"{root}/") for path in dataset.split(split).images]
        for split in ("validation", "test")
    }


def test_the_same_images_of_classes_are_held_out_everywhere(tmp_path):
    write_classes(tmp_path, ("cat", "dog", "owl"), count=12)
    assert held_out(load_dataset(tmp_path), tmp_path) == {
        "validation": ["cat/11.png", "dog/02.png", "owl/07.png"],
        "test": ["cat/02.png", "cat/09.png", "dog/09.png", "dog/11.png", "owl/08.png", "owl/09.png"],
    }


def test_the_same_images_without_classes_are_held_out_everywhere(tmp_path):
    """The order of files and folders decides which."""
    for folder in ("in/b/2024", "in/a", "in/b"):
        write_classes(tmp_path / folder, (".",), count=6)
    assert held_out(load_dataset(tmp_path, labels=False), tmp_path) == {
        "validation": ["in/b/03.png"],
        "test": ["in/a/02.png", "in/a/03.png", "in/b/04.png"],
    }


@by_table(
    "folders, expected",
    [
        (("",), (7, 1, 2)),
        (("2024/05",), (7, 1, 2)),
        (("2024/05", "2024/06"), (15, 1, 4)),
        (("train", "val"), (8, 10, 2)),
        (("train_set", "val_set"), (8, 10, 2)),
        (("test",), (7, 1, 2)),
        (("in/test_shots", "in/holiday"), (15, 1, 4)),
        (("holiday/train", "holiday/val"), (8, 10, 2)),
    ],
    ids=str,
)
def test_images_without_labels_are_read_from_any_folders(folders, expected, tmp_path):
    for folder in folders:
        write_classes(tmp_path / folder, (".",))
    dataset = load_dataset(tmp_path, labels=False)
    assert (dataset.class_names, sizes(dataset)) == ((), expected)
    assert dataset.summary().startswith(f"images without labels: {expected[0]} train, ")
    with pytest.raises(ValueError):
        load_dataset(tmp_path)


def test_classes_are_read_where_labels_are_not_necessary(tmp_path):
    assert load_dataset(write_classes(tmp_path / "images"), labels=False).class_names == ("cat", "dog")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no images in '.*/empty'; expected files that end in .jpg, "):
        load_dataset(tmp_path / "empty", labels=False)


@pytest.mark.parametrize(
    "counts, expected",
    [({"train": 20, "test": 3}, (36, 4, 6)), ({"Train": 6, "VALID": 3, "Test": 4}, (12, 6, 8))],
    ids=str,
)
def test_split_folders_of_several_names_are_kept_and_a_missing_one_is_held_out(counts, expected, tmp_path):
    for split, count in counts.items():
        write_classes(tmp_path / split, count=count)
    dataset = load_dataset(tmp_path)
    assert sizes(dataset) == expected
    for split, samples in dataset.splits.items():
        if split == "test":
            assert all("/test/" in path.lower() for path in samples.images)


@pytest.mark.parametrize("suffix", [".jpg", ".BMP", ".tif", ".avif"])
def test_images_of_each_format_are_found_and_decoded(suffix, tmp_path):
    dataset = load_dataset(write_classes(tmp_path / "images", count=3, suffix=suffix))
    assert sum(sizes(dataset)) == 6
    for path in dataset.split("train").images:
        label, number = int("/dog/" in path), int(path.rpartition("/")[2][:2])
        difference = decode(read(path)).numpy().astype(int) - picture(label, number)
        assert np.abs(difference).mean() <= (60 if suffix in (".jpg", ".avif") else 0)


def test_files_without_a_class_are_ignored_and_listed_and_hidden_ones_skipped(tmp_path):
    write_classes(tmp_path / "train")
    for name in ("cover.jpg", "train/cover.jpg", "docs/notes.txt", "train/cat/notes.txt"):
        write_broken(tmp_path / name)
    for hidden in ("__MACOSX/cat/._00.png", ".cache/thumb.png", ".DS_Store", "train/cat/._00.png"):
        write_broken(tmp_path / hidden)
    (tmp_path / "train" / "bird").mkdir()
    dataset = load_dataset(tmp_path)
    assert dataset.class_names == ("cat", "dog") and sum(sizes(dataset)) == 20
    ignored = ("cover.jpg", "docs/notes.txt", "train/cover.jpg", "train/cat/notes.txt")
    assert dataset.ignored_files == tuple(str(tmp_path / name) for name in ignored)
    assert dataset.empty_folders == (str(tmp_path / "docs"), str(tmp_path / "train" / "bird"))


def test_links_to_folders_are_followed_but_not_upwards(tmp_path):
    (tmp_path / "images").mkdir()
    for name in ("cat", "dog"):
        target = write_classes(tmp_path / "elsewhere" / name, ("inner",)) / "inner"
        (tmp_path / "images" / name).symlink_to(target)
    expected = load_dataset(tmp_path / "images")
    assert (
        expected.summary()
        == "2 classes (cat, dog): 14 train, 2 validation, 4 test; validation and test held out"
    )
    (tmp_path / "images" / "again").symlink_to(tmp_path / "images")
    assert load_dataset(tmp_path / "images") == expected


def test_folders_that_are_linked_with_each_other_are_read_once(tmp_path):
    write_classes(tmp_path)
    (tmp_path / "cat" / "friend").symlink_to(tmp_path / "dog")
    (tmp_path / "dog" / "friend").symlink_to(tmp_path / "cat")
    dataset = load_dataset(tmp_path)
    assert sum(sizes(dataset)) == 20
    assert not any("friend" in path for samples in dataset.splits.values() for path in samples.images)


def test_a_link_to_a_folder_above_is_not_followed(tmp_path):
    write_classes(tmp_path / "images")
    write_classes(tmp_path / "others")
    (tmp_path / "images" / "cat" / "above").symlink_to(tmp_path)
    assert sum(sizes(load_dataset(tmp_path / "images"))) == 20


def test_a_link_to_an_image_of_the_folder_is_refused(tmp_path):
    write_classes(tmp_path / "train")
    write_classes(tmp_path / "test")
    (tmp_path / "test/cat/99.png").symlink_to(tmp_path / "train/cat/00.png")
    with pytest.raises(ValueError, match=r"^expected each image once; got .*, which are one file$"):
        load_dataset(tmp_path)


UNCLEAR = {  # folders, and whether they contain class folders
    "other names": {"training_set": True, "test_set": True},
    "years": {"train2017": True, "val2017": True},
    "no training split": {"val": True, "test": True},
    "one split": {"test": True},
    "a split twice": {"train": True, "val": True, "valid": True},
    "classes and a split": {"train": True, "cat": False, "dog": False},
    "no classes": {"train": False, "test": False},
}


@by_table("kind", UNCLEAR)
def test_folders_that_may_be_splits_are_refused_with_the_expected_layout(kind, tmp_path):
    for name, has_classes in UNCLEAR[kind].items():
        write_classes(tmp_path / name, *([] if has_classes else [(".",)]), count=1)
    names = ", ".join(sorted(UNCLEAR[kind]))
    layout = r"expected folders of classes \(CLASS/\*\.jpg\), or only folders of splits .*val/"
    with pytest.raises(ValueError, match=f"cannot be distinguished in .* has the folders {names}; {layout}"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("names", [("car", "train"), ("test_tube", "trial")])
def test_classes_may_have_names_of_splits(names, tmp_path):
    assert load_dataset(write_classes(tmp_path, names)).class_names == names


@pytest.mark.parametrize("orientation, exif", [(1, False), (6, True)])
def test_only_splits_with_rotated_images_are_searched_for_orientations(orientation, exif, tmp_path):
    for split in ("train", "test"):
        write_classes(tmp_path / split)
    (tmp_path / "train" / "cat" / "photo.jpg").write_bytes(photo(orientation))
    dataset = load_dataset(tmp_path)
    assert (dataset.split("train").exif, dataset.split("test").exif) == (exif, False)


REFUSED = [
    (lambda root: root.mkdir(), "no images in class folders of '.*/images'; expected folders of classes"),
    (lambda root: write_classes(root, ("cat",)), "'.*' has images of one class only: 'cat'"),
    (
        lambda root: write_classes(root, count=2),
        "too few images of each class: none for the validation split; three images of each class are enough",
    ),
]


@by_table("make, message", REFUSED)
def test_a_folder_that_is_not_a_data_set_is_refused(make, message, tmp_path):
    make(tmp_path / "images")
    with pytest.raises(ValueError, match=message):
        load_dataset(tmp_path / "images")


@pytest.mark.parametrize("length", [0, 1000])
def test_an_unreadable_image_raises_or_is_skipped_and_listed(length, tmp_path):
    root = write_classes(tmp_path / "images")
    bad = root / "dog" / "bad.png"
    bad.write_bytes((root / "dog" / "00.png").read_bytes()[:length])
    with pytest.raises(ValueError, match=r"1 image\(s\) cannot be read: .*/dog/bad.png; .*on_bad_image skip"):
        load_dataset(root)
    dataset = load_dataset(root, on_bad_image="skip")
    assert dataset.bad_images == {str(bad): UNDECODABLE}
    assert str(bad) not in {path for samples in dataset.splits.values() for path in samples.images}
    assert sum(sizes(dataset)) == 20


PICTURES = [f"{number}.png" for number in range(20)]
SINGLE, MULTI, NUMBER = "single_label", "multi_label", "regression"
NAMES = ("daisy", "rose", "tulip")
# By task: the columns of labels, the cells of picture i, its label, the names, the sizes of the splits, and
# what the summary calls a name.
TABLES = {
    SINGLE: ("label", lambda i: f" {NAMES[i % 3]}", lambda i: i % 3, NAMES, (14, 3, 3), "3 classes"),
    MULTI: (
        "cat,dog,tree",
        lambda i: f" {i % 2},{i % 3 // 2} ,1",
        lambda i: (i % 2, i % 3 // 2, 1),
        ("cat", "dog", "tree"),
        (15, 1, 4),
        "3 labels",
    ),
    NUMBER: ("age", lambda i: f"{i / 4 - 1:e}", lambda i: (i / 4 - 1,), ("age",), (15, 1, 4), "1 target"),
}


@pytest.mark.parametrize("task", TABLES)
def test_a_table_has_the_labels_of_each_task(task, tmp_path):
    columns, cells, label_of, names, counts, named = TABLES[task]
    lines = [f"{name},{cells(i)}" for i, name in enumerate(PICTURES)]
    root = write_table(tmp_path, f"file,{columns}", *lines, images=[*PICTURES, "spare/1.png"])
    dataset = load_dataset(root, task=task)
    assert (dataset.class_names, dataset.task, sizes(dataset)) == (names, task, counts)
    assert dataset.ignored_files == (str(root / "spare" / "1.png"),)
    assert dataset.summary().startswith(f"{named} ({', '.join(names)}): {counts[0]} train, ")
    for samples in dataset.splits.values():
        expected = [label_of(int(pathlib.Path(path).stem)) for path in samples.images]
        assert [*samples.labels] == expected
        _, label = samples.evaluation_records().element_spec
        assert label == (tf.TensorSpec((), tf.int32) if task == SINGLE else tf.TensorSpec((len(names),)))


def test_a_table_may_have_splits_and_folders_and_unreadable_images(tmp_path):
    splits = ("", "val", "validation", "test")  # An empty one is train.
    lines = [f"in/{name},{i / 4 - 1:e},{splits[i % 4]}" for i, name in enumerate(PICTURES)]
    names = [f"in/{name}" for name in PICTURES]
    root = write_table(tmp_path, "\ufefffile,age,split", *lines, "", images=names)
    dataset = load_dataset(root, task=NUMBER)
    assert dataset.class_names == ("age",) and sizes(dataset) == (5, 10, 5)
    assert dataset.split("test").labels == tuple((i / 4 - 1,) for i in range(3, 20, 4))
    write_broken(root / "in" / "7.png")
    dataset = load_dataset(root, task=NUMBER, on_bad_image="skip")
    assert dataset.bad_images == {str(root / "in" / "7.png"): UNDECODABLE}
    assert dataset.split("test").labels == tuple((i / 4 - 1,) for i in range(3, 20, 4) if i != 7)


def test_a_table_of_labels_is_preferred_to_class_folders_and_has_splits(tmp_path):
    root = write_classes(tmp_path, ("train", "valid"))
    lines = [f"{split}/{i:02d}.png,{'ab'[i % 2]},{split}" for split in ("train", "valid") for i in range(10)]
    dataset = load_dataset(write_table(root, "filename,label,split", *lines))
    assert dataset.class_names == ("a", "b") and dataset.ignored_files == () and sizes(dataset) == (8, 10, 2)


WRONG_TABLES = [
    (MULTI, ("image,cat", "a.png,1"), "line 1: expected the columns file .* got image, cat"),
    (MULTI, ("file,split", "a.png,test"), "line 1: .* one for each class or target, .* got file, split"),
    (MULTI, ("file,cat,cat", "a.png,1,1"), "line 1: expected .* each once; got file, cat, cat"),
    (MULTI, ("file,filename,cat", "a.png,a.png,1"), "line 1: expected .*; got file, filename, cat"),
    (MULTI, ("file,cat", "a.png,1", "b.png,1,0"), "line 3: expected 2 values; got 3"),
    (MULTI, ("file,cat", "a.png,1", "b.png,2"), "line 3, column cat: expected 0 or 1; got '2'"),
    (MULTI, ("file,cat", "", "c.png,1"), "line 3, column file: no such file: 'c.png'"),
    (MULTI, ("file,cat", "a.png,1", "a.png,0"), "line 3, column file: 'a.png' is in line 2 too"),
    (MULTI, ("file,cat,split", "a.png,1,fold"), "line 2, column split: expected one of train, .*'fold'"),
    (MULTI, ("file,cat", "../a.png,1"), "line 2, column file: expected a file in '.*'; got '../a.png'"),
    (MULTI, ("file,cat", "/etc/hosts,1"), "line 2, column file: expected a file in '.*'; got '/etc/hosts'"),
    (MULTI, ("file,cat", "a/../../b.png,1"), "line 2, column file: expected a file in '.*'; got 'a/"),
    (MULTI, ("file,cat", "..,1"), "line 2, column file: expected a file in '.*'; got '..'"),
    (MULTI, ("file,cat", 'a.png,"1', "b.png,0"), "line 3: unexpected end of data"),
    (MULTI, ("file,cat", 'a.png,"1"0', "b.png,0"), "line 2: .* expected after"),
    (MULTI, ("file,cat,split", "a.png,1,test"), "has no samples to train on"),
    (NUMBER, ("file,age", "a.png,old"), "line 2, column age: expected a number that .*; got 'old'"),
    (
        NUMBER,
        ("file,age", "a.png,1e300"),
        "line 2, column age: expected a number that float32 .*; got '1e300'",
    ),
    (SINGLE, ("file,label,age", "a.png,cat,3"), "line 1: .* and label, each once; got file, label, age"),
]


@by_table("task, lines, message", WRONG_TABLES)
def test_a_wrong_table_is_refused_with_line_and_column(task, lines, message, tmp_path):
    write_table(tmp_path, *lines, images=["a.png", "b.png"])
    with pytest.raises(ValueError, match=f"labels.csv,? {message}"):
        load_dataset(tmp_path, task=task)


def test_a_table_and_a_task_that_do_not_fit_are_refused(tmp_path):
    write_table(tmp_path / "ages", "file,age", "a.png,1", images=["a.png"])
    with pytest.raises(ValueError, match="no images in class folders .*; labels.csv has no column label"):
        load_dataset(tmp_path / "ages")
    Image.new("RGB", (8, 8)).save(write_classes(tmp_path / "one", ("cat",)) / "cat" / "a.png")
    with pytest.raises(ValueError, match="'regression' needs the table '.*labels.csv', which is missing"):
        load_dataset(tmp_path / "one", task="regression")
    write_table(tmp_path / "one", "image,class", "cat/a.png,cat")
    with pytest.raises(ValueError, match="of one class only: 'cat'; labels.csv has no column label"):
        load_dataset(tmp_path / "one")


@by_table("name", [b"caf\xe9.png", b"caf\xe9/1.png"])
def test_a_name_that_is_not_utf_8_is_refused(name, tmp_path):
    root = write_classes(tmp_path / "in")
    path = pathlib.Path(os.fsdecode(os.fsencode(root / "cat") + b"/" + name))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes((root / "cat" / "00.png").read_bytes())
    with pytest.raises(ValueError, match=r"^expected paths in UTF-8; got '.*caf\\udce9.*': rename it$"):
        load_dataset(root)
