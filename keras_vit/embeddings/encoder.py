"""What a model computes of images, by name: the columns of embeddings."""

import keras
import numpy as np
from keras import ops

from keras_vit.engine.distributed_model import DistributedModel, filled
from keras_vit.labels import labels_of
from keras_vit.models.backbones import backbone, image_model
from keras_vit.models.classifying import check_finite, check_head

CAPTIONS = "captions"  # an output of texts: the vectors of an image's captions


class Encoder:
    """A function from model input to the outputs of a model, which computes them together.

    Batches are filled up to one size, so that one graph is compiled.

    Args:
        model: A `VisionTransformer` or a model with one.
        outputs: Names among `OUTPUTS`.
        batch_size: The largest number of images in a batch.

    Attributes:
        shapes: dict from the name of each output to its shape for one image.

    Raises:
        ValueError: for an output that the model does not have.

    Example:
        >>> from keras_vit.embeddings.encoder import Encoder
        >>> encoder = Encoder(model, ("pooled", "classes"), batch_size=8)
        >>> encoder.shapes
        {'pooled': (24,), 'classes': (10,)}
        >>> {name: values.shape for name, values in encoder(images).items()}
        {'pooled': (4, 24), 'classes': (4, 10)}
    """

    def __init__(self, model, outputs, batch_size):
        tensors = {name: OUTPUTS[name](model) for name in outputs}
        self.shapes = {name: tuple(x.shape[1:]) for name, x in tensors.items()}
        self.preprocessing = image_model(model).preprocessing
        self._batch_size = batch_size if self.preprocessing.has_fixed_shape else 1
        self._model = DistributedModel(backbone(model).input, tensors)

    def __call__(self, inputs):
        """The outputs for a batch: dict of float32 arrays (batch, …).

        Raises:
            ValueError: if the model computes NaN or infinity.
        """
        count = len(keras.tree.flatten(inputs)[0])
        outputs = self._model.predict_on_batch(filled(inputs, self._batch_size))
        return {name: check_finite(np.asarray(x[:count], "float32")) for name, x in outputs.items()}


def caption_encoder(model, batch_size):
    """A function from a list of texts to their vectors, which computes batches of one size.

    Args:
        model: An `ImageTextModel`.
        batch_size: The number of texts in a batch.

    Returns:
        (function, length of a vector).

    Raises:
        ValueError: for another model, or one without `text_preprocessing`.
    """
    if model.text_preprocessing is None:
        raise ValueError(f"expected an ImageTextModel with text_preprocessing for the output {CAPTIONS}")

    def encode(texts):
        missing = -len(texts) % batch_size
        return model.encode_text([*texts, *[""] * missing], batch_size)[: len(texts)]

    return encode, model.text_encoder.output.shape[-1]


def _pooled(model):
    model, pair_encoder = backbone(model), model.image_encoder
    if pair_encoder is not None:
        return pair_encoder(model.input)
    extractor = model.feature_extractor("representation", grid=model.pooling is None)
    x = extractor.output["representation"]
    return ops.mean(ops.cast(x, "float32"), axis=(1, 2)) if len(x.shape) == 4 else x


def _tokens(model):
    model = backbone(model)
    x = model.feature_extractor("tokens", grid=True).output["tokens"]
    if None in x.shape[1:]:
        raise ValueError("the tokens of images of any size have no fixed shape; give the model an image_size")
    return x


def _logits(model):
    check_head(model)
    return model.output


def _classes(model):
    """Probabilities, or the fractions of the pixels of a class map at the model's size."""
    label = labels_of(model)
    if label.is_map and label.has_classes:
        logits = model.output
        classes = ops.argmax(logits, axis=-1)
        return ops.mean(ops.one_hot(classes, logits.shape[-1], dtype="float32"), axis=(1, 2))
    check_head(model)
    if not label.has_classes:
        raise ValueError(f"a model of task {label.name!r} has no classes; its values are the output logits")
    activation = ops.softmax if label.is_class_id else ops.sigmoid
    return activation(ops.cast(model.output, "float32"))


# By name, a function from a model to a symbolic tensor of the input of the model's backbone.
OUTPUTS = {"pooled": _pooled, "tokens": _tokens, "logits": _logits, "classes": _classes}
