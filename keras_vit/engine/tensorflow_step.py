"""A training or test step of a `DistributedModel` on one replica, for TensorFlow."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
import tensorflow as tf

from keras_vit.engine.step import Batch, loss_weight, sample_count, seeds_from, statistics, update_metrics
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.engine.distributed_model import DistributedModel

_Computed: TypeAlias = tuple[list[Tensor], Tensor, Any]  # (gradients, loss, outputs) of a (micro-)batch
_MicroStep: TypeAlias = Callable[[Tensor, Batch], _Computed]
_numbers = itertools.count()
fold_in = tf.random.experimental.stateless_fold_in


def train_step(model: DistributedModel, data: Any) -> dict[str, Tensor]:
    """Accumulate the gradients of a replica's micro-batches and update the weights once.

    The optimizer sums the gradients over the replicas.
    """
    replica = tf.distribute.get_replica_context()
    if any(statistics(model)) and replica.num_replicas_in_sync > 1:
        raise ValueError(
            "expected one replica, since in float8 Keras would scale each replica by its own images; "
            f"got {replica.num_replicas_in_sync} replicas"
        )
    batch = keras.utils.unpack_x_y_sample_weight(data)
    weight, samples = loss_weight(model, batch), sample_count(batch)
    total, all_samples = tf.unstack(
        replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.stack([weight, samples]))
    )
    variables = [variable.value for variable in model.trainable_variables]
    step = tf.cast(model.optimizer._iterations.value, tf.int32)
    seed = fold_in([model.random_seed, 0], step)
    seed = fold_in(seed, tf.cast(replica.replica_id_in_sync_group, tf.int32))

    def micro_step(number: Tensor, part: Batch) -> _Computed:
        fraction = tf.math.divide_no_nan(loss_weight(model, part), total)
        with seeds_from(model, fold_in, fold_in(seed, number)), tf.GradientTape() as tape:
            predicted = model(part[0], training=True)
            loss = _mean_loss(model, part, predicted, training=True)
            loss *= tf.cast(fraction, loss.dtype)
            scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # The mean over no samples is NaN, which must not count.
        nonempty = tf.cast(fraction != 0, tf.float32)
        *gradients, loss = (
            tf.math.multiply_no_nan(tf.convert_to_tensor(x), tf.cast(nonempty, x.dtype))
            for x in (*gradients, loss)
        )
        return gradients, loss, predicted

    run = micro_step if model.accumulation_steps == 1 else _accumulated(model, micro_step, variables)
    gradients, loss, predicted = run(0, batch)
    # The tracker multiplies by the samples, so that it accumulates n L and n.
    mean = tf.math.divide_no_nan(loss * tf.cast(all_samples, loss.dtype), tf.cast(samples, loss.dtype))
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        # It checks only the first replica's gradients for overflow, so all replicas get their mean.
        count = replica.num_replicas_in_sync
        gradients = [g / count for g in replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)]
        # The inner optimizer does not count steps that overflow.
        model.optimizer._iterations.assign_add(1)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    total = functools.partial(replica.all_reduce, tf.distribute.ReduceOp.SUM)
    if updates := model.after_step(step, predicted, batch[2], total):
        replica.merge_call(
            _assign, args=([variable.value for variable, _ in updates], [v for _, v in updates])
        )
    return _logs(update_metrics(model, mean, samples, batch, predicted))


def test_step(model: DistributedModel, data: Any) -> dict[str, Tensor]:
    """Update the metrics with the replica's part of a batch, which may be empty."""
    batch = keras.utils.unpack_x_y_sample_weight(data)
    predicted, weight = model(batch[0], training=False), loss_weight(model, batch)
    loss = _mean_loss(model, batch, predicted, training=False)
    loss = tf.math.multiply_no_nan(loss, tf.cast(weight != 0, loss.dtype))
    return _logs(update_metrics(model, loss, weight, batch, predicted))


def counted_alone(
    function: tf.types.experimental.PolymorphicFunction,
) -> tf.types.experimental.PolymorphicFunction:
    """The same tf.function, whose tracings TensorFlow does not count with those of other models.

    It warns if five of ten calls are traced, but counts the calls of all functions with equal code together,
    such as the first one of each model's `predict_function`, in which Keras computes all models.
    """
    compute = function.python_function

    def predict(data: Any) -> Any:
        return compute(data)

    predict.__code__ = predict.__code__.replace(co_name=f"predict_{next(_numbers)}")
    return tf.function(predict, reduce_retracing=True, autograph=False)


def _assign(
    strategy: tf.distribute.Strategy, variables: Iterable[tf.Variable], values: Iterable[Tensor]
) -> None:
    """Assign to each replica's part of the variables its own values."""
    for variable, value in zip(variables, values):
        strategy.extended.update(variable, lambda part, value: part.assign(value), args=(value,))


def gathered(x: Tensor) -> Tensor:
    """The rows of all replicas, in each of them, without a gradient."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return x
    return replica.all_gather(tf.stop_gradient(x), axis=0)


def _accumulated(
    model: DistributedModel, micro_step: _MicroStep, variables: Sequence[tf.Variable]
) -> _MicroStep:
    """`micro_step` for the micro-batches of a batch, one after the other to save memory."""
    count = model.accumulation_steps
    joins = [tf.maximum if statistic else tf.add for statistic in statistics(model)]

    def run(_: Tensor, batch: Batch) -> _Computed:
        size = tf.shape(keras.tree.flatten(batch[0])[0])[0]

        def body(
            number: Tensor, gradients: list[Tensor], loss: Tensor, predicted: list[tf.TensorArray]
        ) -> tuple[Tensor, list[Tensor], Tensor, list[tf.TensorArray]]:
            begin, end = number * size // count, (number + 1) * size // count
            part = keras.tree.map_structure(lambda x: None if x is None else x[begin:end], batch)
            part_gradients, part_loss, outputs = micro_step(number, part)
            gradients = [join(a, b) for join, a, b in zip(joins, gradients, part_gradients)]
            predicted = [a.write(number, o) for a, o in zip(predicted, keras.tree.flatten(outputs))]
            return number + 1, gradients, loss + part_loss, predicted

        arrays = [
            tf.TensorArray(output.dtype, count, element_shape=(None, *output.shape[1:]), infer_shape=False)
            for output in model.outputs
        ]
        start = (0, [tf.zeros(v.shape, v.dtype) for v in variables], 0.0, arrays)
        _, gradients, loss, predicted = tf.while_loop(
            lambda number, *_: number < count, body, start, parallel_iterations=1
        )
        outputs = [array.concat() for array in predicted]
        return gradients, loss, keras.tree.pack_sequence_as(model.output, outputs)

    return run


def _mean_loss(model: DistributedModel, batch: Batch, predicted: Any, training: bool) -> Tensor:
    images, labels, sample_weight = batch
    loss = model.compute_loss(images, labels, predicted, sample_weight, training)
    return loss * model.distribute_strategy.num_replicas_in_sync  # Keras divides by it


def _logs(metrics: dict[str, Tensor]) -> dict[str, Tensor]:
    """Metrics in the shapes that Keras reduces: across workers it averages over a first axis."""
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return {name: tf.expand_dims(value, 0) for name, value in metrics.items()}
    return metrics
