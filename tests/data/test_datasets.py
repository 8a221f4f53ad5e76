import collections
import io
import pathlib
import shutil

import numpy as np
import pytest
from made.folders import picture, write_broken, write_classes
from PIL import Image
from sklearn.datasets import load_digits

from keras_vit.data.datasets import load_dataset
from keras_vit.data.images import decode


def load_folder(path, **options):
    return load_dataset(f"folder:{path}", **options)


def assert_disjoint(dataset):
    images = [image for samples in dataset.splits.values() for image in samples.images]
    assert len(set(images)) == len(images)


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


def test_the_digits_are_all_of_scikit_learns_and_300_and_more_are_for_testing(digits):
    sizes = {split: len(samples) for split, samples in digits.splits.items()}
    assert [*sizes] == ["train", "validation", "test"]
    assert sizes == {"train": 1302, "validation": 140, "test": 355}
    assert sum(sizes.values()) == 1797
    assert digits.class_names == tuple("0123456789")


def test_each_split_holds_its_share_of_each_digit(digits):
    whole = collections.Counter(int(label) for label in load_digits().target)
    shares = {"train": 0.72, "validation": 0.08, "test": 0.2}
    for split, samples in digits.splits.items():
        count = collections.Counter(samples.labels)
        for label, number in whole.items():
            assert abs(count[label] - shares[split] * number) < 2, (split, label)


def test_every_scan_is_in_exactly_one_split_with_its_own_label(digits):
    scans = load_digits()
    truth = collections.Counter(
        (np.round(scan * 255 / 16).astype("uint8").tobytes(), int(label))
        for scan, label in zip(scans.images, scans.target)
    )
    found = collections.Counter()
    for samples in digits.splits.values():
        for encoded, label in zip(samples.images, samples.labels):
            found[np.asarray(Image.open(io.BytesIO(encoded))).tobytes(), label] += 1
    assert found == truth


@pytest.mark.parametrize("name", ["digits", "folder"])
def test_a_seed_gives_the_same_split_each_time_and_another_seed_another(name, tmp_path):
    name = name if name == "digits" else f"folder:{write_classes(tmp_path / 'images')}"
    first, again, other = (load_dataset(name, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert sorted(first.split("test").images) != sorted(other.split("test").images)


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
    assert {split: len(samples) for split, samples in found.items()} == {
        "train": 8,
        "validation": 6,
        "test": 4,
    }


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


FORMATS = [".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp"]


@pytest.mark.parametrize("suffix", [*FORMATS, *(suffix.upper() for suffix in FORMATS)])
def test_images_of_each_format_are_found_and_decoded(suffix, tmp_path):
    dataset = load_folder(write_classes(tmp_path / "images", count=3, suffix=suffix))
    assert sum(len(samples) for samples in dataset.splits.values()) == 6
    loss = {".jpg": 60, ".jpeg": 60, ".gif": 60, ".webp": 60}.get(suffix.lower(), 0)
    paths = [path for samples in dataset.splits.values() for path in samples.images]
    for path in paths:
        pixels = decode(pathlib.Path(path).read_bytes()).numpy()
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
    nothing: r"no images in '.*/images'; wanted CLASS/\*\.jpg .*train/CLASS",
    one_class: "'.*/images' holds images of one class only: 'cat'",
    no_folder: "no such folder: '.*/images'",
    a_file: "no such folder: '.*/images'",
    too_few: "images' has no images left for the validation split; give more of each class",
    nothing_to_train_on: "images' has no images left for the train split",
    all_broken: r"2 image\(s\) cannot be read: .*cat/0.png, .*dog/0.png",
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_a_folder_that_is_no_data_set_is_refused(make, tmp_path):
    make(tmp_path / "images")
    with pytest.raises(ValueError, match=REFUSED[make]):
        load_folder(tmp_path / "images")


@pytest.mark.parametrize("name", ["digit", "folder", "folder:", "", "tfds:mnist"])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(ValueError, match=f"data set '{name}' is unknown; give 'digits' or 'folder:PATH'"):
        load_dataset(name)


def test_an_unknown_split_is_refused(digits):
    with pytest.raises(ValueError, match="split 'dev' is unknown; digits has train, validation, test"):
        digits.split("dev")


def test_an_unknown_treatment_of_bad_images_is_refused():
    with pytest.raises(ValueError, match="on_bad_image 'warn' is unknown; choose one of .*fail.*skip"):
        load_dataset("digits", on_bad_image="warn")


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
    with pytest.raises(ValueError, match=r"7 image\(s\) cannot be read: .*bad0.*bad4.png, …; remove"):
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
