"""Runs of masked autoencoders; tests/training/test_jax_run.py interrupts them."""

import pytest

from keras_vit.training import RunConfig


def test_a_run_on_labels_needs_another_recipe(labeled):
    config = labeled("mae")
    with pytest.raises(ValueError, match="trains without labels: expected objective 'masked_patch' or 'mae'"):
        RunConfig(config.dataset, config.recipe, config.model)
