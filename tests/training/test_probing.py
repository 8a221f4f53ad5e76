import numpy as np
import pytest
from made import trained
from made.folders import write_classes
from made.tables import by_table
from made.workers import end_of
from reference.comparing import assert_close
from reference.small import SMALL, small
from reference.vit_numpy import softmax
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_sample_weight

from keras_vit import from_pretrained
from keras_vit.data import load_dataset
from keras_vit.data.batches import evaluation_batches
from keras_vit.engine.strategy import make_devices
from keras_vit.evaluation.representations import representations_of_splits
from keras_vit.training import RECIPES, Recipe, RunConfig, compile_model, fit_head, probing, train
from keras_vit.training.named_recipes import default_recipe, find_recipe
from keras_vit.training.probing import solution
from keras_vit.weights.checkpoint import read_checkpoint, read_model

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(2, [1, 5, 0.1, 3], (60, 4)).astype("float32")
SCORES = FEATURES @ RNG.normal(size=(4, 3)) + RNG.normal(size=(60, 3))
MODEL = {name: value for name, value in SMALL.items() if name != "num_classes"}
RECIPE = Recipe("adamw", 1e-3, 4, 1, batch_size=4, probe_first=True, eval_every=2)


def outputs(values):
    return FEATURES @ values[0] + values[1]


def sklearn_probe(labels, classifier=None, features=FEATURES, weights=None):
    classifier = classifier or LogisticRegression(max_iter=2000)
    steps = {f"{type(classifier).__name__.lower()}__sample_weight": weights} if weights is not None else {}
    return make_pipeline(StandardScaler(), classifier).fit(features, labels, **steps)


def weights_of(weights, labels):
    return compute_sample_weight(weights if weights == "balanced" else dict(enumerate(weights)), labels)


@pytest.mark.parametrize("classes, weights", [(2, None), (3, None), (3, (1.0, 5.0, 0.5))])
def test_the_probabilities_are_those_of_logistic_regression(classes, weights):
    labels = SCORES[:, :classes].argmax(axis=1)
    found = softmax(outputs(solution(FEATURES, labels, classes, "single_label", class_weights=weights)))
    expected = sklearn_probe(labels, weights=weights and weights_of(weights, labels)).predict_proba(FEATURES)
    assert_close(found, expected, 1e-4)


@pytest.mark.parametrize(
    "task, weights",
    [("multi_label", None), *(("single_label", of) for of in (None, "balanced", (1.0, 5.0, 0.5)))],
)
def test_each_of_several_labels_or_classes_has_a_regression(task, weights):
    labels = (SCORES > 1).astype("float32") if task == "multi_label" else SCORES.argmax(axis=1)
    rows, loss = (labels, "softmax") if task == "multi_label" else (np.eye(3)[labels], "sigmoid")
    found = 1 / (1 + np.exp(-outputs(solution(FEATURES, labels, 3, task, loss, weights))))
    for output in range(3):
        probe = sklearn_probe(rows[:, output], weights=weights and weights_of(weights, labels))
        assert_close(found[:, output], probe.predict_proba(FEATURES)[:, 1], 1e-4)


@by_table(
    "labels, task, options, message",
    [
        (np.arange(60) % 3 - 1, "single_label", {}, "a sample has the label -1: .* labels are unknown"),
        (np.arange(60) % 4, "single_label", {}, "labels up to 3, but the model has 3 classes"),
        (np.arange(60) % 4, "single_label", {"loss": "sigmoid"}, "labels up to 3, but the model has 3"),
        (np.arange(60) % 3 / 2, "single_label", {}, "expected class indices, ints; got .* float64"),
        (np.eye(3)[np.arange(60) % 3], "single_label", {}, r"a class index per sample.* shape \(3,\)"),
        (np.arange(60) % 3, "multi_label", {}, "expected labels of 3 numbers"),
        (np.full((60, 3), 0.4), "multi_label", {}, "expected labels of 0 and 1; got 0.4"),
        (np.zeros((60, 2)), "regression", {}, "expected labels of 3 numbers"),
        (np.arange(60) % 3, "single_label", {"class_weights": (1.0, 2.0)}, "needs 3 numbers, .*; got 2"),
        (np.ones((60, 3)), "multi_label", {"class_weights": "balanced"}, "need single labels; got task 'mul"),
    ],
)
def test_labels_and_weights_that_do_not_fit_are_refused(labels, task, options, message):
    with pytest.raises(ValueError, match=message):
        solution(FEATURES, labels, 3, task, **options)


@pytest.mark.parametrize("numbers", [1, 3])
def test_numbers_are_those_of_ridge_regression(numbers):
    labels = SCORES[:, :numbers].astype("float32")
    expected = sklearn_probe(labels, Ridge()).predict(FEATURES).reshape(-1, numbers)
    assert_close(outputs(solution(FEATURES, labels, numbers, "regression")), expected, 1e-4)


def test_classes_without_images_are_improbable():
    labels = np.where(SCORES[:, 0] > SCORES[:, 1], 3, 1)
    probabilities = softmax(outputs(solution(FEATURES, labels, 5, "single_label")))
    assert probabilities[:, [0, 2, 4]].max() < 0.01
    alone = softmax(outputs(solution(FEATURES, np.full(60, 2), 5, "single_label")))
    assert (alone.argmax(axis=1) == 2).all()
    rows = np.stack([np.ones(60), np.zeros(60)], 1)
    logits = outputs(solution(FEATURES, rows, 2, "multi_label"))
    assert (logits[:, 0] > 5).all() and (logits[:, 1] < -5).all()


@pytest.mark.slow
def test_a_fitted_head_is_the_probe_of_the_representation():
    model = small(num_layers=1, num_classes=3)
    images, labels = RNG.random((12, 16, 16, 3)).astype("float32"), np.arange(12) % 3
    fit_head(model, images, labels, batch_size=5)
    features = model.feature_extractor("representation").predict_on_batch(images)["representation"]
    probe = sklearn_probe(labels, features=features)
    assert_close(softmax(model.predict_on_batch(images)), probe.predict_proba(features), 1e-4)


@pytest.mark.parametrize("options", [{"num_classes": None}, {"distillation": True}])
def test_a_model_without_a_head_or_with_two_is_refused(options):
    with pytest.raises(ValueError, match="^a probe needs a VisionTransformer with one head; got a Vision"):
        fit_head(small(num_layers=1, **options), np.zeros((2, 16, 16, 3)), np.arange(2))


def test_compiling_warns_of_a_head_that_is_not_fitted():
    model = small(num_layers=1, num_classes=2, pretraining="self_supervised")
    model.get_layer("head").kernel.assign(np.zeros(model.get_layer("head").kernel.shape))
    with pytest.warns(UserWarning, match="probe_first expects a fitted head.*call .*fit_head"):
        assert compile_model(model, total_steps=10).probe_first
    fit_head(model, RNG.random((4, 16, 16, 3)), np.arange(4) % 2)
    compile_model(model, total_steps=10)  # Warnings are errors.


@pytest.mark.slow
def test_a_run_starts_with_the_probe_and_a_resumed_one_does_not_fit_it_again(tmp_path, monkeypatch, eager):
    dataset = f"folder:{write_classes(tmp_path / 'data', count=8)}"
    config, starts, fitted = RunConfig(dataset, RECIPE, MODEL), [], probing.start_from_probe

    def start(model, samples, *args):
        fitted(model, samples, *args)
        images, labels = next(iter(evaluation_batches(samples, model.preprocessing, 64)))
        features = model.feature_extractor("representation").predict_on_batch(images)["representation"]
        probe = sklearn_probe(labels, features=features)
        assert_close(softmax(model.predict_on_batch(images)), probe.predict_proba(features), 1e-4)
        starts.append(len(labels))

    monkeypatch.setattr("keras_vit.training.run.start_from_probe", start)
    train(config, tmp_path / "run", 0)
    assert starts == [len(load_dataset(dataset, 0).split("train"))]
    expected = end_of(tmp_path / "run")
    for name in ("result.json", "model.keras", "checkpoints/step-00000004/manifest.json"):
        (tmp_path / "run" / name).unlink()
    train(config, tmp_path / "run", 0)
    assert len(starts) == 1
    np.testing.assert_equal(end_of(tmp_path / "run"), expected)


def test_a_probe_is_fitted_to_a_bounded_number_of_images_of_all_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(probing, "MOST_IMAGES", 6)
    samples = load_dataset(f"folder:{write_classes(tmp_path, count=8)}", 0).split("train")
    labels = []
    monkeypatch.setattr(probing, "solution", lambda features, found, *_: labels.extend(found) or _ZEROS)
    probing.start_from_probe(small(num_layers=1, num_classes=2), samples, RECIPE, make_devices("single"))
    assert sorted(labels) == [0, 0, 0, 1, 1, 1]


_ZEROS = np.zeros((SMALL["hidden_size"], 2), "float32"), np.zeros(2, "float32")


@pytest.mark.slow
def test_a_linear_probe_ends_where_logistic_regression_does(tmp_path, eager):
    dataset = f"folder:{write_classes(tmp_path / 'data', count=8)}"
    recipe = RECIPES["linear_probe"].with_changes(total_steps=8, batch_size=8)
    workdir, _ = train(RunConfig(dataset, recipe, MODEL), tmp_path / "run", 0)
    model = read_model(workdir.model)
    parts = [load_dataset(dataset, 0).split(split) for split in ("train", "test")]
    (train_features, labels), (features, _) = representations_of_splits(model, parts, 16)
    probe = sklearn_probe(labels, features=train_features)
    images, _ = next(iter(evaluation_batches(parts[1], model.preprocessing, 64)))
    assert_close(softmax(model.predict_on_batch(images)), probe.predict_proba(features), 0.05)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"task": "segmentation"}, "task 'segmentation' does not use probe_first=True; leave them out"),
        ({"image_text": {}}, "does not use probe_first=True"),
    ],
)
def test_a_recipe_without_a_head_on_the_representation_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        RunConfig("digits", RECIPE.with_changes(**changes), MODEL)


def test_a_run_of_a_model_with_two_heads_is_refused_before_it_begins(tmp_path):
    config = RunConfig("digits", RECIPE, {**MODEL, "distillation": True})
    with pytest.raises(ValueError, match="^a probe needs a VisionTransformer with one head"):
        train(config, tmp_path / "run", 0)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_trained_weights_choose_the_probe_and_are_not_worse_after_a_few_steps(trained_folder, tmp_path):
    learned_from = read_checkpoint(trained_folder).arguments["pretraining"]
    recipe = find_recipe(default_recipe(learned_from, trained_folder))
    assert recipe is RECIPES["probe_finetune"]
    parts = {part: trained.crops(part, 5, 56) for part in ("train", "test")}
    dataset = f"folder:{trained.write_crops(tmp_path / 'crops', **parts)}"
    recipe = recipe.with_changes(total_steps=10, batch_size=16)
    config = RunConfig(dataset, recipe, weights=trained_folder, image_size=(56, 56))
    _, record = train(config, tmp_path / "run", 0)
    model = from_pretrained(trained_folder, image_size=56)
    splits = [load_dataset(dataset, 0).split(split) for split in ("train", "test")]
    (train_features, labels), (features, test_labels) = representations_of_splits(model, splits, 16)
    probe = sklearn_probe(labels, features=train_features)
    assert record["test_accuracy"] > probe.score(features, test_labels) - 0.03
