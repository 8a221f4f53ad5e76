import collections
import io
import re
import subprocess
import sys

import numpy as np
import pytest
from made.folders import write_broken, write_classes
from made.tables import by_table
from PIL import Image
from sklearn.datasets import load_digits

from keras_vit.data.datasets import absolute_name, load_dataset, title_of


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits")


def test_every_scan_of_scikit_learn_is_in_one_split_with_its_label(digits):
    sizes = {split: len(samples) for split, samples in digits.splits.items()}
    assert [*sizes.items()] == [("train", 1302), ("validation", 140), ("test", 355)]
    assert digits.class_names == tuple("0123456789")
    scans, found = load_digits(), collections.Counter()
    truth = collections.Counter(
        (np.round(scan * 255 / 16).astype("uint8").tobytes(), int(label))
        for scan, label in zip(scans.images, scans.target)
    )
    for samples in digits.splits.values():
        for encoded, label in zip(samples.images, samples.labels):
            found[np.asarray(Image.open(io.BytesIO(encoded))).tobytes(), label] += 1
    assert found == truth


@pytest.mark.parametrize("name", ["digits", "folder"])
def test_the_split_is_a_function_of_the_seed(name, tmp_path):
    name = name if name == "digits" else f"folder:{write_classes(tmp_path / 'images')}"
    first, again, other = (load_dataset(name, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert sorted(first.split("test").images) != sorted(other.split("test").images)


@by_table(
    "name, hint",
    [
        ("digit", "'digits'"),
        ("fodler:photos", "'folder'"),
        ("cifar-10", "'tfds:cifar10'"),
        ("mnist", "'tfds:mnist'"),
        *((name, None) for name in ("folder:", "tfds", "digits:8", "digits:", "something else")),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    hint = f" (did you mean {hint}?)" if hint else ""
    known = r"digits \(.*\), folder:PATH \(.*\), .*, vtab:TASK \(.*\) or webdataset:PATH \(.*\)$"
    with pytest.raises(ValueError, match=f"data set '{name}' is unknown{re.escape(hint)}; expected {known}"):
        load_dataset(name)


@by_table("name", ["digits", "digits_scenes", "tfds:mnist", "vtab:cifar", "digits_words + digits"])
def test_texts_of_a_source_without_them_are_refused(name):
    message = " has no texts; expected a data set of digits_words, folder, hf, parquet, webdataset$"
    with pytest.raises(ValueError, match=message):
        load_dataset(name, texts=True, task="detection" if name == "digits_scenes" else "single_label")


def test_a_folder_needs_no_source_unless_a_source_has_its_name(tmp_path, monkeypatch):
    write_classes(tmp_path / "photos", count=5)
    write_classes(tmp_path / "digits", count=5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("photos", "./photos", "~/photos", "folder:~/photos", str(tmp_path / "photos")):
        assert load_dataset(name).class_names == ("cat", "dog")
        assert absolute_name(name) == f"folder:{tmp_path}/photos" and title_of(name) == "photos"
    assert load_dataset("photos").name == "folder:photos"
    assert [title_of(f"folder:photos/{name}") for name in (".", "cat/..")] == ["photos", "photos"]
    assert len(load_dataset("digits").class_names) == 10


def test_the_summary_lists_what_was_found_and_skipped(tmp_path):
    root = write_classes(tmp_path, ("daisy", "rose", "tulip"))
    found = "3 classes (daisy, rose, tulip): 21 train, 3 validation, 6 test; validation and test held out"
    assert load_dataset(f"folder:{root}").summary() == found
    for name in ("rose/notes.txt", "tulip/1.XCF", "tulip/2.xcf", "README", "cover.png"):
        write_broken(root / name)
    (root / "lily").mkdir()
    write_broken(root / "rose" / "bad.png")
    assert load_dataset(f"folder:{root}", on_bad_image="skip").summary() == (
        f"{found}; 1 unreadable image skipped (bad.png); 5 files ignored (.png, .txt, .xcf, README); "
        "1 folder without images (lily)"
    )


def test_the_summary_names_classes_without_training_images_or_with_a_single_test_image(tmp_path):
    write_classes(tmp_path / "train", ("daisy", "rose", "tulip"))
    write_classes(tmp_path / "test", ("daisy", "lily", "tulip"), count=4)
    write_classes(tmp_path / "test", ("rose",), count=1)
    assert load_dataset(tmp_path).summary() == (
        "4 classes (daisy, lily, rose, tulip): 27 train, 3 validation, 13 test; train from train, validation "
        "held out, test from test; 1 class without training images (lily); 1 class with a single test image "
        "(rose)"
    )


@pytest.mark.slow
def test_importing_the_data_package_does_not_import_tensorflow_datasets():
    code = "import sys, keras_vit.data.datasets; sys.exit('tensorflow_datasets' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
