"""Fingerprints of data sets, by which a resumed run recognizes its data; no image is read for them."""

import functools
import hashlib
import json
import os

import numpy as np
import pyarrow
import pyarrow.parquet

from keras_vit.data.datasets import folder_of
from keras_vit.labels import label_kind
from keras_vit.messages import listed
from keras_vit.rules import check_utf8
from keras_vit.writing import atomic_path

TEXT, NUMBER = pyarrow.string(), pyarrow.int64()
FILES = pyarrow.schema([("file", TEXT), ("split", TEXT), ("label", TEXT), ("size", NUMBER), ("time", NUMBER)])


def fingerprint(dataset, tokenizer=None):
    """The properties of a data set that affect training and evaluation.

    Args:
        dataset: A `Dataset`.
        tokenizer: The `TextPreprocessing` of its texts, or None.

    Returns:
        dict of JSON values and a table: `version`, that of TensorFlow Datasets or None; `classes`; `splits`,
        the sample count of each; and `files`, a `pyarrow.Table` with a row for each image and mask of a
        folder: the path relative to the folder, the split, the label or captions as JSON, the size in bytes
        and the modification time in ns. `tokenizer` is the tokenizer's digest, or None. `mask_values` says
        how values in files become labels: the class of each mask value, or of each color, of masks with a
        `classes.txt`.

    Example:
        >>> fingerprint(load_dataset("digits"))["splits"]
        {'train': 1302, 'validation': 140, 'test': 355}
    """
    # The version of a mixture has a digest of the files of its parts.
    splits = dataset.splits.items() if folder_of(dataset.name) and not dataset.parts else ()
    files = [_files(dataset, split, samples) for split, samples in splits]
    first_samples = next(iter(dataset.splits.values()))
    return {
        "version": dataset.version,
        "classes": list(dataset.class_names),
        "splits": {split: len(samples) for split, samples in dataset.splits.items()},
        "files": pyarrow.concat_tables([FILES.empty_table(), *files]),
        "tokenizer": tokenizer and tokenizer.digest,
        "mask_values": getattr(first_samples, "label_values", None),
    }


def _files(dataset, split, samples):
    """The table of a split's files."""
    folder, label_type, captions = folder_of(dataset.name), label_kind(dataset.task), dataset.captions(split)
    paths, labels = samples.paths(), samples.labels
    if captions is None:
        texts = {
            label: json.dumps(label_type.stored(label, dataset.class_names)) for label in {*(labels or [()])}
        }
    else:
        texts = {label: json.dumps(captions[label]) for label in labels}
    statuses = (number for s in map(os.stat, paths) for number in (s.st_size, s.st_mtime_ns))
    statuses = np.fromiter(statuses, "int64", 2 * len(paths)).reshape(-1, 2)
    relative = functools.cache(lambda above: os.path.relpath(above, folder))
    check_utf8(paths)
    places = map(os.path.split, paths)
    names = (os.path.normpath(os.path.join(relative(above), name)) for above, name in places)
    columns = (
        pyarrow.array(names, pyarrow.string(), size=len(paths)),
        [split] * len(paths),
        [texts[label] for label in labels or [()] * len(paths)],
        *statuses.T,
    )
    return pyarrow.table(dict(zip(FILES.names, columns)), FILES)


def files_summary(files):
    """The count and a digest of the `files` of a fingerprint, as JSON values.

    >>> files_summary(fingerprint(load_dataset("digits"))["files"])
    {'count': 0, 'digest': 'e3b0c44298fc1c14'}
    """
    digest = hashlib.sha256()
    for column in files.columns:
        for chunk in column.chunks:
            values = chunk.to_numpy(zero_copy_only=False)
            is_text = values.dtype == object
            digest.update("\0".join(values).encode() if is_text else values.astype("<i8").tobytes())
    return {"count": files.num_rows, "digest": digest.hexdigest()[:16]}


def fingerprint_summary(dataset):
    """`fingerprint` as JSON values, with `files_summary` of its files without their times.

    >>> fingerprint_summary(load_dataset("digits"))["files"]["count"]
    0
    """
    known = fingerprint(dataset)
    return known | {"files": files_summary(known["files"].drop_columns(["time"]))}


def write_files(path, files):
    """Write the `files` of a fingerprint to a Parquet file."""
    with atomic_path(path) as temporary:
        pyarrow.parquet.write_table(files, temporary)


def read_files(path):
    """The `files` of a fingerprint from a Parquet file.

    Raises:
        OSError, ValueError: if it is missing or damaged.
    """
    with pyarrow.parquet.ParquetFile(path) as file:
        return file.read().cast(FILES)


def differences(before, now):
    """Describe what has changed between two fingerprints.

    A file with another time counts as unchanged, because a copied folder has other times, unless it now has
    the size and time of another file: the two were exchanged. Tokenizers are compared if both are known.

    Args:
        before, now: Results of `fingerprint`.

    Returns:
        A list of str; empty if a run can be resumed.

    Example:
        >>> digits = fingerprint(load_dataset("digits"))
        >>> differences(digits, {**digits, "classes": list("1023456789")})
        ['classes: were (0, 1, 2, 3, 4 and 5 more), are (1, 0, 2, 3, 4 and 5 more)']
    """
    changed = []
    versions = before["version"], now["version"]
    if versions[0] != versions[1] and all(str(version).startswith("files ") for version in versions):
        changed.append("the names, sizes, labels or contents of its files")
    elif versions[0] != versions[1]:
        changed.append(f"version: was {before['version']}, is {now['version']}")
    if before["classes"] != now["classes"]:
        changed.append(f"classes: were ({_names(before, now)}), are ({_names(now, before)})")
    tables = before["files"], now["files"]
    files, files_now = ({}, {}) if tables[0] is tables[1] else map(_rows, tables)
    if not files and before["splits"] != now["splits"]:
        changed.append(f"splits: were ({_counts(before)}), are ({_counts(now)})")
    if len({of["tokenizer"] for of in (before, now) if of["tokenizer"]}) > 1:
        changed.append("the tokenizer")
    # Who reads the data for a report does not know the teachers.
    if len({tuple(of["teachers"]) for of in (before, now) if of.get("teachers")}) > 1:
        changed.append("the teachers' weights")
    if before["mask_values"] != now["mask_values"]:
        changed.append("how the labels' values are read")
    changed += _changed_files(files, files_now)
    if not changed and [*files] != [*files_now]:
        changed.append("the order of the files")
    return changed


def _rows(files):
    """(split, label, size, time) by file."""
    columns = [column.to_pylist() for column in files.columns]
    return dict(zip(columns[0], zip(*columns[1:])))


def _changed_files(files, files_now):
    """A line for each kind of change of files."""
    changes, contents = {}, {(size, time) for _, _, size, time in files.values()}
    for file in sorted(files.keys() | files_now.keys()):
        if change := _change(files.get(file), files_now.get(file), contents):
            changes.setdefault(change, []).append(file)
    for change, names in sorted(changes.items()):
        yield f"{len(names)} file{'s' * (len(names) > 1)} {change}, first: {names[0]}"


def _change(before, now, contents):
    """The change of a file, or None; `contents` has the (size, time) of all files before."""
    if before is None:
        return f"added to {now[0]}"
    if now is None:
        return f"missing from {before[0]}"
    (split, label, size, time), (split_now, label_now, *content) = before, now
    if split_now != split:
        return f"moved from {split} to {split_now}"
    if label_now != label:
        return f"of another label in {split}"
    if content[0] != size:
        return f"of another size in {split}"
    if content[1] != time and tuple(content) in contents:
        return f"exchanged with another one in {split}"
    return None


def _names(of, other):
    """The class names from the first difference on."""
    start = len(os.path.commonprefix([of["classes"], other["classes"]]))
    return listed(["…"] * (start > 0) + of["classes"][start:])


def _counts(of):
    return ", ".join(f"{count} {split}" for split, count in of["splits"].items())
