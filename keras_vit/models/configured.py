"""Models that are restored from the arguments of their constructor and the state of their layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import keras

from keras_vit.engine.distributed_model import DistributedModel
from keras_vit.engine.fit_checks import check_is_array
from keras_vit.layers.dense import restoring, state_config, without_state
from keras_vit.messages import listed
from keras_vit.models.preprocessed import with_preprocessing
from keras_vit.names_elsewhere import CALL, METHOD, instead
from keras_vit.rules import Rule
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.preprocessing import TextPreprocessing
    from keras_vit.tasks.image_text.text_transformer import TextTransformer

_PLAIN = not hasattr(DistributedModel, "__getattr__")  # PyTorch's modules have one.


class _HintingType(type(DistributedModel)):  # type: ignore[misc]  # a metaclass of Keras
    """The type of models' classes, whose errors name what other packages call otherwise."""

    def __getattr__(cls, name: str) -> Any:
        hint = instead(name, METHOD)
        raise AttributeError(
            f"type object {cls.__name__!r} has no attribute {name!r}{hint}", name=name, obj=cls
        )


class ConfiguredModel(DistributedModel, metaclass=_HintingType):
    """A model with a constructor of its own, whose configuration has its arguments and its layers' state.

    A subclass adds the constructor's arguments to `get_config`, and has the method `_inner_models` if some of
    them are models.
    """

    rules: Mapping[str, Rule] = {}  # of the constructor's arguments that `store_arguments` stores
    kind: str | None = None  # its name for `from_pretrained(kind=…)`
    # The constructor argument with the VisionTransformer in the model; None if the model is one itself.
    backbone_argument: str | None = None
    takes_images = True  # False if the input is more than images, such as token ids

    # The paths of the weights that a checkpoint did not hold, if there was one.
    initial_weights: tuple[str, ...] | None = None
    # Of a model of images and texts.
    text: TextTransformer | None = None
    text_preprocessing: TextPreprocessing | None = None
    image_encoder: keras.Model | None = None
    # Of a model that was trained on a data set.
    task: str | None = None
    class_names: tuple[str, ...] | None = None
    split_seed: int | None = None
    # Of its exports, beside the logits; None for a class that is not exported.
    exported_stages: tuple[str, ...] | None = None
    needs_texts = False  # whether it has no classes before it gets texts for them
    # The tensors that the head reads; empty or None without a head on frozen features.
    head_inputs: Sequence[Tensor] | None = ()
    head_reads_images = False  # whether the head reads the shape of the images, too
    trains_other_outputs = False  # whether its training step computes more than its output

    def store_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Check the constructor's arguments by their `rules`, and store them as attributes of their names.

        Args:
            arguments: `locals()` at the start of the constructor.
        """
        for name, rule in self.rules.items():
            setattr(self, name, rule.check(name, arguments[name]))

    def _config(self) -> dict[str, Any]:
        """The constructor's arguments, without models, names and dtypes."""
        return {name: getattr(self, name) for name in self.rules}

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "trainable": self.trainable, **state_config(self.own_layers())}

    def __getattr__(self, name: str) -> Any:
        """Raise Python's error for a missing attribute, with a hint.

        It is called after the error, which may be that of a property.
        """
        if name.startswith("_") or name not in METHOD:
            return super().__getattribute__(name) if _PLAIN else super().__getattr__(name)
        hint = instead(name, METHOD)
        error = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
        raise AttributeError(error, name=name, obj=self)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        check_is_array(inputs)
        if unknown := [name for name in kwargs if name not in ("training", "mask")]:
            hint = instead(unknown[0], CALL)
            raise ValueError(f"expected inputs, training and mask only; got {listed(unknown)}{hint}")
        self._refuse_pixels(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self, inputs: Any, training: bool | None = None, mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        self._refuse_pixels(inputs)  # On JAX, `fit` and `evaluate` call this alone.
        return super().call(inputs, training=training, mask=mask, **kwargs)

    def _refuse_pixels(self, inputs: Any) -> None:
        """Raise ValueError for pixels, which Keras would take for the normalized input."""
        arrays = [x for x in keras.tree.flatten(inputs) if hasattr(x, "dtype")]
        dtypes = {keras.backend.standardize_dtype(x.dtype) for x in arrays}
        if "uint8" in dtypes and any("float" in x.dtype for x in self.inputs):
            raise ValueError("expected float input, as from model.preprocessing; got uint8")

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        with restoring(config) as freeze:
            model = cls(**without_state(config))
            freeze(model.own_layers())
        return model

    with_preprocessing = with_preprocessing

    @staticmethod
    def min_own_parameters(config: dict[str, Any]) -> int:
        """A lower bound of the parameter count, without the VisionTransformer in the model.

        Files are checked by it before a model is built: a subclass with arguments for sizes has its own.

        Args:
            config: What `get_config` returns.
        """
        return 0

    def exported(self) -> ConfiguredModel:
        """The model for exports, for inference."""
        return self.finished()

    def trained(self) -> ConfiguredModel:
        """The part of the model that a run is for: the model itself, or the one that it is built around."""
        return self

    def own_layers(self) -> list[keras.Layer]:
        """The layers that are in none of the inner models."""
        inner = {id(layer) for model in self._inner_models() for layer in (model, *model.layers)}
        return [layer for layer in self.layers if id(layer) not in inner]

    def _inner_models(self) -> tuple[ConfiguredModel, ...]:
        """The models whose configurations are arguments of the constructor."""
        return ()
