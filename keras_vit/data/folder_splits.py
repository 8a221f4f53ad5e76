"""The splits that a folder of data states: by the names of folders, or of files of labels."""

import functools
import os
import re

from keras_vit.data.files import SPLIT_NAMES
from keras_vit.data.samples import SPLITS, hold_out_missing
from keras_vit.messages import listed


def split_among(names):
    """The split that one of several names states, and the number of this name; (None, None) without one.

    A name with one word, such as `val` or `val2017`, comes before those with several, such as
    `train_station`. A name with the words of two splits states none.

    Args:
        names: Of folders, from the outer to the inner ones.

    Raises:
        ValueError: if they state different splits.

    Example:
        >>> split_among(["val2017", "train_station"]), split_among(["images", "val_set"])
        (('validation', 0), ('validation', 1))
    """
    several = [re.findall("[a-z]+", name.lower()) for name in names]
    for has_one_word in (True, False):
        stated = {}
        for number, texts in enumerate(several):
            splits = {SPLIT_NAMES[text] for text in texts if text in SPLIT_NAMES}
            if len(splits) == 1 and (len(texts) == 1) == has_one_word:
                stated.setdefault(*splits, number)
        if len(stated) > 1:
            raise ValueError(f"expected folders of one split; got {os.path.join(*names)!r}")
        if stated:
            return next(iter(stated.items()))
    return None, None


def folder_splits(root, paths):
    """The splits of files by the names of their folders.

    Args:
        root: The folder of the data, whose own name does not count.
        paths: Of the files.

    Returns:
        dict of a path to (its split or None, the folder that states it relative to the root).

    Raises:
        ValueError: if folders of one file state different splits, or if only some files are in folders with a
            split among several words, such as `test_track`.

    Example:
        >>> folder_splits("/a", ["/a/images/val/1.png", "/a/images/2.png"])
        {'/a/images/val/1.png': ('validation', 'images/val'), '/a/images/2.png': (None, '')}
    """
    folders = dict.fromkeys(map(os.path.dirname, paths))
    stated = {folder: _stated(os.fspath(root), folder) for folder in folders}
    names = [stated_by for _, stated_by in stated.values()]
    unsure = [name for name in names if len(re.findall("[a-z]+", os.path.basename(name).lower())) > 1]
    if unsure and "" in names:
        raise ValueError(
            f"{os.fspath(root)!r}: expected all files in folders of splits, or folders named train, val and "
            f"test; got {listed(unsure)} beside other folders"
        )
    return {path: stated[os.path.dirname(path)] for path in paths}


@functools.lru_cache(maxsize=10_000)  # A table has a row for each image of a folder.
def _stated(root, folder):
    """The split that the path of a folder states, or None, and the folder that states it."""
    names = [name for name in os.path.relpath(folder, root).split(os.sep) if name != os.curdir]
    split, number = split_among(names)
    return split, "" if split is None else os.path.join(*names[: number + 1])


def split_of_row(root, path, name, table, where):
    """The split of an image in a table, and what states it: the table, or else the image's folder.

    Args:
        root: The folder of the data.
        path: Of the image.
        name: The split by the table; "" without one.
        table: The path of the table.
        where: The place of the name, for messages.

    Example:
        >>> split_of_row("/a", "/a/test/1.png", "", "/a/b.csv", "")
        ('test', 'test')
        >>> split_of_row("/a", "/a/test/1.png", " Val", "/a/b.csv", "")
        ('validation', 'b.csv')
    """
    if word := name.strip().lower():
        if word not in SPLIT_NAMES:
            raise ValueError(f"{where}: expected one of {', '.join(SPLIT_NAMES)}; got {name!r}")
        return SPLIT_NAMES[word], os.path.relpath(table, root)
    split, stated_by = _stated(os.fspath(root), os.path.dirname(path))
    return split or "train", stated_by


def split_of_labels(root, path):
    """The split that a file of labels states, by its folders, then by its name; None without one.

    >>> split_of_labels("/a", "/a/annotations/instances_val2017.json")
    'validation'
    >>> split_of_labels("/a", "/a/train/_annotations.coco.json")
    'train'
    """
    folder, name = os.path.split(os.path.relpath(path, root))
    return split_among(folder.split(os.sep))[0] or split_among([os.path.splitext(name)[0]])[0]


def split_fields(splits, stated_by, seed):
    """The fields of a `Dataset` about its splits, of which missing ones are held out.

    Args:
        splits: Samples by split.
        stated_by: By split the names of folders or files that state it, relative to the root.
        seed: As for `hold_out_missing`.

    Example:
        >>> split_fields({"test": ["a.png"]}, {"test": ["images/test"]}, None)
        {'splits': {'test': ['a.png']}, 'split_sources': {'test': 'from images/test'}}
    """
    held_out = hold_out_missing(splits, seed)
    folders = {split: [*dict.fromkeys(names)] for split, names in stated_by.items()}
    sources = {split: f"from {listed(folders[split])}" for split in splits if folders.get(split)}
    sources |= {split: "held out" for split in held_out if split not in splits}
    sources = {split: sources[split] for split in SPLITS if split in sources}
    return {"splits": held_out, "split_sources": sources}
