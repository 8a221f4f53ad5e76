"""Dropout of values and of whole branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.rules import number
from keras_vit.types import Tensor


def unchanged(inputs: Tensor, training: bool | None = None) -> Tensor:
    """The inputs: what a layer that is not needed computes, without the cost of a layer."""
    return inputs


def make_dropout(
    rate: float, dtype: str | keras.DTypePolicy, layer: type[keras.Layer] = keras.layers.Dropout
) -> Callable[..., Tensor]:
    """A layer that drops with this rate, or `unchanged` for a rate of 0.

    Args:
        rate: float in [0, 1).
        dtype: The dtype policy of the layer.
        layer: The class of the layer.

    Example:
        >>> make_dropout(0.0, "float32") is unchanged
        True
    """
    return unchanged if rate == 0 else layer(rate, dtype=dtype)


@keras.saving.register_keras_serializable("keras_vit")
class StochasticDepth(Configurable):
    """In training, set a whole branch to zero for some images and scale it up for the others.

    Args:
        rate: The fraction of images that skip the branch, in [0, 1).
        seed: Optional int that fixes the random numbers.

    Input and output shape: (batch, …).

    Raises:
        ValueError: for a rate outside [0, 1).

    Example:
        >>> StochasticDepth(0.5)(np.ones((1, 2))).numpy().tolist()  # not in training
        [[1.0, 1.0]]

    Source: Huang et al. 2016 (arXiv 1603.09382), with the kept branches divided by 1 - rate.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = number(0, below=1).check("rate", rate)
        self.seed = seed
        # As in keras.layers.Dropout, a rate of 0 needs no random state.
        self.seed_generator = keras.random.SeedGenerator(seed) if rate else None

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        if not (training and self.rate):
            return inputs
        shape = (ops.shape(inputs)[0], *[1] * (len(inputs.shape) - 1))
        kept = keras.random.uniform(shape, seed=self.seed_generator) >= self.rate
        return inputs * ops.cast(kept, inputs.dtype) / (1 - self.rate)
