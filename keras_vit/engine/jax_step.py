"""A training or test step of a `DistributedModel` for JAX: pure functions of the state and a global batch.

Over several devices the program is one, which JAX partitions, so there is a single replica.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import keras
from jax import numpy as jnp

from keras_vit.engine.step import Batch, loss_weight, sample_count, seeds_from, statistics, update_metrics
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.engine.distributed_model import DistributedModel

_Values: TypeAlias = list[Tensor]  # of variables
# (gradients, loss, outputs, other variables, metrics' variables) of a (micro-)batch
_Computed: TypeAlias = tuple[_Values, Tensor, Any, _Values, _Values]
_MicroStep: TypeAlias = Callable[[_Values, _Values, Tensor, Batch], _Computed]
KEYS = "threefry2x32"  # the generator of Keras's seeds, whichever JAX is configured to use


def train_step(
    model: DistributedModel, state: tuple[_Values, _Values, _Values, _Values], data: Any
) -> tuple[dict[str, Tensor], tuple[_Values, _Values, _Values, _Values]]:
    """Accumulate the gradients of the micro-batches and update the weights once.

    Args:
        model: A compiled `DistributedModel` whose optimizer is built.
        state: The values of its trainable, other, optimizer's and metrics' variables, a list of each.
        data: A batch, as from `fit`.

    Returns:
        (logs, state).
    """
    trainable, non_trainable, optimizer_values, metrics_values = state
    batch = keras.utils.unpack_x_y_sample_weight(data)
    weight = loss_weight(model, batch)
    places = {id(variable): counter for counter, variable in enumerate(model.optimizer.variables)}
    counter = places[id(model.optimizer._iterations)]
    step = optimizer_values[counter]
    seed = _fold_in(jnp.array([model.random_seed, 0], "uint32"), step)

    def micro_step(non_trainable: _Values, metrics_values: _Values, number: Tensor, part: Batch) -> _Computed:
        fraction = _divided(loss_weight(model, part), weight)

        def loss_of(trainable: _Values) -> tuple[Tensor, tuple[Tensor, Any, _Values, _Values]]:
            values = trainable, non_trainable, metrics_values
            options = {"training": True, "optimizer_variables": optimizer_values}
            with seeds_from(model, _fold_in, _fold_in(seed, number)):
                scaled, (loss, *rest) = model.compute_loss_and_updates(*values, *part, **options)
            return scaled * fraction.astype(scaled.dtype), (loss * fraction.astype(loss.dtype), *rest)

        (_, (loss, *rest)), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
        # The mean over no samples may be NaN, which must not count.
        gradients, loss = jax.tree.map(lambda x: jnp.where(fraction != 0, x, 0), (gradients, loss))
        return gradients, loss, *rest

    run = micro_step if model.accumulation_steps == 1 else _accumulated(model, micro_step, trainable)
    gradients, loss, predicted, non_trainable, metrics_values = run(non_trainable, metrics_values, 0, batch)
    trainable, optimizer_values = model.optimizer.stateless_apply(optimizer_values, gradients, trainable)
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer_values[counter] += 1  # The inner optimizer does not count steps that overflow.
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    with keras.StatelessScope(state_mapping=zip(variables, [*trainable, *non_trainable])) as scope:
        for update in model.after_step(step, predicted, batch[2], lambda x: x):
            scope.add_update(update)
    non_trainable = [scope.get_current_value(variable) for variable in model.non_trainable_variables]
    samples = sample_count(batch)
    logs, metrics_values = _update_metrics(model, metrics_values, loss, samples, batch, predicted)
    return logs, (trainable, non_trainable, optimizer_values, metrics_values)


def test_step(
    model: DistributedModel, state: tuple[_Values, _Values, _Values], data: Any
) -> tuple[dict[str, Tensor], tuple[_Values, _Values, _Values]]:
    """Update the metrics with a batch.

    Args:
        model: A compiled `DistributedModel`.
        state: The values of its trainable, other and metrics' variables.
        data: A batch, as from `evaluate`.

    Returns:
        (logs, state).
    """
    batch = keras.utils.unpack_x_y_sample_weight(data)
    weight = loss_weight(model, batch)
    loss, (_, predicted, non_trainable, metrics_values) = model.compute_loss_and_updates(
        *state, *batch, training=False
    )
    loss = jnp.where(weight != 0, loss, 0)
    logs, metrics_values = _update_metrics(model, metrics_values, loss, weight, batch, predicted)
    return logs, (state[0], non_trainable, metrics_values)


def gathered(x: Tensor) -> Tensor:
    """The rows of the global batch, in each device."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return x
    layout = keras.distribution.TensorLayout([None] * x.ndim, distribution.device_mesh)
    return keras.distribution.distribute_tensor(x, layout)


def _accumulated(model: DistributedModel, micro_step: _MicroStep, trainable: _Values) -> _MicroStep:
    """`micro_step` for the micro-batches of a batch, one after the other to save memory.

    A micro-batch has every n-th sample, so that each device's part of a batch has its share of every one. All
    have the same size: samples of weight 0 fill the batch up.
    """
    count = model.accumulation_steps
    joins = [jnp.maximum if statistic else jnp.add for statistic in statistics(model)]

    def run(others: _Values, metrics_values: _Values, _: Tensor, batch: Batch) -> _Computed:
        size = keras.tree.flatten(batch[0])[0].shape[0]
        parts = jax.tree.map(lambda x: jnp.moveaxis(_rows(x, count), 1, 0), _filled_up(batch, size, count))

        def body(
            carry: tuple[_Values, Tensor, _Values, _Values], numbered: tuple[Tensor, Batch]
        ) -> tuple[tuple[_Values, Tensor, _Values, _Values], Any]:
            gradients, loss, non_trainable, metrics_values = carry
            new, part_loss, predicted, non_trainable, metrics_values = micro_step(
                non_trainable, metrics_values, *numbered
            )
            gradients = [join(a, b) for join, a, b in zip(joins, gradients, new)]
            return (gradients, loss + part_loss.astype(loss.dtype), non_trainable, metrics_values), predicted

        start = [jnp.zeros_like(value) for value in trainable], jnp.zeros(()), others, metrics_values
        (gradients, loss, others, metrics_values), predicted = jax.lax.scan(
            body, start, (jnp.arange(count), parts)
        )
        predicted = jax.tree.map(lambda x: _merged(jnp.moveaxis(x, 0, 1))[:size], predicted)
        return gradients, loss, predicted, others, metrics_values

    return run


def _filled_up(batch: Batch, size: int, count: int) -> Batch:
    """The batch with samples of weight 0 up to a multiple of `count`."""
    missing = -size % count
    if not missing:
        return batch
    images, labels, sample_weight = batch
    sample_weight = jnp.ones(size) if sample_weight is None else sample_weight
    return jax.tree.map(
        lambda x: jnp.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)]), (images, labels, sample_weight)
    )


def _rows(x: Tensor, count: int) -> Tensor:
    return x.reshape(x.shape[0] // count, count, *x.shape[1:])


def _merged(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _update_metrics(
    model: DistributedModel, values: _Values, loss: Tensor, weight: Tensor, batch: Batch, predicted: Any
) -> tuple[dict[str, Tensor], _Values]:
    """(logs, new values of the metrics' variables)."""
    with keras.StatelessScope(state_mapping=zip(model.metrics_variables, values)) as scope:
        logs = update_metrics(model, loss, weight, batch, predicted)
    return logs, [scope.get_current_value(variable) for variable in model.metrics_variables]


def _fold_in(seed: Tensor, number: Tensor) -> Tensor:
    """A seed of two numbers, as Keras's, by a seed and a number."""
    key = jax.random.wrap_key_data(seed, impl=KEYS)
    return jax.random.key_data(jax.random.fold_in(key, number))


def _divided(x: Tensor, y: Tensor) -> Tensor:
    """x / y, or 0 where y is 0."""
    return jnp.where(y != 0, x / jnp.where(y != 0, y, 1), 0)
