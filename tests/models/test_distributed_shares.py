"""Uneven, empty and weighted shares of a batch train as the whole batch does on one device."""

import functools
import os

import keras
import numpy as np
import pytest
from made.devices import data, devices
from reference.comparing import arrays
from reference.small import small

from keras_vit.training import SGD, AdamW, SoftmaxCrossEntropy

pytestmark = pytest.mark.tensorflow_only("tf.distribute")
if keras.backend.backend() == "tensorflow":
    from keras_vit.training.strategy import scope


def trained(replicas, images, labels, batch_size, *, accumulation_steps=1, optimizer=None, model=None, **fit):
    """(history, weights) of two epochs on so many replicas, from the same start."""
    keras.utils.set_random_seed(0)
    with scope(devices(replicas)):
        model = model() if model else small(num_layers=1)
        optimizer = optimizer() if optimizer else SGD(0.2, global_clipnorm=0.5)
        model.compile(
            optimizer,
            SoftmaxCrossEntropy(),
            metrics=["accuracy"],
            weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="weighted")],
            accumulation_steps=accumulation_steps,
        )
    history = model.fit(
        images, labels, batch_size=batch_size, epochs=2, verbose=0, shuffle=False, **fit
    ).history
    return history, arrays(model)


def assert_same_training(found, expected, rtol=1e-5):
    (history, weights), (wanted_history, wanted) = found, expected
    assert history.keys() == wanted_history.keys()
    for name, values in wanted_history.items():
        np.testing.assert_allclose(history[name], values, rtol=rtol, atol=1e-6, err_msg=name)
    for name, value in wanted.items():
        np.testing.assert_allclose(
            weights[name], value, rtol=0, atol=rtol * np.abs(value).max(), err_msg=name
        )


@functools.cache
def on_one_device(count, weighted=False):
    """What so many images train on one device, with the weights of `sample_weights` or none."""
    return trained(0, *data(count), 8, **({"sample_weight": sample_weights()} if weighted else {}))


def sample_weights():
    weights = np.random.default_rng(1).uniform(0, 3, 22).astype("float32")
    weights[:2] = 0  # with 4 replicas one has no weight at all, and with 2 a micro-batch
    return weights


FULL = "FULL" in os.environ
UNEVEN = [(4, 1), (2, 3), *[(2, 1), (0, 3), (4, 2), (2, 4)] * FULL]


# The last batch of one image leaves replicas and micro-batches without any.
@pytest.mark.parametrize("count", [17, *[18, 19, 20, 21, 22, 23] * FULL])
@pytest.mark.parametrize(("replicas", "accumulation_steps"), UNEVEN if FULL else UNEVEN[1:])
def test_uneven_and_empty_shares_train_as_one_device(count, replicas, accumulation_steps):
    found = trained(replicas, *data(count), 8, accumulation_steps=accumulation_steps)
    assert_same_training(found, on_one_device(count))


@pytest.mark.parametrize(("replicas", "accumulation_steps"), UNEVEN if FULL else UNEVEN[1:2])
def test_sample_weights_train_as_on_one_device(replicas, accumulation_steps):
    options = {"accumulation_steps": accumulation_steps, "sample_weight": sample_weights()}
    expected = on_one_device(22, weighted=True)
    assert_same_training(trained(replicas, *data(22), 8, **options), expected)
    # And they are not without effect.
    assert np.abs(expected[1]["head/bias"] - on_one_device(22)[1]["head/bias"]).max() > 1e-3


# Keras makes sample weights of them, which are tested above.
@pytest.mark.parametrize(("replicas", "accumulation_steps"), UNEVEN[1:2] if FULL else [(0, 3)])
def test_class_weights_train_as_on_one_device(replicas, accumulation_steps):
    images, labels = data(22)
    weights = {0: 1.0, 1: 2.0, 2: 0.5, 3: 0.0, 4: 3.0}
    expected = trained(0, images, labels, 8, class_weight=weights)
    found = trained(replicas, images, labels, 8, accumulation_steps=accumulation_steps, class_weight=weights)
    assert_same_training(found, expected)


def test_the_loss_is_the_weighted_sum_divided_by_the_weights():
    images, labels = data(6)
    weights = np.arange(6, dtype="float32")
    model = small(num_layers=1)
    logits = np.asarray(model(images), "float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    each = -log_p[np.arange(6), labels]
    model.compile(SGD(0.0), SoftmaxCrossEntropy(), accumulation_steps=2)
    found = model.fit(images, labels, sample_weight=weights, batch_size=6, verbose=0).history["loss"]
    np.testing.assert_allclose(found, [(each * weights).sum() / weights.sum()], rtol=1e-5)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: AdamW(
            1e-3, 0.1, global_clipnorm=0.5, layer_decay=0.7, epsilon=1e-3, use_ema=True, ema_momentum=0.5
        ),
        *[lambda: SGD(0.1, accumulator_dtype="bfloat16", weight_decay=0.1)] * FULL,
        *[lambda: keras.optimizers.Adam(1e-3, epsilon=1e-3)] * FULL,
    ],
    ids=["AdamW", *["SGD", "keras Adam"] * FULL],
)
def test_every_optimizer_trains_as_on_one_device(optimizer):
    images, labels = data(22)
    expected = trained(0, images, labels, 8, optimizer=optimizer)
    found = trained(2, images, labels, 8, optimizer=optimizer, accumulation_steps=2)
    # A trace that is rounded to bfloat16 falls to the other side now and then.
    assert_same_training(found, expected, rtol=1e-3)


def test_float16_trains_on_several_replicas_and_skips_a_step_on_all_where_one_overflows():
    images, labels = data(16)
    images[12] = 1e30  # overflows on the last replica of the second step alone
    policy = "mixed_float16"
    found = trained(2, images, labels, 8, model=lambda: small(num_layers=1, dtype=policy))[1]
    assert all(np.isfinite(value).all() for value in found.values())
    assert np.abs(found["head/bias"]).max() > 0


def test_evaluation_counts_every_sample_once(golden):
    images, labels = data(17)
    results = []
    for replicas in (0, 4 if FULL else 2):  # of the last image's batch one has none
        with scope(devices(replicas)):
            model = small(num_layers=1)
            model.compile(SGD(0.1), SoftmaxCrossEntropy(), metrics=["accuracy"])
        results.append(model.evaluate(images, labels, batch_size=8, verbose=0, return_dict=True))
    np.testing.assert_allclose([*results[1].values()], [*results[0].values()], rtol=1e-5)
    predicted = np.asarray(model(images)).argmax(-1)
    assert results[0]["accuracy"] == pytest.approx(np.mean(predicted == labels))
