"""Scenes of scanned digits: several on a canvas, in corners of their own that overlap."""

import io

import numpy as np

from keras_vit.data.samples import Samples
from keras_vit.data.sources.digits import load_digits
from keras_vit.labels.box_rows import encode_boxes
from keras_vit.preprocessing.image_files import image_bytes
from keras_vit.tasks.depth.samples import DepthReader, DepthSamples
from keras_vit.tasks.keypoints.digit_points import READER, samples_of_scenes
from keras_vit.tasks.segmentation.samples import MaskSamples

SIDE = 32  # pixels of a scene
DIGITS = (2, 4)  # the fewest and the most that are tried in a scene, each in a corner of its own
SIDES = (15, 17)  # the smallest and the largest digit, in pixels
INWARDS = 2  # the largest distance of a digit from the two edges of its corner, in pixels
VISIBLE = 0.9  # of a digit's ink, at least
INK = 0.4  # of the largest brightness: what is brighter is part of the digit
# Of scenes with distances, in meters: of the digits, of the background, and at which a digit has the size of
# a scene. What is at a distance d has a factor exp(-d / HAZE) of its brightness.
NEAR, FAR, FOCAL, HAZE = (2.0, 4.5), (6.0, 10.0), 1.0, 4.0
DISTANCES = DepthReader(scale=1000, unit="m", min=NEAR[0], max=FAR[1])
STREAM = 1  # makes the random numbers of scenes with distances independent of those of others
COUNTS = {"train": 6000, "validation": 120, "test": 240}


def load_digits_scenes(argument=None, *, seed, task="segmentation", **options):
    """Load the class names and splits of the scenes; of the arguments only `seed` and `task` are used.

    Each scene is a function of (seed, split, index) and of the scans of the same split of "digits". For
    "detection" its labels are boxes around what is visible of each digit, for "keypoints" its samples are
    these digits with five points each, and for "depth" the labels are the distances of `depth_scene`, which
    are other scenes.

    Returns:
        dict of `class_names` and `splits`, as of `Dataset`.
    """
    from PIL import Image

    seed = seed or 0
    digits, splits = load_digits(seed=seed), {}
    names = {"detection": digits["class_names"], "depth": DISTANCES.names, "keypoints": READER.names}
    make = depth_scene if task == "depth" else scene
    for number, (split, samples) in enumerate(digits["splits"].items()):
        opened = [Image.open(io.BytesIO(content)) for content in samples.images]
        scans = np.stack([np.float32(scan) / 255 for scan in opened])
        made = [make(scans, samples.labels, [seed, number, index]) for index in range(COUNTS[split])]
        pictures, maps, *owners = zip(*made)
        # A small file takes longer to write than to keep.
        pictures = tuple(image_bytes(pixels, compress_level=0) for pixels in pictures)
        if task == "detection":
            boxes = tuple(encode_boxes(boxes_of(*of_scene)) for of_scene in zip(maps, *owners))
            splits[split] = Samples(pictures, boxes, exif=False)
            continue
        if task == "keypoints":
            splits[split] = samples_of_scenes(pictures, *owners)
            continue
        maps = tuple(image_bytes(values, compress_level=0) for values in maps)
        if task == "depth":
            splits[split] = DepthSamples(pictures, maps, DISTANCES, exif=False)
        else:
            splits[split] = MaskSamples(pictures, maps, exif=False)
    return {"class_names": names.get(task, ("background", *digits["class_names"])), "splits": splits}


def boxes_of(mask, owner):
    """The boxes around the digits of a scene.

    Args:
        mask, owner: As `scene` returns them.

    Returns:
        A list of rows of `labels.box_rows.COLUMNS`; a class is a digit.

    Example:
        >>> _, mask, owner = scene(np.ones((1, 8, 8), "float32"), [7], [0, 1])
        >>> {row[4] for row in boxes_of(mask, owner)}
        {7}
    """
    rows = []
    for number in range(owner.max() + 1):
        ys, xs = np.nonzero(owner == number)
        sides = (xs.min() / SIDE, ys.min() / SIDE, (xs.max() + 1) / SIDE, (ys.max() + 1) / SIDE)
        rows.append((*sides, int(mask[ys[0], xs[0]]) - 1, 0, len(xs) / SIDE**2))
    return rows


def scene(scans, labels, seed):
    """A scene, its mask and its digits.

    Args:
        scans: float32 (scans, 8, 8) in [0, 1].
        labels: The digits, ints.
        seed: Ints, of which the scene is a function.

    Returns:
        uint8 (32, 32, 3); uint8 (32, 32): 0 for the background, and 1 + the digit; and int64 (32, 32), the
        number of the digit in the scene that is in front, -1 for the background.

    Example:
        >>> picture, mask, owner = scene(np.ones((1, 8, 8), "float32"), [7], [0, 1])
        >>> picture.shape, np.unique(mask).tolist()
        ((32, 32, 3), [0, 8])
    """
    from PIL import Image

    rng = np.random.default_rng(seed)
    # A gradient from corner to corner, with noise.
    colors = rng.uniform(10, 70, (2, 2, 3)).astype("float32")
    across = np.linspace(0, 1, SIDE, dtype="float32")
    rows = colors[0] + across[:, np.newaxis, np.newaxis] * (colors[1] - colors[0])
    picture = rows[:, :1] + across[:, np.newaxis] * (rows[:, 1:] - rows[:, :1])
    picture = picture + 6 * rng.standard_normal(picture.shape, "float32")
    mask, inks = np.zeros((SIDE, SIDE), "uint8"), []
    owner = np.full((SIDE, SIDE), -1)  # which of the digits is in front
    corners = rng.permutation(4)[: rng.integers(DIGITS[0], DIGITS[1] + 1)]
    for is_lower, is_right in zip(corners // 2, corners % 2):
        chosen, side = rng.integers(len(scans)), int(rng.integers(SIDES[0], SIDES[1] + 1))
        scaled = Image.fromarray(scans[chosen]).resize((side, side), Image.Resampling.BICUBIC)
        ink = np.clip(np.asarray(scaled), 0, 1)[..., np.newaxis]
        down, right = rng.integers(0, INWARDS + 1, 2)
        top = SIDE - side - down if is_lower else down
        left = SIDE - side - right if is_right else right
        window = slice(top, top + side), slice(left, left + side)
        is_ink = ink[..., 0] > INK * 0.7
        hidden = np.bincount(owner[window][is_ink & (owner[window] >= 0)], minlength=len(inks))
        visible = [int((owner == number).sum()) for number in range(len(inks))]
        if any(shown - covered < VISIBLE * pixels for shown, covered, pixels in zip(visible, hidden, inks)):
            continue  # Little of a digit is another digit.
        color = rng.uniform(160, 255, 3).astype("float32")
        cover = np.clip(ink / INK, 0, 1) ** 2  # Its edge is soft, and what is behind the digit is hidden.
        picture[window] = picture[window] * (1 - cover) + cover * color * (0.4 + 0.6 * ink)
        mask[window][is_ink], owner[window][is_ink] = labels[chosen] + 1, len(inks)
        inks.append(int(is_ink.sum()))
    return np.clip(np.round(picture), 0, 255).astype("uint8"), mask, owner


def depth_scene(scans, labels, seed):
    """A scene of digits at several distances in haze, and its distances.

    The size of a digit is inverse to its distance, the nearer one is in front, and what is farther is darker.

    Args:
        scans, labels, seed: As for `scene`.

    Returns:
        uint8 (32, 32, 3) and uint16 (32, 32), the distances in millimeters.

    Example:
        >>> picture, distances = depth_scene(np.ones((1, 8, 8), "float32"), [7], [0, 1])
        >>> picture.shape, bool(distances.min() >= 2000)
        ((32, 32, 3), True)
    """
    from PIL import Image

    rng = np.random.default_rng([*seed, STREAM])

    def color(distance):
        return rng.uniform(200, 255, 3) * np.exp(-distance / HAZE)

    background = rng.uniform(*FAR)
    picture = np.broadcast_to(color(background), (SIDE, SIDE, 3)).copy()
    distances = np.full((SIDE, SIDE), round(1000 * background), "uint16")
    for distance in sorted(rng.uniform(*NEAR, rng.integers(*DIGITS, endpoint=True)), reverse=True):
        side = round(SIDE * FOCAL / distance)
        scan = Image.fromarray(scans[rng.integers(len(scans))])
        is_ink = np.asarray(scan.resize((side, side), Image.Resampling.BICUBIC)) > INK
        top, left = rng.integers(0, SIDE - side + 1, 2)
        window = slice(top, top + side), slice(left, left + side)
        picture[window][is_ink] = color(distance)
        distances[window][is_ink] = round(1000 * distance)
    picture += 2 * rng.standard_normal(picture.shape)
    return np.clip(np.round(picture), 0, 255).astype("uint8"), distances
