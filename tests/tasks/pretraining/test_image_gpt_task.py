"""Runs of iGPT: the palette and the loss; tests/training/test_jax_run.py interrupts them."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf
from reference.comparing import numpy
from sklearn.svm import SVC

from keras_vit import PixelTransformer, from_pretrained
from keras_vit.data import load_dataset
from keras_vit.data.color_palette import fit_palette
from keras_vit.training import RunConfig, find_recipe
from keras_vit.training.run import train

COLORS = 6


@pytest.fixture(scope="module")
def config(labeled):
    return labeled("igpt", total_steps=8, weight_decay=0.1)


@pytest.fixture(scope="module")
def finished(config, eager, tmp_path_factory):
    return train(config, tmp_path_factory.mktemp("igpt") / "run", verbose=0)[0]


# The palette --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_palette_has_the_colors_of_training_pixels(config, finished):
    assert finished.steps()[0]["loss"] == pytest.approx(math.log(COLORS), rel=1e-5)  # of equal probabilities
    model = from_pretrained(finished.path, kind="pretrainer")
    samples = load_dataset(config.dataset, config.recipe.seed).split("train")
    expected = fit_palette(samples, model.encoder.preprocessing, COLORS, config.recipe.seed)
    np.testing.assert_array_equal(model.palette, expected)
    encoder = from_pretrained(finished.model)
    assert type(encoder) is PixelTransformer and not encoder.dropout_rate
    np.testing.assert_array_equal(numpy(encoder.get_layer("patch_embedding").palette), expected)


@pytest.mark.slow
def test_weights_keep_their_palette(config, finished, tmp_path):
    recipe = config.recipe.with_changes(seed=5, total_steps=2, eval_every=2)
    config = dataclasses.replace(config, recipe=recipe, model=None, weights=str(finished.model))
    continued = train(config, tmp_path / "run", verbose=0)[0]
    palettes = [from_pretrained(run.path, kind="pretrainer").palette for run in (finished, continued)]
    np.testing.assert_array_equal(*palettes)


# A whole run --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_recipe_completes_digits_as_the_digit_that_was_begun(tmp_path):
    config = RunConfig("digits", find_recipe("digits_igpt"), objective="igpt")
    workdir, _ = train(config, tmp_path / "run", verbose=0)
    model = from_pretrained(workdir.path, kind="pretrainer")
    train_samples, test = (load_dataset("digits").split(split) for split in ("train", "test"))
    pixels, begun = (
        np.stack([tf.io.decode_png(image).numpy() for image in samples.images])
        for samples in (train_samples, test)
    )
    classifier = SVC(C=10).fit(pixels.reshape(-1, 64) / 255, train_samples.labels)
    completed = model.complete(begun, rows=4, batch_size=355)
    assert classifier.score(completed[..., 0].reshape(-1, 64) / 255, test.labels) >= 0.7
