"""The `VisionTransformer` in a model of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard, TypeVar

if TYPE_CHECKING:
    import keras

    from keras_vit.models.vit.vision_transformer import VisionTransformer

_Model = TypeVar("_Model")


# Functions and not properties, since Keras saves each attribute of a model that is a layer.
def backbone(model: keras.Model) -> VisionTransformer:
    """The `VisionTransformer` in a model: itself, its encoder, or its image tower.

    Raises:
        ValueError: if the model has none.

    Example:
        >>> segmenter = keras_vit.ImageSegmenter(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3), 5)
        >>> backbone(segmenter) is segmenter.encoder
        True
    """
    inner = inner_transformer(model)
    if not is_transformer(inner):
        raise ValueError(f"expected a VisionTransformer or a model with one; got {type(model).__name__}")
    return inner


def is_transformer(model: keras.Model) -> TypeGuard[VisionTransformer]:
    """Whether a model is a `VisionTransformer`.

    >>> is_transformer(model), is_transformer(keras.Sequential())
    (True, False)
    """
    # An opened export has the kind of its model, but no layers.
    return getattr(model, "kind", None) == "classifier" and hasattr(model, "layers")


def inner_transformer(model: _Model) -> _Model | VisionTransformer:
    """As `backbone`, but any other model is returned as it is.

    >>> other = keras.Sequential([keras.layers.Dense(2)])
    >>> inner_transformer(other) is other
    True
    """
    argument = getattr(model, "backbone_argument", None)
    return model if argument is None else inner_transformer(getattr(model, argument))


def of_backbone(name: str, doc: str) -> property:
    """A property of a model: that of the `VisionTransformer` in it, with a docstring."""
    return property(lambda model: getattr(backbone(model), name), doc=doc)


def check_class(model: object, cls: type, expected: str) -> None:
    """Raise ValueError unless a model is of a class, with what was expected in words.

    >>> check_class(model, keras_vit.ImageSegmenter, "a segmenter")
    Traceback (most recent call last):
    ValueError: expected a segmenter; got a VisionTransformer
    """
    if not isinstance(model, cls):
        raise ValueError(f"expected {expected}; got a {type(model).__name__}")


def image_model(model: keras.Model) -> keras.Model:
    """The part of a model whose input is images alone: its `backbone`, or the model itself.

    >>> image_model(model) is model
    True
    """
    return model if getattr(model, "takes_images", True) else backbone(model)
