"""Top-1 and top-5 accuracy of a classifier on a split."""

import numpy as np
from tqdm import tqdm

from keras_vit.data.batches import evaluation_batches


def evaluate(model, samples, batch_size=64):
    """Classify all samples; none is dropped. On a terminal a bar shows when it takes longer.

    Args:
        model: A `VisionTransformer` with a head.
        samples: `keras_vit.data.datasets.Samples` labelled with the model's class numbers.
        batch_size: Images computed at a time.

    Returns:
        dict of `samples`, `accuracy` (the share whose best class is the label), `top5_accuracy`
        (the label among the best five; None with five classes or fewer) and `loss` (the mean
        cross-entropy).

    Raises:
        ValueError: if there are no samples, or a label is not a class of the model.

    Example:
        >>> sorted(evaluate(model, load_dataset("digits").split("test")))
        ['accuracy', 'loss', 'samples', 'top5_accuracy']

    Source: the evaluation of `vit_jax/train.py`, without its dropped remainder.
    """
    if not model.is_classifier:
        raise ValueError("this model has no classification head; build it with num_classes and pooling")
    if max(samples.labels, default=0) >= model.num_classes:
        raise ValueError(
            f"the samples have labels up to {max(samples.labels)}, but the model has "
            f"{model.num_classes} classes"
        )
    best, best_five, loss, seen = 0, 0, 0.0, 0
    batches = evaluation_batches(samples, model.preprocessing, batch_size)
    for images, labels in tqdm(batches, "evaluating", unit="batch", delay=2, disable=None):
        logits = np.asarray(model.predict_on_batch(np.asarray(images)), "float64")
        labels = np.asarray(labels)[:, np.newaxis]
        order = np.argsort(-logits, axis=1, kind="stable")  # of equals the first counts, as in argmax
        best += int(np.sum(order[:, :1] == labels))
        best_five += int(np.sum(order[:, :5] == labels))
        top = logits.max(axis=1, keepdims=True)
        log_sum = top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
        loss += float(np.sum(log_sum - np.take_along_axis(logits, labels, axis=1)))
        seen += len(labels)
    return {
        "samples": seen,
        "accuracy": best / seen,
        "top5_accuracy": best_five / seen if model.num_classes > 5 else None,
        "loss": loss / seen,
    }
