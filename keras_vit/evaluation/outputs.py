"""What a model computes of a split's samples, in one pass."""

import numpy as np
from tqdm import tqdm

from keras_vit.data.batches import evaluation_batches
from keras_vit.messages import listed
from keras_vit.models.classifying import check_finite, check_head
from keras_vit.weights.class_names import class_names, is_same_class


def computed(compute, samples, preprocessing, batch_size, doing="evaluating"):
    """Yield what is computed of each batch, with its labels; on a terminal a bar shows if it takes longer.

    Args:
        compute: Function from images to an array of as many rows.
        samples: A split of a `Dataset`.
        preprocessing: How its images become input.
        batch_size: Images computed at a time.
        doing: What the bar says.

    Raises:
        ValueError: if there are no samples, or what is computed is NaN or infinite.
    """
    batches = evaluation_batches(samples, preprocessing, batch_size)
    for images, labels in tqdm(batches, doing, unit="batch", delay=2, disable=None):
        yield check_finite(np.asarray(compute(np.asarray(images)))), np.asarray(labels)


def collect(model, samples, batch_size=64):
    """The model's outputs and the labels they are compared with, all samples at once.

    Args:
        model: A `VisionTransformer` with a head.
        samples: A split whose labels are rows of numbers: "multi_label" or "regression".
        batch_size: Images computed at a time.

    Returns:
        (outputs, labels), both float32 (samples, num_classes).

    Raises:
        ValueError: if there are no samples, the model has no head, or a label is no row of as many
            numbers as the model puts out.

    Example:
        >>> from keras_vit.data.datasets import Samples
        >>> digits = load_dataset("digits").split("test")
        >>> even = tuple(tuple(float(label == i) for i in range(10)) for label in digits.labels)
        >>> outputs, labels = collect(model, Samples(digits.images, even))
        >>> outputs.shape, labels.shape
        ((355, 10), (355, 10))
    """
    check_head(model)
    outputs, labels = [], []
    for rows, wanted in computed(model.predict_on_batch, samples, model.preprocessing, batch_size):
        if rows.shape != wanted.shape:
            raise ValueError(
                f"a label has the shape {wanted.shape[1:]}, but the model puts out {rows.shape[1:]}; "
                "for labels that are class numbers the task is 'single_label'"
            )
        outputs.append(rows.astype("float32"))
        labels.append(wanted.astype("float32"))
    return np.concatenate(outputs), np.concatenate(labels)


def check_classes(model, dataset):
    """Raise ValueError unless the model's classes are the data set's, as far as counts and names tell.

    Outputs and labels are compared by class number: the counts must be equal, and where both have names,
    these must mean the same in the same order (see `is_same_class`). A model without names has ImageNet's
    classes in the order that published checkpoints have.
    """
    check_head(model)
    wanted = dataset.class_names
    if not wanted:
        return
    if len(wanted) != model.num_classes:
        names = f" ({listed(model.class_names)})" if model.class_names else ""
        raise ValueError(
            f"the model has {model.num_classes} outputs{names}, the data set {len(wanted)} classes "
            f"({listed(wanted)}); wanted a model that was trained on these"
        )
    imagenet = class_names("imagenet_1k_synsets")
    names = model.class_names or (imagenet if {*wanted} == {*imagenet} else wanted)
    for i, (name, other) in enumerate(zip(names, wanted)):
        if not is_same_class(name, other):
            raise ValueError(
                f"class {i} is {name!r} in the model and {other!r} in the data set; labels can only be "
                "compared in one order"
            )
