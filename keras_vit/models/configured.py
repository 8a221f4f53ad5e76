"""Models that are restored from the arguments of their constructor and the state of their layers."""

from typing import Any

import keras

from keras_vit.engine.distributed_model import DistributedModel
from keras_vit.layers.dense import restoring, state_config, without_state
from keras_vit.types import Tensor


class ConfiguredModel(DistributedModel):
    """A model with a constructor of its own, whose configuration has its arguments and its layers' state.

    A subclass adds the constructor's arguments to `get_config`, and has the method `_inner_models` if some of
    them are models.
    """

    rules = {}  # of the constructor's arguments that `store_arguments` stores
    kind = None  # its name for `from_pretrained(kind=…)`
    # The constructor argument with the VisionTransformer in the model; None if the model is one itself.
    backbone_argument = None
    takes_images = True  # False if the input is more than images, such as token ids

    initial_weights = None  # the paths of the weights that a checkpoint did not hold, if there was one
    text_preprocessing = image_encoder = None  # of a model of images and texts
    exported_stages = None  # of its exports, beside the logits; None for a class that is not exported
    is_scaffold = False  # whether it is only needed to train its `backbone`
    head_inputs = ()  # the tensors that the head reads; empty without a head on frozen features
    head_reads_images = False  # whether the head reads the shape of the images, too

    def store_arguments(self, arguments):
        """Check the constructor's arguments by their `rules`, and store them as attributes of their names.

        Args:
            arguments: `locals()` at the start of the constructor.
        """
        for name, rule in self.rules.items():
            setattr(self, name, rule.check(name, arguments[name]))

    def _config(self):
        """The constructor's arguments, without models, names and dtypes."""
        return {name: getattr(self, name) for name in self.rules}

    def get_config(self):
        return {"name": self.name, "trainable": self.trainable, **state_config(self.own_layers())}

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        arrays = [x for x in keras.tree.flatten(inputs) if hasattr(x, "dtype")]
        dtypes = {keras.backend.standardize_dtype(x.dtype) for x in arrays}
        # Keras would take pixels for the normalized input.
        if "uint8" in dtypes and any("float" in x.dtype for x in self.inputs):
            raise ValueError("expected float input, as from model.preprocessing; got uint8")
        return super().__call__(inputs, *args, **kwargs)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        with restoring(config) as freeze:
            model = cls(**without_state(config))
            freeze(model.own_layers())
        return model

    @staticmethod
    def min_own_parameters(config):
        """A lower bound of the parameter count, without the VisionTransformer in the model.

        Files are checked by it before a model is built: a subclass with arguments for sizes has its own.

        Args:
            config: What `get_config` returns.
        """
        return 0

    def own_layers(self):
        """The layers that are in none of the inner models."""
        inner = {id(layer) for model in self._inner_models() for layer in (model, *model.layers)}
        return [layer for layer in self.layers if id(layer) not in inner]

    def _inner_models(self):
        """The models whose configurations are arguments of the constructor."""
        return ()


# Functions and not properties, since Keras saves each attribute of a model that is a layer.
def backbone(model):
    """The `VisionTransformer` in a model: itself, its encoder, or its image tower.

    Raises:
        ValueError: if there is none.

    Example:
        >>> segmenter = keras_vit.ImageSegmenter(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3), 5)
        >>> backbone(segmenter) is segmenter.encoder
        True
    """
    inner = inner_transformer(model)
    if not is_transformer(inner):
        raise ValueError(f"expected a VisionTransformer or a model with one; got {type(model).__name__}")
    return inner


def is_transformer(model):
    """Whether a model is a `VisionTransformer`.

    >>> is_transformer(model), is_transformer(keras.Sequential())
    (True, False)
    """
    return getattr(model, "kind", None) == "classifier"


def inner_transformer(model):
    """As `backbone`, but any other model is returned as it is.

    >>> other = keras.Sequential([keras.layers.Dense(2)])
    >>> inner_transformer(other) is other
    True
    """
    argument = getattr(model, "backbone_argument", None)
    return model if argument is None else getattr(model, argument)


def of_backbone(name, doc):
    """A property of a model: that of the `VisionTransformer` in it, with a docstring."""
    return property(lambda model: getattr(backbone(model), name), doc=doc)


def check_class(model, cls, expected):
    """Raise ValueError unless a model is of a class, with what was expected in words.

    >>> check_class(model, keras_vit.ImageSegmenter, "a segmenter")
    Traceback (most recent call last):
    ValueError: expected a segmenter; got a VisionTransformer
    """
    if not isinstance(model, cls):
        raise ValueError(f"expected {expected}; got a {type(model).__name__}")


def image_model(model):
    """The part of a model whose input is images alone: its `backbone`, or the model itself.

    >>> image_model(model) is model
    True
    """
    return model if getattr(model, "takes_images", True) else backbone(model)
