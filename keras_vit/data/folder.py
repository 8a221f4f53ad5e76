"""Folders of images: classes as sub-folders, or labels in a table."""

import concurrent.futures
import csv
import math
import os

from tqdm import tqdm

from keras_vit.data.samples import Samples

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
SPLIT_NAMES = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}
TABLE = "labels.csv"


def load_folder(root, task="single_label", on_bad_image="fail"):
    r"""The class names, the splits that there are, and the unreadable images that were left out.

    Args:
        root: A pathlib.Path. For "single_label" with {train,val,test}/CLASS/* or CLASS/*; otherwise with a
            table `labels.csv` of columns `file` (below the folder), `split` (may be missing) and one for
            each class (0 or 1) or each target (a number).
        task, on_bad_image: As in `load_dataset`.

    Returns:
        Names, samples by split, paths.

    Raises:
        ValueError: if the folder is missing or holds no such thing, a line of the table is wrong, or an
            image is unreadable.

    Example:
        >>> _ = (tmp / "labels.csv").write_text("file,smile,hat\na.png,1,0\nb.png,1,1")
        >>> for name in ("a.png", "b.png"):
        ...     keras.utils.save_img(tmp / name, np.zeros((8, 8, 3)))
        >>> names, splits, bad = load_folder(tmp, "multi_label")
        >>> names, splits["train"].labels
        (('smile', 'hat'), ((1.0, 0.0), (1.0, 1.0)))
    """
    if not root.is_dir():
        raise ValueError(f"no such folder: {os.fspath(root)!r}")
    names, found = (_classes if task == "single_label" else _table)(root, task)
    splits, bad = {}, []
    for split, (paths, labels) in found.items():
        unreadable = set(unreadable_images(paths))
        bad += sorted(unreadable)
        readable = [i for i, path in enumerate(paths) if path not in unreadable]
        splits[split] = Samples(paths, labels).take(readable)
    if bad and on_bad_image == "fail":
        raise ValueError(
            f"{len(bad)} image(s) cannot be read: {', '.join(bad[:5])}{', …' * (len(bad) > 5)}; "
            "remove them or give --on_bad_image skip"
        )
    return names, splits, tuple(bad)


def _classes(root, task):
    """Class names, and by split the paths and their class numbers."""
    roots = {split: root / folder for folder, split in SPLIT_NAMES.items() if (root / folder).is_dir()}
    if "train" not in roots:
        roots = {"train": root}
    found = {split: _images_by_class(folder) for split, folder in roots.items()}
    class_names = tuple(sorted(set().union(*found.values())))
    if not class_names:
        table = " (for its labels.csv give the task multi_label or regression)" * (root / TABLE).is_file()
        raise ValueError(
            f"no images in {os.fspath(root)!r}; wanted CLASS/*.jpg (or {', '.join(IMAGE_SUFFIXES[1:])}), "
            f"or train/CLASS/* and test/CLASS/*{table}"
        )
    if len(class_names) < 2:
        raise ValueError(f"{os.fspath(root)!r} holds images of one class only: {class_names[0]!r}")
    return class_names, {
        split: (
            tuple(path for paths in by_class.values() for path in paths),
            tuple(class_names.index(name) for name, paths in by_class.items() for _ in paths),
        )
        for split, by_class in found.items()
    }


def _images_by_class(folder):
    """Paths of the images below each sub-folder, both sorted."""
    found = {}
    for directory in sorted(path for path in folder.iterdir() if path.is_dir()):
        paths = sorted(os.fspath(p) for p in directory.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
        if paths:
            found[directory.name] = paths
    return found


def _table(root, task):
    """The names of the columns, and by split the paths and their numbers."""
    table = root / TABLE
    if not table.is_file():
        raise ValueError(f"task {task!r} needs the table {os.fspath(table)!r}, which is missing")
    with open(table, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        columns = [column.strip() for column in next(rows, [])]
        names = tuple(column for column in columns if column not in ("file", "split"))
        if "file" not in columns or not names or "" in names or len(set(columns)) < len(columns):
            raise ValueError(
                f"{os.fspath(table)}, line 1: wanted the columns file, split (may be missing) and one for "
                f"each class or target, each once; got {', '.join(columns) or 'nothing'}"
            )
        found, lines = {}, {}
        for values in filter(None, rows):
            where = f"{os.fspath(table)}, line {rows.line_num}"
            if len(values) != len(columns):
                raise ValueError(f"{where}: wanted {len(columns)} values; got {len(values)}")
            row = dict(zip(columns, (value.strip() for value in values)))
            path = os.fspath(root / row["file"])
            if not os.path.isfile(path):
                raise ValueError(f"{where}, column file: no such file: {row['file']!r}")
            if path in lines:
                raise ValueError(f"{where}, column file: {row['file']!r} is in line {lines[path]} too")
            lines[path] = rows.line_num
            split = SPLIT_NAMES.get(row.get("split", "train"))
            if split is None:
                raise ValueError(
                    f"{where}, column split: wanted one of {', '.join(SPLIT_NAMES)}; got {row['split']!r}"
                )
            label = tuple(_number(row[name], task, f"{where}, column {name}") for name in names)
            found.setdefault(split, []).append((path, label))
    if "train" not in found:
        raise ValueError(f"{os.fspath(table)} has no samples to train on")
    return names, {split: tuple(zip(*samples)) for split, samples in found.items()}


def _number(text, task, where):
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if task == "multi_label" and number not in (0, 1):
        raise ValueError(f"{where}: wanted 0 or 1; got {text!r}")
    if not math.isfinite(number):
        raise ValueError(f"{where}: wanted a number; got {text!r}")
    return number


def unreadable_images(paths):
    """Those of the image files that TensorFlow's decoder, which will read them, cannot decode.

    Example:
        >>> _ = (tmp / "text.jpg").write_text("no image")
        >>> unreadable_images([str(tmp / "text.jpg")]) == [str(tmp / "text.jpg")]
        True
    """
    from keras_vit.data.images import is_readable

    with concurrent.futures.ThreadPoolExecutor() as pool:
        checked = zip(paths, pool.map(is_readable, paths))
        bar = tqdm(checked, "checking images", len(paths), unit="image", delay=2, disable=None)
        return [path for path, fine in bar if not fine]
