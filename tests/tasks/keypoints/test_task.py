"""Runs on keypoints: what is trained, validated and scored; tests/training interrupts them."""

import dataclasses
import types

import numpy as np
import pytest
from made.folders import write_keypoints
from reference.comparing import randomize
from reference.small import SMALL

import keras_vit
from keras_vit.data import load_dataset
from keras_vit.evaluation.predicting import check_classes
from keras_vit.tasks import get_task
from keras_vit.tasks.keypoints.crops import window_of
from keras_vit.tasks.keypoints.loss import heat_maps
from keras_vit.tasks.keypoints.task import object_scores
from keras_vit.training import Recipe, RunConfig, train
from keras_vit.training.named_recipes import RECIPES

pytestmark = pytest.mark.usefixtures("eager")
TASK = get_task("keypoints")
NAMES = ("left_top", "right_top", "foot")
RECIPE = Recipe("adamw", 1e-3, 4, warmup_steps=1, batch_size=2, task="keypoints", crop_area=None)
MODEL = {name: value for name, value in (SMALL | {"num_layers": 1}).items() if name != "num_classes"}


@pytest.fixture(scope="module")
def corners(tmp_path_factory):
    """A data set of rectangles with three points."""
    root = write_keypoints(tmp_path_factory.mktemp("data") / "corners", count=16)
    return load_dataset(f"folder:{root}", task="keypoints")


def estimator(**options):
    encoder = keras_vit.VisionTransformer(**MODEL | {"image_size": 32, "patch_size": 4}, num_classes=None)
    return randomize(keras_vit.KeypointEstimator(encoder, 3, decoder_width=4, **options))


class Oracle:
    """A model whose heat maps are the targets of the labels, moved by a fraction of the input."""

    num_classes, class_names, sigmas = 3, NAMES, None

    def __init__(self, samples, model, offset=0.0):
        self.maps, self.preprocessing = [], model.preprocessing
        size = model.preprocessing.image_size
        for _, label in samples.evaluation_records().as_numpy_iterator():
            sides = np.array([32.0, 24.0])  # of the images
            window = window_of((label[:2, :2] * sides).ravel(), sides[::-1], size[1] / size[0])
            places = (label[2:, :2] * sides - 0.5 - window[:2]) / window[2:] * (np.array(size[::-1]) - 1)
            points = np.concatenate([(places + 0.5) / size[::-1] + offset, label[2:, 2:3]], axis=1)
            maps = heat_maps(points[np.newaxis], model.output_shape[1:3], model.stride, sigma=1.5)
            self.maps.append(np.asarray(maps)[0])

    def predict_on_batch(self, images):
        batch, self.maps = self.maps[: len(images)], self.maps[len(images) :]
        return np.stack(batch)


def test_targets_that_are_found_are_at_their_points_in_the_image(corners):
    """The whole way: image → crop → heat map → point → image."""
    samples = corners.split("train")
    predictions = TASK.predict(Oracle(samples, estimator()), samples, 4)
    errors = np.linalg.norm(predictions.estimates[..., :2] - predictions.truth[..., :2], axis=2)
    assert errors[predictions.truth[..., 2] > 0].max() < 0.05  # in pixels of the image
    scores = TASK.scores(predictions)
    assert scores["pck05"] == 1 and scores["ap"] == pytest.approx(1)
    assert TASK.correct(predictions).all() and TASK.errors(predictions).max() < 0.01


def test_points_that_are_found_elsewhere_are_wrong(corners):
    samples = corners.split("train")
    predictions = TASK.predict(Oracle(samples, estimator(), offset=0.3), samples, 4)
    assert TASK.scores(predictions)["pck10"] == 0 and not TASK.correct(predictions).any()


def test_the_model_of_a_run_has_what_the_data_say_of_the_points(corners):
    recipe = RECIPE.with_changes(head_options={"decoder_width": 4, "sigmas": [0.1, 0.1, 0.2]})
    encoder = keras_vit.VisionTransformer(**MODEL, num_classes=None)
    model = TASK.around(encoder, RunConfig(corners.name, recipe, model=MODEL), corners)
    assert (model.flip_index, model.skeleton) == ((1, 0, 2), ((0, 1),))
    assert model.sigmas == (0.1, 0.1, 0.2) and model.class_names == corners.class_names
    assert TASK.label_shape(model, recipe) == ((3, 3), "float32")


def test_the_batches_of_a_validation_are_no_larger_than_those_of_training(corners):
    oracle, sizes = Oracle(corners.split("train"), estimator()), []
    compute = oracle.predict_on_batch
    oracle.predict_on_batch = lambda images: sizes.append(len(images)) or compute(images)
    splits = {"validation": corners.split("train")}
    scores = TASK.validate(oracle, dataclasses.replace(corners, splits=splits), RECIPE)
    assert max(sizes) == RECIPE.batch_size and scores == pytest.approx({"ap": 1, "ap50": 1, "pck10": 1})


def test_sigmas_of_the_data_judge_a_model_without_them(corners):
    samples = corners.split("train")
    reader = dataclasses.replace(samples.reader, sigmas=(0.1, 0.2, 0.3))
    oracle = Oracle(samples, estimator())
    assert TASK.predict(oracle, dataclasses.replace(samples, reader=reader), 4).sigmas == (0.1, 0.2, 0.3)
    assert TASK.predict(Oracle(samples, estimator()), samples, 4).sigmas == (0.05, 0.05, 0.05)


def test_mirrored_images_of_points_without_pairs_are_warned_of(corners, caplog):
    recipe = RECIPE.with_changes(head_options={"decoder_width": 4, "flip_index": [0, 1, 2]})
    for flip in (False, True):
        assert not caplog.messages
        TASK.around(estimator(), types.SimpleNamespace(recipe=recipe.with_changes(flip=flip)), corners)
    assert [message[:26] for message in caplog.messages] == ["flip=True mirrors images, "]


def test_names_of_a_model_and_of_data_may_be_spelled_otherwise(corners):
    names = ("LeftTop", "R_top", "Foot")
    check_classes(estimator(class_names=names), corners)
    with pytest.raises(ValueError, match="class 0 is 'right_top' in the model and 'left_top' in the data"):
        check_classes(estimator(class_names=("right_top", "left_top", "foot")), corners)


def test_patches_that_are_no_squares_are_refused():
    with pytest.raises(ValueError, match=r"expected patches that are squares; got a patch_size of \(4, 8\)"):
        keras_vit.KeypointEstimator(keras_vit.VisionTransformer(**MODEL | {"patch_size": (4, 8)}), 3)


def test_crops_of_a_part_of_the_image_are_refused():
    with pytest.raises(ValueError, match="^expected crop_area=None for keypoints, whose images are cropped"):
        Recipe("adamw", 1e-3, 4, warmup_steps=1, batch_size=2, task="keypoints")


def test_an_object_scores_as_its_sure_points():
    np.testing.assert_allclose(object_scores([[0.9, 0.3, 0.2], [0.2, 0.1, 0.0]]), [0.6, 0])


@pytest.mark.slow
def test_points_of_digits_are_found(tmp_path):
    _, record = train(RunConfig("digits_scenes", RECIPES["digits_keypoints"]), tmp_path / "run", 0)
    assert record["test_ap"] >= 0.7 and record["test_pck05"] >= 0.85
