"""Label kinds: what a label is, and how outputs decide for one."""

from keras_vit import rules, tasks
from keras_vit.labels.label_kind import LabelKind
from keras_vit.labels.pixel_classes import IGNORE as IGNORE
from keras_vit.labels.pixel_classes import check_class_count as check_class_count
from keras_vit.lazy import lazy_names
from keras_vit.messages import article


def label_kind(name):
    """The `LabelKind` of a task's name, or a `LabelKind` itself; ValueError where there is none.

    >>> label_kind("regression").noun
    ('target', 'targets')
    """
    if isinstance(name, LabelKind):
        return name
    return tasks.label_kinds()[rules.one_of(tasks.NAMES).check("task", name)]


def labels_of(model, task=None, default="single_label"):
    """The `LabelKind` of a model: that of a task, of the model's own one, or of a default.

    Args:
        model: A live model, or an exported one.
        task: The name of a task; None for the model's own.
        default: The name of the task if neither is known.

    Raises:
        ValueError: if the task is unknown, or the model's outputs are not for its labels. Outputs for single
            labels and for several ones are both class scores of an image, so each serves for the other.

    Example:
        >>> labels_of(model).name, labels_of(model, default="multi_label").name
        ('single_label', 'multi_label')
    """
    trained = getattr(model, "task", None)
    trained = trained if trained in tasks.NAMES else None  # Pairs of images and texts have no labels.
    label = label_kind(task or trained or default)
    if trained is None or label.name == trained:
        return label
    if not (label.has_rows_of_classes and label_kind(trained).has_rows_of_classes):
        named = article(type(model).__name__)
        raise ValueError(f"expected the task {trained!r} for {named}; got {label.name!r}")
    return label


def kind_of_samples(samples, axes):
    """The `LabelKind` of samples: of the task that they name, or the first one with so many axes.

    Args:
        samples: With the interface of `keras_vit.data.samples.IndexedSamples`.
        axes: The number of axes of their labels in records.

    Raises:
        ValueError: if samples name no task and no kind has so many axes, except kinds of maps.

    Example:
        >>> kind_of_samples(load_dataset("digits").split("test"), axes=0).name
        'single_label'
    """
    if samples.task is not None:
        return label_kind(samples.task)
    kinds = (kind for kind in tasks.label_kinds().values() if kind.axes == axes and not kind.is_map)
    if (kind := next(kinds, None)) is None:
        raise ValueError(f"expected samples with a `task`, for labels of {axes} axes; got none")
    return kind


__getattr__, __dir__ = lazy_names(__name__)
