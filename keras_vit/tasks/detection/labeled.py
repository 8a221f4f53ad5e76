"""Images and their objects, as files of labels have them."""

import collections
import dataclasses
import os
import pathlib

from keras_vit.data.folder_splits import split_among
from keras_vit.messages import listed


@dataclasses.dataclass
class LabeledImage:
    """An image and its objects.

    Args:
        labels: The path of the file of labels.
        path: Of the image.
        objects: A list of `StoredObject`.
        split: The name of its split by a file; None: that of its folders.
        stated_by: The files that state its split, relative to the root.
        size: (width, height) by the file of labels; None if unknown.
        are_fractions: Whether the sides of the objects are fractions.
    """

    labels: str
    path: str
    objects: list
    split: str | None = None
    stated_by: tuple[str, ...] = ()
    size: tuple[int, int] | None = None
    are_fractions: bool = False


@dataclasses.dataclass
class BoxFiles:
    """What is known of a folder of boxes before its labels are read.

    Args:
        root: The folder, pathlib.Path.
        paths: Of its files, by suffix in lower case.
        images: The paths of its images.
    """

    root: pathlib.Path
    paths: dict[str, list[str]]
    images: list[str]

    def __post_init__(self):
        self._by_name = collections.defaultdict(list)
        self._by_stem = collections.defaultdict(list)
        for path in self.images:
            name = os.path.basename(path)
            self._by_name[name].append(path)
            self._by_stem[os.path.splitext(name)[0]].append(path)

    def relative(self, path):
        return os.path.relpath(path, self.root)

    def find(self, name, labels, split, where, stem=None):
        """The path of an image that a label file names.

        Of several the one in the folder of the label file is meant, or else the one in most folders of equal
        names, or in a folder of the same split.

        Args:
            name: Its name or the end of its path; of a path out of the folder, as for `in_root`.
            labels: The path of the label file.
            split: The split that the label file states, or None.
            where: The place of the name, for messages.
            stem: The name without its suffix, if this may be another one.

        Raises:
            ValueError: if there is none, or several.
        """
        ending = "/" + pathlib.PurePosixPath(name.replace("\\", "/")).as_posix().lstrip("/")
        named = self._by_name[os.path.basename(ending)]
        fits = [path for path in named if path.endswith(ending)]
        if stem is not None and (not fits or os.path.splitext(os.path.basename(ending))[0] != stem):
            fits = self._by_stem[stem] or fits
        if not fits:
            starts = os.path.dirname(labels), os.fspath(self.root)
            fits = [*filter(None, [in_root(self.root, name, starts, named.__contains__)])]
        if len(fits) > 1:
            near = {path: self._nearness(path, labels, split) for path in fits}
            fits = [path for path in fits if near[path] == max(near.values())]
        if len(fits) != 1:
            got = f"several: {listed(fits)}" if fits else "none"
            raise ValueError(f"{where}: expected one image {name!r}; got {got}")
        return fits[0]

    def _nearness(self, path, labels, split):
        folders, near = (self.relative(os.path.dirname(file)).split(os.sep) for file in (path, labels))
        has_split = split is not None and split_among(folders)[0] == split
        return folders == near, len({*folders} & {*near}), has_split


def in_root(root, name, starts, is_there):
    """The first path in a folder that a name stands for, relative to one of several others; None without one.

    Files that are moved keep the paths of another machine, and Roboflow writes `../train/images`: of paths
    out of the folder, the end that is there is meant.
    """
    parts = pathlib.PurePosixPath(name.replace("\\", "/")).parts
    is_out = parts[:1] in (("/",), ("..",)) or name[1:2] == ":"
    for first in range(len(parts) if is_out else 1):
        for start in starts:
            relative = os.path.relpath(os.path.join(start, *parts[first:]), root)
            path = os.fspath(pathlib.Path(root, relative))
            if relative.split(os.sep)[0] != os.pardir and is_there(path):
                return path
    return None


def size_of_labels(width, height, where):
    """(width, height) of an image by its labels; None where one of them is missing or 0.

    >>> size_of_labels(640, 427.0, ""), size_of_labels(None, 0, "")
    ((640, 427), None)
    """
    sides = []
    for side in (width, height):
        if side in (None, 0, "", "0"):
            return None
        try:
            number = float(side)
        except (TypeError, ValueError, OverflowError):
            number = 0.5
        if isinstance(side, bool) or not number.is_integer() or number < 0:
            raise ValueError(
                f"{where}: expected a width and a height in pixels; got {listed([width, height])}"
            )
        sides.append(int(number))
    return tuple(sides)
