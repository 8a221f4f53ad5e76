"""The folder of --masks: class maps as PNG files that a data set of masks may have, and overlays."""

import collections
import os

from keras_vit.cli.images import names_of
from keras_vit.data.sources.mask_folder import CLASSES, MASKS, NO_CLASS
from keras_vit.inspection.class_map_pictures import class_overlay, palette_png, png_bytes
from keras_vit.messages import printable
from keras_vit.tasks.task import names_or_indices

OVERLAYS = "overlays"
MAX_CLASSES = 255  # in the masks of a data set


def lines_of_classes(names):
    """Return class names as lines of `classes.txt`: on one line each, and different from each other.

    >>> lines_of_classes(["sky\\ntree", "-", "sea", "sea"])
    ['sky\\\\ntree', '- (1)', 'sea (2)', 'sea (3)']
    """
    lines = [printable(name).strip() for name in names]
    is_unique = {line: count == 1 for line, count in collections.Counter(["", NO_CLASS, *lines]).items()}
    return [line if is_unique[line] else f"{line} ({i})".strip() for i, line in enumerate(lines)]


def mask_files(paths):
    """Return the relative PNG file for the mask of each image: the image's name below what differs.

    Raises:
        ValueError: if two images have one name.

    >>> mask_files(["a/1.jpg", "b/1.png"])
    {'a/1.jpg': 'a/1.png', 'b/1.png': 'b/1.png'}
    """
    names = names_of([os.path.splitext(path)[0] for path in paths])
    files = {path: f"{name.lstrip('/')}.png" for path, name in zip(paths, names)}
    for file in {*files.values()}:
        images = [path for path, own in files.items() if own == file]
        if len({*map(os.path.abspath, images)}) > 1:
            raise ValueError(f"expected one image for each file {file!r}; got {', '.join(images)}")
    return files


def mask_writer(folder, model, files):
    """Return a function that writes the mask and the overlay of an image into a new folder."""
    if model.num_classes > MAX_CLASSES:
        raise ValueError(f"masks have at most {MAX_CLASSES} classes; the model has {model.num_classes}")
    folder.mkdir()
    lines = "".join(
        f"{name}\n" for name in lines_of_classes(names_or_indices(model.class_names, model.num_classes))
    )
    (folder / CLASSES).write_text(lines, encoding="utf-8")

    def write(path, image, classes):
        pictures = {MASKS: palette_png(classes), OVERLAYS: png_bytes(class_overlay(image, classes))}
        for kind, content in pictures.items():
            file = folder / kind / files[path]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    return write
