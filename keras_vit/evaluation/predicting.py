"""Run a model over a split and score its outputs."""

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_vit.data.batches import evaluation_batches, mask_batches
from keras_vit.data.images import decode
from keras_vit.messages import listed
from keras_vit.models.classifying import check_finite, check_head
from keras_vit.tasks import get_task
from keras_vit.tasks.segmentation import check_class_maps
from keras_vit.tasks.segmentation_scores import IGNORE, SegmentationPredictions
from keras_vit.tasks.task import concatenate
from keras_vit.weights.class_names import class_names, is_same_class


def evaluate(model, samples, batch_size=64, task="single_label"):
    """Score a model on all samples of a split; no remainder is dropped.

    On a terminal, a progress bar appears after two seconds.

    Args:
        model: A `VisionTransformer` with a head.
        samples: A split of a `Dataset`, labeled with the model's class indices, or as the task requires.
        batch_size: Images per batch.
        task: "single_label", "multi_label" (labels of 0 and 1, one per class), "regression" (labels of as
            many numbers as the model has outputs) or "segmentation" (a class map for each image).

    Returns:
        dict of `samples`, `accuracy` (the fraction of images whose highest logit is the label's),
        `top5_accuracy` (the label is among the five highest; None with five classes or fewer) and `loss` (the
        mean cross-entropy, in nats). For the other tasks the dict of `multi_label_scores`,
        `regression_scores` or `segmentation_scores`.

    Raises:
        ValueError: if there are no samples, a label does not fit the model, or the task is unknown.

    Example:
        >>> sorted(evaluate(model, load_dataset("digits").split("test")))
        ['accuracy', 'loss', 'samples', 'top5_accuracy']

    Source: the evaluation of `vit_jax/train.py`, without its dropped remainder.
    """
    return get_task(task).scores(predict(model, samples, batch_size, task))


def predict(model, samples, batch_size=64, task="single_label"):
    """Run a model once over all samples; `accuracy`, `per_class` and others score the result.

    Args:
        model, samples, batch_size, task: As for `evaluate`.

    Returns:
        Predictions; for segmentation SegmentationPredictions, of maps of the images' own sizes, to which the
        logits are resized bilinearly, and at which a model for any size computes; for the other tasks an
        object with the arrays `outputs` and `labels`.

    Raises:
        ValueError: as `evaluate`.

    Example:
        >>> predict(model, load_dataset("digits").split("test")).best.shape
        (355, 5)
    """
    task = get_task(task)
    check_outputs(model, task)
    if task.has_class_maps and model.preprocessing.image_size is None:
        # In a batch, images would be padded to one size, which their tokens would attend to.
        return predict_maps(lambda image: model.segment([image])[0], samples, model.num_classes)
    if task.has_class_maps:
        return concatenate([*_predicted_maps(model, samples, batch_size, task)])
    if samples.labels:  # Some data sets know their labels before they read the images.
        task.check_labels(np.asarray(samples.labels), model.num_classes)
    predictions = []
    for outputs, labels in computed(model.predict_on_batch, samples, model.preprocessing, batch_size):
        task.check_labels(labels, model.num_classes)
        predictions.append(task.predictions(outputs, labels))
    return concatenate(predictions)


def _predicted_maps(model, samples, batch_size, task):
    """The predictions of each batch of class maps."""
    batches = mask_batches(samples, model.preprocessing, batch_size)
    for images, masks, sizes in tqdm(batches, "evaluating", unit="batch", delay=2, disable=None):
        logits = check_finite(np.asarray(model.predict_on_batch(np.asarray(images))))
        labels = unpadded(masks.numpy(), sizes.numpy())
        for label in labels:
            task.check_labels(label[np.newaxis], model.num_classes)
        yield predictions_of_maps(logits, labels)


def unpadded(masks, sizes):
    """The masks of a batch of `mask_batches`, each of its own size."""
    return [mask[:height, :width] for mask, (height, width) in zip(masks, sizes)]


def predictions_of_maps(logits, labels):
    """SegmentationPredictions of logits, resized to the masks' sizes.

    Args:
        logits: Of each image, (height, width, classes).
        labels: The class map of each image, of any size.

    Example:
        >>> predictions_of_maps(np.zeros((1, 2, 2, 3)), [np.zeros((4, 4), int)]).pairs.tolist()
        [[0, 0, 16]]
    """
    predicted = []
    for scores, label in zip(logits, labels):
        if label.shape != scores.shape[:2]:
            scores = tf.image.resize(scores, label.shape).numpy()
        predicted.append(scores.argmax(-1))
    return SegmentationPredictions.of_maps(predicted, labels, logits.shape[-1])


def predict_maps(segment, samples, num_classes):
    """Segment all images of a split at their own sizes by any function, such as one with sliding windows.

    Args:
        segment: A function from an image, uint8 (height, width, 3), to a class map, ints (height, width).
        samples: A split of a `Dataset` for segmentation.
        num_classes: The number of classes.

    Returns:
        SegmentationPredictions.

    Raises:
        ValueError: if there are no samples, or a mask or a map has other classes or another size.

    Example:
        >>> samples = load_dataset("digits_scenes", task="segmentation").split("test").take(range(9))
        >>> background = predict_maps(lambda image: np.zeros(image.shape[:2], int), samples, num_classes=11)
        >>> keras_vit.evaluation.segmentation_scores(background)["pixel_accuracy"] > 0.5
        True
    """
    if not len(samples):
        raise ValueError("expected at least one sample; got none")
    records = samples.evaluation_records()
    predictions = []
    for encoded, mask in tqdm(records, "evaluating", unit="image", delay=2, disable=None):
        label = mask.numpy()[..., 0]
        predicted = np.asarray(segment(decode(encoded, samples.exif).numpy()))
        if predicted.shape == label.shape:  # `of_maps` tells of other sizes.
            for classes in (label, np.where(label == IGNORE, 0, predicted)):
                check_class_maps(classes[np.newaxis], num_classes)
        predictions.append(SegmentationPredictions.of_maps([predicted], [label], num_classes))
    return concatenate(predictions)


def check_outputs(model, task):
    """Raise ValueError unless a model has the outputs of a task: a map of class scores, or a row of scores.

    Args:
        model: As for `evaluate`.
        task: A `Task`.
    """
    has_maps = getattr(model, "task", None) == "segmentation" and not model.is_classifier
    if task.has_class_maps and not has_maps:
        raise ValueError(f"expected a model whose outputs are class maps, for task {task.name!r}")
    if not task.has_class_maps:
        check_head(model)


def computed(compute, samples, preprocessing, batch_size, doing="evaluating"):
    """Yield what a function returns for each batch, and the batch's labels.

    Args:
        compute: A function from images to an array with a row for each.
        samples: A split of a `Dataset`.
        preprocessing: The model's `Preprocessing`.
        batch_size: Images per batch.
        doing: The label of the progress bar.

    Raises:
        ValueError: if there are no samples, or a result is NaN or infinite.
    """
    batches = evaluation_batches(samples, preprocessing, batch_size)
    for images, labels in tqdm(batches, doing, unit="batch", delay=2, disable=None):
        yield check_finite(np.asarray(compute(np.asarray(images)))), np.asarray(labels)


def check_classes(model, dataset):
    """Raise ValueError unless the model and the data set have the same classes in the same order.

    The numbers of classes must be equal, and if both have names, these must mean the same (see
    `is_same_class`). A model without names is assumed to have ImageNet's classes in their published order
    if the data set has ImageNet's.
    """
    check_outputs(model, get_task(dataset.task))
    expected = dataset.class_names
    if not expected:
        return
    if len(expected) != model.num_classes:
        names = f" ({listed(model.class_names)})" if model.class_names else ""
        raise ValueError(
            f"expected a model with the data set's {len(expected)} classes ({listed(expected)}); got one "
            f"with {model.num_classes} outputs{names}"
        )
    imagenet = class_names("imagenet_1k_synsets")
    names = model.class_names or (imagenet if {*expected} == {*imagenet} else expected)
    for i, (name, other) in enumerate(zip(names, expected)):
        if not is_same_class(name, other):
            raise ValueError(
                f"class {i} is {name!r} in the model and {other!r} in the data set; these must be equal"
            )
