"""The folders that `predict` writes, with a picture or a map of each image: a file for each kind of outputs.

They are imported to parse a command line, so they import what needs Keras or NumPy in their functions.
"""

from keras_vit.cli.folders.boxes import Boxes
from keras_vit.cli.folders.class_maps import ClassMaps
from keras_vit.cli.folders.depth_maps import DepthMaps
from keras_vit.cli.folders.folder import Folder as Folder

FOLDERS = (Boxes(), ClassMaps(), DepthMaps())


def folders_of(task):
    """The folders of a task's models, by the option that names them.

    >>> [*folders_of("detection")]
    ['boxes']
    """
    return {folder.option: folder for folder in FOLDERS if folder.task == task}
