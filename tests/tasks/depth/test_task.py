import types

import numpy as np
import pytest
from made.folders import write_depths
from made.tables import by_table
from reference.comparing import randomize
from reference.small import small

import keras_vit
from keras_vit import evaluation
from keras_vit.data import load_dataset
from keras_vit.tasks import get_task, task_of_model
from keras_vit.training import find_recipe

TASK = get_task("depth")
DPT = {"decoder_size": 8, "head_size": 4}


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = write_depths(tmp_path_factory.mktemp("task") / "depths", count=6)
    return load_dataset(folder, seed=None, task="depth").split("train")


@pytest.fixture(scope="module")
def estimator():
    return randomize(keras_vit.DepthEstimator(small(num_classes=None, pooling="gap"), **DPT))


class Perfect:
    """An estimator that knows the depths of a split, in order, up to a scale and shift if it is relative."""

    task, num_classes, class_names, is_classifier = "depth", 1, ("depth",), False
    max_depth = 10.0
    preprocessing = keras_vit.Preprocessing(None)

    def __init__(self, samples, quantity):
        self.labels, self.quantity = [label for _, label in samples], quantity

    def estimate(self, images):
        depths = np.nan_to_num(self.labels.pop(0), nan=5.0)
        return [{"metric": depths, "relative": 3 * depths, "disparity": 2 / depths + 1}[self.quantity]]


@pytest.mark.parametrize("quantity", ["metric", "relative", "disparity"])
def test_an_estimator_that_knows_all_depths_has_no_error(quantity, samples):
    scores = evaluation.evaluate(Perfect(samples, quantity), samples, task="depth")
    assert scores["samples"] == 6 and scores["a1"] == 1
    assert scores["abs_rel"] == pytest.approx(0, abs=1e-6) and scores["rmse"] == pytest.approx(0, abs=1e-5)


def test_evaluation_scores_what_estimate_predicts_of_whole_images(tmp_path):
    crop = keras_vit.Preprocessing(16, "crop", 0.8, antialias=True)
    encoder = small(num_classes=None, pooling="gap", preprocessing=crop)
    model = randomize(keras_vit.DepthEstimator(encoder, head="linear", bins=8))
    folder = write_depths(tmp_path / "wide", count=3, size=(9, 40))
    wide = load_dataset(folder, seed=None, task="depth").split("train")
    images, labels = zip(*wide)
    maps = model.estimate(list(images), whole=True)
    expected = evaluation.DepthPredictions.of(maps, labels, max_depth=10.0)
    predictions = TASK.predict(model, wide, 2)
    np.testing.assert_array_equal(predictions.pixels, expected.pixels)
    np.testing.assert_allclose(predictions.image_scores, expected.image_scores, rtol=1e-5)


def test_the_crop_of_a_data_set_is_what_is_scored(tmp_path):
    folder = write_depths(tmp_path / "depths", count=2, size=(48, 64))
    (folder / "depth.json").write_text('{"crop": "nyu_eigen"}')
    cropped = load_dataset(folder, seed=None, task="depth").split("train")
    predictions = TASK.predict(Perfect(cropped, "metric"), cropped, 1)
    kept = [label[4:47, 4:60] for _, label in cropped]
    assert predictions.pixels.tolist() == [int(np.isfinite(label).sum()) for label in kept]
    _, labels = TASK.sampled(cropped, keras_vit.Preprocessing(16), 2)  # for exports
    assert [int(np.isfinite(label).sum()) for label in labels] == predictions.pixels.tolist()


@pytest.mark.slow
def test_a_model_for_any_size_is_scored_at_the_images_own(samples):
    encoder = small(num_classes=None, pooling="gap", image_size=(None, None), position_grid=2)
    model = randomize(keras_vit.DepthEstimator(encoder, **DPT))
    predictions = TASK.predict(model, samples, 4)
    image, label = samples[0]
    maps = model.estimate([image])
    expected = evaluation.DepthPredictions.of(maps, [label], max_depth=10.0)
    np.testing.assert_allclose(predictions.image_scores[0], expected.image_scores[0], rtol=1e-4)


def test_rows_have_the_ends_and_the_median_of_each_map(estimator, rng):
    image, written = rng.integers(0, 256, (20, 30, 3), "uint8"), []
    [row] = TASK.rows(estimator, ["a.png"], [image], 5, write=lambda *given: written.append(given))
    path, _, values = written[0]
    assert path == "a.png" and values.shape == (20, 30, 1)
    assert row["values"] == pytest.approx([values.min(), np.median(values), values.max()])
    assert TASK.value_names(estimator) == ["minimum 0", "median 0", "maximum 0"]


@by_table("output", ["metric", "relative", "disparity", "values"])
def test_the_loss_is_that_of_what_the_model_predicts(output):
    encoder = small(num_classes=None, num_layers=1, pooling="gap")
    model = keras_vit.DepthEstimator(
        encoder, head="linear", quantity=output, max_depth=7.0, gradient_weight=0.2
    )
    loss = TASK.loss(None, model)
    assert (loss.quantity, loss.max_depth, loss.gradient_weight) == (output, 7.0, 0.2)
    assert [metric.name for metric in TASK.metrics(model)] == ["abs_rel"] * (output == "metric")


def test_depths_beyond_the_models_largest_are_noticed_before_training(samples):
    model = types.SimpleNamespace(quantity="metric", max_depth=10.0)
    TASK.prepare(model, samples, None)
    model.max_depth = 0.5
    message = r"^expected depths up to the model's max_depth=0.5; got up to 6.8[0-9]*, 100% above it"
    with pytest.raises(ValueError, match=message):
        TASK.prepare(model, samples, None)


@pytest.mark.parametrize(
    ("quantity", "recipe", "message"),
    [
        ("metric", {}, "^the data have values that are no depths; the model's quantity is 'metric'"),
        ("values", {"scale_jitter": (1.0, 1.5)}, "^crop_area and scale_jitter divide maps of one channel"),
    ],
)
def test_values_are_not_taken_for_depths(quantity, recipe, message):
    model = types.SimpleNamespace(quantity=quantity, num_classes=1, max_depth=10.0)
    data = types.SimpleNamespace(label_values={"quantity": "values"})
    recipe = types.SimpleNamespace(**{"crop_area": None, "scale_jitter": None, **recipe})
    with pytest.raises(ValueError, match=message):
        TASK.prepare(model, data, recipe)


def test_other_models_labels_and_recipes_are_refused(estimator, samples, tmp_path):
    with pytest.raises(ValueError, match="^expected a model whose outputs are maps of depth"):
        TASK.check_model(small())
    three = keras_vit.DepthEstimator(estimator.encoder, 3, head="linear", quantity="values")
    with pytest.raises(ValueError, match=r"expected depth maps \(height, width, 3\) per sample"):
        evaluation.evaluate(three, samples, task="depth")
    assert task_of_model(estimator) is TASK
    recipe = find_recipe("digits_depth")
    with pytest.raises(ValueError, match="need single labels; got task 'depth'$"):
        recipe.with_changes(label_smoothing=0.1)
    with pytest.raises(ValueError, match="^expected head, .* in the recipe's head_options; got heads"):
        data = types.SimpleNamespace(class_names=("depth",))
        TASK.loading({}, recipe.with_changes(head_options={"heads": 3}), data)
