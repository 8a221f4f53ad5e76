"""Models that take images as they were taken, and prepare them in their graph."""

from __future__ import annotations

from typing import Any

import keras

from keras_vit.engine.distributed_model import DistributedModel
from keras_vit.engine.fit_checks import check_dtype
from keras_vit.models.backbones import backbone
from keras_vit.types import Tensor


@keras.saving.register_keras_serializable("keras_vit")
class PreprocessedModel(DistributedModel):
    """A model of raw images, as `with_preprocessing` makes it.

    Args:
        inputs, outputs: As for a functional `keras.Model`; the first layer is a `PreprocessingLayer`.

    Input: uint8 (batch, height, width, channels) of any size, or floats in the `value_range` of its layer.
    Output: that of the model in it.

    Raises:
        ValueError: for floats, if the input is uint8, since Keras would round them.

    Example:
        >>> type(model.with_preprocessing()).__name__
        'PreprocessedModel'
    """

    def __init__(self, inputs: Any, outputs: Any, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(inputs, outputs, name=name, **kwargs)
        self.dtype_policy = prepared_model(self).dtype_policy  # by which `compile` scales the loss

    @property
    def num_classes(self) -> int | None:
        """That of the model in it, by which `compile` and `fit` check losses and labels."""
        return getattr(prepared_model(self), "num_classes", None)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        check_dtype(self.inputs[0], inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(
        self, inputs: Any, training: bool | None = None, mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        check_dtype(self.inputs[0], inputs)  # On JAX, `fit` and `predict` call this alone.
        return super().call(inputs, training=training, mask=mask, **kwargs)


def prepared_model(model: keras.Model) -> keras.Model:
    """The model in a `PreprocessedModel`; any other model is returned as it is.

    >>> prepared_model(model.with_preprocessing()) is model
    True
    """
    return model.layers[-1] if isinstance(model, PreprocessedModel) else model


def with_preprocessing(
    model: keras.Model, value_range: tuple[float, float] | None = None
) -> PreprocessedModel:
    """A model that prepares raw images itself, for `fit`, `evaluate`, `predict` and `export`.

    It has the layers of this model, so that whatever trains one of them trains both. If this model is
    compiled, so is the new one, with the same arguments and an optimizer of its own. Labels of pixels or
    objects are those of the resized image, as for the model itself.

    Args:
        value_range: (lowest, highest) possible value of float images; None for uint8 images.

    Returns:
        A `keras.Model` of images (batch, height, width, channels) of any size. `save` writes it as `.keras`.

    Raises:
        ValueError: for a model that takes more than images, packs patches, or whose training step computes
            more than its output, such as a segmenter with queries.

    Example:
        >>> photos = np.random.default_rng(0).integers(0, 256, (4, 40, 50, 3), "uint8")
        >>> whole = model.with_preprocessing()
        >>> whole.predict(photos, verbose=0).shape
        (4, 10)
        >>> whole.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        >>> history = whole.fit(photos, np.arange(4), verbose=0)

    Source: KerasHub's tasks, whose `preprocessor` is part of `fit` and `predict`.
    """
    if not model.takes_images or model.trains_other_outputs:
        raise ValueError(
            f"expected a model that is trained by its output for images; got {type(model).__name__}: map "
            "its preprocessing over the data"
        )
    backbone(model).check_one_size("with_preprocessing")
    prepare = model.preprocessing.as_layer(value_range, name="preprocessing")
    shape = (None, None, model.preprocessing.channels)
    images = keras.Input(shape, dtype="uint8" if value_range is None else "float32", name="images")
    whole = PreprocessedModel(images, model(prepare(images)), name=f"{model.name}_with_preprocessing")
    if model.compiled:
        whole.compile_from_config(model.get_compile_config())
    return whole
