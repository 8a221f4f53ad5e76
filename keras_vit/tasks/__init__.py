"""Tasks: loss, metrics, scores, labels and descriptions of what a model predicts, a file for each."""

from keras_vit import names, rules
from keras_vit.lazy import discovered, lazy_names
from keras_vit.messages import article
from keras_vit.tasks.task import LabelTask

# The tasks with labels of all modules by name, the default first.
TASKS = {
    task.name: task
    for task in sorted(discovered(__name__, "TASK"), key=lambda task: names.TASKS.index(task.name))
}


def get_task(name):
    """The task of a name, or a `LabelTask` itself; ValueError where there is none.

    >>> get_task("regression").primary_metric
    'mae'
    """
    if isinstance(name, LabelTask):
        return name
    return TASKS[rules.one_of(TASKS).check("task", name)]


def task_of_class(model, name=None, default="single_label"):
    """The task of a model: the only one of its class, the named one, or the default.

    Raises:
        ValueError: for an unknown task, or another one than its class has.

    Example:
        >>> segmenter = keras_vit.ImageSegmenter(keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3), 5)
        >>> task_of_class(segmenter).name, task_of_class(model, "regression").name
        ('segmentation', 'regression')
    """
    own = TASKS.get(getattr(type(model), "task", None))
    chosen = get_task(name or own or default)
    if own not in (None, chosen):
        named = article(type(model).__name__)
        raise ValueError(f"expected the task {own.name!r} for {named}; got {chosen.name!r}")
    return chosen


__getattr__, __dir__ = lazy_names(__name__)
