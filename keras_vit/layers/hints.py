"""What a layer tells the engine about itself: how devices divide it, its place in a stack, what a head is.

The class of a layer has these as attributes. A layer that is used in several ways, such as `Dense`, gets them
from the layer or the model that creates it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import keras


@dataclasses.dataclass(frozen=True)
class Sharding:
    """How devices divide a layer's variables and outputs, under the strategies of `engine/sharding.py`.

    Args:
        axes: For names of variables, the axis that model_parallel divides, counted from its end. All devices
            have the other variables.
        output: "whole" if the output is kept divided by the batch alone: otherwise the compiler would divide
            tokens like the weights next to them, and send tokens from device to device instead of weights.
            "parts" if it is divided by heads, hidden units or channels as well under model_parallel. None if
            the compiler decides.
        by_heads: Whether the axes are of attention heads, which have to be divided.

    Example:
        >>> Sharding({"kernel": -1}).axes["kernel"]
        -1
    """

    axes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    output: str | None = "whole"
    by_heads: bool = False


WHOLE = Sharding()
FREE = Sharding(output=None)
# Query, key and value are divided by heads and the MLP's first layer by columns, so that each device
# computes its own heads and hidden units; the rows of the layer after them then need one sum over devices.
HEADS = Sharding({"kernel": -2, "bias": -2}, "parts", by_heads=True)
HEAD_ROWS = Sharding({"kernel": -3})
COLUMNS = Sharding({"kernel": -1, "bias": -1}, "parts")
ROWS = Sharding({"kernel": -2})
PARTS = Sharding(output="parts")
NORM_OF_PARTS = Sharding({"gamma": -1, "beta": -1}, "parts")
TOKEN = Sharding({"token": -1}, "parts")
TABLE = Sharding({"table": -1})
CLASSES = Sharding({"kernel": -1, "bias": -1})  # Losses and metrics need the scores of all classes.


def sharded(layer: keras.Layer, sharding: Sharding) -> keras.Layer:
    """A layer that is not built yet, divided in another way than its class says.

    >>> sharded(keras.layers.GroupNormalization(8), FREE).sharding.output is None
    True
    """
    layer.sharding = sharding
    return layer


def never_trained(layer: keras.Layer) -> keras.Layer:
    """Freeze a built layer and all in it for good: also `enable_lora` and `merge_lora` leave it so.

    >>> layer = keras.layers.Dense(2)
    >>> layer.build((None, 3))
    >>> never_trained(layer).trainable_variables
    []
    """
    for part in layer._flatten_layers():
        part.never_trained, part.is_head = True, False
        part.trainable = False
    return layer


def as_head(layer: keras.Layer) -> keras.Layer:
    """A dense layer as a head: its classes are divided, and `enable_lora` trains it in full.

    >>> as_head(keras.layers.Dense(10)).is_head
    True
    """
    layer.is_head = True
    return sharded(layer, CLASSES)
