"""Runs of iGPT: the palette, the loss, and the same numbers however a run is computed."""

import dataclasses
import math
import shutil

import numpy as np
import pytest
from made.folders import write_classes
from made.pages import read_page
from made.workers import end_of, finish, start
from reference.comparing import numpy
from reference.small import INTERRUPTED, SMALL

from keras_vit import ImageGPT, PixelTransformer, from_pretrained
from keras_vit.data import load_dataset
from keras_vit.data.color_palette import fit_palette
from keras_vit.reports.run_report import write_run_report
from keras_vit.training import Recipe, RunConfig, find_recipe
from keras_vit.training.run import train
from keras_vit.training.workdir import Workdir

slow = pytest.mark.slow
COLORS = 6
RECIPE = Recipe(
    "adamw",
    3e-3,
    total_steps=8,
    batch_size=4,
    weight_decay=0.1,
    crop_area=(0.5, 1.0),
    **INTERRUPTED,
)
SIZES = {
    **{name: value for name, value in SMALL.items() if name != "num_classes"},
    **{"image_size": 4, "patch_size": 1, "num_layers": 1, "palette": COLORS, "causal": True},
    **{"pooling": "gap", "norm": "rms"},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    images = write_classes(tmp_path_factory.mktemp("igpt") / "images", count=12)
    return RunConfig(f"folder:{images}", RECIPE, SIZES, objective="igpt")


@pytest.fixture(scope="module")
def finished(config, eager, tmp_path_factory):
    return train(config, tmp_path_factory.mktemp("igpt") / "run", verbose=0)[0]


def with_recipe(config, **changes):
    return dataclasses.replace(config, recipe=config.recipe.with_changes(**changes))


# The palette --------------------------------------------------------------------------------------


def test_the_palette_has_the_colors_of_training_pixels(config, finished):
    model = from_pretrained(finished.path, kind="pretrainer")
    samples = load_dataset(config.dataset, RECIPE.seed).split("train")
    expected = fit_palette(samples, model.encoder.preprocessing, COLORS, RECIPE.seed)
    np.testing.assert_array_equal(model.palette, expected)
    encoder = from_pretrained(finished.model)
    assert type(encoder) is PixelTransformer and not encoder.dropout_rate
    np.testing.assert_array_equal(numpy(encoder.get_layer("patch_embedding").palette), expected)


@slow
def test_weights_keep_their_palette(config, finished, tmp_path):
    config = with_recipe(dataclasses.replace(config, model=None, weights=str(finished.model)), seed=5)
    continued = train(with_recipe(config, total_steps=2, eval_every=2), tmp_path / "run", verbose=0)[0]
    palettes = [from_pretrained(run.path, kind="pretrainer").palette for run in (finished, continued)]
    np.testing.assert_array_equal(*palettes)


# The loss -----------------------------------------------------------------------------------------


def test_the_first_loss_is_that_of_equal_probabilities(finished):
    assert finished.steps()[0]["loss"] == pytest.approx(math.log(COLORS), rel=1e-5)


def test_the_loss_is_the_mean_over_the_pixels(rng):
    objective = RunConfig("digits", RECIPE, SIZES, objective="igpt").task
    logits, ids = rng.standard_normal((2, 5, COLORS)), rng.integers(0, COLORS, (2, 5))
    weights = np.array([[1.0] * 5, [0] * 5])
    each = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, ids[..., np.newaxis], -1)[..., 0]
    assert float(objective.loss(None)(ids, logits, weights)) == pytest.approx(each[0].mean(), rel=1e-5)


# The same numbers ---------------------------------------------------------------------------------


@slow
def test_a_resumed_run_is_the_uninterrupted_one(config, finished, eager, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    for name in ("model.keras", "pretrainer.keras", "result.json"):
        (tmp_path / "run" / name).unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000008")
    resumed, _ = train(config, tmp_path / "run", verbose=0)
    assert resumed.steps() == finished.steps() != []
    np.testing.assert_equal(end_of(resumed.path), end_of(finished.path))
    models = [from_pretrained(run.path, kind="pretrainer") for run in (resumed, finished)]
    assert all(type(model) is ImageGPT for model in models)
    for weights in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(*weights)


@slow
@pytest.mark.tensorflow_only("JAX runs in processes of their own")
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("mixed_bfloat16", 0.02)])
def test_both_backends_have_the_same_losses(dtype, tolerance, config, finished, tmp_path):
    changes = {"dropout_rate": 0.0, "total_steps": 4, "eval_every": 2, "dtype": dtype}
    config = with_recipe(dataclasses.replace(config, model=None, weights=str(finished.model)), **changes)
    losses = []
    for backend in ("tensorflow", "jax"):
        (tmp_path / backend).mkdir()
        environment = {"KERAS_BACKEND": backend}
        process = start(tmp_path / backend, config, tmp_path / backend / "run", environment=environment)
        assert finish([process]) == [0]
        rows, _, _ = end_of(tmp_path / backend / "run")
        losses.append([row[name] for row in rows for name in ("loss", "val_loss") if name in row])
    np.testing.assert_allclose(*losses, rtol=tolerance)


# The report ---------------------------------------------------------------------------------------


@slow
def test_the_report_shows_completions_and_samples(config, finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "run")
    workdir = Workdir(tmp_path / "run", config.as_json())
    write_run_report(config, workdir, workdir.result)
    page = read_page((tmp_path / "run" / "report.html").read_text())
    assert {"Completions", "Samples"} <= {*page.headings}
    assert "Not shown: the model has a palette of colors, and no filters" in page.text


# A whole run --------------------------------------------------------------------------------------


@slow
def test_the_recipe_completes_digits_as_the_digit_that_was_begun(tmp_path):
    from sklearn.svm import SVC

    config = RunConfig("digits", find_recipe("digits_igpt"), objective="igpt")
    workdir, _ = train(config, tmp_path / "run", verbose=0)
    model = from_pretrained(workdir.path, kind="pretrainer")
    dataset = load_dataset("digits")
    pixels = {}
    for split in ("train", "test"):
        records = dataset.split(split).evaluation_records()
        import tensorflow as tf

        pixels[split] = np.stack([tf.io.decode_png(image).numpy() for image, _ in records])
    classifier = SVC(C=10).fit(pixels["train"].reshape(-1, 64) / 255, dataset.split("train").labels)
    completed = model.complete(pixels["test"], rows=4, batch_size=355)
    found = classifier.predict(completed[..., 0].reshape(-1, 64) / 255)
    assert np.mean(found == dataset.split("test").labels) >= 0.7
