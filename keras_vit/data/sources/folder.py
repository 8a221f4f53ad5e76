"""Folders of images: classes as subfolders, or labels in a table."""

import functools
import itertools
import os
import pathlib
import re

from keras_vit.data.files import (
    IMAGE_SUFFIXES,
    SPLIT_NAMES,
    file_of_row,
    images_among,
    paths_of,
    read_csv,
    read_table,
    refuse_links_to_one_image,
    visible_files,
)
from keras_vit.data.folder_splits import folder_splits, split_fields, split_of_row
from keras_vit.data.samples import samples_of_files
from keras_vit.labels import label_kind
from keras_vit.messages import listed, similar_path
from keras_vit.rules import check_utf8
from keras_vit.tasks import folder_hints, folder_loaders, label_kinds

# Names that are more often of splits than of classes, such as training_set, seg_test and val2017.
SPLIT_LIKE = re.compile(r"(?<![a-z])(train|test|valid|(val|dev|eval|fold|holdout)(?![a-z]))")
LAYOUT = (
    "folders of classes (CLASS/*.jpg), or only folders of splits (train/CLASS/*.jpg and, if there are any, "
    "val/CLASS/*.jpg and test/CLASS/*.jpg), or these within each class (CLASS/train/*.jpg)"
)
TABLE = "labels.csv"
VOC = "JPEGImages"  # its folder of images
FILE = ("file", "filename")  # names of its column of images


def load_folder(path, *, task, on_bad_image, seed, texts, labels, **options):
    r"""Load a folder of images. Hidden files and folders, whose names begin with a dot, are skipped.

    Args:
        path: The folder. For "single_label" with {train,val,test}/CLASS/*, CLASS/{train,val,test}/* or
            CLASS/*, or with a table `labels.csv` of the columns `file` or `filename` (relative to the
            folder), `label` and `split` (may be missing, then it is that of the image's folder). For other
            tasks the table has a column for each class (0 or 1) or each target (a number) in place of
            `label`. For labels with a folder of their own, see `folder.py` of their task; with `texts`
            see `keras_vit.tasks.image_text.folder`.
        task, on_bad_image, seed, texts, labels: As for `load_dataset`.

    Returns:
        dict of `class_names`, `splits`, `bad_images`, `ignored_files` and `empty_folders`, as of `Dataset`.

    Raises:
        ValueError: if the folder is missing or has another layout, a line of the table is wrong, or an
            image is unreadable.

    Example:
        >>> _ = (tmp / "labels.csv").write_text("file,smile,hat\na.png,1,0\nb.png,1,1\nc.png,0,1")
        >>> for name in ("a.png", "b.png", "c.png"):
        ...     keras.utils.save_img(tmp / name, np.zeros((8, 8, 3)))
        >>> load_dataset(tmp, task="multi_label").class_names
        ('smile', 'hat')
    """
    root = pathlib.Path(path).expanduser()
    if root.is_file():
        raise ValueError(
            f"expected a folder, such as {os.fspath(root.parent)!r}; got the file {os.fspath(root)!r}"
        )
    if not root.is_dir():
        raise ValueError(f"no such folder: {os.fspath(root)!r}{similar_path(root)}")
    label_type, files = label_kind(task), visible_files(root)
    check_utf8(paths_of(root, images_among(files)))
    load = folder_loaders().get("image_text" if texts else label_type.name)
    load = load or functools.partial(_load_labels, kind=label_type, labels=labels)
    try:
        used, fields = load(root, files, on_bad_image=on_bad_image, seed=seed)
    except ValueError as error:
        hints = folder_hints().values() if label_type.is_class_id and not texts else ()
        if hint := next(filter(None, (advise(root, files) for advise in hints)), None):
            raise ValueError(f"{error}; {hint}") from None
        raise
    refuse_links_to_one_image(path for samples in fields["splits"].values() for path in samples.images)
    ignored = tuple(path for path in paths_of(root, files) if path not in used)
    return {**fields, "ignored_files": ignored}


def _load_labels(root, files, kind, labels, *, on_bad_image, seed):
    """The used files, and fields of a `Dataset`, of a folder of classes or with a table."""
    table = os.fspath(root / TABLE)
    rows = read_csv(root / TABLE) if (root / TABLE).is_file() else []
    if kind.is_class_id and not (rows and "label" in map(str.strip, rows[0][1])):
        names, by_split, stated_by, empty = (_read_classes if labels else _read_images)(root, files)
        for other, own in label_kinds().items():
            if folder := next((one for one in own.map_folders if {*names} == {"images", one}), None):
                raise ValueError(
                    f"{os.fspath(root)!r} has images and {folder}, for the task {other!r} and its recipes; "
                    f"the task is {kind.name!r}"
                )
        if VOC in names:
            raise ValueError(f"{os.fspath(root)!r} has the folders of Pascal VOC, which are no classes")
        used = set()
    elif not rows:
        raise ValueError(f"task {kind.name!r} needs the table {table!r}, which is missing or empty")
    else:
        names, by_split, stated_by = _read_table(root, rows, kind)
        used, empty = {table}, ()
    used.update(*(paths for paths, _ in by_split.values()))
    splits, bad = samples_of_files(by_split, on_bad_image)
    fields = {"class_names": names, **split_fields(splits, stated_by, seed), "bad_images": bad}
    return used, {**fields, "empty_folders": tuple(empty)}


def _read_classes(root, files):
    """Class names; by split the paths and their class indices, and what states it; folders without images."""
    images = images_among(files)
    split_level, class_level = _layout(root, images)
    depth = 0 if split_level is None else 1
    by_split, stated_by = {}, {}
    for folder, names in images.items():
        if len(folder.parts) > depth:
            name = "" if split_level is None else folder.parts[split_level]
            split = SPLIT_NAMES[name.lower()] if name else "train"
            paths = by_split.setdefault(split, {}).setdefault(folder.parts[class_level], [])
            paths += paths_of(root, {folder: names})
            stated_by.setdefault(split, []).extend([os.path.join("*" * split_level, name)] if name else [])
    hint = f"; {TABLE} has no column label" * (root / TABLE).is_file()
    if not by_split:
        raise ValueError(
            f"no images in class folders of {os.fspath(root)!r}; expected {LAYOUT}, of files that end in "
            f"{', '.join(IMAGE_SUFFIXES)}{hint}"
        )
    with_images = {above for folder in images for above in (folder, *folder.parents)}
    empty = [
        os.fspath(root / folder)
        for folder in files
        if len(folder.parts) <= depth + 1 and folder not in with_images and folder.parent in with_images
    ]
    return *_index_classes(root, by_split, hint), stated_by, empty


def _read_images(root, files):
    """As `_read_classes`, or all images without class names where there are no folders of classes."""
    try:
        return _read_classes(root, files)
    except ValueError:
        images = images_among(files)
        if not images:
            raise ValueError(
                f"no images in {os.fspath(root)!r}; expected files that end in {', '.join(IMAGE_SUFFIXES)}"
            ) from None
    paths = [*paths_of(root, images)]
    try:
        splits = folder_splits(root, paths)
    except ValueError:  # Folders of photographs have any names.
        splits = {}
    if "train" not in {split for split, _ in splits.values()}:
        splits = dict.fromkeys(paths, (None, ""))
    by_split, stated_by = {}, {}
    for path, (split, folder) in splits.items():
        by_split.setdefault(split or "train", []).append(path)
        stated_by.setdefault(split or "train", []).extend([folder] if split else [])
    return (), {split: (paths, [0] * len(paths)) for split, paths in by_split.items()}, stated_by, ()


def _index_classes(root, by_split, hint=""):
    """The class names, and by split the paths and their class indices, class by class.

    Args:
        root: The folder, for the message.
        by_split: By split and class name, lists of paths.
        hint: The end of the message.

    Raises:
        ValueError: if there is one class only.
    """
    names = tuple(sorted({name for classes in by_split.values() for name in classes}))
    if len(names) < 2:
        raise ValueError(f"{os.fspath(root)!r} has images of one class only: {names[0]!r}{hint}")
    samples = {split: ([], []) for split in by_split}
    for (split, classes), (index, name) in itertools.product(by_split.items(), enumerate(names)):
        paths, labels = samples[split]
        paths += sorted(classes.get(name, ()))
        labels += [index] * (len(paths) - len(labels))
    return names, samples


def _layout(root, folders):
    """The place of the split among the folders above an image, None without splits; and that of the class.

    Args:
        folders: Those that contain images directly, relative to the root.

    Raises:
        ValueError: if splits and classes cannot be distinguished.
    """
    top = sorted({folder.parts[0] for folder in folders if folder.parts})
    nested = {folder.parts[0] for folder in folders if len(folder.parts) > 1}
    inner = {(folder.parts[0], name.lower()) for folder in folders for name in folder.parts[1:]}
    below = {name for _, name in inner} & SPLIT_NAMES.keys()
    splits = {name: SPLIT_NAMES[name.lower()] for name in nested if name.lower() in SPLIT_NAMES}
    if splits:
        is_clear = len(splits) == len(top) == len({*splits.values()}) and "train" in splits.values()
        is_clear &= not any(SPLIT_NAMES.keys() & map(str.lower, folder.parts[2:]) for folder in folders)
        places = 0, 1
    elif below:
        seconds = {
            folder.parts[1].lower() if len(folder.parts) > 1 else "" for folder in folders if folder.parts
        }
        is_clear = seconds == below and "train" in map(SPLIT_NAMES.get, below)
        places = 1, 0
    else:
        suspects = {name for name in top if SPLIT_LIKE.search(name.lower())}
        is_clear = not suspects or not suspects & nested and len(suspects) < len(top)
        # A class may have a folder such as train_station, but several are more likely to be splits.
        is_clear &= sum(bool(SPLIT_LIKE.search(name)) for _, name in inner) < 2
        places = None, 0
    if not is_clear:
        raise ValueError(
            f"splits and classes cannot be distinguished in {os.fspath(root)!r}, which has the folders "
            f"{listed(top)}; expected {LAYOUT}"
        )
    return places


def _read_table(root, rows, kind):
    """The names of the classes or targets, and by split the paths and their labels."""
    table, rows = os.fspath(root / TABLE), [(line, [*map(str.strip, values)]) for line, values in rows]
    names = tuple(column for column in rows[0][1] if column not in (*FILE, "split"))
    expected = f"file (or filename), split (may be missing) and {kind.columns}"
    by_split, stated_by, lines = {}, {}, {}

    def accepts(columns):
        return len({*FILE} & {*columns}) == 1 and kind.fits_columns(names)

    for where, row in read_table(table, rows, accepts, expected):
        column = next(name for name in FILE if name in row)
        path = file_of_row(root, row[column], f"{where}, column {column}")
        if where != lines.setdefault(path, where):
            line = lines[path].rpartition(", ")[2]
            raise ValueError(f"{where}, column {column}: {row[column]!r} is in {line} too")
        split, pattern = split_of_row(root, path, row.get("split", ""), table, f"{where}, column split")
        stated_by.setdefault(split, []).extend([pattern] if pattern else [])
        label = tuple(_parse_label(kind, row[name], f"{where}, column {name}") for name in names)
        if kind.is_class_id:
            by_split.setdefault(split, {}).setdefault(*label, []).append(path)
        else:
            paths, labels = by_split.setdefault(split, ([], []))
            paths.append(path)
            labels.append(label)
    if "train" not in by_split:
        raise ValueError(f"{table} has no samples to train on")
    return *(_index_classes(root, by_split) if kind.is_class_id else (names, by_split)), stated_by


def _parse_label(kind, text, where):
    try:
        return kind.parse(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
