"""The pictures of an evaluation in a report: a file for each task whose pictures differ."""

from keras_vit.lazy import discovered
from keras_vit.reports.pictures.images import ImagePictures

# By the name of a task.
PICTURES = {pictures.task_name: pictures for pictures in discovered(__name__, "PICTURES")}


def pictures_of(task):
    """The class of the pictures of a `LabelTask`.

    >>> from keras_vit.tasks import get_task
    >>> pictures_of(get_task("regression")).__name__
    'ImagePictures'
    """
    return PICTURES.get(task.name, ImagePictures)
