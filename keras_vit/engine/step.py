"""What a training or test step of a `DistributedModel` means; `tensorflow_step` and `jax_step` compute it.

The loss of a micro-batch is a mean L with a weight n, and the global loss is sum(n L) / sum(n). Each loss is
scaled by its fraction n / sum(n), so that the sum of the gradients over the micro-batches, and over the
replicas that compute their own, is the gradient of the global batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import keras
from keras import ops
from keras.src.losses.loss import scale_loss_for_distribution  # Keras's trainer expects it

from keras_vit.losses import MEAN
from keras_vit.seeds import override_seeds
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.engine.distributed_model import DistributedModel

Batch: TypeAlias = tuple[Any, Any, Tensor | None]  # (images, labels, sample_weight)
BACKENDS = ("tensorflow", "jax")  # on others a model is trained by Keras's own steps


def of_backend() -> ModuleType:
    """The module `tensorflow_step` or `jax_step`, which `import keras_vit` does without."""
    if keras.backend.backend() == "jax":
        from keras_vit.engine import jax_step

        return jax_step
    from keras_vit.engine import tensorflow_step

    return tensorflow_step


def loss_weight(model: DistributedModel, batch: Batch) -> Tensor:
    """The denominator of the loss: the sum of the sample weights or, for most losses, the sample count."""
    sample_weight = batch[2]
    is_weighted = model.own_loss is not None or getattr(model.loss, "reduction", None) == MEAN
    if sample_weight is not None and is_weighted:
        return ops.sum(ops.cast(sample_weight, "float32"))
    return sample_count(batch)


def sample_count(batch: Batch) -> Tensor:
    """The number of samples of a batch, a float."""
    return ops.convert_to_tensor(ops.shape(keras.tree.flatten(batch[0])[0])[0], "float32")


def weighted_mean(losses: Tensor, sample_weight: Tensor | None) -> Tensor:
    """The mean of the samples' losses (batch,), weighted unless `sample_weight` is None."""
    weights = ops.ones_like(losses) if sample_weight is None else ops.cast(sample_weight, losses.dtype)
    return ops.sum(weights * losses) / ops.sum(weights)


def total_loss(model: DistributedModel, loss: Tensor) -> Tensor:
    """The sum of a model's own loss and the losses of its layers, as `compute_loss` returns it."""
    losses = [scale_loss_for_distribution(loss), *map(model._aggregate_additional_loss, model.losses)]
    return ops.sum(losses)


def seeds_from(
    model: DistributedModel, fold_in: Callable[[Tensor, Tensor], Tensor], seed: Tensor
) -> AbstractContextManager[None]:
    """A context in which the n-th random operation of the model draws by `seed` and n."""
    return override_seeds(model, lambda draw, _: fold_in(seed, draw))


def statistics(model: DistributedModel) -> list[bool]:
    """Whether each trainable variable is a float8 statistic, whose new value Keras passes as its gradient.

    The statistics of several micro-batches are joined by their maximum, gradients by their sum.
    """
    return [getattr(variable, "overwrite_with_gradient", False) for variable in model.trainable_variables]


def update_metrics(
    model: DistributedModel, mean: Tensor, weight: Tensor, batch: Batch, predicted: Any
) -> dict[str, Tensor]:
    """Count a mean loss with its weight, update the metrics, and return the logs.

    In training the weight is the number of samples, as in Keras, so that steps of one size count alike.
    """
    images, labels, sample_weight = batch
    model._loss_tracker.update_state(mean, sample_weight=weight)
    return model.compute_metrics(images, labels, predicted, sample_weight=sample_weight)
