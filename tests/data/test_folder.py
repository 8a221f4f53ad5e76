import collections
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from made.folders import picture, write_broken, write_classes, write_many, write_table
from made.photos import photo
from PIL import Image

from keras_vit.data.datasets import load_dataset
from keras_vit.data.images import decode, read


def load_folder(path, **options):
    return load_dataset(f"folder:{path}", **options)


def assert_disjoint(dataset):
    images = [image for samples in dataset.splits.values() for image in samples.images]
    assert len(set(images)) == len(images)


def test_a_folder_of_classes_is_split_class_by_class(tmp_path):
    dataset = load_folder(write_classes(tmp_path / "images", ("b", "a", "c"), count=10))
    assert dataset.class_names == ("a", "b", "c")
    assert {s: collections.Counter(x.labels) for s, x in dataset.splits.items()} == {
        "train": {0: 7, 1: 7, 2: 7},
        "validation": {0: 1, 1: 1, 2: 1},
        "test": {0: 2, 1: 2, 2: 2},
    }
    assert_disjoint(dataset)
    for samples in dataset.splits.values():
        for path, label in zip(samples.images, samples.labels):
            assert f"/{dataset.class_names[label]}/" in path


def test_a_folder_with_train_and_test_keeps_its_test_split_as_it_is(tmp_path):
    write_classes(tmp_path / "train", count=20)
    write_classes(tmp_path / "test", count=3)
    dataset = load_folder(tmp_path)
    assert {split: len(samples) for split, samples in dataset.splits.items()} == {
        "train": 36,
        "validation": 4,
        "test": 6,
    }
    assert all("/test/" in path for path in dataset.split("test").images)
    assert not any("/test/" in path for path in dataset.split("train").images)
    assert_disjoint(dataset)


def test_a_folder_with_all_three_splits_is_taken_as_it_is(tmp_path):
    for split, count in (("train", 4), ("validation", 3), ("test", 2)):
        write_classes(tmp_path / split, count=count)
    found = load_folder(tmp_path).splits
    assert {split: len(found[split]) for split in found} == {"train": 8, "validation": 6, "test": 4}


def test_classes_of_any_split_are_numbered_together(tmp_path):
    write_classes(tmp_path / "train", ("ant", "cat"))
    write_classes(tmp_path / "test", ("bee", "cat"))
    dataset = load_folder(tmp_path)
    assert dataset.class_names == ("ant", "bee", "cat")
    assert set(dataset.split("train").labels) == {0, 2}
    assert set(dataset.split("test").labels) == {1, 2}


def test_images_in_sub_folders_belong_to_their_class(tmp_path):
    root = write_classes(tmp_path / "images")
    shutil.move(root / "cat", root / "inner")
    (root / "cat").mkdir()
    shutil.move(root / "inner", root / "cat")
    dataset = load_folder(root)
    assert dataset.class_names == ("cat", "dog")
    assert sum(len(samples) for samples in dataset.splits.values()) == 20


FORMATS = [".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"]


@pytest.mark.parametrize("suffix", [*FORMATS, *(suffix.upper() for suffix in FORMATS)])
def test_images_of_each_format_are_found_and_decoded(suffix, tmp_path):
    dataset = load_folder(write_classes(tmp_path / "images", count=3, suffix=suffix))
    assert sum(len(samples) for samples in dataset.splits.values()) == 6
    loss = {".jpg": 60, ".jpeg": 60, ".gif": 60, ".webp": 60}.get(suffix.lower(), 0)
    paths = [path for samples in dataset.splits.values() for path in samples.images]
    for path in paths:
        pixels = decode(read(path)).numpy()
        assert pixels.shape == (32, 32, 3) and pixels.dtype == np.uint8
        label, number = int("/dog/" in path), int(path.rpartition("/")[2][:2])
        assert np.abs(pixels.astype(int) - picture(label, number)).mean() <= loss


def test_other_files_are_not_taken_for_images(tmp_path):
    root = write_classes(tmp_path / "images")
    (root / "cat" / "notes.txt").write_text("no image")
    (root / "readme.md").write_text("no class")
    (root / "nothing").mkdir()
    dataset = load_folder(root)
    assert dataset.class_names == ("cat", "dog")
    assert sum(len(samples) for samples in dataset.splits.values()) == 20
    assert dataset.ignored_files == (str(root / "readme.md"), str(root / "cat" / "notes.txt"))
    assert dataset.empty_folders == (str(root / "nothing"),)


def test_hidden_files_and_folders_are_not_taken_for_images_and_classes(tmp_path):
    root = write_classes(tmp_path / "images")
    shown = load_folder(root)
    for hidden in ("__MACOSX/cat/._00.png", ".cache/thumb.png", ".DS_Store", "cat/._00.png", "dog/.x/0.png"):
        write_broken(root / hidden)
    assert load_folder(root) == shown and shown.class_names == ("cat", "dog")
    assert shown.ignored_files == shown.empty_folders == ()


def test_links_to_folders_are_followed_but_not_upwards(tmp_path):
    (tmp_path / "images").mkdir()
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).symlink_to(
            write_classes(tmp_path / "elsewhere" / name, ("inner",)) / "inner"
        )
    expected = load_folder(tmp_path / "images")
    assert expected.summary() == "2 classes (cat, dog): 14 train, 2 validation, 4 test"
    (tmp_path / "images" / "again").symlink_to(tmp_path / "images")
    assert load_folder(tmp_path / "images") == expected


def test_images_outside_of_class_folders_are_ignored_and_listed(tmp_path):
    write_classes(tmp_path / "train")
    for name in ("cover.jpg", "train/cover.jpg", "docs/notes.txt"):
        write_broken(tmp_path / name)
    (tmp_path / "train" / "bird").mkdir()
    dataset = load_folder(tmp_path)
    assert sum(len(samples) for samples in dataset.splits.values()) == 20
    assert dataset.ignored_files == tuple(
        str(tmp_path / name) for name in ("cover.jpg", "docs/notes.txt", "train/cover.jpg")
    )
    assert dataset.empty_folders == (str(tmp_path / "docs"), str(tmp_path / "train" / "bird"))


@pytest.mark.parametrize("train, val, test", [("Train", "VALID", "Test"), ("train", "Validation", "TEST")])
def test_split_folders_have_several_names_in_any_case(train, val, test, tmp_path):
    for split, count in ((train, 6), (val, 3), (test, 4)):
        write_classes(tmp_path / split, count=count)
    sizes = {split: len(samples) for split, samples in load_folder(tmp_path).splits.items()}
    assert sizes == {"train": 12, "validation": 6, "test": 8}


UNCLEAR = {  # folders and whether they hold class folders
    "other names": {"training_set": True, "test_set": True},
    "one other name": {"seg_train": True},
    "years": {"train2017": True, "val2017": True},
    "folds": {"fold1": True, "fold2": True},
    "no training split": {"val": True, "test": True},
    "a split twice": {"train": True, "val": True, "valid": True},
    "another folder beside": {"train": True, "test": True, "holdout": True},
    "classes beside": {"train": True, "cat": False, "dog": False},
    "images of no class": {"train": True, "test": False},
    "no classes": {"train": False, "test": False},
    "no classes, other names": {"training": False, "testing": False},
}


@pytest.mark.parametrize("kind", UNCLEAR)
def test_folders_that_may_be_splits_are_refused_with_the_layout_that_is_wanted(kind, tmp_path):
    for name, has_classes in UNCLEAR[kind].items():
        write_classes(tmp_path / name, *([] if has_classes else [(".",)]), count=1)
    names = ", ".join(sorted(UNCLEAR[kind]))
    wanted = (
        r"wanted folders of classes \(CLASS/\*\.jpg\), or of splits alone \(train/CLASS/\*\.jpg and, .*val/"
    )
    with pytest.raises(
        ValueError, match=f"cannot be told apart in '.*', which has the folders {names}; {wanted}"
    ):
        load_dataset(f"folder:{tmp_path}")


@pytest.mark.parametrize(
    "names", [("car", "train"), ("invalid", "valid"), ("test_tube", "trial"), ("a", "testes")]
)
def test_classes_may_be_named_as_splits_are(names, tmp_path):
    assert load_folder(write_classes(tmp_path, names)).class_names == names


def test_sub_folders_of_classes_may_be_alike(tmp_path):
    for name in ("benign", "malignant"):
        write_classes(tmp_path / name, ("100X", "40X"))
    assert load_folder(tmp_path).class_names == ("benign", "malignant")


@pytest.mark.parametrize("turned, exif", [(1, False), (6, True)])
def test_a_split_without_turned_images_is_not_searched_for_orientations(turned, exif, tmp_path):
    for split in ("train", "test"):
        write_classes(tmp_path / split)
    (tmp_path / "train" / "cat" / "photo.jpg").write_bytes(photo(turned))
    dataset = load_folder(tmp_path)
    assert (dataset.split("train").exif, dataset.split("test").exif) == (exif, False)


def nothing(root):
    root.mkdir()


def one_class(root):
    write_classes(root, ("cat",))


def no_folder(root):
    pass


def a_file(root):
    root.write_text("no folder")


def too_few(root):
    write_classes(root, count=2)


def nothing_to_train_on(root):
    (root / "train").mkdir(parents=True)
    write_classes(root / "test")


def all_broken(root):
    for name in ("cat", "dog"):
        write_broken(root / name / "0.png")


REFUSED = {
    nothing: r"no images in class folders of '.*/images'; wanted folders of classes \(CLASS/\*\.jpg",
    one_class: "'.*/images' holds images of one class only: 'cat'",
    no_folder: "no such folder: '.*/images'",
    a_file: "no such folder: '.*/images'",
    too_few: "images' has no images left for the validation split; give more of each class",
    nothing_to_train_on: "cannot be told apart in '.*/images', which has the folders test; wanted",
    all_broken: r"2 image\(s\) cannot be read: .*cat/0.png, .*dog/0.png",
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_a_folder_that_is_no_data_set_is_refused(make, tmp_path):
    make(tmp_path / "images")
    with pytest.raises(ValueError, match=REFUSED[make]):
        load_folder(tmp_path / "images")


@pytest.mark.parametrize("content", ["broken", "empty", "cut"])
def test_an_unreadable_image_is_named_or_left_out_and_listed(content, tmp_path):
    root = write_classes(tmp_path / "images")
    bad = root / "dog" / "bad.png"
    whole = (root / "dog" / "00.png").read_bytes()
    bad.write_bytes({"broken": b"no image", "empty": b"", "cut": whole[: len(whole) // 2]}[content])
    with pytest.raises(ValueError, match=r"1 image\(s\) cannot be read: .*/dog/bad.png; .*on_bad_image skip"):
        load_folder(root)
    dataset = load_folder(root, on_bad_image="skip")
    assert dataset.bad_images == (str(bad),)
    assert str(bad) not in {path for samples in dataset.splits.values() for path in samples.images}
    assert sum(len(samples) for samples in dataset.splits.values()) == 20


def test_of_many_unreadable_images_five_are_named(tmp_path):
    root = write_classes(tmp_path / "images")
    for number in range(7):
        write_broken(root / "cat" / f"bad{number}.png")
    with pytest.raises(ValueError, match=r"7 image\(s\) cannot be read: .*bad0.*bad4.png and 2 more; remove"):
        load_folder(root)


def test_skipping_every_image_is_refused(tmp_path):
    all_broken(tmp_path)
    with pytest.raises(ValueError, match="has no images left"):
        load_folder(tmp_path, on_bad_image="skip")


def test_a_folder_named_val_is_the_validation_split(tmp_path):
    for split, count in (("train", 6), ("val", 3), ("test", 4)):
        write_classes(tmp_path / split, count=count)
    dataset = load_folder(tmp_path)
    assert {split: len(samples) for split, samples in dataset.splits.items()} == {
        "train": 12,
        "validation": 6,
        "test": 8,
    }


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A folder of 1,000 images with 20 bad ones, and which they are."""
    root = tmp_path_factory.mktemp("many") / "images"
    return root, write_many(root, 1000, 20)


def test_of_1000_images_exactly_the_20_bad_ones_are_skipped(many):
    root, bad = many
    dataset = load_folder(root, on_bad_image="skip")
    assert sorted(dataset.bad_images) == bad and len(bad) == 20
    kept = {path for samples in dataset.splits.values() for path in samples.images}
    assert len(kept) == 980 and not kept & set(bad)


def test_of_1000_images_the_first_bad_one_is_named(many):
    root, bad = many
    with pytest.raises(ValueError, match=rf"20 image\(s\) cannot be read: {bad[0]}, "):
        load_folder(root)


@pytest.mark.parametrize("left_out", [1, 2, 3, 8, 50, 200])
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".gif", ".webp"])
def test_a_cut_image_is_bad_exactly_when_the_decoder_refuses_it(suffix, left_out, tmp_path):
    root = write_classes(tmp_path / "images", suffix=suffix)
    path = root / "cat" / f"03{suffix}"
    path.write_bytes(path.read_bytes()[:-left_out])
    try:
        decode(path.read_bytes())
        refused = ()
    except tf.errors.OpError:
        refused = (str(path),)
    assert load_folder(root, on_bad_image="skip").bad_images == refused
    assert refused or suffix != ".jpg" or left_out < 3


def test_a_jpeg_named_png_is_read(tmp_path):
    root = write_classes(tmp_path / "images", suffix=".jpg")
    for path in root.rglob("*.jpg"):
        path.rename(path.with_suffix(".png"))
    assert load_folder(root).bad_images == ()


PICTURES = [f"{number}.png" for number in range(20)]


def test_a_table_of_classes_is_a_multi_label_data_set(tmp_path):
    lines = [f"{name}, {i % 2},{i % 3 // 2} ,1" for i, name in enumerate(PICTURES)]
    dataset = load_folder(
        write_table(tmp_path, "file,cat,dog,tree", *lines, images=PICTURES), task="multi_label"
    )
    assert (dataset.class_names, dataset.task) == (("cat", "dog", "tree"), "multi_label")
    assert {split: len(samples) for split, samples in dataset.splits.items()} == {
        "train": 15,
        "validation": 1,
        "test": 4,
    }
    assert_disjoint(dataset)
    for samples in dataset.splits.values():
        for path, label in zip(samples.images, samples.labels):
            i = int(pathlib.Path(path).stem)
            assert label == (i % 2, i % 3 // 2, 1)
    for encoded, label in dataset.split("test").evaluation_records():
        assert encoded.numpy().startswith(b"\x89PNG") and label.dtype == tf.float32 and label.shape == (3,)


def test_a_table_of_numbers_is_a_regression_data_set_with_its_own_splits(tmp_path):
    splits = ("train", "val", "validation", "test")
    lines = [f"in/{name},{i / 4 - 1:e},{splits[i % 4]}" for i, name in enumerate(PICTURES)]
    names = [f"in/{name}" for name in PICTURES]
    root = write_table(tmp_path, "\ufefffile,age,split", *lines, "", images=names)
    dataset = load_folder(root, task="regression")
    assert dataset.class_names == ("age",)
    assert {split: len(samples) for split, samples in dataset.splits.items()} == {
        "train": 5,
        "validation": 10,
        "test": 5,
    }
    assert dataset.split("test").labels == tuple((i / 4 - 1,) for i in range(3, 20, 4))


def test_an_unreadable_image_of_a_table_is_left_out_with_its_label(tmp_path):
    lines = [f"{name},{i}" for i, name in enumerate(PICTURES)]
    root = write_table(tmp_path, "file,age", *lines, images=PICTURES)
    write_broken(root / "7.png")
    with pytest.raises(ValueError, match=r"1 image\(s\) cannot be read: .*/7.png;"):
        load_folder(root, task="regression")
    dataset = load_folder(root, task="regression", on_bad_image="skip")
    assert dataset.bad_images == (str(root / "7.png"),)
    labels = [label for samples in dataset.splits.values() for label in samples.labels]
    assert sorted(labels) == [(float(i),) for i in range(20) if i != 7]


WRONG_TABLES = {
    (): r"line 1: wanted the columns file \(or filename\), split .* got nothing",
    ("image,cat", "a.png,1"): r"line 1: wanted the columns file \(or filename\), .* got image, cat",
    ("file,filename,cat", "a.png,a.png,1"): "line 1: wanted .* each once; got file, file, cat",
    ("file,split", "a.png,test"): "line 1: wanted .* one for each class or target, .* got file, split",
    ("file,cat,cat", "a.png,1,1"): "line 1: wanted .* each once; got file, cat, cat",
    ("file,cat,", "a.png,1,1"): "line 1: wanted the columns",
    ("file,cat", "a.png"): "line 2: wanted 2 values; got 1",
    ("file,cat", "a.png,1", "b.png,1,0"): "line 3: wanted 2 values; got 3",
    ("file,cat", "a.png,1", "b.png,2"): "line 3, column cat: wanted 0 or 1; got '2'",
    ("file,cat", "a.png,"): "line 2, column cat: wanted 0 or 1; got ''",
    ("file,cat", "a.png,nan"): "line 2, column cat: wanted 0 or 1; got 'nan'",
    ("file,cat", "", "c.png,1"): "line 3, column file: no such file: 'c.png'",
    ("file,cat", "a.png,1", "a.png,0"): "line 3, column file: 'a.png' is in line 2 too",
    ("file,cat,split", "a.png,1,dev"): "line 2, column split: wanted one of train, .*; got 'dev'",
    ("file,cat,split", "a.png,1,"): "line 2, column split: wanted one of train, .*; got ''",
    ("file,cat,split", "a.png,1,test"): "has no samples to train on",
    ("file,cat",): "has no samples to train on",
}


@pytest.mark.parametrize("lines", WRONG_TABLES)
def test_a_wrong_table_is_refused_with_line_and_column(lines, tmp_path):
    write_table(tmp_path, *lines, images=["a.png", "b.png"])
    with pytest.raises(ValueError, match=f"labels.csv,? {WRONG_TABLES[lines]}"):
        load_folder(tmp_path, task="multi_label")


@pytest.mark.parametrize("value", ["old", "", "inf", "nan"])
def test_a_target_that_is_no_number_is_refused(value, tmp_path):
    write_table(tmp_path, "file,age", f"a.png,{value}", images=["a.png"])
    with pytest.raises(ValueError, match=f"labels.csv, line 2, column age: wanted a number; got '{value}'"):
        load_folder(tmp_path, task="regression")


def test_a_task_without_its_table_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="task 'regression' needs the table '.*labels.csv', which is missing"
    ):
        load_folder(write_classes(tmp_path / "images"), task="regression")


def test_a_table_without_its_task_is_pointed_out(tmp_path):
    write_table(tmp_path, "file,age", "a.png,1", images=["a.png"])
    with pytest.raises(ValueError, match="no images in class folders .*; labels.csv has no column label"):
        load_folder(tmp_path)


@pytest.mark.parametrize("column", ["file", "filename"])
def test_a_table_of_labels_is_a_single_label_data_set(column, tmp_path):
    lines = [f"{name}, {('rose', 'tulip', 'daisy')[i % 3]}" for i, name in enumerate(PICTURES)]
    root = write_table(tmp_path, f"{column},label", *lines, images=[*PICTURES, "spare/1.png"])
    dataset = load_folder(root)
    assert (dataset.class_names, dataset.task) == (("daisy", "rose", "tulip"), "single_label")
    assert {split: len(samples) for split, samples in dataset.splits.items()} == {
        "train": 14,
        "validation": 3,
        "test": 3,
    }
    assert_disjoint(dataset)
    for samples in dataset.splits.values():
        for path, label in zip(samples.images, samples.labels):
            assert label == (int(pathlib.Path(path).stem) + 1) % 3
    assert dataset.ignored_files == (str(root / "spare" / "1.png"),)


def test_a_table_of_labels_comes_before_class_folders_and_has_splits(tmp_path):
    root = write_classes(tmp_path, ("train", "valid"))
    lines = [f"{split}/{i:02d}.png,{'ab'[i % 2]},{split}" for split in ("train", "valid") for i in range(10)]
    dataset = load_folder(write_table(root, "filename,label,split", *lines))
    assert dataset.class_names == ("a", "b") and dataset.ignored_files == ()
    assert {split: len(samples) for split, samples in dataset.splits.items()} == {
        "train": 8,
        "validation": 10,
        "test": 2,
    }


WRONG_LABELS = {
    (
        "image,label",
        "a.png,cat",
    ): r"line 1: wanted the columns file \(or filename\), .* label, .* got image, label",
    ("file,label,age", "a.png,cat,3"): "line 1: wanted .* and label, each once; got file, label, age",
    ("file,label", "a.png,cat", "b.png,"): "line 3, column label: wanted the name of a class; got ''",
}


@pytest.mark.parametrize("lines", WRONG_LABELS)
def test_a_wrong_table_of_labels_is_refused_with_line_and_column(lines, tmp_path):
    write_table(tmp_path, *lines, images=["a.png", "b.png"])
    with pytest.raises(ValueError, match=f"labels.csv, {WRONG_LABELS[lines]}"):
        load_folder(tmp_path)


def test_a_table_of_one_label_is_refused(tmp_path):
    write_table(tmp_path, "file,label", "a.png,cat", images=["a.png"])
    with pytest.raises(ValueError, match="holds images of one class only: 'cat'"):
        load_folder(tmp_path)


def test_a_table_without_labels_is_named_where_the_folders_hold_one_class(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    (tmp_path / "labels.csv").write_text("image,class\nimages/a.png,cat\n")
    with pytest.raises(ValueError, match="of one class only: 'images'; labels.csv has no column label"):
        load_folder(tmp_path)
