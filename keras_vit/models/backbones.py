"""The `VisionTransformer` in a model of any kind."""


# Functions and not properties, since Keras saves each attribute of a model that is a layer.
def backbone(model):
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
    return model if argument is None else inner_transformer(getattr(model, argument))


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
