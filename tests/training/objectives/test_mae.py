"""Runs of masked autoencoders; tests/training/test_jax_run.py interrupts them."""

import pytest

from keras_vit.training import RunConfig


def test_a_run_on_labels_needs_another_recipe(labelled):
    config = labelled("mae")
    with pytest.raises(ValueError, match="trains without labels: expected objective 'masked_patch' or 'mae'"):
        RunConfig(config.dataset, config.recipe, config.model)


@pytest.mark.slow
@pytest.mark.tensorflow_only("on JAX test_sharded_steps divides the batch among devices")
def test_two_replicas_train_as_one_device_does(labelled, check_replicas):
    # The gradient of a key's bias is rounding, which AdamW scales up.
    check_replicas(labelled("mae", dropout_rate=0.0, total_steps=4), rtol=1e-3, ignored=("key/bias",))
