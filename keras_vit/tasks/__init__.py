"""Tasks: loss, metrics, scores, labels and descriptions of what a model predicts, a file for each."""

from keras_vit import rules
from keras_vit.labels import labels_of
from keras_vit.lazy import lazy_names
from keras_vit.tasks import depth, detection, multi_label, regression, segmentation, single_label
from keras_vit.tasks.task import LabelTask

# The tasks with labels by name, the default first.
TASKS = {
    module.TASK.name: module.TASK
    for module in (single_label, multi_label, regression, segmentation, detection, depth)
}


def get_task(name):
    """The task of a name, or a `LabelTask` itself; ValueError where there is none.

    >>> get_task("regression").primary_metric
    'mae'
    """
    if isinstance(name, LabelTask):
        return name
    return TASKS[rules.one_of(TASKS).check("task", name)]


def task_of_model(model, name=None, default="single_label"):
    """The task of a model: a named one or a `LabelTask`, the model's own one, or a default.

    Args:
        model, default: As for `labels_of`.
        name: The name of a task, or a `LabelTask`, which is returned; None for the model's own.

    Raises:
        ValueError: as `labels_of`.

    Example:
        >>> segmenter = keras_vit.ImageSegmenter(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3), 5)
        >>> task_of_model(segmenter).name, task_of_model(model, "regression").name
        ('segmentation', 'regression')
    """
    return name if isinstance(name, LabelTask) else TASKS[labels_of(model, name, default).name]


__getattr__, __dir__ = lazy_names(__name__)
