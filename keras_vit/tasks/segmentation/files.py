"""The folder of --maps for classes: PNG files that a data set of masks may have, and overlays."""

import collections

from keras_vit.cli.prediction_folder import Folder
from keras_vit.messages import printable

OVERLAYS = "overlays"


class ClassMaps(Folder):
    """Masks, overlays, and the names of the classes."""

    option, task = "maps", "segmentation"

    def writer(self, folder, model, files, args):
        from keras_vit.labels import check_class_count
        from keras_vit.preprocessing.image_files import image_bytes
        from keras_vit.tasks.segmentation.folder import CLASSES, MASKS
        from keras_vit.tasks.segmentation.pictures import class_overlay, palette_png
        from keras_vit.tasks.task import names_or_indices

        check_class_count(model.num_classes)
        folder.mkdir()
        names = lines_of_classes(names_or_indices(model.class_names, model.num_classes))
        (folder / CLASSES).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")

        def write(path, image, classes):
            self.write(folder / MASKS / files[path], palette_png(classes))
            self.write(folder / OVERLAYS / files[path], image_bytes(class_overlay(image, classes)))

        return write


def lines_of_classes(names):
    """Return class names as lines of `classes.txt`: on one line each, and different from each other.

    >>> lines_of_classes(["sky\\ntree", "-", "sea", "sea"])
    ['sky\\\\ntree', '- (1)', 'sea (2)', 'sea (3)']
    """
    from keras_vit.tasks.segmentation.folder import NO_CLASS

    lines = [printable(name).strip() for name in names]
    is_unique = {line: count == 1 for line, count in collections.Counter(["", NO_CLASS, *lines]).items()}
    return [line if is_unique[line] else f"{line} ({i})".strip() for i, line in enumerate(lines)]
