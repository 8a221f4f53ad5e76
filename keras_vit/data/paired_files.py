"""Folders of images and of one map for each, such as masks, in files of the same names."""

import os
import pathlib

from PIL import Image

from keras_vit.data.files import IMAGE_SUFFIXES
from keras_vit.data.folder_splits import folder_splits, split_among
from keras_vit.messages import listed
from keras_vit.preprocessing.image_files import TRANSPOSED

IMAGES = "images"


def read_pairs(root, files, folder, suffixes, noun):
    """The images of a folder and their maps.

    Args:
        root: The folder, pathlib.Path: images/NAME.jpg (or another kind of image) with a map of the same name
            in another folder, both perhaps within folders of splits, above or below these two.
        files: The paths of all files relative to it, pathlib.Path.
        folder: The name of the folder of the maps.
        suffixes: Of the maps, in lower case.
        noun: What a map is, for messages.

    Returns:
        A list of (split, path of the image, path of the map), and by split the folders that state it.

    Raises:
        ValueError: if there are no images, or none to train on, or an image has not exactly one map.

    Example:
        >>> for name in ("images", "masks"):
        ...     (tmp / name).mkdir()
        ...     Image.new("L", (8, 8)).save(tmp / name / "a.png")
        >>> files = [pathlib.Path("images/a.png"), pathlib.Path("masks/a.png")]
        >>> pairs, stated_by = read_pairs(tmp, files, "masks", (".png",), "mask")
        >>> [split for split, *_ in pairs]
        ['train']
    """
    layout = (
        f"{IMAGES}/NAME.jpg with {folder}/NAME{suffixes[0]}, both perhaps in folders of splits, as "
        f"{IMAGES}/train and {folder}/train or as train/{IMAGES} and train/{folder}"
    )
    files = {os.fspath(root / file): file for file in files}
    splits, images, maps = {}, {}, {}
    for subfolder, found in ((IMAGES, images), (folder, maps)):
        paths = [path for path, file in files.items() if _is_in(file, subfolder)]
        splits[subfolder] = folder_splits(root, paths)
        for path, (split, stated_by) in splits[subfolder].items():
            if subfolder == folder or files[path].suffix.lower() in IMAGE_SUFFIXES:
                key = split or "train", _name_of(files[path], subfolder, stated_by)
                found.setdefault(key, []).append(files[path])
    if not images:
        raise ValueError(f"no images and {noun}s in {os.fspath(root)!r}; expected {layout}")
    pairs, missing = [], []
    for (split, name), found in sorted(images.items(), key=lambda item: (item[0][0], str(item[0][1]))):
        maps_of_image = [file for file in maps.get((split, name), ()) if file.suffix.lower() in suffixes]
        for several, one, each in ((found, "image", noun), (maps_of_image, noun, "image")):
            if len(several) > 1:
                raise ValueError(f"expected one {one} for each {each}; got {', '.join(map(str, several))}")
        if maps_of_image:
            pairs.append((split, os.fspath(root / found[0]), os.fspath(root / maps_of_image[0])))
            maps[split, name].remove(maps_of_image[0])
        else:
            missing.append(str(found[0]))
    if missing:
        unpaired = [str(file) for left in maps.values() for file in left]
        unpaired = unpaired or sorted(
            {file.parts[0] for file in files.values() if not {IMAGES, folder} & {*file.parts[:2]}}
        )
        raise ValueError(
            f"{len(missing)} image(s) in {os.fspath(root)!r} have no {noun}: {listed(missing)}; "
            f"{f'there is {listed(unpaired)}; ' if unpaired else ''}expected {layout}"
        )
    stated_by = {split: [] for split, *_ in pairs}
    if "train" not in stated_by:
        raise ValueError(f"{os.fspath(root)!r} has no images to train on; it has {', '.join(stated_by)}")
    for split, path, _ in pairs:
        if splits[IMAGES][path][0]:
            stated_by[split].append(splits[IMAGES][path][1])
    return pairs, stated_by


def _is_in(file, folder):
    """Whether a file is in a folder of this name at the top or in one of a split."""
    above = file.parent.parts
    return above[:1] == (folder,) or above[1:2] == (folder,) and split_among(above[:1])[0] is not None


def _name_of(file, folder, stated_by):
    """The path of a file without the suffix, the folder and that of its split."""
    parts, above = [*file.with_suffix("").parts], pathlib.PurePath(stated_by).parts
    if above:
        del parts[len(above) - 1]
    parts.remove(folder)
    return pathlib.PurePath(*parts)


def refuse_other_sizes(pairs, noun):
    """Raise ValueError for maps of another size than their images.

    Args:
        pairs: (path of the image, its EXIF orientation, path of the map, its (width, height)) of each pair.
        noun: What a map is, for the message.
    """
    wrong = []
    for image, orientation, path, size in pairs:
        with Image.open(image) as opened:
            expected = opened.size[::-1] if orientation >= TRANSPOSED else opened.size
        if expected != size:
            wrong.append(f"{path} ({_pixels(size)}, but its image has {_pixels(expected)})")
    if wrong:
        raise ValueError(f"{len(wrong)} {noun}(s) have another size than their image: {listed(wrong)}")


def _pixels(size):
    return f"{size[0]}×{size[1]} pixels"
