"""The training images in the report of a run."""

import dataclasses
import fractions
import types

import numpy as np
import pytest
from made.scenes import few_scenes
from reference.small import SMALL, small

from keras_vit import DepthEstimator, ImageSegmenter, ObjectDetector, VisionTransformer
from keras_vit.data import load_dataset
from keras_vit.data.mixed_samples import MixedSamples, Part
from keras_vit.labels import label_kind
from keras_vit.reports import training_images
from keras_vit.reports.page import Report
from keras_vit.reports.training_images import HEADING, add_training_images
from keras_vit.tasks import get_task
from keras_vit.training import Recipe

PLAIN = {"crop_area": None, "flip": False}
ENCODER = {**SMALL, "num_classes": None, "num_layers": 1}
MODELS = {
    "segmentation": lambda encoder: ImageSegmenter(encoder, 11),
    "detection": lambda encoder: ObjectDetector(encoder, 10),
    "depth": lambda encoder: DepthEstimator(encoder, head="linear", bins=8),
}


@pytest.fixture
def sheets(monkeypatch, undrawn):
    """The arguments of what is drawn."""
    drawn, draw = [], training_images.label_sheet
    monkeypatch.setattr(training_images, "label_sheet", lambda *given: drawn.append(given) or draw(*given))
    return drawn


def added(model, dataset, task, **changes):
    recipe = Recipe("sgd", 0.1, 4, 1, task=task, **{**PLAIN, "batch_size": 4, **changes})
    report = Report()
    add_training_images(report, types.SimpleNamespace(recipe=recipe, task=get_task(task)), model, dataset)
    return report


def test_they_are_the_first_of_the_run_with_their_labels(sheets):
    report = added(small(), load_dataset("digits"), "single_label")
    assert [*report.figures] == ["training-images.png"] and HEADING in report.page("A run")
    [(images, labels, words, *_)] = sheets
    assert images.shape == (8, 16, 16, 3) and words == [str(label) for label in labels]
    assert len({image.tobytes() for image in images}) == 8


def test_of_a_mixture_they_are_of_a_batch_of_the_run(sheets):
    digits = load_dataset("digits")
    scans = digits.split("train")
    parts = tuple(Part(name, scans, fractions.Fraction(weight)) for name, weight in (("a", 19), ("b", 1)))
    mixture = dataclasses.replace(digits, splits={"train": MixedSamples(parts)})
    added(small(), mixture, "single_label", batch_size=20)  # A batch of 8 has no sample of the second one.
    [(images, labels, words, *_)] = sheets
    assert len(images) == len(labels) == 8 and words == [str(label) for label in labels]


def test_the_augmentation_of_the_recipe_changes_them(sheets):
    for crop_area in (None, (0.1, 0.3)):
        added(small(), load_dataset("digits"), "single_label", crop_area=crop_area)
    (plain, before, *_), (cropped, after, *_) = sheets
    np.testing.assert_array_equal(before, after)
    assert all((x != y).any() for x, y in zip(plain, cropped))


def test_of_mixed_images_the_fractions_are_named():
    names, kind = ("cat", "dog", "owl"), label_kind("single_label")
    labels = np.array([[0.3, 0.0, 0.7], [0.0, 1.0, 0.0], [0.999, 0.001, 0.0]])
    words = [training_images.label_words(label, kind, names, None) for label in labels]
    assert words == ["70% owl, 30% cat", "dog", "cat"]


@pytest.mark.parametrize("task", MODELS)
def test_labels_in_the_image_are_drawn(task, sheets):
    model = MODELS[task](VisionTransformer(**ENCODER))
    report = added(model, few_scenes(task), task)
    [(_, labels, words, kind, *_)] = sheets
    assert kind.name == task and len(labels) == 8 and [*report.figures] == ["training-images.png"]
    assert all(words) == (task == "detection")


def test_a_model_for_any_size_has_none():
    report = added(small(image_size=(None, None)), load_dataset("digits"), "single_label")
    assert not report.figures and HEADING not in report.page("A run")
