"""The points of digits in the scenes of `digits_scenes`."""

import numpy as np

from keras_vit.tasks.keypoints.labels import VISIBLE, encode, label_of
from keras_vit.tasks.keypoints.reader import KeypointReader
from keras_vit.tasks.keypoints.samples import KeypointSamples

# In a mirrored scene the left end of a digit becomes its right one.
READER = KeypointReader(
    ("center", "top", "bottom", "left", "right"), skeleton=((0, 1), (0, 2), (0, 3), (0, 4))
)


def samples_of_scenes(pictures, owners):
    """The `KeypointSamples` of scenes, one for each digit in each scene.

    Args:
        pictures: The encoded images.
        owners: int64 (height, width) of each: the number of the digit that is in front, -1 for none.

    Example:
        >>> owner = np.full((8, 8), -1)
        >>> owner[2:6, 3] = 0
        >>> samples = samples_of_scenes([load_dataset("digits").split("test").images[0]], [owner])
        >>> len(samples), (samples[0][1][2:, :2] * 8).tolist()
        (1, [[3.5, 4.0], [3.5, 2.5], [3.5, 5.5], [3.5, 4.0], [3.5, 4.0]])
    """
    rows = [
        (picture, encode(label_of_ink(owner == number)))
        for picture, owner in zip(pictures, owners)
        for number in range(owner.max() + 1)
    ]
    return KeypointSamples(*map(tuple, zip(*rows)), READER, exif=False)


def label_of_ink(ink):
    """The label in records of a digit: the mean of its pixels, and of those at each of its four ends.

    Args:
        ink: bool (height, width), the visible pixels of the digit.
    """
    ys, xs = np.nonzero(ink)
    ends = ys == ys.min(), ys == ys.max(), xs == xs.min(), xs == xs.max()
    parts = [np.ones(len(xs), bool), *ends]
    sides = np.array(ink.shape[::-1], "float64")
    points = [(*(np.array([xs[part].mean(), ys[part].mean()]) + 0.5) / sides, VISIBLE) for part in parts]
    box = (*np.array([xs.min(), ys.min()]) / sides, *np.array([xs.max() + 1, ys.max() + 1]) / sides)
    return label_of(points, box, len(xs) / sides.prod(), READER.flip_index)
