"""Folders of images and depth maps."""

import dataclasses
import functools
import os

import numpy as np

from keras_vit.data.folder_splits import split_fields
from keras_vit.data.matched_files import read_maps, read_pairs
from keras_vit.tasks.depth.samples import (
    SETTINGS,
    SUFFIXES,
    DepthReader,
    DepthSamples,
    NoScaleError,
    read_depth_file,
    read_settings,
)

# What a missing scale may be, by quantity.
SCALES = {
    "depth": 'such as {"scale": 1000, "unit": "m"} for millimeters, or {"scale": 1} for depths of any unit',
    "disparity": 'the focal length in pixels times the baseline, or {"scale": 1} for depths of any unit',
    "values": 'such as {"scale": 1} for the numbers as they are',
}
QUANTITIES = {"depths": "depth", "disparities": "disparity", "values": "values"}  # by folder


@dataclasses.dataclass(frozen=True)
class _Map:
    """A depth map: its (width, height), the smallest and largest measurement, and why it cannot be read."""

    size: tuple[int, int] | None = None
    ends: tuple[float, float] | None = None
    reason: str = ""


def load_depth_folder(root, files, *, on_bad_image="fail", seed=0):
    """Load a folder of images and depth maps of the same names, in subfolders or not.

    Args:
        root: The folder, a pathlib.Path: images/NAME.jpg (or another kind of image) with depths/NAME.png or
            another file of `samples.SUFFIXES`, or both within train, val and test, above or below these
            folders. A folder disparities in place of depths has disparities, and a folder values any numbers
            of one or several channels, such as surface normals. `depth.json` has any arguments of
            `samples.DepthReader`: as {"scale": 1000, "unit": "m"} for PNG files in millimeters. Without
            it floating-point numbers are depths in their own unit, and integers are refused.
        files: As for `visible_files`.
        on_bad_image: As for `load_dataset`; it is for images and depth maps that cannot be read, and for
            depth maps without a measurement.
        seed: Of the split.

    Returns:
        (the paths of the files that are used, fields of a `Dataset`); the `min` and `max` of the samples'
        `reader` are those of all measurements unless `depth.json` has them.

    Raises:
        ValueError: for another layout, a depth map that is missing or has another size than its image in its
            EXIF orientation, integers without a scale, a wrong `depth.json`, or an unreadable image or map.

    Example:
        >>> for name in ("images", "depths"):
        ...     (tmp / name).mkdir()
        >>> for number in range(10):
        ...     keras.utils.save_img(tmp / "images" / f"{number}.png", np.zeros((8, 8, 3)))
        ...     np.save(tmp / "depths" / f"{number}.npy", np.full((8, 8), 1.5))
        >>> _, found = load_depth_folder(tmp, keras_vit.data.files.visible_files(tmp))
        >>> found["class_names"], len(found["splits"]["train"])
        (('depth',), 7)
    """
    paths = [folder / name for folder, names in files.items() for name in names]
    folder = _folder(root, paths)
    pairs, stated_by = read_pairs(root, paths, folder, SUFFIXES, "depth map")
    reader = _reader(root, QUANTITIES[folder], pairs)
    maps, by_split, bad_images = read_maps(
        pairs, functools.partial(_check, reader=reader), "depth map", on_bad_image
    )
    reader = _with_range(reader, [read.ends for read in maps.values()])
    splits = {split: DepthSamples(*files[:2], reader, files[2]) for split, files in by_split.items()}
    fields = {"class_names": reader.names, **split_fields(splits, stated_by, seed), "bad_images": bad_images}
    return {os.fspath(root / SETTINGS), *(path for pair in pairs for path in pair[1:])}, fields


def _with_range(reader, ends):
    """The reader with the range of all measurements where `depth.json` has none."""
    low, high = (choose(numbers) for choose, numbers in zip((min, max), zip(*ends)))
    if low == high:  # of one value there is no range
        return reader
    low = low if reader.min is None else reader.min
    return dataclasses.replace(reader, min=low, max=high if reader.max is None else reader.max)


def _folder(root, paths):
    """The name of the folder with the maps."""
    folders = [name for name in QUANTITIES if any(name in path.parent.parts[:2] for path in paths)]
    if len(folders) > 1:
        raise ValueError(
            f"expected one folder of {', '.join(QUANTITIES)} in {os.fspath(root)!r}; got {', '.join(folders)}"
        )
    return folders[0] if folders else "depths"


def _reader(root, quantity, pairs):
    """The `DepthReader` of a folder, with names for the channels of its first map that can be read."""
    reader = read_settings(root, quantity=quantity)
    if reader.quantity == "values" and reader.names == DepthReader().names:
        for _, _, path in pairs:
            try:
                channels = read_depth_file(path).shape[2]
            except (OSError, ValueError):
                continue
            names = [f"channel_{number}" for number in range(channels)]
            return dataclasses.replace(reader, names=names if channels > 1 else ["value"])
    return reader


def _check(path, reader):
    """The `_Map` of a file."""
    try:
        values = reader.label(path)
    except NoScaleError as error:
        raise ValueError(f"{path}: {error}; write one, {SCALES[reader.quantity]}") from None
    except (OSError, ValueError) as error:
        return _Map(reason=str(error))
    known = values[np.isfinite(values)]
    if not known.size:
        return _Map(reason="no valid measurement")
    return _Map(values.shape[1::-1], (float(known.min()), float(known.max())))
