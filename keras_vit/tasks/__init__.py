"""Tasks: loss, metrics, scores, labels and descriptions of what a model predicts, a file for each."""

from keras_vit import rules
from keras_vit.lazy import lazy_names
from keras_vit.tasks.multi_label import MULTI_LABEL
from keras_vit.tasks.regression import REGRESSION
from keras_vit.tasks.segmentation import SEGMENTATION
from keras_vit.tasks.single_label import SINGLE_LABEL
from keras_vit.tasks.task import Task

# The tasks with labels, the default first.
TASKS = {task.name: task for task in (SINGLE_LABEL, MULTI_LABEL, REGRESSION, SEGMENTATION)}


def get_task(name):
    """The task of a name, or a `Task` itself; ValueError where there is none.

    >>> get_task("regression").primary_metric
    'mae'
    """
    if isinstance(name, Task):
        return name
    return TASKS[rules.one_of(TASKS).check("task", name)]


__getattr__, __dir__ = lazy_names(__name__)
