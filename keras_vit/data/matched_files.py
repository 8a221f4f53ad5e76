"""Folders of images and of one map for each, such as masks, in files of the same names."""

import concurrent.futures
import os
import pathlib

from keras_vit.data.files import IMAGE_SUFFIXES, file_headers, left_out, refuse_unreadable
from keras_vit.data.folder_splits import folder_splits, split_among
from keras_vit.messages import listed
from keras_vit.progress import Progress

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
        >>> from PIL import Image
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
    images, splits = _by_name(root, files, IMAGES, IMAGE_SUFFIXES)
    maps, _ = _by_name(root, files, folder)
    if not images:
        raise ValueError(f"no images and {noun}s in {os.fspath(root)!r}; expected {layout}")
    pairs, missing = [], []
    for (split, name), files_of_name in sorted(
        images.items(), key=lambda item: (item[0][0], str(item[0][1]))
    ):
        image = _only(files_of_name, "image", noun)
        map_file = _only(
            [file for file in maps.get((split, name), ()) if file.suffix.lower() in suffixes], noun, "image"
        )
        if map_file:
            pairs.append((split, os.fspath(root / image), os.fspath(root / map_file)))
            maps[split, name].remove(map_file)
        else:
            missing.append(str(image))
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
        if splits[path][0]:
            stated_by[split].append(splits[path][1])
    return pairs, stated_by


def _by_name(root, files, folder, suffixes=None):
    """The files of a folder by (split, name), and the split of each path and what states it."""
    splits, by_name = folder_splits(root, [path for path, file in files.items() if _is_in(file, folder)]), {}
    for path, (split, stated_by) in splits.items():
        if suffixes is None or files[path].suffix.lower() in suffixes:
            key = split or "train", _name_of(files[path], folder, stated_by)
            by_name.setdefault(key, []).append(files[path])
    return by_name, splits


def _only(files, noun, partner):
    """The only file of a list, or None of an empty one."""
    if len(files) > 1:
        raise ValueError(f"expected one {noun} for each {partner}; got {', '.join(map(str, files))}")
    return files[0] if files else None


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


def read_maps(pairs, check, noun, on_bad_image):
    """Check images by their headers and maps by a function.

    Args:
        pairs: What `read_pairs` returned.
        check: A function from the path of a map to an object with its (width, height) as `size` and, if it
            cannot be read, a `reason`.
        noun: What a map is, for messages.
        on_bad_image: As for `load_dataset`.

    Returns:
        (by path of the maps that can be read with their images, what `check` returned; by split the images,
        these maps, and whether an image is turned; by path of a bad file, the reason).

    Raises:
        ValueError: for unreadable files, also where all are left out, or maps of another size than their
            images.
    """
    if on_bad_image == "keep":
        raise ValueError(f"on_bad_image='keep' is for images without {noun}s, which are all read")
    headers = file_headers([image for _, image, _ in pairs], decode=on_bad_image == "skip")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        checked = pool.map(check, [path for *_, path in pairs])
        checked = Progress(checked, f"checking {noun}s", total=len(pairs), unit=noun.split()[-1])
        rows = [*zip(pairs, headers, checked)]
    readable = [row for row in rows if row[1] and not row[2].reason]
    wrong = [
        f"{path} ({_pixels(read.size)}, but its image has {_pixels(header.size)})"
        for (*_, path), header, read in readable
        if header.size != read.size
    ]
    if wrong:
        raise ValueError(f"{len(wrong)} {noun}(s) have another size than their image: {listed(wrong)}")
    undecoded = [image for (_, image, _), header, _ in rows if not header]
    reasons = {path: read.reason for (*_, path), _, read in rows if read.reason}
    bad_images = refuse_unreadable(undecoded, on_bad_image, f"image(s) or {noun}(s)", reasons)
    if not readable:
        raise ValueError(f"no image can be read with its {noun}{left_out(bad_images)}")
    by_split = {}
    for split in dict.fromkeys(split for split, *_ in pairs):
        files = [(*pair[1:], header.orientation > 1) for pair, header, _ in readable if pair[0] == split]
        images, maps, turned = zip(*files) if files else ((), (), ())
        by_split[split] = images, maps, any(turned)
    return {path: read for (*_, path), _, read in readable}, by_split, bad_images


def _pixels(size):
    return f"{size[0]}×{size[1]} pixels"
