"""The folder of --boxes: copies of the images with the objects drawn into them."""

from keras_vit.inspection.box_pictures import box_overlay
from keras_vit.inspection.class_map_pictures import png_bytes
from keras_vit.tasks.task import names_or_indices


def box_writer(folder, model, files):
    """Return a function that writes an image with its objects into a new folder.

    Args:
        folder: pathlib.Path, which does not exist.
        model: A detector, or a segmenter whose objects are drawn.
        files: dict from the path of an image to the relative path of the file.
    """
    folder.mkdir()
    names = names_or_indices(model.class_names, model.num_classes)

    def write(path, image, found):
        file = folder / files[path]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png_bytes(box_overlay(image, found, names)))

    return write
