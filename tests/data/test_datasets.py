import collections
import io
import subprocess
import sys

import numpy as np
import pytest
from made.folders import write_classes
from PIL import Image
from sklearn.datasets import load_digits

from keras_vit.data.datasets import load_dataset


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


@pytest.mark.parametrize("name", ["digit", "folder", "folder:", "", "tfds:", "vtab:", "digits:8"])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(
        ValueError,
        match=f"data set '{name}' is unknown; give 'digits', 'folder:PATH', 'tfds:NAME' or 'vtab:TASK'",
    ):
        load_dataset(name)


def test_an_unknown_split_is_refused(digits):
    with pytest.raises(ValueError, match="split 'dev' is unknown; digits has train, validation, test"):
        digits.split("dev")


def test_an_unknown_treatment_of_bad_images_is_refused():
    with pytest.raises(ValueError, match="on_bad_image 'warn' is unknown; choose one of .*fail.*skip"):
        load_dataset("digits", on_bad_image="warn")


def test_an_unknown_task_is_refused():
    with pytest.raises(ValueError, match="task 'multi' is unknown; choose one of .*single_label.*regression"):
        load_dataset("digits", task="multi")


@pytest.mark.parametrize("name", ["digits", "vtab:dtd"])
def test_a_task_that_a_data_set_has_no_labels_of_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=f"{name} has one label an image; task 'regression' needs another"):
        load_dataset(name, task="regression", data_dir=tmp_path)


def test_importing_the_data_package_does_not_import_tensorflow_datasets():
    code = "import sys, keras_vit.data.datasets; sys.exit('tensorflow_datasets' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
