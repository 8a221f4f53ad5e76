"""How good a model is where an image has any number of classes."""

import numpy as np


def multi_label_scores(logits, labels):
    """The numbers of a model that says yes or no to each class.

    Args:
        logits: (samples, classes); yes where above 0, that is a probability above 0.5.
        labels: (samples, classes), of 0 and 1.

    Returns:
        dict of `samples`; `mean_average_precision` over the classes that a sample has (None if there is
        no such class); `micro_f1` (over all answers) and `macro_f1` (the mean of each class's; 0 for a
        class that neither occurs nor is said to); and `loss` (sigmoid cross-entropy in nats, summed
        over classes, the mean over samples).

    Raises:
        ValueError: if there are no samples, the shapes differ, or a label is not 0 or 1.

    Example:
        >>> multi_label_scores([[9.0, -9.0], [9.0, 9.0]], [[1, 0], [1, 0]])["micro_f1"]
        0.8

    Source: the average precision is `sklearn.metrics.average_precision_score`; the loss is that of
    `big_vision`'s sigmoid_xent.
    """
    classes = multi_label_classes(logits, labels)
    logits, labels = np.asarray(logits, "float64"), np.asarray(labels, "float64")
    known = [row["average_precision"] for row in classes if row["samples"]]
    cross_entropy = np.maximum(logits, 0) - logits * labels + np.log1p(np.exp(-np.abs(logits)))
    right, samples, predicted = (
        np.array([row[name] for row in classes]) for name in ("right", "samples", "predicted")
    )
    return {
        "samples": len(labels),
        "mean_average_precision": float(np.mean(known)) if known else None,
        "micro_f1": float(_f1(right.sum(), samples.sum() + predicted.sum())),
        "macro_f1": float(np.mean(_f1(right, samples + predicted))),
        "loss": float(cross_entropy.sum(axis=1).mean()),
    }


def multi_label_classes(logits, labels, class_names=None):
    """How well each class is told from its absence.

    Args:
        logits, labels: As for `multi_label_scores`.
        class_names: One name per class; None for their numbers.

    Returns:
        A dict for each class: `name`, how many `samples` have it, to how many of these the model says
        yes (`right`), to how many of all (`predicted`), `recall` and `precision` (`right` as a share of
        either) and `average_precision`; None where there is nothing to take a share of.

    Raises:
        ValueError: as `multi_label_scores`, or if there are not as many names as classes.

    Example:
        >>> row, _ = multi_label_classes([[9.0, -9.0], [9.0, 9.0]], [[1, 0], [0, 0]], ["cat", "dog"])
        >>> row["recall"], row["precision"]
        (1.0, 0.5)
    """
    from sklearn.metrics import average_precision_score

    logits, labels = np.asarray(logits), np.asarray(labels)
    if logits.shape != labels.shape or logits.ndim != 2 or not len(logits):
        raise ValueError(
            "logits and labels must both be (samples, classes), with a sample at least; "
            f"got {logits.shape} and {labels.shape}"
        )
    if not np.isin(labels, (0, 1)).all():
        raise ValueError(f"multi-label labels are 0 or 1; got {labels[~np.isin(labels, (0, 1))][0]:g}")
    names = list(class_names) if class_names else [str(i) for i in range(labels.shape[1])]
    if len(names) != labels.shape[1]:
        raise ValueError(f"{labels.shape[1]} classes want as many names; got {len(names)}")
    rows = []
    for name, score, label in zip(names, logits.T, labels.T == 1):
        said = score > 0
        samples, predicted, right = int(label.sum()), int(said.sum()), int((label & said).sum())
        rows.append(
            {
                "name": name,
                "samples": samples,
                "right": right,
                "predicted": predicted,
                "recall": right / samples if samples else None,
                "precision": right / predicted if predicted else None,
                "average_precision": float(average_precision_score(label, score)) if samples else None,
            }
        )
    return rows


def _f1(right, said_or_true):
    """The harmonic mean of precision and recall; 0 where nothing is said and nothing true."""
    return 2 * right / np.maximum(said_or_true, 1)
