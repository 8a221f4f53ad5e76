"""How good a classifier is: accuracy and loss, each class for itself, and what is taken for what."""

import dataclasses

import numpy as np
from keras import ops

from keras_vit.evaluation.multi_label import multi_label_scores
from keras_vit.evaluation.outputs import collect, computed
from keras_vit.evaluation.regression import regression_scores
from keras_vit.models.classifying import check_head

SCORES = {"multi_label": multi_label_scores, "regression": regression_scores}
MOST_CLASSES_OF_A_MATRIX = 4096


def evaluate(model, samples, batch_size=64, task="single_label"):
    """Compute all samples; none is dropped. On a terminal a bar shows when it takes longer.

    Args:
        model: A `VisionTransformer` with a head.
        samples: A split of a `Dataset`, labelled with the model's class numbers, or as the task says.
        batch_size: Images computed at a time.
        task: "single_label", "multi_label" (labels of 0 and 1, one per class) or "regression" (labels
            of as many numbers as the model puts out).

    Returns:
        dict of `samples`, `accuracy` (the share whose best class is the label), `top5_accuracy`
        (the label among the best five; None with five classes or fewer) and `loss` (the mean
        cross-entropy, in nats). For the other tasks what `multi_label_scores` and `regression_scores`
        return.

    Raises:
        ValueError: if there are no samples, a label is not the model's, or the task is unknown.

    Example:
        >>> sorted(evaluate(model, load_dataset("digits").split("test")))
        ['accuracy', 'loss', 'samples', 'top5_accuracy']

    Source: the evaluation of `vit_jax/train.py`, without its dropped remainder.
    """
    if task == "single_label":
        return accuracy(predict(model, samples, batch_size))
    if task not in SCORES:
        raise ValueError(f"task {task!r} is unknown; choose one of {('single_label', *SCORES)}")
    return SCORES[task](*collect(model, samples, batch_size))


@dataclasses.dataclass(frozen=True)
class Predictions:
    """What is kept of a classifier's outputs: a few numbers a sample, however many classes there are.

    Args:
        best: int32 (samples, 5), the best classes, best first; fewer columns with fewer classes.
        labels: int32 (samples,).
        log_probabilities: float64 (samples,), of the labels, in nats.
        num_classes: How many classes the model tells apart.
    """

    best: np.ndarray
    labels: np.ndarray
    log_probabilities: np.ndarray
    num_classes: int


def predict(model, samples, batch_size=64):
    """Classify all samples once; the other functions here read what this returns.

    Args:
        model, samples, batch_size: As for `evaluate`.

    Returns:
        Predictions. Of equal logits the first counts, as in argmax.

    Raises:
        ValueError: if there are no samples, or a label is not a class of the model.

    Example:
        >>> predict(model, load_dataset("digits").split("test")).best.shape
        (355, 5)
    """
    check_head(model)
    if samples.labels:  # where they are known before the images are read
        check_labels(np.asarray(samples.labels), model.num_classes)
    best, labels, scores = [], [], []
    for logits, wanted in computed(model.predict_on_batch, samples, model.preprocessing, batch_size):
        check_labels(wanted, model.num_classes)
        best.append(np.asarray(ops.top_k(logits, min(5, model.num_classes))[1], "int32"))
        labels.append(wanted)
        scores.append(_log_probabilities(logits.astype("float64"), wanted))
    return Predictions(*map(np.concatenate, (best, labels, scores)), model.num_classes)


def check_labels(labels, num_classes):
    """Raise ValueError unless the labels are class numbers of a model of so many classes."""
    if labels.ndim != 1:
        raise ValueError(
            f"a label is {labels.shape[1:]} numbers; one class number is wanted, or another task"
        )
    if labels.max(initial=0) >= num_classes:
        raise ValueError(
            f"the samples have labels up to {labels.max()}, but the model has {num_classes} classes"
        )
    if labels.min(initial=0) < 0:
        raise ValueError(f"a sample has the label {labels.min()}: this split's labels are not known")


def _log_probabilities(logits, labels):
    top = logits.max(axis=1)
    log_sum = top + np.log(np.exp(logits - top[:, np.newaxis]).sum(axis=1))
    return logits[np.arange(len(labels)), labels] - log_sum


def accuracy(predictions):
    """The numbers of a classifier: what `evaluate` returns.

    Args:
        predictions: Predictions.

    Returns:
        dict of `samples`, `accuracy`, `top5_accuracy` and `loss`.

    Example:
        >>> best, labels = np.array([[0, 1], [0, 1]]), np.array([0, 1])
        >>> accuracy(Predictions(best, labels, np.log([0.5, 0.5]), 2))["accuracy"]
        0.5
    """
    hits = predictions.best == predictions.labels[:, np.newaxis]
    return {
        "samples": len(hits),
        "accuracy": float(hits[:, 0].mean()),
        "top5_accuracy": float(hits.any(axis=1).mean()) if predictions.num_classes > 5 else None,
        "loss": float(-predictions.log_probabilities.mean()),
    }


def per_class(predictions, class_names=None):
    """How well each class is known.

    Args:
        predictions: Predictions.
        class_names: One name per class; None for their numbers.

    Returns:
        A dict for each class: `name`, `samples` of it, how many of these are `right`, `accuracy` (their
        share, also called recall; None without samples), how often the class was `predicted`, and
        `precision` (the share of these that are right; None if it never was).

    Raises:
        ValueError: if there are not as many names as classes.

    Example:
        >>> best, labels = np.array([[0, 1], [0, 1]]), np.array([0, 1])
        >>> per_class(Predictions(best, labels, np.log([0.5, 0.5]), 2), ["cat", "dog"])[0]
        {'name': 'cat', 'samples': 1, 'right': 1, 'accuracy': 1.0, 'predicted': 2, 'precision': 0.5}
    """
    classes = predictions.num_classes
    names = list(class_names) if class_names else [str(i) for i in range(classes)]
    if len(names) != classes:
        raise ValueError(f"{classes} classes want as many names; got {len(names)}")
    said, labels = predictions.best[:, 0], predictions.labels
    samples, predicted, right = (
        np.bincount(numbers, minlength=classes).tolist() for numbers in (labels, said, labels[said == labels])
    )
    return [
        {
            "name": name,
            "samples": samples[i],
            "right": right[i],
            "accuracy": right[i] / samples[i] if samples[i] else None,
            "predicted": predicted[i],
            "precision": right[i] / predicted[i] if predicted[i] else None,
        }
        for i, name in enumerate(names)
    ]


def confusion_matrix(predictions):
    """What is taken for what.

    Args:
        predictions: Predictions.

    Returns:
        int64 (classes, classes): how many samples of the row's class the model takes for the column's.

    Raises:
        ValueError: with more than 4096 classes.

    Example:
        >>> best, labels = np.array([[0, 1], [0, 1]]), np.array([0, 1])
        >>> confusion_matrix(Predictions(best, labels, np.log([0.5, 0.5]), 2)).tolist()
        [[1, 0], [1, 0]]
    """
    classes = predictions.num_classes
    if classes > MOST_CLASSES_OF_A_MATRIX:
        raise ValueError(
            f"a confusion matrix is of at most {MOST_CLASSES_OF_A_MATRIX} classes; the model has {classes}"
        )
    pairs = predictions.labels.astype("int64") * classes + predictions.best[:, 0]
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
