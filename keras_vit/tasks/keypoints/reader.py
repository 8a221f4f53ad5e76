"""What the points of a data set are: their names, and which of them belong together."""

from __future__ import annotations

import dataclasses
import os

import numpy as np

from keras_vit.data.files import parse_json, read_text
from keras_vit.lazy import LazyModule
from keras_vit.messages import did_you_mean
from keras_vit.rules import integer, items, number
from keras_vit.tasks.keypoints.labels import BOX_ROWS, COLUMNS
from keras_vit.tasks.keypoints.names import mirrored_by_name
from keras_vit.tasks.keypoints.stored_objects import label_of_json

tf = LazyModule("tensorflow")
SETTINGS = "keypoints.json"
MAX_KEYPOINTS = 1000
_INDICES, _LINES = items(integer(at_least=0)), items(items(integer(at_least=0), 2))
_SIGMAS = items(number(above=0))


@dataclasses.dataclass(frozen=True)
class KeypointReader:
    """What the points of a data set are.

    Args:
        names: A name for each point.
        flip_index: For each point the number of the one that takes its place in a mirrored image; None: by
            the names, of which `left_eye` and `right_eye`, or `LEye` and `REye`, exchange their places.
        skeleton: Pairs of numbers of points between which a line is drawn.
        sigmas: A number for each point by which distances are judged in `scores.keypoint_scores`; None for
            the default.

    Raises:
        ValueError: for names that are empty or equal, or numbers that do not fit them.

    Example:
        >>> KeypointReader(("nose", "left_eye", "right_eye")).flip_index
        (0, 2, 1)
        >>> KeypointReader(("a", "b"), flip_index=(1, 1))
        Traceback (most recent call last):
        ValueError: expected a flip_index of 2 numbers, each point the mirror image of its own; got (1, 1)
    """

    task = "keypoints"
    dtype = "float64"
    channels = COLUMNS
    names: tuple[str, ...]
    flip_index: tuple[int, ...] | None = None
    skeleton: tuple[tuple[int, int], ...] = ()
    sigmas: tuple[float, ...] | None = None

    def __post_init__(self):
        names = _checked_names(self.names)
        flip_index = mirrored_by_name(names) if self.flip_index is None else self.flip_index
        checked = checked_points(len(names), flip_index, self.skeleton, self.sigmas)
        for field, value in zip(dataclasses.fields(self), (names, *checked), strict=True):
            object.__setattr__(self, field.name, value)

    @property
    def label_values(self):
        """The arguments that are known, as a JSON value."""
        values = {"names": [*self.names], "flip_index": [*self.flip_index]}
        values |= {"skeleton": [*map(list, self.skeleton)]} if self.skeleton else {}
        return values | ({"sigmas": [*self.sigmas]} if self.sigmas else {})

    def read(self, source):
        """The label of an object, float64 (2 + points, 4), from the JSON of `stored_objects.json_of`."""
        value = parse_json(source.decode(errors="replace"), "keypoints")
        return label_of_json(value, len(self.names), self.flip_index)

    label = read

    def check(self, image, source):
        """As in `MapReader`, without the size."""
        self.read(source)

    def decode(self, encoded):
        """As `read`, in a TensorFlow graph, of a string tensor ()."""

        def label(content):
            return self.read(bytes(np.asarray(content, object).item()))

        return shaped(tf.numpy_function(label, [encoded], tf.float64, stateful=False), len(self.names))


def shaped(label, count):
    """A label tensor with the static shape of so many points."""
    return tf.ensure_shape(label, (BOX_ROWS + count, COLUMNS))


def read_settings(root, **known):
    """The `KeypointReader` of a folder, whose `keypoints.json` comes before what is known of its labels.

    Args:
        root: The folder, pathlib.Path. The file has an object with any arguments of `KeypointReader`.
        known: Arguments that the file may replace, those that are not None.

    Raises:
        ValueError: for a damaged file, or an unknown or a wrong value, with the path.

    Example:
        >>> _ = (tmp / "keypoints.json").write_text('{"skeleton": [[0, 1]]}')
        >>> read_settings(tmp, names=("a", "b")).skeleton
        ((0, 1),)
    """
    arguments = {name: value for name, value in (known | settings_of(root)).items() if value is not None}
    path = root / SETTINGS
    if "names" not in arguments:
        raise ValueError(f"expected {os.fspath(path)!r} with names, a list of the keypoints")
    try:
        return KeypointReader(**arguments)
    except ValueError as error:
        source = f"{os.fspath(path)}: " if path.is_file() else ""
        raise ValueError(f"{source}{error}") from None


def settings_of(root):
    """The object in a folder's `keypoints.json`, a dict; {} without the file.

    Raises:
        ValueError: for a damaged file or an unknown key, with the path.

    Example:
        >>> settings_of(tmp)
        {}
    """
    path, fields = root / SETTINGS, [field.name for field in dataclasses.fields(KeypointReader)]
    if not path.is_file():
        return {}
    settings = parse_json(read_text(path), repr(os.fspath(path)))
    if not isinstance(settings, dict):
        raise ValueError(f"{os.fspath(path)}: expected an object; got {type(settings).__name__}")
    if {"images", "annotations"} <= settings.keys():  # COCO's labels under the same name
        return {}
    if unknown := [name for name in settings if name not in fields]:
        hint = did_you_mean(unknown[0], fields)
        raise ValueError(f"{os.fspath(path)}: expected keys of {', '.join(fields)}; got {unknown[0]!r}{hint}")
    if "names" in settings:
        try:
            _checked_names(settings["names"])
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None
    return settings


def _checked_names(names):
    are_texts = isinstance(names, list | tuple) and all(isinstance(n, str) and n.strip() for n in names)
    if not are_texts or not 0 < len({*names}) == len(names) <= MAX_KEYPOINTS:
        raise ValueError(f"expected 1 to {MAX_KEYPOINTS} different names of keypoints; got {names!r:.80}")
    return tuple(names)


def checked_points(count, flip_index, skeleton, sigmas):
    """What is known of so many points as tuples, of which each may be None; ValueError unless it fits them.

    >>> checked_points(3, [1, 0, 2], [[0, 1]], None)
    ((1, 0, 2), ((0, 1),), None)
    """
    pairs = flip_index if _INDICES.accepts(flip_index) else ()
    are_partners = all(pair < count and pairs[pair] == number for number, pair in enumerate(pairs))
    if flip_index is not None and (len(pairs) != count or not are_partners):
        raise ValueError(
            f"expected a flip_index of {count} numbers, each point the mirror image of its own; "
            f"got {flip_index!r:.80}"
        )
    lines = () if skeleton is None else skeleton
    if not _LINES.accepts(lines) or any(end >= count for line in lines for end in line):
        raise ValueError(f"expected a skeleton of pairs of numbers below {count}; got {skeleton!r:.80}")
    if sigmas is not None and not (_SIGMAS.accepts(sigmas) and len(sigmas) == count):
        raise ValueError(f"expected {count} positive sigmas; got {sigmas!r:.80}")
    return (
        flip_index and tuple(flip_index),
        skeleton and tuple(map(tuple, skeleton)),
        sigmas and tuple(map(float, sigmas)),
    )
