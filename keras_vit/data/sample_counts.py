"""Sample counts and splits in the metadata beside tar files."""

import contextlib
import functools
import json
import os

from keras_vit.data.files import SPLIT_NAMES
from keras_vit.data.shard_cache import folder_beside, is_remote
from keras_vit.messages import redact_url


def check_counts(counts, splits=None):
    """Compare the sample counts and splits of tar files with those in the metadata beside them.

    The metadata of a folder are timm's `_info.json` and open_clip's `sizes.json`. Those of one tar file are
    img2dataset's `NAME_stats.json`; they are not fetched for remote files.

    Args:
        counts: dict from each tar file, a `Shard`, to its sample count.
        splits: Its split, likewise; None: these are not compared.

    Raises:
        ValueError: if a count or a split differs, or the metadata are damaged.

    Example:
        >>> from keras_vit.data.shard_cache import Shard
        >>> _ = (tmp / "sizes.json").write_text('{"a.tar": 5}')
        >>> check_counts({Shard(f"{tmp}/a.tar", size=0, version="0"): 5})

    Source: timm's `data/readers/reader_wds.py`, open_clip's `data.py`, img2dataset's `writer.py`.
    """
    known = {}
    for shard, count in counts.items():
        folder, _, name = (shard.place if is_remote(shard) else os.path.abspath(shard.place)).rpartition("/")
        readers = {f"{os.path.splitext(name)[0]}_stats.json": functools.partial(_of_download, name)}
        for file, read in (OF_FOLDER if is_remote(shard) else OF_FOLDER | readers).items():
            if (folder, file) not in known:
                shown = redact_url(f"{folder}/{file}")
                known[folder, file] = _counts(folder_beside(shard, file) / file, shown, read)
            expected, split = known[folder, file].get(name, (count, None))
            if splits and split not in (None, splits[shard]):
                raise ValueError(
                    f"{str(shard)!r}: expected one split; got {splits[shard]!r} in its path, and "
                    f"{split!r} in {file} beside it: rename it, or correct this file"
                )
            if expected != count:
                raise ValueError(
                    f"{str(shard)!r}: expected {expected} samples, as {file} beside it says; got {count}: "
                    "one of the two files is incomplete, or of another version"
                )


def _of_splits(value):
    """The sample counts and splits in timm's metadata, by file name."""
    counts_by_file = {}
    for name, split in value["splits"].items():
        counts = zip(split["filenames"], split["shard_lengths"], strict=True)
        counts_by_file |= {file: (count, SPLIT_NAMES.get(name.lower())) for file, count in counts}
    return counts_by_file


def _of_sizes(value):
    """The sample counts in open_clip's metadata, by file name."""
    return {file: (count, None) for file, count in value.items()}


def _of_download(name, value):
    """The sample count in img2dataset's metadata of a tar file."""
    return {name: (value["successes"], None)}


OF_FOLDER = {"_info.json": _of_splits, "sizes.json": _of_sizes}  # file name → function of its value


def _counts(path, shown, read):
    """(sample count, split or None) by file name in a file of metadata; none if it is missing."""
    with contextlib.suppress(FileNotFoundError):
        try:
            return read(json.loads(path.read_bytes()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{shown!r} is damaged: expected the sample counts of tar files") from None
    return {}
