"""Each pixel of an image has a class, or none that counts."""

import numpy as np

from keras_vit.labels.label_kind import ExclusiveClasses
from keras_vit.labels.pixel_classes import IGNORE, check_class_count


class ClassMaps(ExclusiveClasses):
    """A map of the classes of all pixels, 255 for those to ignore; outputs are logits of each pixel."""

    name = "segmentation"
    axes = 3
    moves = is_map = True
    dtype, outside = "int32", IGNORE
    map_folders = ("masks",)

    def check(self, labels, num_outputs):
        if labels.ndim != 3:
            raise ValueError(
                f"expected a class map (height, width) per sample; got labels of shape {labels.shape[1:]}"
            )
        check_class_count(num_outputs)
        counted = labels[labels != IGNORE]
        if counted.size and not 0 <= counted.min() <= counted.max() < num_outputs:
            worst = counted.min() if counted.min() < 0 else counted.max()
            raise ValueError(
                f"expected classes below {num_outputs}, or {IGNORE} to ignore a pixel; got {worst}"
            )

    def parse(self, text):
        raise ValueError(f"expected a mask, which a table cannot hold; got {text!r}")

    def format(self, label, names):
        """The classes of a map, the largest first."""
        pixels = np.bincount(np.ravel(label)[np.ravel(label) != IGNORE], minlength=len(names))
        order = [number for number in np.argsort(-pixels, kind="stable") if pixels[number]]
        return ", ".join(str(names[number]) for number in order) or "none"


KIND = ClassMaps()
