"""Runs of masked autoencoders; tests/training/test_jax_run.py interrupts them."""

import numpy as np
import pytest
from made.devices import devices
from made.workers import end_of

from keras_vit import from_pretrained
from keras_vit.training import RunConfig
from keras_vit.training.run import train


def test_a_run_on_labels_needs_another_recipe(labelled):
    config = labelled("mae")
    with pytest.raises(ValueError, match="trains without labels: expected objective 'masked_patch' or 'mae'"):
        RunConfig(config.dataset, config.recipe, config.model)


@pytest.mark.slow
@pytest.mark.tensorflow_only("on JAX test_sharded_steps divides the batch among devices")
def test_two_replicas_train_as_one_device_does(labelled, tmp_path, monkeypatch):
    from keras_vit.training.strategy import TensorFlowDevices

    config = labelled("mae", dropout_rate=0.0, total_steps=4)
    train(config, tmp_path / "one", 0)
    monkeypatch.setattr("keras_vit.training.run.make_devices", lambda name: TensorFlowDevices(devices(2)))
    _, record = train(config, tmp_path / "two", 0)
    assert record["replicas"] == 2
    for row, wanted in zip(*(end_of(tmp_path / name)[0] for name in ("two", "one")), strict=True):
        assert row == pytest.approx(wanted, rel=1e-4)
    found, expected = (from_pretrained(tmp_path / name, pretrainer=True) for name in ("two", "one"))
    for weight, wanted in zip(found.weights, expected.weights, strict=True):
        if not weight.path.endswith("key/bias"):  # Its gradient is rounding, which AdamW scales up.
            largest = max(np.abs(wanted.numpy()).max(), 1e-2)
            np.testing.assert_allclose(weight.numpy(), wanted.numpy(), rtol=0, atol=1e-3 * largest)
