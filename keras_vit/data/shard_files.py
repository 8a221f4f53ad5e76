"""The files of a data set in shards: their paths and splits."""

import glob
import hashlib
import json
import os
import pathlib
import re

from keras_vit.data.files import SPLIT_NAMES, paths_of, visible_files
from keras_vit.data.remote_files import is_url, urls_of
from keras_vit.data.shard_cache import identity, is_remote, remote_shards
from keras_vit.messages import listed, redact_url

INCOMPLETE = ".incomplete.json"  # in a folder that `write_shards` has not finished
MANY = 100_000  # files that a pair of braces may stand for


def split_shards(argument, suffix):
    """The split of each file that an argument of `shard_paths` stands for, by its path.

    The words of a file's name, and of its folders within the argument, say the split: train, val, validation
    or test; train without such a word. An argument that is a dict of these is returned.
    """
    if isinstance(argument, dict):
        return argument
    paths = shard_paths(argument, suffix)
    return {path: split_of(path.url if is_remote(path) else path, argument) for path in paths}


def shard_paths(argument, suffix):
    """The paths of the files that an argument stands for, or a `RemoteShard` for a file at a URL.

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
        >>> [pathlib.Path(path).name for path in shard_paths(f"{tmp}/train-{{1..2}}.tar", ".tar")]
        ['train-1.tar', 'train-2.tar']
    """
    paths = []
    for part in argument.split("::"):
        for name in _expanded(os.path.expanduser(part)):
            if is_url(name):
                paths += urls_of(name, suffix)
            else:
                paths += _in_folder(name, suffix) if os.path.isdir(name) else [name]
    remote = remote_shards([path for path in paths if is_url(path)])
    known = {shard.url: shard for shard in remote if shard is not None}
    missing = [path for path in paths if path not in known and not os.path.isfile(path)]
    if missing:
        missing = [*map(redact_url, missing)]
        raise ValueError(f"{len(missing)} of {len(paths)} {suffix} files are missing: {listed(missing)}")
    for folder in {os.path.dirname(path) for path in paths}:
        if os.path.isfile(os.path.join(folder, INCOMPLETE)):
            raise ValueError(f"{folder!r} is not written to its end: run keras-vit data write again")
    twice = sorted({path for path in paths if paths.count(path) > 1}) if len({*paths}) < len(paths) else ()
    if twice:
        raise ValueError(f"{suffix} files are named twice: {listed([*map(redact_url, twice)])}")
    return [known.get(path, path) for path in paths]


def _in_folder(name, suffix):
    files = [*paths_of(name, visible_files(name))]
    fitting = [file for file in files if file.endswith(suffix)]
    if not fitting:
        others = {"".join(file.suffixes) or file.name for file in map(pathlib.PurePath, files)}
        others = listed(sorted(others)) or "none"
        raise ValueError(f"no {suffix} files in {name!r}; it has files of {others}")
    return fitting


def _expanded(pattern):
    """The names that a pattern stands for: {0000..0127} for numbers, {a,b} for words, * and ? for files."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None and is_url(pattern):
        return [pattern]
    if braces is None:
        return sorted(glob.glob(pattern, recursive=True)) or [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", braces[1])
    if numbers:
        first, last = map(int, numbers.groups())
        if not first <= last < first + MANY:
            raise ValueError(f"expected {{first..last}} with up to {MANY:,} numbers; got {braces[0]!r}")
        words = [f"{number:0{len(numbers[1])}}" for number in range(first, last + 1)]
    else:
        words = braces[1].split(",")
    start, end = pattern[: braces.start()], pattern[braces.end() :]
    # Inner braces are first, so that words beside them come again.
    return [*dict.fromkeys(name for word in words for name in _expanded(f"{start}{word}{end}"))]


def split_of(path, argument):
    """The split of a file, by the words of its name and of its folders within the argument.

    >>> split_of("data/val/00.tar", "data"), split_of("a/cats-test-3.tar", "a"), split_of("x.tar", "x.tar")
    ('validation', 'test', 'train')
    """
    roots = [os.path.expanduser(part).rstrip("/") for part in argument.split("::")]
    root = next((root for root in roots if path.startswith(f"{root}{os.sep}")), os.path.dirname(path))
    words = re.split(r"[^a-z]+", os.path.relpath(path, root or ".").lower())
    splits = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    if len(splits) > 1:
        raise ValueError(f"{path!r} has the names of several splits: {', '.join(sorted(splits))}")
    return splits.pop() if splits else "train"


def version_of(paths):
    """A digest of the names and sizes of shards.

    >>> (tmp / "a.tar").touch()
    >>> len(version_of([tmp / "a.tar"]))
    22
    """
    sizes = [identity(path)[:2] for path in paths]
    return f"files {hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:16]}"
