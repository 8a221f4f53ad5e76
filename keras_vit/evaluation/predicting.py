"""Run a model over a split and score its outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keras_vit.messages import listed, names_arguments
from keras_vit.tasks import get_task, task_of_model
from keras_vit.weights.class_names import class_names, is_same_class

if TYPE_CHECKING:
    import keras

    from keras_vit.data.samples import EncodedSamples
    from keras_vit.export.exported_model import ExportedModel
    from keras_vit.tasks.task import Task


@names_arguments
def evaluate(
    model: keras.Model | ExportedModel,
    samples: EncodedSamples,
    batch_size: int = 64,
    task: str | Task | None = None,
) -> dict[str, Any]:
    """Score a model on all samples of a split; no remainder is dropped.

    On a terminal, a progress bar appears after two seconds.

    Args:
        model: A `VisionTransformer` with a head.
        samples: A split of a `Dataset`, labeled with the model's class indices, or as the task requires.
        batch_size: Images per batch.
        task: "single_label", "multi_label" (labels of 0 and 1, one per class), "regression" (labels of as
            many numbers as the model has outputs) or "segmentation" (a class map for each image); None for
            the model's task, "single_label" if it has none.

    Returns:
        dict of `samples`, `accuracy` (the fraction of images whose highest logit is the label's),
        `top5_accuracy` (the label is among the five highest; None with five classes or fewer) and `loss` (the
        mean cross-entropy, in nats). For the other tasks the dict of `multi_label_scores`,
        `regression_scores` or `segmentation_scores`.

    Raises:
        ValueError: if there are no samples, a label does not fit the model, or the task is unknown or not the
            model's.

    Example:
        >>> sorted(evaluate(model, load_dataset("digits").split("test")))
        ['accuracy', 'loss', 'samples', 'top5_accuracy']

    Source: the evaluation of `vit_jax/train.py`, without its dropped remainder.
    """
    return task_of_model(model, task).scores(predict(model, samples, batch_size, task))


def predict(
    model: keras.Model | ExportedModel,
    samples: EncodedSamples,
    batch_size: int = 64,
    task: str | Task | None = None,
) -> Any:
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
    return task_of_model(model, task).checked_predictions(model, samples, batch_size)


def check_classes(model, dataset):
    """Raise ValueError unless the model and the data set have the same classes in the same order.

    The numbers of classes must be equal, and if both have names, these must mean the same (see
    `is_same_class`). A model without names is assumed to have ImageNet's classes in their published order
    if the data set has ImageNet's.
    """
    task = get_task(dataset.task)
    task.check_model(model)
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
    is_same = task.is_same_class or is_same_class
    for i, (name, other) in enumerate(zip(names, expected)):
        if not is_same(name, other):
            raise ValueError(
                f"class {i} is {name!r} in the model and {other!r} in the data set; these must be equal"
            )
