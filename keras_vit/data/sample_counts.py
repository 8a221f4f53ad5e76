"""Sample counts in the metadata beside tar files."""

import contextlib
import functools
import json
import os

from keras_vit.data.shard_cache import folder_beside, is_remote
from keras_vit.messages import redact_url


def check_counts(counts):
    """Compare the sample counts of tar files with those in the metadata beside them.

    The metadata of a folder are timm's `_info.json` and open_clip's `sizes.json`. Those of one tar file are
    img2dataset's `NAME_stats.json`; they are not fetched for remote files.

    Args:
        counts: dict from each tar file, a `Shard`, to its sample count.

    Raises:
        ValueError: if a count differs, or the metadata are damaged.

    Example:
        >>> from keras_vit.data.shard_cache import Shard
        >>> _ = (tmp / "sizes.json").write_text('{"a.tar": 5}')
        >>> check_counts({Shard(f"{tmp}/a.tar", size=0, version=0): 5})

    Source: timm's `data/readers/reader_wds.py`, open_clip's `data.py`, img2dataset's `writer.py`.
    """
    known = {}
    for shard, count in counts.items():
        folder, _, name = (shard.place if is_remote(shard) else os.path.abspath(shard.place)).rpartition("/")
        own = {f"{os.path.splitext(name)[0]}_stats.json": functools.partial(_of_download, name)}
        for file, read in (OF_FOLDER if is_remote(shard) else OF_FOLDER | own).items():
            if (folder, file) not in known:
                shown = redact_url(f"{folder}/{file}")
                known[folder, file] = _counts(folder_beside(shard, file) / file, shown, read)
            expected = known[folder, file].get(name, count)
            if expected != count:
                raise ValueError(
                    f"{str(shard)!r} has {count} samples; expected {expected}, as {file} beside it says. One "
                    "of the two files is incomplete, or of another version"
                )


def _of_splits(value):
    """The sample counts in timm's metadata, by file name."""
    found = {}
    for split in value["splits"].values():
        found |= zip(split["filenames"], split["shard_lengths"], strict=True)
    return found


def _of_download(name, value):
    """The sample count in img2dataset's metadata of a tar file."""
    return {name: value["successes"]}


OF_FOLDER = {"_info.json": _of_splits, "sizes.json": dict}  # file name → function from JSON value to counts


def _counts(path, shown, read):
    """The sample counts in a file of metadata, by file name; none if it is missing."""
    with contextlib.suppress(FileNotFoundError):
        try:
            return read(json.loads(path.read_bytes()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{shown!r} is damaged: expected the sample counts of tar files") from None
    return {}
