"""The contrastive losses: their definition, chunks of it, and the same on any number of replicas."""

import keras
import numpy as np
import pytest
from keras import ops
from made.devices import devices
from reference.comparing import assert_close, numpy

from keras_vit.tasks.image_text.loss import pair_loss

ON_JAX = keras.backend.backend() == "jax"
OBJECTIVES = ("sigmoid", "softmax")


def expected(pairs, objective, weights=None):
    """The loss by its definition, on a matrix of all logits."""
    weights = np.full(len(pairs), 1 / len(pairs)) if weights is None else weights / weights.sum()
    weights = weights.astype("float32")
    logits = ops.matmul(pairs[:, 0], ops.transpose(pairs[:, 1]))
    if objective == "sigmoid":
        signs = 2 * np.eye(len(pairs), dtype="float32") - 1
        return -ops.sum(weights * ops.sum(ops.log_sigmoid(signs * logits), axis=1))
    own = ops.diagonal(logits)
    losses = [ops.logsumexp(logits, axis=axis) - own for axis in (0, 1)]
    return ops.sum(weights * (losses[0] + losses[1])) / 2


def with_gradient(function, pairs):
    if ON_JAX:
        import jax

        return jax.jit(jax.value_and_grad(function))(pairs)
    import tensorflow as tf

    pairs = tf.constant(pairs)
    with tf.GradientTape() as tape:
        tape.watch(pairs)
        loss = function(pairs)
    return loss, tape.gradient(loss, pairs)


def made(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 2, 6)).astype("float32")


WEIGHTS = {
    "one mean": None,
    "weights": np.array([0.5, 2.0, 0.1, 1.0, 0.3, 0.7, 1.2], "float32"),
    "pairs that fill a batch up": np.array([1, 0, 1, 1, 0, 1, 0], "float32"),
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_and_its_gradient_are_those_of_all_logits(objective, chunk, weights):
    """Pairs of weight 0 neither count nor are compared with others."""
    pairs = made(7)
    counts = np.ones(7, bool) if weights is None else weights > 0
    loss, gradient = with_gradient(lambda x: pair_loss(x, objective, chunk, weights), pairs)
    of_counted = None if weights is None else weights[counts]
    true_loss, true_gradient = with_gradient(lambda x: expected(x, objective, of_counted), pairs[counts])
    assert_close(loss, numpy(true_loss), 1e-6)
    assert_close(numpy(gradient)[counts], numpy(true_gradient), 1e-6)
    assert not numpy(gradient)[~counts].any()


def test_large_logits_overflow_nothing():
    for objective in OBJECTIVES:
        loss, gradient = with_gradient(lambda x: pair_loss(x, objective, 2), 100 * made(3))  # noqa: B023
        assert np.isfinite(numpy(loss)) and np.isfinite(numpy(gradient)).all()


@pytest.mark.slow
@pytest.mark.tensorflow_only("on JAX the loss is that of the global batch")
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("sizes", [(3, 4), pytest.param((2, 0, 4, 1), marks=pytest.mark.slow)], ids=str)
def test_replicas_have_the_loss_and_the_gradients_of_one_device(objective, sizes):
    import tensorflow as tf

    pairs = made(sum(sizes))
    strategy = devices(len(sizes))
    parts = tf.split(pairs, sizes)
    values = strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = pair_loss(x, objective, chunk=2) * (tf.cast(tf.shape(x)[0], tf.float32) / sum(sizes))
        return loss, tape.gradient(loss, x)

    loss, gradient = tf.function(lambda x: strategy.run(step, (x,)), autograph=False)(values)
    true_loss, true_gradient = with_gradient(lambda x: expected(x, objective), pairs)
    found = [np.concatenate([np.atleast_1d(x) for x in one.values]) for one in (loss, gradient)]
    assert_close(found[0].sum(), numpy(true_loss), 1e-6)
    assert_close(found[1], numpy(true_gradient), 1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not ON_JAX, reason="XLA plans the memory before a program runs")
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_memory_grows_with_the_batch_and_not_with_its_square(objective):
    import jax

    def planned(count):
        loss = jax.jit(jax.value_and_grad(lambda x: pair_loss(x, objective, chunk=256)))
        program = loss.lower(jax.ShapeDtypeStruct((count, 2, 64), "float32")).compile()
        return program.memory_analysis().temp_size_in_bytes

    sizes = {count: planned(count) for count in (1024, 2048, 4096)}
    assert sizes[4096] <= 2.1 * sizes[2048] <= 4.5 * sizes[1024]
    assert sizes[4096] < 4 * 4096**2 / 4  # of all logits
