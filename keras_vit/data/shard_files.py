"""The files of a data set in shards: their paths and splits, and the data set of what was read of them."""

import collections
import dataclasses
import glob
import hashlib
import json
import os
import pathlib
import re
import urllib.parse

import numpy as np

from keras_vit.data.files import SPLIT_NAMES, paths_of, refuse_wrong, visible_files
from keras_vit.data.folder_splits import split_fields
from keras_vit.data.remote_files import file_name, is_url, urls_of
from keras_vit.data.shard_cache import folder_beside, shards_at
from keras_vit.data.texts import Texts
from keras_vit.messages import listed, redact_url

INCOMPLETE = ".incomplete.json"  # in a folder that `write_shards` has not finished
MANY = 100_000  # files that a pattern may stand for


def split_shards(argument, suffix):
    """The split of each file that an argument of `shards_of` stands for, by its `Shard`.

    The words of a file's path say the split: train, val, validation or test; train without such a word. Only
    its name and the folders within that of the argument count, which all parts of the argument share.

    Args:
        argument: As for `shards_of`; or a dict from paths to splits.
        suffix: Such as ".tar".
    """
    if isinstance(argument, dict):
        return dict(zip(shards_at([*argument]), argument.values()))
    root = _root(argument, suffix)
    return {shard: split_of(_location(shard.place), root) for shard in shards_of(argument, suffix)}


def names_by_split(shards):
    """The names of the files of each split, of a result of `split_shards`."""
    names = collections.defaultdict(list)
    for shard, split in shards.items():
        names[split].append(shard.name)
    return names


def _root(argument, suffix):
    """The location of the folder that all parts of an argument share."""
    folders = []
    for part in map(os.path.expanduser, argument.split("::")):
        if os.path.exists(part):
            fixed, is_folder = part, os.path.isdir(part)
        else:  # A question mark in a URL begins its query.
            fixed = re.split(r"[{*]" if is_url(part) else r"[{*?[]", part)[0]
            is_folder = fixed == part and not file_name(part).endswith(suffix)
        folders.append(_location(fixed if is_folder else fixed.rpartition("/")[0] or "."))
    return os.path.commonpath(folders)


def _location(place):
    """A path from a root: of a URL that in its server or bucket."""
    if not is_url(place):
        return os.path.abspath(place)
    parts = urllib.parse.urlsplit(place)
    bucket = "" if parts.scheme.startswith("http") else parts.netloc.rpartition("@")[2]
    return os.path.normpath(f"/{bucket}/{parts.path}").replace("//", "/")


def shards_of(argument, suffix):
    """The `Shard` of each file that an argument stands for.

    Args:
        argument: A file, a folder of files with the suffix, a pattern such as `train-{0000..0127}.tar` or
            `train-*.tar`, or several of these, joined by `::`; paths or URLs as of `urls_of`.
        suffix: Such as ".tar".

    Raises:
        ValueError: if one is missing, or a folder or a pattern has none.
        OSError: if a server does not say what its files are.

    Example:
        >>> for number in range(3):
        ...     (tmp / f"train-{number}.tar").touch()
        >>> [shard.name for shard in shards_of(f"{tmp}/train-{{1..2}}.tar", ".tar")]
        ['train-1.tar', 'train-2.tar']
    """
    paths = []
    for part in argument.split("::"):
        for name in _expanded(os.path.expanduser(part)):
            if is_url(name):
                paths += urls_of(name, suffix)
            else:
                paths += _in_folder(name, suffix) if os.path.isdir(name) else [name]
    shards = shards_at(paths)
    missing = [redact_url(path) for path, shard in zip(paths, shards) if shard is None]
    if missing:
        raise ValueError(f"{len(missing)} of {len(paths)} {suffix} files are missing: {listed(missing)}")
    for folder in {os.path.dirname(path) for path in paths}:
        if os.path.isfile(os.path.join(folder, INCOMPLETE)):
            raise ValueError(f"{folder!r} is not written to its end: run keras-vit data write again")
    files = collections.Counter(path if is_url(path) else os.path.realpath(path) for path in paths)
    if twice := [path for path, count in files.items() if count > 1]:
        raise ValueError(f"{suffix} files are named twice: {listed([*map(redact_url, twice)])}")
    return shards


def _in_folder(name, suffix):
    files = [*paths_of(name, visible_files(name))]
    fitting = [file for file in files if file.endswith(suffix)]
    if not fitting:
        suffixes = {"".join(file.suffixes) or file.name for file in map(pathlib.PurePath, files)}
        suffixes = listed(sorted(suffixes)) or "none"
        raise ValueError(f"no {suffix} files in {name!r}; it has files of {suffixes}")
    return fitting


def _expanded(pattern):
    """The names that a pattern stands for: {0000..0127} for numbers, {a,b} for words, * and ? for files.

    What exists under the name itself is no pattern.
    """
    if os.path.exists(pattern):
        return [pattern]
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None and is_url(pattern):
        return [pattern]
    if braces is None:
        return sorted(glob.glob(pattern, recursive=True)) or [pattern]
    numbers = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", braces[1])
    if numbers:
        first, last = map(int, numbers.groups())
        if not first <= last < first + MANY:
            raise ValueError(f"expected {{first..last}} with up to {MANY:,} numbers; got {braces[0]!r}")
        choices = [f"{number:0{len(numbers[1])}}" for number in range(first, last + 1)]
    else:
        choices = braces[1].split(",")
    start, end, names = pattern[: braces.start()], pattern[braces.end() :], {}
    for word in choices:  # Inner braces are first, so that words beside them come again.
        names |= dict.fromkeys(_expanded(f"{start}{word}{end}"))
        if len(names) > MANY:
            raise ValueError(f"expected a pattern for up to {MANY:,} files; got {redact_url(pattern)!r}")
    return [*names]


def split_of(path, root):
    """The split of a file, by the words of its name and of its folders within a root.

    >>> split_of("data/val/00.tar", "data"), split_of("a/cats-test-3.tar", "a"), split_of("x.tar", "")
    ('validation', 'test', 'train')
    """
    parts = re.split(r"[^a-z]+", os.path.relpath(path, root or ".").lower())
    splits = {SPLIT_NAMES[word] for word in parts if word in SPLIT_NAMES}
    if len(splits) > 1:
        raise ValueError(f"{path!r} has the names of several splits: {', '.join(sorted(splits))}")
    return splits.pop() if splits else "train"


def version_of(shards, digests):
    """A digest of the names, sizes and contents of shards, and of what was read of them.

    Args:
        shards: A list of `Shard`.
        digests: Those of `read_shards`.

    Example:
        >>> (tmp / "a.tar").touch()
        >>> len(version_of(shards_of(f"{tmp}/a.tar", ".tar"), ["1f"]))
        22
    """
    facts = [(shard.name, shard.size, digest) for shard, digest in zip(shards, digests, strict=True)]
    return f"files {hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}"


@dataclasses.dataclass
class ReadSamples:
    """What was read of the samples in shards.

    Attributes:
        rows: By split a list of arrays of the samples' places, int64 (n, …), and what `LabelStorage` read.
        digests: Those of `read_shards`.
        unlabeled: The names of samples of unknown classes.
        wrong: As for `refuse_wrong`, by the names of samples.
    """

    rows: dict = dataclasses.field(default_factory=dict)
    digests: list = dataclasses.field(default_factory=list)
    unlabeled: list = dataclasses.field(default_factory=list)
    wrong: dict = dataclasses.field(default_factory=dict)

    def add(self, split, places, values):
        """Add samples of a split."""
        places_of_split, values_of_split = self.rows.setdefault(split, ([], []))
        places_of_split.append(places)
        values_of_split += (tuple(value) if isinstance(value, list) else value for value in values)


def dataset_of_shards(shards, storage, stored, make, noun, known, *, seed, on_bad_image, texts):
    """The fields of a `Dataset` of samples in shards.

    Args:
        shards: What `split_shards` returns.
        storage: The `LabelStorage`.
        stored: `ReadSamples`.
        make: A function that makes samples from an array of places, what was read of them, the labels (None
            for maps) and the `MapReader` (None for others).
        noun: Of the files, for messages.
        known: The class names in the metadata of the files; None without them.
        seed, on_bad_image, texts: As for `load_dataset`.

    Raises:
        ValueError: if there are no samples to train on, a sample is wrong, or as `LabelStorage.meaning`.
    """
    bad = refuse_wrong(stored.wrong, on_bad_image)
    rows = {split: part for split, part in stored.rows.items() if part[1]}
    if not rows or seed is not None and "train" not in rows:
        raise ValueError(f"no samples to train on in {listed(shards)}; they have {', '.join(rows) or 'none'}")
    every_value = [value for _, values in rows.values() for value in values]
    root = folder_beside(next(iter(shards)), storage.file)
    names, label_of, reader = storage.meaning(root, every_value, known, noun)
    splits = {}
    for split, (places, values) in rows.items():
        labels = None if reader else tuple(map(label_of, values))
        splits[split] = make(np.concatenate(places), values, labels, reader)
    fields = {"class_names": names, "unlabeled": tuple(stored.unlabeled), "bad_images": bad}
    fields |= {"version": version_of(shards, stored.digests)} | split_fields(
        splits, names_by_split(shards), seed
    )
    if texts:
        places = np.concatenate([part for places, _ in rows.values() for part in places])
        captions, wordings = dict(zip(map(tuple, places.tolist()), every_value)), {}
        for split, samples in fields["splits"].items():
            wordings[split] = tuple(captions[tuple(place)] for place in samples.rows.tolist())
            fields["splits"][split] = dataclasses.replace(samples, labels=tuple(range(len(samples))))
        fields["texts"] = Texts(wordings)
    return fields
