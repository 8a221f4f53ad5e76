"""Mixtures: several data sets in given proportions, and the classes that they share."""

import fractions
import hashlib
import itertools
import json
import pathlib
import re

from keras_vit.data.datasets import SOURCES, load_dataset, sources_of
from keras_vit.data.files import read_text
from keras_vit.data.fingerprint import fingerprint_summary
from keras_vit.data.mixed_samples import MixedSamples, Part
from keras_vit.data.samples import SPLITS
from keras_vit.data.texts import Texts
from keras_vit.labels import label_kind
from keras_vit.messages import did_you_mean, listed


def load_mixture(name, *, classes, task, texts, labels, fields, **options):
    r"""Load the sources of a mixture.

    In training, each batch has a fixed number of samples of each source: the batch size times its fraction of
    the weights, rounded by the method of largest remainders. With the weights 0.7 and 0.3, a batch of 64 has
    45 and 19, so the fractions are 0.703 and 0.297. The validation and test splits are those of the sources,
    one after another.

    Args:
        name: NAME*WEIGHT + NAME*WEIGHT, with names as of `load_dataset` and positive numbers, 1 where none is
            given; or the name of one data set.
        classes, task, texts, labels: As for `load_dataset`.
        fields: As for `load_dataset`, for all tar and Parquet files; or one as "2:label=COLUMN" for the
            second source alone.
        options: Others of `load_dataset`.

    Returns:
        dict of the fields of a `Dataset` but name and task.

    Raises:
        ValueError: if a weight is 0, a source cannot be loaded, some have no training split, the sources have
            different classes, one has a class that is not among `classes`, or a field names a source that
            does not exist.

    Example:
        >>> mixture = load_dataset("digits*3 + digits*1")
        >>> mixture.split("train").shares(32), len(mixture.split("test"))
        ([24, 8], 710)
        >>> _ = (tmp / "classes.txt").write_text("even\t0\t2\t4\t6\t8\nodd\t1\t3\t5\t7\t9")
        >>> load_dataset("digits", classes=tmp / "classes.txt").summary()
        '2 classes (even, odd): 1302 train, 140 validation, 355 test'
    """
    options |= {"task": task, "texts": texts, "labels": labels}
    if classes is not None and (texts or not labels or not label_kind(task).is_class_id):
        raise ValueError("classes are for the task single_label, without captions; leave them out for others")
    sources = sources_of(name)
    weights = [fractions.Fraction(weight[1:] or 1) for _, weight in sources]
    if not all(weights):
        raise ValueError(f"expected positive weights of sources; got {name!r}")
    parts = [
        load_dataset(source, fields=of_source, **options)
        for (source, _), of_source in zip(sources, _fields_of(sources, fields))
    ]
    untrained = [part.name for part in parts if "train" not in part.splits]
    if options["seed"] is not None and 0 < len(untrained) < len(parts):
        raise ValueError(f"expected sources with a training split; {listed(untrained)} have none")
    if classes is not None:
        names, numbers = read_class_list(classes)
        tables = [_numbers(part, numbers, classes) for part in parts]
    else:
        names, tables = _shared_classes(parts, task, labels)
    return {
        "class_names": names,
        "splits": _mixed_splits(parts, weights, tables),
        "split_sources": _split_sources(parts),
        "version": _version(parts, tables),
        "texts": _texts(parts),
        "parts": tuple(parts),
        "bad_images": {path: reason for part in parts for path, reason in part.bad_images.items()},
        **{
            field: tuple(itertools.chain.from_iterable(getattr(part, field) for part in parts))
            for field in ("ignored_files", "empty_folders", "unlabeled")
        },
    }


def _mixed_splits(parts, weights, tables):
    """The `MixedSamples` of each split."""
    splits = {}
    for split in SPLITS:
        parts_of_split, before = [], 0
        for part, weight, table in zip(parts, weights, tables):
            if split not in part.splits:  # Without a seed, none is held out.
                continue
            samples = part.split(split)
            if part.captions(split) is not None:
                table = range(before, before + len(samples))
            parts_of_split.append(Part(part.name, samples, weight if split == "train" else None, table))
            before += len(samples)
        if parts_of_split:
            splits[split] = MixedSamples(tuple(parts_of_split))
    return splits


def _split_sources(parts):
    """Where the images of each split come from, if it is the same for all parts that have the split."""
    sources = {}
    for split in SPLITS:
        known = {part.split_sources.get(split) for part in parts if split in part.splits}
        if len(known) == 1 and None not in known:
            sources[split] = known.pop()
    return sources


def _fields_of(sources, fields):
    """The fields of each source: those with its number, and those without one if it has fields at all."""
    kinds = [SOURCES.get(own.partition(":")[0]) for own, _ in sources]
    has_fields = [bool(kind and kind.has_fields) for kind in kinds]
    fields_by_source = [[] for _ in sources]
    for field in fields:
        number, name = re.fullmatch(r"(?:(\d+):)?(.*)", field, re.DOTALL).groups()
        if number is not None and not 1 <= int(number) <= len(sources):
            raise ValueError(f"expected the number of a source, from 1 to {len(sources)}; got {field!r}")
        for source, (of_source, has) in enumerate(zip(fields_by_source, has_fields), 1):
            if int(number) == source if number is not None else has or not any(has_fields):
                of_source.append(name)
    return fields_by_source


def read_class_list(path):
    r"""The classes in a text file: their names, and a dict from each name to the number of its class.

    Args:
        path: A class on each line: its name and, separated by tabs, other names that stand for it.

    Raises:
        ValueError: if the file cannot be read, has fewer than two classes, or an empty name or one twice.

    Example:
        >>> _ = (tmp / "classes.txt").write_text("cat\ttabby\ndog")
        >>> read_class_list(tmp / "classes.txt")
        (('cat', 'dog'), {'cat': 0, 'tabby': 0, 'dog': 1})
    """
    path, numbers = pathlib.Path(path).expanduser(), {}
    lines = [[name.strip() for name in line.split("\t")] for line in read_text(path).rstrip().split("\n")]
    for number, line in enumerate(lines):
        for name in line:
            if not name or name in numbers:
                raise ValueError(f"{str(path)!r}, line {number + 1}: expected another name; got {name!r}")
            numbers[name] = number
    if len(lines) < 2:
        raise ValueError(f"{str(path)!r}: expected a class on each of two or more lines; got {len(lines)}")
    return tuple(line[0] for line in lines), numbers


def _numbers(part, of_classes, path):
    """The number of each class of a source."""
    missing = [name for name in part.class_names if name not in of_classes]
    if missing:
        hint = did_you_mean(missing[0], of_classes)
        raise ValueError(f"{str(path)!r} lacks classes of {part.name!r}: {listed(missing)}{hint}")
    return [of_classes[name] for name in part.class_names]


def _shared_classes(parts, task, labels):
    """The class names of all sources, and for each source the number of each class, or None if it is its own.

    Where labels are not needed, sources of different classes have none: all labels are 0.
    """
    first = parts[0]
    for part in parts[1:]:
        pairs = itertools.zip_longest(first.class_names, part.class_names)
        for number, names in enumerate(pairs):
            if names[0] == names[1]:
                continue
            if not labels:
                return (), [[0] * max(len(part.class_names), 1) for part in parts]
            expected, got = ("none" if name is None else repr(name) for name in names)
            advice = "; --classes FILE gives them the same" if label_kind(task).is_class_id else ""
            raise ValueError(
                f"expected the classes of {first.name!r} in {part.name!r}, in this order: class {number} "
                f"{expected}; got {got}{advice}"
            )
    return first.class_names, [None] * len(parts)


def _texts(parts):
    """The texts of the classes, or of the images of all sources."""
    if parts[0].texts is None or parts[0].class_names:
        return parts[0].texts
    joined = {
        split: sum((tuple(part.captions(split)) for part in parts if split in part.splits), ())
        for split in SPLITS
        if any(split in part.splits for part in parts)
    }
    return Texts(joined)


def _version(parts, tables):
    """A digest of what `fingerprint` has of each source, except for the times of files, and of the tables."""
    known = [fingerprint_summary(part) for part in parts]
    return f"mixture {hashlib.sha256(json.dumps([known, tables]).encode()).hexdigest()[:16]}"
