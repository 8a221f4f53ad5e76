import json

import numpy as np
import pytest
from made.tables import by_table

from keras_vit.data.samples import Samples
from keras_vit.evaluation import Predictions
from keras_vit.evaluation.real_labels import read_real_labels, real_accuracy, real_labels_of


def predictions(best, num_classes=4):
    best = np.array(best)
    return Predictions(best[:, np.newaxis], best, np.zeros(len(best)), num_classes)


def imagenet(*numbers):
    return Samples(tuple(f"/n0{i % 2}/ILSVRC2012_val_{i:08d}.JPEG" for i in numbers), (0,) * len(numbers))


@pytest.fixture
def write(tmp_path):
    def write(held):
        (tmp_path / "real.json").write_text(held if isinstance(held, str) else json.dumps(held))
        return tmp_path / "real.json"

    return write


def test_an_image_is_right_if_its_best_class_is_among_its_labels_and_counts_if_it_has_any():
    found = real_accuracy(predictions([0, 1, 2, 3, 0]), [[0], [2, 3], [1, 2, 3], [], [1]])
    assert found == {"real_samples": 4, "real_accuracy": 0.5}


def test_the_list_follows_the_numbers_in_the_file_names_whatever_the_order_of_the_samples(write):
    labels = read_real_labels(write([[1], [], [2, 3]]))
    assert real_labels_of(imagenet(3, 1, 2), labels) == [[2, 3], [1], []]
    assert real_labels_of(imagenet(2), labels) == [[]]  # a part of the images


def test_an_object_is_by_file_name(write):
    labels = read_real_labels(write({"b.png": [1], "a.png": [0, 2]}))
    assert real_labels_of(Samples(("x/a.png", "y/b.png"), (0, 1)), labels) == [[0, 2], [1]]


@pytest.mark.parametrize(
    "held, words",
    [
        ("[1", "cannot read .*real.json' as JSON: "),
        ([], "real.json': expected a list"),
        ("3", "a list of the class indices"),
        ([[1], 2], "expected a list of class indices for 2 in .*; got 2"),
        ({"a": ["cat"]}, r"for a in .*; got \['cat'\]"),
    ],
)
def test_another_file_is_refused(held, words, write):
    with pytest.raises(ValueError, match=words):
        read_real_labels(write(held))


@by_table(
    "samples, words",
    [
        (imagenet(1, 3), "label for 'ILSVRC2012_val_00000003.JPEG'; got 2 for other file names"),
        (Samples(("a.png",), (0,)), "label for 'a.png'; .* with names like ILSVRC2012_val_00000001.JPEG"),
        (Samples((b"png",), (0,)), "which these samples lack; give folder:PATH"),
        (object(), "which these samples lack"),
    ],
)
def test_images_that_cannot_be_matched_are_refused(samples, words):
    with pytest.raises(ValueError, match=words):
        real_labels_of(samples, {1: [0], 2: [1]})


@by_table(
    "labels, words",
    [
        ([[0]], "expected 2 lists of ReaL labels, one per sample; got 1"),
        ([[0], [4]], "expected ReaL labels below 4, the model's classes; got 4"),
        ([[-1], [0]], "got -1"),
        ([[], []], "at least one of the 2 images; got none"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, words):
    with pytest.raises(ValueError, match=words):
        real_accuracy(predictions([0, 1]), labels)
