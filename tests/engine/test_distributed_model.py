"""The same global batch is the same training step on any number of devices and micro-batches."""

import contextlib

import keras
import numpy as np
import pytest
from made.devices import data, devices
from reference.comparing import arrays
from reference.fine_tuning import compiled, fit, official
from reference.small import NO_TRANSFORMER, images_for, small

import keras_vit
from keras_vit.models import DistributedModel
from keras_vit.training import SGD, AdamW, SoftmaxCrossEntropy, compile_model

ON_JAX = keras.backend.backend() == "jax"
REPLICAS = 0 if ON_JAX else 2


def scope_of(replicas):
    """The scope of so many replicas. On JAX there is one program, whose devices tests/training divides."""
    if not ON_JAX:
        return devices(replicas).scope()
    if replicas:
        pytest.skip("replicas are TensorFlow's")
    return contextlib.nullcontext()


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


# The official trajectory --------------------------------------------------------------------------


def check_official(golden, tmp_path, replicas=0, plain=False, steps_per_execution=1, **options):
    """Run the twelve steps of the official fine-tuning and compare losses and weights."""
    with scope_of(replicas):
        model, trained = compiled(
            golden, plain, metrics=["accuracy"], steps_per_execution=steps_per_execution, **options
        )
    expected = official(golden)
    losses = fit(trained, expected)

    expected_losses = expected["losses"].reshape(-1, steps_per_execution).mean(axis=1)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    keras_vit.save_weights(model, tmp_path / "final.npz", layout="vit_jax")
    finals = [key for key in expected if key.startswith("final/")]
    assert len(finals) == len(model.weights)
    with np.load(tmp_path / "final.npz") as found:
        for key in finals:
            value = expected[key]
            error = np.abs(found[key.removeprefix("final/")].reshape(value.shape) - value).max()
            assert error <= 2e-5 * np.abs(value).max(), key


# On TensorFlow replicas and micro-batches are compared with one device below.
FAST, MORE = ((0, 2), [(0, 1), (0, 4)]) if ON_JAX else ((0, 1), [(0, 4), (2, 1), (2, 2), (4, 2)])


@pytest.mark.parametrize("replicas, accumulation_steps", [FAST, *(slow(*case) for case in MORE)])
def test_fine_tuning_follows_the_official_trajectory(replicas, accumulation_steps, golden, tmp_path):
    eager = not ON_JAX and (replicas, accumulation_steps) == FAST  # Tracing takes longer than twelve steps.
    options = {"accumulation_steps": accumulation_steps, "run_eagerly": eager}
    check_official(golden, tmp_path, replicas, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"plain": True}, {"plain": True, "replicas": 2}, {"steps_per_execution": 3}], ids=str
)
def test_plain_keras_models_and_several_steps_per_execution_follow_it_too(options, golden, tmp_path):
    check_official(golden, tmp_path, **options)


# Uneven, empty and weighted parts of a batch ------------------------------------------------------


ONE_BLOCK = {"num_layers": 1}


def trained(
    replicas, images, labels, *, accumulation_steps=1, optimizer=None, dtype=None, layers=ONE_BLOCK, **fit
):
    """(history, weights) of two epochs from the same start."""
    keras.utils.set_random_seed(0)
    with scope_of(replicas):
        model = small(**layers, dtype=dtype)
        model.compile(
            optimizer() if optimizer else SGD(0.2, global_clipnorm=0.5),
            SoftmaxCrossEntropy(),
            metrics=["accuracy"],
            weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="weighted")],
            accumulation_steps=accumulation_steps,
            # Tracing takes longer than a few steps.
            run_eagerly=not (replicas or ON_JAX) and accumulation_steps == 1,
        )
    fit = {"batch_size": 8, "epochs": 2, "verbose": 0, "shuffle": False, **fit}
    return model.fit(images, labels, **fit).history, arrays(model)


def assert_same_training(found, expected, rtol=1e-5):
    for name, values in expected[0].items():
        np.testing.assert_allclose(found[0][name], values, rtol=rtol, atol=1e-6, err_msg=name)
    for name, value in expected[1].items():
        atol = rtol * np.abs(value).max()
        np.testing.assert_allclose(found[1][name], value, rtol=0, atol=atol, err_msg=name)


def weights_of_samples(count):
    weights = np.random.default_rng(1).uniform(0.5, 3, count).astype("float32")
    weights[:2] = 0  # With 4 replicas one has no weight at all, and with 2 a micro-batch.
    return {"sample_weight": weights}


CLASS_WEIGHTS = {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5, 3: 0.0, 4: 3.0}}
# Replicas, micro-batches, images, weights. A last batch of one image leaves replicas and micro-batches empty.
# The fast case has no Transformer, whose tracing takes longest.
UNEVEN = [
    (2, 2, 17, weights_of_samples(17) | {"layers": NO_TRANSFORMER}),
    slow(2, 3, 17, weights_of_samples(17)),
    slow(2, 2, 17, weights_of_samples(17)),
]
UNEVEN += [slow(0, 3, 22, CLASS_WEIGHTS), slow(0, 4, 17, weights_of_samples(17))]
UNEVEN += [slow(2, 3, count, {}) for count in (17, 20, 23)]
UNEVEN += [slow(2, 3, 22, CLASS_WEIGHTS), slow(4, 1, 18, weights_of_samples(18))]
UNEVEN += [slow(0, 3, 19, {}), slow(2, 1, 21, {}), slow(4, 2, 22, weights_of_samples(22))]


@pytest.mark.parametrize("replicas, accumulation_steps, count, weights", UNEVEN)
def test_uneven_empty_and_weighted_parts_train_as_on_one_device(replicas, accumulation_steps, count, weights):
    found = trained(replicas, *data(count), accumulation_steps=accumulation_steps, **weights)
    assert_same_training(found, trained(0, *data(count), **weights))


def test_the_loss_is_the_weighted_sum_divided_by_the_sum_of_the_weights():
    images, labels = data(6)
    weights = np.arange(6, dtype="float32")
    model = small(num_layers=1)
    logits = np.asarray(model(images), "float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -log_p[np.arange(6), labels]
    model.compile(SGD(0.0), SoftmaxCrossEntropy(), accumulation_steps=2, run_eagerly=not ON_JAX)
    found = model.fit(images, labels, sample_weight=weights, batch_size=6, verbose=0).history["loss"]
    np.testing.assert_allclose(found, [(losses * weights).sum() / weights.sum()], rtol=1e-5)


OPTIMIZERS = {
    "AdamW": lambda: AdamW(
        1e-3, 0.1, global_clipnorm=0.5, layer_decay=0.7, epsilon=1e-3, use_ema=True, ema_momentum=0.5
    ),
    "SGD": lambda: SGD(0.1, accumulator_dtype="bfloat16", weight_decay=0.1),
    "keras": lambda: keras.optimizers.Adam(1e-3, epsilon=1e-3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_as_on_one_device(name):
    expected = trained(0, *data(22), optimizer=OPTIMIZERS[name])
    found = trained(REPLICAS, *data(22), optimizer=OPTIMIZERS[name], accumulation_steps=2)
    # Momentum in bfloat16 is sometimes rounded in the other direction.
    assert_same_training(found, expected, rtol=1e-3)


@pytest.mark.slow
def test_float16_skips_a_step_on_all_replicas_if_one_overflows():
    images, labels = data(16)
    images[12] = 1e30  # overflows only on the second replica in the second step
    with pytest.warns(UserWarning, match="the loss is NaN by step 2"):
        _, weights = trained(REPLICAS, images, labels, dtype="mixed_float16")
    assert all(np.isfinite(value).all() for value in weights.values())
    assert np.abs(weights["head/bias"]).max() > 0


@pytest.mark.slow
def test_evaluation_counts_every_sample_once():
    images, labels = data(17)
    results = []
    for replicas in (0, 2):  # one replica gets none of the last batch's single image
        with scope_of(replicas):
            model = small(**NO_TRANSFORMER)
            model.compile(SGD(0.1), SoftmaxCrossEntropy(), metrics=["accuracy"])
        results.append(model.evaluate(images, labels, batch_size=8, verbose=0, return_dict=True))
    np.testing.assert_allclose([*results[1].values()], [*results[0].values()], rtol=1e-5)
    predicted = np.asarray(model(images)).argmax(-1)
    assert results[0]["accuracy"] == pytest.approx(np.mean(predicted == labels))


# Random numbers -----------------------------------------------------------------------------------


def random_run(seed, epochs, initial_epoch=0, model=None, replicas=0, accumulation_steps=1):
    images, labels = data(8)
    if model is None:
        with scope_of(replicas):
            model = small(num_layers=1, dropout_rate=0.3, stochastic_depth_rate=0.3)
            options = {"accumulation_steps": accumulation_steps, "run_eagerly": not (replicas or ON_JAX)}
            model.compile(SGD(0.2), SoftmaxCrossEntropy(), seed=seed, **options)
    fit = {"batch_size": 4, "epochs": epochs, "initial_epoch": initial_epoch, "verbose": 0, "shuffle": False}
    model.fit(images, labels, **fit)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("replicas, accumulation_steps", [(0, 1), slow(2, 2)])
def test_a_seed_determines_a_run(replicas, accumulation_steps):
    options = {"replicas": replicas, "accumulation_steps": accumulation_steps}
    first, again, other = (arrays(random_run(seed, 1, **options)) for seed in (1, 1, 2))
    np.testing.assert_equal(again, first)
    assert any(np.abs(first[name] - other[name]).max() > 1e-6 for name in first)


@pytest.mark.slow
def test_a_resumed_run_and_a_loaded_model_use_the_random_numbers_of_an_uninterrupted_run(tmp_path):
    expected = arrays(random_run(1, epochs=2, accumulation_steps=2))
    model = random_run(1, epochs=1, accumulation_steps=2)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    loaded.run_eagerly = not ON_JAX
    assert (loaded.accumulation_steps, loaded.random_seed) == (2, 1)
    model(np.zeros((2, 16, 16, 3), "float32"), training=True)  # uses random numbers, which must not count
    for resumed in (model, loaded):
        np.testing.assert_equal(arrays(random_run(1, 2, initial_epoch=1, model=resumed)), expected)


@pytest.mark.slow
def test_masks_differ_between_steps_replicas_and_micro_batches():
    """A model of dropout only, whose loss shows the mask of each part."""
    inputs = keras.Input((64,))
    with scope_of(REPLICAS):
        weight = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        model = DistributedModel(inputs, weight(keras.layers.Dropout(0.5)(inputs)))
        model.compile(SGD(1.0, momentum=0.0), lambda y, p: p[:, 0], accumulation_steps=2, seed=7)
    parts = 2 * max(REPLICAS, 1)
    # Each part of the batch has ones in columns of its own, so the step shows which were kept.
    images = np.kron(np.eye(parts), np.ones((1, 64 // parts))).astype("float32")
    steps = []
    for _ in range(2):
        before = weight.kernel.numpy()[:, 0]
        model.fit(images, np.zeros(parts), batch_size=parts, verbose=0, shuffle=False)
        steps.append((before - weight.kernel.numpy()[:, 0] > 0).reshape(parts, -1))
    masks = np.concatenate(steps)
    assert len(np.unique(masks, axis=0)) == 2 * parts
    assert 0.3 < masks.mean() < 0.7


# Micro-batches ------------------------------------------------------------------------------------


def dense():
    inputs = keras.Input((4,))
    return DistributedModel(inputs, keras.layers.Dense(2)(inputs))


def test_without_a_seed_keras_determines_it():
    seeds = []
    for seed in (1, 1, 2):
        model = dense()
        keras.utils.set_random_seed(seed)
        model.compile("sgd", "mse")
        seeds.append(model.random_seed)
    assert seeds[0] == seeds[1] != seeds[2]


def test_steps_that_cannot_be_divided_are_refused():
    with pytest.raises(ValueError, match="accumulation_steps must be a positive int; got 1.5"):
        dense().compile("sgd", "mse", accumulation_steps=1.5)
    with pytest.raises(ValueError, match="expected a loss that is a mean, .*; got reduction='sum'"):
        dense().compile("sgd", keras.losses.MeanSquaredError("sum"), accumulation_steps=2)
    with scope_of(2), pytest.raises(ValueError, match="must be 1 on several replicas; got 3 on 2"):
        dense().compile("sgd", "mse", steps_per_execution=3)


@pytest.mark.slow
def test_outputs_of_any_structure_are_concatenated_from_micro_batches():
    inputs = keras.Input((4,))
    outputs = {"a": keras.layers.Dense(2, name="a")(inputs), "b": keras.layers.Dense(1, name="b")(inputs)}
    model = DistributedModel(inputs, outputs)
    model.compile(SGD(0.1), {"a": "mse", "b": "mse"}, metrics={"a": ["mae"]}, accumulation_steps=3)
    x = np.arange(28, dtype="float32").reshape(7, 4) / 28
    first = model.evaluate(x, {"a": x[:, :2], "b": x[:, :1]}, verbose=0, return_dict=True)
    history = model.fit(x, {"a": x[:, :2], "b": x[:, :1]}, batch_size=7, verbose=0).history
    assert history["loss"][0] == pytest.approx(first["loss"], rel=1e-5)
    assert history["a_mae"][0] == pytest.approx(first["a_mae"], rel=1e-5)


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ema", [None, 0.5])
def test_an_error_in_a_step_leaves_the_weights_as_they_were(ema):
    model = small(num_layers=1)
    compile_model(model, "finetune", total_steps=1, ema=ema)
    model.run_eagerly = True
    pixels, labels, before = np.zeros((2, 16, 16, 3), "uint8"), np.zeros(2, int), model.get_weights()
    calls = (model.fit, model.evaluate, lambda x, y: model.predict(x), model.train_on_batch)
    model.evaluate(np.float32(pixels), labels, verbose=0)  # Keras calls the model while it builds it.
    for call in calls:
        with pytest.raises(ValueError, match="expected float input, as from model.preprocessing; got uint8"):
            call(pixels, labels)
        np.testing.assert_equal(model.get_weights(), before)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_averaged_weights_are_evaluated_saved_and_trained_further(dtype, tmp_path):
    model = small(num_layers=1, dtype=dtype)
    model.compile(SGD(0.1, use_ema=True, ema_momentum=0.5), SoftmaxCrossEntropy())
    model.run_eagerly = not ON_JAX
    images, labels = images_for(model), np.zeros(2, int)
    for _ in range(2):
        model.fit(images, labels, verbose=0)
        model.evaluate(images, labels, verbose=0)
        model.save(tmp_path / "model.keras")
    assert int(model.optimizer.iterations) == 2
