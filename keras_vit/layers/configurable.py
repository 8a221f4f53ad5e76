"""A base class whose configuration is its constructor's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import keras

from keras_vit.types import Shape, Tensor


class HoldsModel:
    """A layer around a model, whose configuration is an argument of the whole model."""

    name: str

    def get_config(self) -> NoReturn:
        raise ValueError(
            f"keras.models.clone_model cannot copy the layer {self.name!r}, which holds a model; use "
            "type(model).from_config(model.get_config())"
        )


class Configurable(keras.layers.Layer):
    """A layer that stores each constructor argument as an attribute of its name, for `get_config`.

    A subclass that adds arguments passes the others on as `**kwargs`.
    """

    if TYPE_CHECKING:  # Keras's has no annotations.

        def __call__(self, *args: Any, **kwargs: Any) -> Tensor: ...

    def store_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Store constructor arguments that need no conversion as attributes, but the layer's own and Keras's.

        Args:
            arguments: `locals()` at the start of the constructor.
        """
        for name, value in arguments.items():
            if name not in ("self", "kwargs", "__class__"):
                setattr(self, name, value)

    def add_embeddings(self, name: str, shape: Shape) -> keras.Variable:
        """A weight of embeddings: it starts random, with a standard deviation of 0.02."""
        start = keras.initializers.RandomNormal(stddev=0.02)
        return self.add_weight(shape=shape, initializer=start, name=name)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """That of the first input, for layers that do not say another."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        names: dict[str, None] = {}
        for cls in reversed(type(self).__mro__):
            if issubclass(cls, Configurable) and cls is not Configurable and "__init__" in vars(cls):
                _, *parameters = inspect.signature(cls.__init__).parameters.values()
                names |= {p.name: None for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
        values = {name: getattr(self, name) for name in names}
        for name, value in values.items():
            if isinstance(value, keras.initializers.Initializer):
                values[name] = keras.initializers.serialize(value)
        return {**super().get_config(), **values}
