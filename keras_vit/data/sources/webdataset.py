"""Tar files of WebDataset: members that follow each other and have one name are a sample."""

import dataclasses
import functools
import itertools
import json
import re
from typing import Any, BinaryIO

import numpy as np

from keras_vit.data.chunked_samples import ChunkedSamples
from keras_vit.data.files import IMAGE_SUFFIXES
from keras_vit.data.label_storage import storage_of
from keras_vit.data.sample_counts import check_counts
from keras_vit.data.shard_cache import is_remote, opened, read_shards
from keras_vit.data.shard_files import ReadSamples, dataset_of_shards, split_shards
from keras_vit.data.stored_labels import is_unknown, what_is_wrong
from keras_vit.data.tar_samples import TarSamples, member, member_name, read_members, tar_index
from keras_vit.messages import listed, printable

IMAGES = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)


def load_webdataset(argument, *, task, seed, on_bad_image, texts, labels, fields, **options):
    """Load the samples of tar files, as the package webdataset, timm, open_clip and img2dataset read them.

    The name of a sample is that of its members up to the first dot after the last slash; the rest, in lower
    case, says what a member is: an image (`jpg`, `png`, …); `cls`, the number of its class, or several of
    classes or targets; `json`, an object; `txt`, a caption; `seg.png` or `mask.png`, a mask.

    Args:
        argument: A tar file, a folder of them, a pattern such as `train-{0000..0127}.tar`, or several of
            these, joined by `::`, as paths or URLs; or a dict from paths to splits. A file belongs to the
            split that its name or folders have as a word: `train`, `val`, `validation` or `test`; to train if
            they have none.
            `classes.txt` beside the first one has a class name per line; for masks as of
            `keras_vit.tasks.segmentation.folder`.
        task, seed, on_bad_image, texts, labels: As for `load_dataset`.
        fields: ("label=json:KEY",) for labels, or captions, that are a value of the JSON object: for
            "single_label" an int, and a negative one skips the sample; for "multi_label" a list of the
            numbers of classes; for "regression" a number or a list; for "detection", where it is `objects` by
            default, what `stored_boxes.objects_of` takes, and `width` and `height` may be there, too.

    Returns:
        dict of `class_names`, `splits`, `version`, `bad_images`, `unlabeled` and `texts`, as of `Dataset`.

    Raises:
        ValueError: if a tar file is missing, compressed or cut off, or its sample count is not that of the
            metadata beside it (`check_counts`); if members of a sample do not follow each other, a sample has
            no image, or no label, or labels do not fit the task.

    Example:
        >>> import tarfile
        >>> image = load_dataset("digits").split("test").images[0]
        >>> with tarfile.open(tmp / "train.tar", "w") as tar:
        ...     for number in range(20):
        ...         for suffix, content in (("png", image), ("cls", b"%d" % (number % 2))):
        ...             _ = (tmp / "file").write_bytes(content)
        ...             tar.add(tmp / "file", f"{number}.{suffix}")
        >>> load_dataset(f"webdataset:{tmp}/train.tar").summary()
        '2 classes (0, 1): 14 train, 2 validation, 4 test; train from train.tar, validation and test held out'

    Source: https://github.com/webdataset/webdataset, the section "The WebDataset Format".
    """
    shards, storage, key = split_shards(argument, ".tar"), storage_of(task, texts, labels), _json_key(fields)
    paths, purpose = tuple(shards), [task, texts, labels, key]
    contents = _read_samples(paths, purpose, functools.partial(storage.sample_value, key=key))
    stored, counts = ReadSamples(), {}
    for number, (path, ((places, values, names, reasons), digest)) in enumerate(zip(paths, contents)):
        stored.digests.append(digest)
        stored.add(shards[path], np.insert(np.array(places, int).reshape(-1, 2), 0, number, axis=1), values)
        stored.unlabeled.extend(f"{path}/{name}" for name in names)
        stored.wrong |= {f"{path}/{name}": of_name for name, of_name in reasons.items()}
        counts[path] = len(places) + len(names) + len(reasons)
    check_counts(counts, shards)
    make = TarSamples
    if any(map(is_remote, paths)):
        make = functools.partial(ChunkedSamples, read=read_members, name=member_name)

    def samples(places, values, labels, reader):
        if reader is None:
            return make(paths, places, ("image",), labels, None, storage.task)
        return make(paths, np.column_stack([places, values]), ("image", "map"), None, reader, storage.task)

    options = {"seed": seed, "on_bad_image": on_bad_image, "texts": texts}
    return dataset_of_shards(shards, storage, stored, samples, "tar", None, **options)


def _read_samples(paths, purpose, read):
    """As `read_shards`: of each tar file [places of images, values of `read`, skipped names, wrong].

    `wrong` is a dict from names of samples to what is wrong with them.
    """

    def read_samples(path):
        places, values, skipped, wrong = [], [], [], {}
        with opened(path) as file:
            for name, parts in grouped(path, tar_index(path)):
                sample = Sample(path, file, name, parts)
                location, value = sample.place(IMAGES, "an image"), read(sample)
                if is_unknown(value):
                    skipped.append(name)
                    continue
                if reasons := what_is_wrong(value):
                    wrong[name] = reasons
                    continue
                places.append(location)
                values.append(value)
        return places, values, skipped, wrong

    return read_shards(paths, ["webdataset", *purpose], read_samples)


def grouped(path, members):
    """The samples of a tar file: (name, dict from the lower-case suffix to the place of the member).

    Raises:
        ValueError: if a name comes again after others, or has two members of one suffix.
    """
    seen = set()

    def name_of(entry):
        folder, slash, file = entry[0].rpartition("/")
        return f"{folder}{slash}{file.partition('.')[0]}"

    for name, group in itertools.groupby(members, name_of):
        if name in seen:
            raise ValueError(f"{path!r}: the members of {name!r} do not follow each other")
        seen.add(name)
        parts = {}
        for own, first, size in group:
            suffix = own[len(name) + 1 :].lower()
            if suffix in parts:
                raise ValueError(f"{path!r} has two members {own!r}")
            parts[suffix] = first, size
        yield name, parts


@dataclasses.dataclass(frozen=True)
class Sample:
    """A sample: its tar file, open, its name, and the places of its members by their suffixes."""

    path: Any
    file: BinaryIO
    name: str
    parts: dict[str, tuple[int, int]]

    def __str__(self):
        return f"{self.path}/{printable(self.name)}"

    def place(self, suffixes, what):
        """(first byte, number of bytes) of the one member with one of some suffixes."""
        fitting = [suffix for suffix in suffixes if suffix in self.parts]
        if len(fitting) != 1:
            raise ValueError(
                f"{self} has {'several members' if fitting else 'no member'} with {what}; its members are "
                f"{listed(self.parts, 20)}"
            )
        return self.parts[fitting[0]]

    def text(self, suffix):
        """The text of a member."""
        location = self.place((suffix,), f"the suffix {suffix}")
        try:
            return member(self.file, *location, self.path).decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise ValueError(f"{self}.{suffix} is no text in UTF-8") from None

    def image(self):
        """The content of the image."""
        return member(self.file, *self.place(IMAGES, "an image"), self.path)

    def value(self, suffix, key):
        """The text of a member, or with a key a value of the JSON object."""
        return self.text(suffix) if key is None else self.json_value(key)

    def json_value(self, key, *default):
        """A value of the JSON object; without a default it has to be there."""
        text = self.text("json")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self}.json is damaged: {error}") from None
        if default and isinstance(values, dict):
            return values.get(key, *default)
        if not isinstance(values, dict) or key not in values:
            has = ", ".join(values) if isinstance(values, dict) else type(values).__name__
            raise ValueError(f"{self}.json has no {key!r}; it has {has or 'no keys'}")
        return values[key]


def _json_key(fields):
    """The key of `label=json:KEY`; None without fields."""
    if not fields:
        return None
    match = re.fullmatch(r"label=json:(.+)", fields[0]) if len(fields) == 1 else None
    if match is None:
        raise ValueError(f"expected one field as label=json:KEY; got {', '.join(fields)}")
    return match[1]
