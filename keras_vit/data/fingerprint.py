"""Fingerprints of data sets, by which a resumed run recognizes its data; no image is read for them."""

import os

from keras_vit.data.datasets import folder_of
from keras_vit.labels import label_kind
from keras_vit.messages import listed


def fingerprint(dataset, tokenizer=None):
    """The properties of a data set that affect training and evaluation.

    Args:
        dataset: A `Dataset`.
        tokenizer: The `TextPreprocessing` of its texts, or None.

    Returns:
        dict of JSON values: `version`, that of TensorFlow Datasets or None; `classes`; `splits`, the sample
        count of each; and `files`, by their path relative to the folder: the split, the label or captions,
        the size in bytes and the modification time in ns. Data that are not in files have no `files`.
        `tokenizer` is the tokenizer's digest, or None. `mask_values` has the class of each mask value, or of
        each color, of masks with a `classes.txt`. `order` is the name of the order in training.

    Example:
        >>> fingerprint(load_dataset("digits"))["splits"]
        {'train': 1302, 'validation': 140, 'test': 355}
    """
    names = list(dataset.class_names)
    folder, kind = folder_of(dataset.name), label_kind(dataset.task)
    files = {}
    for split, samples in dataset.splits.items() if folder else ():
        paths, captions = samples.paths(), dataset.captions(split)
        for path, label in zip(paths, samples.labels or [()] * len(paths)):
            label = kind.stored(label, names) if captions is None else list(captions[label])
            status = os.stat(path)
            name = path.removeprefix(f"{folder}{os.sep}")
            files[name] = [split, label, status.st_size, status.st_mtime_ns]
    of_any_split = next(iter(dataset.splits.values()))
    return {
        "version": dataset.version,
        "classes": names,
        "splits": {split: len(samples) for split, samples in dataset.splits.items()},
        "files": files,
        "tokenizer": tokenizer and tokenizer.digest,
        "mask_values": getattr(of_any_split, "label_values", None),
        "order": of_any_split.order,
    }


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
    if before["version"] != now["version"]:
        changed.append(f"version: was {before['version']}, is {now['version']}")
    if before["classes"] != now["classes"]:
        changed.append(f"classes: were ({_names(before, now)}), are ({_names(now, before)})")
    if not before["files"] and before["splits"] != now["splits"]:
        changed.append(f"splits: were ({_counts(before)}), are ({_counts(now)})")
    if len({of["tokenizer"] for of in (before, now) if of.get("tokenizer")}) > 1:
        changed.append("the tokenizer")
    if before.get("mask_values", now["mask_values"]) != now["mask_values"]:  # earlier versions had none
        changed.append("the classes of the masks' values")
    changes, contents = {}, {(size, time) for _, _, size, time in before["files"].values()}
    for file in sorted(before["files"].keys() | now["files"].keys()):
        change = _change(before["files"].get(file), now["files"].get(file), contents)
        if change:
            changes.setdefault(change, []).append(file)
    for change, files in sorted(changes.items()):
        changed.append(f"{len(files)} file{'s' * (len(files) > 1)} {change}, first: {files[0]}")
    if not changed and [*before["files"]] != [*now["files"]]:
        changed.append("the order of the files")
    return changed


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
