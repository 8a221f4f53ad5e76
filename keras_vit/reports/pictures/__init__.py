"""The pictures of an evaluation in a report."""

from keras_vit.reports.pictures.images import ImagePictures
from keras_vit.tasks import report_pictures


def pictures_of(task):
    """The class of the pictures of a `LabelTask`.

    >>> from keras_vit.tasks import get_task
    >>> pictures_of(get_task("regression")).__name__
    'ImagePictures'
    """
    return report_pictures().get(task.name, ImagePictures)
