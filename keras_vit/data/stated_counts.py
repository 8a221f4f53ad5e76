"""The counts of samples that files beside tar files state."""

import contextlib
import functools
import json
import os

from keras_vit.data.shard_cache import folder_beside, is_remote


def check_counts(counts):
    """Refuse tar files whose counts of samples differ from those that files beside them state.

    timm's `_info.json` and open_clip's `sizes.json` state the counts of a folder; of local files,
    img2dataset's `NAME_stats.json` states that of NAME.tar.

    Args:
        counts: The count of samples of each tar file, by its path or `RemoteShard`.

    Raises:
        ValueError: if a count differs, or a file that states counts is damaged.

    Example:
        >>> _ = (tmp / "sizes.json").write_text('{"a.tar": 5}')
        >>> check_counts({str(tmp / "a.tar"): 5})

    Source: timm's `data/readers/reader_wds.py`, open_clip's `data.py`, img2dataset's `writer.py`.
    """
    stated = {}
    for shard, count in counts.items():
        folder, _, name = (shard.url if is_remote(shard) else os.path.abspath(shard)).rpartition("/")
        own = {f"{os.path.splitext(name)[0]}_stats.json": functools.partial(_of_download, name)}
        for file, read in (FOLDER if is_remote(shard) else FOLDER | own).items():
            if (folder, file) not in stated:
                stated[folder, file] = _stated(folder_beside(shard, file) / file, read)
            expected = stated[folder, file].get(name, count)
            if expected != count:
                raise ValueError(
                    f"{str(shard)!r} has {count} samples, and {file} beside it states {expected}: one of "
                    "them is not complete, or of another version"
                )


def _of_splits(value):
    """The counts that timm's description of a data set states, by the names of files."""
    found = {}
    for split in value["splits"].values():
        found |= zip(split["filenames"], split["shard_lengths"], strict=True)
    return found


def _of_download(name, value):
    """The count that img2dataset's statistics of a tar file state."""
    return {name: value["successes"]}


FOLDER = {"_info.json": _of_splits, "sizes.json": dict}  # for each file with counts, a function of its value


def _stated(path, read):
    """The counts that a file states, by the names of files; none if it is missing."""
    with contextlib.suppress(FileNotFoundError):
        try:
            return read(json.loads(path.read_bytes()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{str(path)!r} is damaged: it has no counts of tar files") from None
    return {}
