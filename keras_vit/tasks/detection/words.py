"""The classes of a detector as words: token ids, a text tower, and objects shown by images."""

from collections.abc import Mapping

import keras
import numpy as np

from keras_vit.engine.distributed_model import DistributedModel
from keras_vit.layers.dense import Dense
from keras_vit.layers.hints import FREE, sharded
from keras_vit.tasks.image_text.text_transformer import TextTransformer

_NEARLY = 0.8  # of the best overlap with the whole image


def text_tower(text, encoder):
    """The text tower of a detector, from its constructor argument, in the types of its encoder."""
    if isinstance(text, TextTransformer):
        return text
    if not isinstance(text, Mapping):
        raise ValueError(
            f"text must be a TextTransformer or its arguments, or 'stored' with weights; got {text!r}"
        )
    return TextTransformer.from_config({"dtype": encoder.dtype_policy, **text})


def ids_of_classes(ids, num_classes, names, length, text_preprocessing):
    """The token ids of classes: a tuple of ints for each.

    Args:
        ids: int array (classes, length), or None.
        num_classes, names: The number and the names of the classes, or None.
        length: Number of ids of a text.
        text_preprocessing: `TextPreprocessing`, or None.

    Returns:
        `ids`; without them those of the names, in which _ becomes a space; without these padding, with which
        nothing is detected.

    Raises:
        ValueError: for ids of another shape or type, or names without a tokenizer.

    Example:
        >>> ids_of_classes(None, 2, None, 3, None)
        ((0, 0, 0), (0, 0, 0))
    """
    if ids is None and names:
        if text_preprocessing is None:
            raise ValueError(
                "class_names of a detector with a text tower need its tokenizer, `text_preprocessing`, or "
                "class_ids; got neither"
            )
        ids = text_preprocessing([name.replace("_", " ") for name in names])
    if ids is None:
        ids = np.zeros((num_classes or 1, length), int)
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iu" or ids.ndim != 2 or ids.shape[1] != length or not len(ids):
        raise ValueError(
            f"expected class_ids of the shape (classes, {length}) as ints; got {ids.dtype} of the shape "
            f"{ids.shape}"
        )
    return tuple(map(tuple, ids.tolist()))


def text_encoder_of(text, size):
    """The model from token ids to the vectors of texts, of length 1."""
    projection = Dense(size, use_bias=False, dtype=text.dtype_policy, name="text_projection")
    vectors = sharded(projection, FREE)(text.output)
    unit = keras.layers.UnitNormalization(dtype=text.dtype_policy.variable_dtype, name="text_embedding")
    return DistributedModel(text.input, unit(vectors), name="text_encoder")


def most_distinct(boxes, vectors):
    """The number of the patch with the object that fills an image.

    Of the patches whose boxes overlap with the whole image at least 0.8 times as well as the best, it is the
    one whose vector is least similar to the mean of all patches.

    Args:
        boxes: float array (patches, 4): center, width and height, in fractions.
        vectors: float array (patches, size).

    Example:
        >>> boxes = np.array([[0.5, 0.5, 1, 1], [0.5, 0.5, 0.9, 1], [0.5, 0.5, 0.1, 0.1]])
        >>> int(most_distinct(boxes, np.array([[1.0, 0], [0.0, 2], [5.0, 5]])))
        0

    Source: `embed_image_query` in transformers' `modeling_owlvit.py`.
    """
    low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    sides = np.clip(np.minimum(high, 1) - np.maximum(low, 0), 0, None)
    common, area = sides.prod(axis=1), boxes[:, 2:].prod(axis=1)
    overlap = common / (1 + area - common)
    chosen = np.flatnonzero(overlap >= _NEARLY * overlap.max())
    similarity = vectors[chosen] @ vectors.mean(axis=0)
    return chosen[np.argmin(similarity)]
