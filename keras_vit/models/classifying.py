"""Classification: preprocess images, compute logits and name the most probable classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.labels import labels_of
from keras_vit.messages import names_arguments
from keras_vit.rules import integer
from keras_vit.types import Array, ArrayOrTensor, Images

if TYPE_CHECKING:
    import keras

    from keras_vit.export.exported_model import ExportedModel
    from keras_vit.labels.label_kind import LabelKind
    from keras_vit.models.vit.vision_transformer import VisionTransformer


def check_finite(outputs: ArrayOrTensor) -> ArrayOrTensor:
    """Return a model's outputs, or raise ValueError if they contain NaN or infinity."""
    if not np.isfinite(outputs).all():
        raise ValueError(
            "the model computes NaN or infinity, which its weights or the images contain; `keras-vit weights "
            "show` lists such arrays"
        )
    return outputs


def check_head(model: keras.Model | ExportedModel) -> None:
    """Raise ValueError unless a model outputs one row of class scores, or of values, per image.

    Args:
        model: As for `classify`. Its attribute `without_head`, if any, is the message.
    """
    if not getattr(model, "is_classifier", False):
        message = "this model has no classification head; build it with num_classes and pooling"
        raise ValueError(getattr(model, "without_head", message))


@names_arguments
def classify(
    model: VisionTransformer | ExportedModel,
    images: Images,
    top: int = 5,
    batch_size: int = 32,
    task: str | None = None,
    value_range: tuple[float, float] | None = None,
) -> list[list[tuple[str, float]]]:
    """Predict the most probable classes of images.

    Args:
        model: A `VisionTransformer` or an exported model.
        images: What `model.preprocessing` takes: an array, a path, a URL, bytes, a Pillow image, or a list.
        top: Number of classes per image.
        batch_size: Number of images that are read and computed at a time.
        task: "single_label" (the probabilities are the softmax of the logits) or "multi_label" (the
            sigmoid of each); None for the model's task, "single_label" if it has none.
        value_range: (lowest, highest) possible value of float images; None for (0, 1).

    Returns:
        For each image a list of (class name, probability), most probable first. Without class names they
        are the indices of the classes.

    Raises:
        ValueError: if the model has no head or computes NaN, its task has no classes, as regression, `top` is
            not positive, or an image cannot be read.

    Example:
        >>> [len(best) for best in model.classify(np.zeros((2, 40, 50, 3), "uint8"), top=3)]
        [3, 3]
    """
    _class_labels(model, task)
    batches = model.preprocessing.batches(images, batch_size, value_range)
    return [best for batch in batches for best in classified(model, batch, top, task)]


def classified(
    model: VisionTransformer | ExportedModel, inputs: Any, top: int, task: str | None = None
) -> list[list[tuple[str, float]]]:
    """As `classify`, of a batch of model input."""
    label = _class_labels(model, task)
    logits = check_finite(np.asarray(model.predict_on_batch(inputs)))
    return most_probable(label.probabilities(logits.astype("float64")), model.class_names, top)


def _class_labels(model: VisionTransformer | ExportedModel, task: str | None) -> LabelKind:
    check_head(model)
    label = labels_of(model, task)
    if not label.has_rows_of_classes:
        raise ValueError(f"classify needs a task with classes of whole images; got {label.name!r}")
    return label


def most_probable(
    probabilities: Array, names: Sequence[str] | None, top: int
) -> list[list[tuple[str, float]]]:
    """The most probable classes of images.

    Args:
        probabilities: (images, classes).
        names: The names of the classes; None for their indices.
        top: Number of classes per image.

    Returns:
        For each image a list of (name, probability), most probable first.

    Raises:
        ValueError: if `top` is not positive.

    Example:
        >>> most_probable(np.array([[0.25, 0.75]]), ["cat", "dog"], 1)
        [[('dog', 0.75)]]
    """
    integer(at_least=1).check("top", top)
    return [
        [(names[i] if names else str(i), float(row[i])) for i in largest(row, top)]
        for row in np.asarray(probabilities)
    ]


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """The indices of the largest values, the largest first, and of equal ones the first.

    >>> largest(np.array([1.0, 5.0, 3.0, 5.0]), 3).tolist()
    [1, 3, 2]
    """
    lowest = np.partition(values, -count)[-count] if count < len(values) else -np.inf
    candidates = np.flatnonzero(values >= lowest)  # All are sorted only if all are equal.
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]
