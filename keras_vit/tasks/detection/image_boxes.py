"""The boxes of objects in images, as a file has them."""

import collections
import os
import pathlib

import numpy as np

from keras_vit.messages import listed
from keras_vit.tasks.detection.stored_boxes import OUTSIDE, numbers_of


class BoxFile:
    """The boxes of objects in images.

    Args:
        path: Of the file.

    Attributes:
        names: A dict from the names of the classes to their numbers.
        lists_images: Whether images without objects are in the file, too.
    """

    def __init__(self, path, lists_images=True):
        self.path, self.lists_images, self.names = os.fspath(path), lists_images, {}
        # Dicts as ordered sets: `predict` writes each row twice for an image that is given twice.
        self._rows, self._sizes = collections.defaultdict(dict), {}
        self._by_name = collections.defaultdict(list)

    def add_image(self, image, size=None):
        """Add an image by its path, or the end of its path, and its (width, height)."""
        if image not in self._rows:
            self._rows[image] = {}
            self._by_name[image_key(_parts(image)[-1])].append(image)
        if size is not None:
            self._sizes[image] = size

    def add(self, image, sides, name, score, where):
        """Add an object: left, top, right and bottom in pixels, the name of its class and its score or None.

        Raises:
            ValueError: for sides in the wrong order or a negative score, with the place.
        """
        left, top, right, bottom = sides
        if not (right > left and bottom > top):
            box = ", ".join(f"{side:g}" for side in sides)
            raise ValueError(
                f"{where}: expected a box with a width and a height; got left, top, right, bottom {box}"
            )
        [score] = numbers_of([1 if score is None else score], 1, f"{where}, score")
        if score < 0:  # That of an object with keypoints may be above 1.
            raise ValueError(f"{where}: expected a score from 0 on; got {score:g}")
        self.add_image(image)
        self._rows[image][*sides, score, self.names.setdefault(str(name), len(self.names))] = None

    def check_images(self, paths):
        """Raise ValueError unless the file has one of these images; where it lists images, all of them.

        Args:
            paths: The images' names, as `cli.images.shown_names` returns them.
        """
        if not any(self._rows.values()):
            raise ValueError(f"expected a box or more in {self.path!r}; got none")
        missing = [path for path in paths if self._image_of(path) is None]
        if missing and (self.lists_images or len(missing) == len(paths)):
            raise ValueError(
                f"expected the boxes of {missing[0]!r} in {self.path!r}; got those of {listed([*self._rows])}"
            )

    def of(self, path, size):
        """The (boxes, scores, classes) of an image, in the order of the file.

        Args:
            path: Of the image, as for `check_images`.
            size: Its (height, width).

        Raises:
            ValueError: for an image of another size, or a box outside of it.
        """
        name, size = self._image_of(path), size[::-1]
        known = self._sizes.get(name, size)
        if known != size:
            raise ValueError(
                f"{self.path!r}: expected the image {name!r} of {known[0]}×{known[1]} pixels; got "
                f"{size[0]}×{size[1]}"
            )
        rows = np.array([*self._rows.get(name, ())], "float64").reshape(-1, 6)
        is_outside = (rows[:, :2] < -OUTSIDE) | (rows[:, 2:4] > np.array(size) + OUTSIDE)
        if is_outside.any():
            box = rows[is_outside.any(axis=1)][0, :4]
            raise ValueError(
                f"{self.path!r}: expected boxes in the image {name!r} of {size[0]}×{size[1]} pixels; got "
                f"left, top, right, bottom {', '.join(f'{side:g}' for side in box)}"
            )
        return rows[:, :4], rows[:, 4], rows[:, 5].astype("int64")

    def _image_of(self, path):
        """The image of the file that is at a path; None without one.

        Its name has to be the end of the path; of several the longest is meant.
        """
        if path in self._rows:
            return path
        parts = _parts(os.path.abspath(path))
        names = self._by_name.get(image_key(parts[-1])) or self._by_name.get(image_key(_stem(path)), ())
        ends = {name: _parts(name) for name in names}
        fits = [name for name, end in ends.items() if len(end) == 1 or end == parts[-len(end) :]]
        return max(fits, key=lambda name: len(ends[name]), default=None)


def _stem(path):
    return pathlib.PurePath(path).stem


def _parts(path):
    """The parts of a path, or of its end, without those that lead upwards.

    >>> _parts("../a/./1.png")
    ['a', '1.png']
    """
    parts = pathlib.PurePosixPath(os.path.normpath(path.replace("\\", "/"))).parts
    return [part for part in parts if part != os.pardir]


def image_key(name):
    """The name of an image; a number without leading zeros, as the ids of COCO's images.

    >>> image_key("a.png"), image_key("000139")
    ('a.png', '139')
    """
    return str(int(name)) if name.isascii() and name.isdigit() else name
