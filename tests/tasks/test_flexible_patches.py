"""Runs at drawn patch sizes: loaded at each size, and refused; tests/training interrupts them."""

import dataclasses

import pytest

from keras_vit import from_pretrained
from keras_vit.data import load_dataset
from keras_vit.evaluation import evaluate
from keras_vit.training import RunConfig
from keras_vit.training.run import train

SHORT = {"total_steps": 2, "eval_every": 1, "checkpoint_every": 1, "accumulation_steps": 1}


@pytest.fixture(scope="module")
def finished(labeled, eager, tmp_path_factory):
    config = labeled("flexible", **SHORT)
    return config, *train(config, tmp_path_factory.mktemp("flexible") / "run", verbose=0)


@pytest.mark.slow
def test_the_finished_model_is_tested_at_its_own_size_and_loads_at_others(finished):
    config, workdir, record = finished
    model = from_pretrained(workdir.path)
    assert (model.patch_size, model.position_grid) == ((8, 8), (3, 3))
    assert not model.dropout_rate and model.position_interpolation == "bilinear_antialias"
    samples = load_dataset(config.dataset, config.recipe.seed).split("test")
    assert evaluate(model, samples)["loss"] == pytest.approx(record["test_loss"], rel=1e-6)
    other = from_pretrained(workdir.path, patch_size=4)
    assert other.patch_size == (4, 4)
    assert evaluate(other, samples)["loss"] != pytest.approx(record["test_loss"], rel=1e-6)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"task": "segmentation"}, "are for the tasks single_label, .*; got 'segmentation'"),
        ({"image_text": {}}, "are for the tasks single_label, .*; got 'image_text'"),
    ],
)
def test_other_tasks_are_refused(changes, message, labeled):
    config = labeled("flexible", **SHORT)
    recipe = config.recipe.with_changes(crop_area=None, flip=False, **changes)
    with pytest.raises(ValueError, match=f"^patch_sizes {message}$"):
        dataclasses.replace(config, recipe=recipe)


def test_an_objective_without_labels_does_not_use_them(finished):
    recipe = finished[0].recipe.with_changes(ema=None)
    with pytest.raises(ValueError, match=r"does not use patch_sizes=\(4, 8, 16\); leave them out"):
        RunConfig("digits", recipe, "mu/8", objective="mae")
