"""The folders that `predict` writes, with a picture or a map of each image."""

from keras_vit.cli.folders.folder import Folder as Folder
from keras_vit.tasks import prediction_folders


def folders_of(task):
    """The folders of a task's models, by the option that names them.

    >>> [*folders_of("detection")]
    ['boxes']
    """
    return {folder.option: folder for folder in prediction_folders() if folder.task == task}
