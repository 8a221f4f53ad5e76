"""The folders that `predict` writes, with a picture or a map of each image: a file for each kind of outputs.

They are imported to parse a command line, so they import what needs Keras or NumPy in their functions.
"""

from keras_vit.cli.folders.folder import Folder as Folder
from keras_vit.lazy import discovered

FOLDERS = discovered(__name__, "FOLDER")


def folders_of(task):
    """The folders of a task's models, by the option that names them.

    >>> [*folders_of("detection")]
    ['boxes']
    """
    return {folder.option: folder for folder in FOLDERS if folder.task == task}
