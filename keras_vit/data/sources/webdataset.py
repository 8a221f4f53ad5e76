"""Tar files of WebDataset: members that follow each other and have one name are a sample."""

import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import re

import numpy as np

from keras_vit.data.files import SPLIT_NAMES, read_text, visible_files
from keras_vit.data.pairs import Texts
from keras_vit.data.samples import hold_out_missing
from keras_vit.data.sources.mask_folder import read_classes
from keras_vit.data.tar_samples import TarMaskSamples, TarSamples, read_at, tar_index
from keras_vit.labels import label_kind
from keras_vit.messages import listed

IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")
MASKS = ("seg.png", "mask.png")
CLASS, CAPTION = "cls", "txt"
CLASSES = "classes.txt"
MANY = 100_000  # files that a pair of braces may stand for


def load_webdataset(argument, *, task="single_label", seed=0, texts=False, labels=True, fields=(), **options):
    """Load the samples of tar files, as the package webdataset, timm, open_clip and img2dataset read them.

    The name of a sample is that of its members up to the first dot after the last slash; the rest, in lower
    case, says what a member is: an image (`jpg`, `png`, …); `cls`, the number of its class, or several of
    classes or targets; `json`, an object; `txt`, a caption; `seg.png` or `mask.png`, a mask.

    Args:
        argument: A tar file, a folder of them, a pattern such as `train-{0000..0127}.tar`, or several of
            these, joined by `::`. A tar file belongs to the split that its name or folders have as a word:
            `train`, `val`, `validation` or `test`; to train if they have none. `classes.txt` beside the
            first one has a class name per line; for masks as of `mask_folder.load_mask_folder`.
        task, seed, texts, labels: As of `load_dataset`.
        fields: ("label=json:KEY",) for labels, or captions, that are a value of the JSON object: for
            "single_label" an int, and a negative one skips the sample; for "multi_label" a list of the
            numbers of classes; for "regression" a number or a list.

    Returns:
        dict of `class_names`, `splits`, `version`, `ignored_files` and `texts`, as of `Dataset`.

    Raises:
        ValueError: if a tar file is missing, compressed or cut off, members of a sample do not follow each
            other, a sample has no image, or no label, or labels do not fit the task.

    Example:
        >>> import tarfile
        >>> image = load_dataset("digits").split("test").images[0]
        >>> with tarfile.open(tmp / "train.tar", "w") as tar:
        ...     for number in range(20):
        ...         for suffix, content in (("png", image), ("cls", b"%d" % (number % 2))):
        ...             _ = (tmp / "file").write_bytes(content)
        ...             tar.add(tmp / "file", f"{number}.{suffix}")
        >>> load_dataset(f"webdataset:{tmp}/train.tar").summary()
        '2 classes (0, 1): 14 train, 2 validation, 4 test'

    Source: https://github.com/webdataset/webdataset, the section "The WebDataset Format".
    """
    paths, kind, skipped, rows = shards(argument), label_kind(task), [], {}
    read = _reader(kind, texts, labels, _json_key(fields))
    for number, path in enumerate(paths):
        of_split = rows.setdefault(split_of(path, argument), [])
        for name, parts in grouped(path, tar_index(path)):
            sample = _Sample(path, number, name, parts)
            row = sample.place(IMAGES, "an image"), read(sample)
            if isinstance(row[1], int) and row[1] < 0:
                skipped.append(str(sample))
            else:
                of_split.append(row)
    rows = {split: tuple(zip(*of_split)) for split, of_split in rows.items() if of_split}
    if "train" not in rows:
        raise ValueError(f"{argument!r} has no samples to train on; it has {', '.join(rows) or 'none'}")
    root, read_values = pathlib.Path(paths[0]).parent, itertools.chain(*(read for _, read in rows.values()))
    if texts or not labels:
        names, make = (), _with_labels(lambda value: 0)
    elif kind.is_map:
        names, make = _with_masks(root)
    else:
        names, make = _with_values(root, [*read_values], kind)
    splits = {
        split: make(tuple(paths), np.array(images, "int64"), values)
        for split, (images, values) in rows.items()
    }
    splits, found = hold_out_missing(splits, seed), {"class_names": names, "ignored_files": tuple(skipped)}
    if texts:  # A label is the index of an image in its split, which may have been split by chance.
        captions = {image: text for images, read in rows.values() for image, text in zip(images, read)}
        found["texts"] = Texts(
            {
                split: tuple((captions[tuple(row)],) for row in of.images.tolist())
                for split, of in splits.items()
            }
        )
        splits = {
            split: dataclasses.replace(of, labels=tuple(range(len(of)))) for split, of in splits.items()
        }
    sizes = [(os.path.basename(path), os.path.getsize(path)) for path in paths]
    digest = hashlib.sha256(json.dumps(sizes).encode()).hexdigest()
    return {**found, "splits": splits, "version": f"tar files {digest[:16]}"}


def _reader(kind, texts, labels, key):
    """A function from a sample to what is read of it but the image; a negative int skips the sample."""

    def value(sample):
        return sample.text(CAPTION if texts else CLASS) if key is None else sample.json_value(key)

    if texts:
        return lambda sample: _caption(value(sample), sample)
    if not labels:
        return lambda sample: 0
    if kind.is_map:
        return lambda sample: sample.place(MASKS, "a mask")
    return lambda sample: _numbers(value(sample), sample, kind)


def _with_labels(label_of):
    return lambda paths, images, values: TarSamples(paths, images, tuple(map(label_of, values)))


def _with_masks(root):
    """The class names, and a function from paths and the places of images and masks to samples."""
    classes = read_classes(root)
    if classes.names is None:
        raise ValueError(f"masks in tar files need {os.fspath(root / CLASSES)!r}, a class name a line")
    return classes.names, lambda paths, images, masks: TarMaskSamples(
        paths, images, masks=np.array(masks, "int64"), values=classes.table, colors=classes.colors
    )


def _with_values(root, values, kind):
    """The names of classes or targets, and a function from paths, places and values to samples."""
    if not kind.has_classes:
        return _target_names(root, values), _with_labels(tuple)
    names = _class_names(root, values)
    if kind.is_class_id:
        return names, _with_labels(int)
    return names, _with_labels(lambda own: tuple(float(number in own) for number in range(len(names))))


def shards(argument):
    """The paths of the tar files that an argument of `load_webdataset` stands for.

    Raises:
        ValueError: if one is missing, or a folder has none.
    """
    paths = []
    for part in argument.split("::"):
        for name in _expanded(os.path.expanduser(part)):
            root = pathlib.Path(name)
            files = [root]
            if root.is_dir():
                files = [root / f for inside in visible_files(root).values() for f in inside]
                tars = [file for file in files if file.suffix == ".tar"]
                if not tars:
                    others = listed(sorted({"".join(file.suffixes) or file.name for file in files})) or "none"
                    raise ValueError(f"no .tar files in {name!r}; it has files of {others}")
                files = tars
            paths += map(os.fspath, files)
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise ValueError(f"{len(missing)} of {len(paths)} tar files are missing: {listed(missing)}")
    twice = sorted({path for path in paths if paths.count(path) > 1}) if len({*paths}) < len(paths) else ()
    if twice:
        raise ValueError(f"{argument!r} names {listed(twice)} twice")
    return paths


def _expanded(pattern):
    """The names that a pattern with braces stands for: {0000..0127} for numbers, {a,b} for words."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None:
        return [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", braces[1])
    if numbers:
        first, last = map(int, numbers.groups())
        if not first <= last < first + MANY:
            raise ValueError(f"expected {{first..last}} with up to {MANY:,} numbers; got {braces[0]!r}")
        words = [f"{number:0{len(numbers[1])}}" for number in range(first, last + 1)]
    else:
        words = braces[1].split(",")
    start, end = pattern[: braces.start()], pattern[braces.end() :]
    return [name for word in words for name in _expanded(f"{start}{word}{end}")]


def split_of(path, argument):
    """The split of a tar file, by the words of its name and of its folders within the argument.

    >>> split_of("data/val/00.tar", "data"), split_of("a/cats-test-3.tar", "a"), split_of("x.tar", "x.tar")
    ('validation', 'test', 'train')
    """
    roots = [os.path.expanduser(part) for part in argument.split("::")]
    root = next((root for root in roots if path.startswith(f"{root}{os.sep}")), os.path.dirname(path))
    words = re.split(r"[^a-z]+", os.path.relpath(path, root or ".").lower())
    splits = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    if len(splits) > 1:
        raise ValueError(f"{path!r} has the names of several splits: {', '.join(sorted(splits))}")
    return splits.pop() if splits else "train"


def grouped(path, members):
    """The samples of a tar file: (name, dict from the lower-case suffix to the place of the member).

    Raises:
        ValueError: if a name comes again after others, or has two members of one suffix.
    """
    seen = set()

    def name_of(member):
        folder, slash, file = member[0].rpartition("/")
        return f"{folder}{slash}{file.partition('.')[0]}"

    for name, group in itertools.groupby(members, name_of):
        if name in seen:
            raise ValueError(f"{path!r}: the members of {name!r} do not follow each other")
        seen.add(name)
        parts = {}
        for member, first, size in group:
            suffix = member[len(name) + 1 :].lower()
            if suffix in parts:
                raise ValueError(f"{path!r} has two members {member!r}")
            parts[suffix] = first, size
        yield name, parts


@dataclasses.dataclass(frozen=True)
class _Sample:
    """A sample: its tar file with its number, its name, and the places of its members by their suffixes."""

    path: str
    number: int
    name: str
    parts: dict[str, tuple[int, int]]

    def __str__(self):
        return f"{self.path}/{self.name}"

    def place(self, suffixes, what):
        """(number, first byte, number of bytes) of the one member with one of some suffixes."""
        fitting = [suffix for suffix in suffixes if suffix in self.parts]
        if len(fitting) != 1:
            raise ValueError(
                f"{self} has {'several members' if fitting else 'no member'} with {what}; its members are "
                f"{', '.join(self.parts)}"
            )
        return self.number, *self.parts[fitting[0]]

    def text(self, suffix):
        """The text of a member."""
        _, first, size = self.place((suffix,), f"the suffix {suffix}")
        try:
            return read_at(self.path, first, size).decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise ValueError(f"{self}.{suffix} is no text in UTF-8") from None

    def json_value(self, key):
        """A value of the JSON object."""
        text = self.text("json")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self}.json is damaged: {error}") from None
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


def _caption(value, sample):
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{sample}: expected a caption; got {value!r}")
    return value.strip()


def _numbers(value, sample, kind):
    """A label as its kind needs it: an int, or a tuple of numbers (of classes, for several labels)."""
    words = value.split() if isinstance(value, str) else value if isinstance(value, list) else [value]
    number = int if kind.has_classes else float
    try:
        numbers = tuple(number(word) for word in words)
        fits = not any(isinstance(word, bool) or number(word) != float(word) for word in words)
    except (TypeError, ValueError):
        fits = False
    if fits and kind.is_class_id:
        fits = len(numbers) == 1
    elif fits:
        fits = all(np.isfinite(numbers)) and (bool(numbers) or kind.has_classes)
        fits = fits and not (kind.has_classes and min(numbers, default=0) < 0)
    if not fits:
        expected = (
            "an integer" if kind.is_class_id else "numbers of classes" if kind.has_classes else "numbers"
        )
        raise ValueError(f"{sample}: expected {expected} as label; got {value!r}")
    return numbers[0] if kind.is_class_id else numbers


def _class_names(root, values):
    """The names of classes by their numbers: the lines of `classes.txt`, or the numbers themselves."""
    numbers = itertools.chain.from_iterable(
        value if isinstance(value, tuple) else (value,) for value in values
    )
    count, file = max(numbers, default=-1) + 1, root / CLASSES
    names = tuple(map(str, range(count)))
    if file.is_file():
        names = tuple(line.strip() for line in read_text(file).rstrip().split("\n"))
    if len({*names}) < len(names) or "" in names or len(names) < max(count, 2):
        raise ValueError(
            f"expected the names of at least {max(count, 2)} classes, each on a line of "
            f"{os.fspath(file)!r}; got {len(names)}"
        )
    return names


def _target_names(root, values):
    lengths = sorted({len(value) for value in values})
    if len(lengths) > 1:
        raise ValueError(
            f"images in {os.fspath(root)!r} have different numbers of targets: {listed(lengths)}"
        )
    return tuple(f"target_{i}" for i in range(*lengths))
