"""The pictures of an evaluation in a report: a file for each task whose pictures differ."""

from keras_vit.reports.pictures.class_maps import ClassMapPictures
from keras_vit.reports.pictures.depth import DepthPictures
from keras_vit.reports.pictures.detections import DetectionPictures
from keras_vit.reports.pictures.images import ImagePictures
from keras_vit.reports.pictures.single_labels import ClassPictures

# By the name of a task.
PICTURES = {
    pictures.task_name: pictures
    for pictures in (ClassPictures, ClassMapPictures, DetectionPictures, DepthPictures)
}


def pictures_of(task):
    """The class of the pictures of a `LabelTask`.

    >>> from keras_vit.tasks import get_task
    >>> pictures_of(get_task("regression")).__name__
    'ImagePictures'
    """
    return PICTURES.get(task.name, ImagePictures)
