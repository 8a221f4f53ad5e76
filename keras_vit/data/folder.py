"""Folders of images: classes as sub-folders, or labels in a table."""

import concurrent.futures
import csv
import math
import os
import pathlib
import re

from tqdm import tqdm

from keras_vit.data.images import file_orientation
from keras_vit.data.samples import Samples
from keras_vit.messages import listed

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
SPLIT_NAMES = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
# Names that are more often of splits than of classes, such as training_set, seg_test and val2017.
SPLIT_LIKE = re.compile(r"(?<![a-z])(train|test|valid|(val|dev|eval|fold|holdout)(?![a-z]))")
LAYOUT = (
    "folders of classes (CLASS/*.jpg), or of splits alone (train/CLASS/*.jpg and, if there are any, "
    "val/CLASS/*.jpg and test/CLASS/*.jpg)"
)
TABLE = "labels.csv"


def load_folder(root, task="single_label", on_bad_image="fail"):
    r"""The class names, the splits that there are, and what was left out.

    Hidden files and folders, whose names begin with a dot, and `__MACOSX` are skipped.

    Args:
        root: A pathlib.Path. For "single_label" with {train,val,test}/CLASS/* or CLASS/*, or with a table
            `labels.csv` of the columns `file` or `filename` (below the folder), `label` and `split` (may be
            missing). For other tasks the table has a column for each class (0 or 1) or each target (a
            number) in place of `label`.
        task, on_bad_image: As in `load_dataset`.

    Returns:
        Names; samples by split; and what was left out, a dict of `bad_images`, `ignored_files` and
        `empty_folders`, as `Dataset` has them.

    Raises:
        ValueError: if the folder is missing or has another layout, a line of the table is wrong, or an
            image is unreadable.

    Example:
        >>> _ = (tmp / "labels.csv").write_text("file,smile,hat\na.png,1,0\nb.png,1,1")
        >>> for name in ("a.png", "b.png"):
        ...     keras.utils.save_img(tmp / name, np.zeros((8, 8, 3)))
        >>> names, splits, left_out = load_folder(tmp, "multi_label")
        >>> names, splits["train"].labels
        (('smile', 'hat'), ((1.0, 0.0), (1.0, 1.0)))
    """
    if not root.is_dir():
        raise ValueError(f"no such folder: {os.fspath(root)!r}")
    files = visible_files(root)
    if task == "single_label" and "label" not in _columns(root / TABLE):
        names, found, empty = _classes(root, files)
        used = set()
    else:
        names, found = _table(root, task)
        used, empty = {os.fspath(root / TABLE)}, ()
    used.update(path for paths, _ in found.values() for path in paths)
    paths = (os.fspath(root / file) for in_folder in files.values() for file in in_folder)
    ignored = tuple(path for path in paths if path not in used)
    splits, bad = {}, []
    for split, (paths, labels) in found.items():
        orientations = file_orientations(paths)
        readable = [i for i, orientation in enumerate(orientations) if orientation]
        bad += sorted(path for path, orientation in zip(paths, orientations) if not orientation)
        is_turned = any(orientations[i] > 1 for i in readable)
        splits[split] = Samples(paths, labels, exif=is_turned).take(readable)
    if bad and on_bad_image == "fail":
        raise ValueError(
            f"{len(bad)} image(s) cannot be read: {listed(bad)}; remove them or give --on_bad_image skip"
        )
    return names, splits, {"bad_images": tuple(bad), "ignored_files": ignored, "empty_folders": tuple(empty)}


def visible_files(root):
    """The files by folder, both relative to the root and sorted; hidden ones and `__MACOSX` are left out.

    Returns:
        dict of pathlib.PurePath to a list of pathlib.PurePath, with the root and every folder below it.

    Example:
        >>> (tmp / "__MACOSX").mkdir()
        >>> for name in ("a.jpg", "._a.jpg", "__MACOSX/b.jpg"):
        ...     _ = (tmp / name).write_text("")
        >>> [str(file) for files in visible_files(tmp).values() for file in files]
        ['a.jpg']
    """
    found = {}
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if not _is_hidden(name) and not _leads_up(folder, name))
        relative = pathlib.PurePath(folder).relative_to(root)
        found[relative] = [relative / name for name in sorted(files) if not _is_hidden(name)]
    return found


def _is_hidden(name):
    return name.startswith(".") or name == "__MACOSX"


def _leads_up(folder, name):
    """Whether a link leads to a folder that it lies in, which would be read without end."""
    path = os.path.join(folder, name)
    return os.path.islink(path) and f"{os.path.realpath(folder)}/".startswith(f"{os.path.realpath(path)}/")


def image_files(root):
    """Paths of the visible images in a folder and its sub-folders, sorted.

    Example:
        >>> _ = [(tmp / name).write_text("") for name in ("b.tiff", "a.JPG", ".c.jpg", "d.txt")]
        >>> [os.path.basename(path) for path in image_files(tmp)]
        ['a.JPG', 'b.tiff']
    """
    return sorted(os.fspath(root / file) for file in _images(visible_files(root)))


def _images(files):
    return [f for in_folder in files.values() for f in in_folder if f.suffix.lower() in IMAGE_SUFFIXES]


def _classes(root, files):
    """Class names, by split the paths and their class numbers, and the folders without images."""
    images = _images(files)
    folders = {file.parent for file in images}
    splits = _split_folders(root, folders)
    depth = 1 if splits else 0  # of the class folders
    found = {split: [] for split in splits.values() or ["train"]}
    for file in images:
        if len(file.parts) > depth + 1:
            split = splits[file.parts[0]] if splits else "train"
            found[split].append((os.fspath(root / file), file.parts[depth]))
    hint = f"; {TABLE} has no column label" * (root / TABLE).is_file()
    if not any(found.values()):
        raise ValueError(
            f"no images in class folders of {os.fspath(root)!r}; wanted {LAYOUT}, of files that end in "
            f"{', '.join(IMAGE_SUFFIXES)}{hint}"
        )
    with_images = {above for folder in folders for above in (folder, *folder.parents)}
    empty = [
        os.fspath(root / folder)
        for folder in files
        if len(folder.parts) <= depth + 1 and folder not in with_images and folder.parent in with_images
    ]
    return *_numbered(root, found, hint), empty


def _numbered(root, found, hint=""):
    """The class names, and by split the paths, class by class, and their class numbers.

    Args:
        root: The folder, for the message.
        found: By split, pairs of a path and a class name.
        hint: The end of the message.

    Raises:
        ValueError: if there is one class only.
    """
    names = tuple(sorted({name for samples in found.values() for _, name in samples}))
    if len(names) < 2:
        raise ValueError(f"{os.fspath(root)!r} holds images of one class only: {names[0]!r}{hint}")
    numbers = {name: number for number, name in enumerate(names)}
    numbered = {}
    for split, samples in found.items():
        samples = sorted((numbers[name], path) for path, name in samples)
        numbered[split] = tuple(path for _, path in samples), tuple(number for number, _ in samples)
    return names, numbered


def _split_folders(root, folders):
    """The split of each of the root's sub-folders; empty where these are classes.

    Args:
        folders: Those that images lie in directly, relative to the root.

    Raises:
        ValueError: if splits and classes cannot be told apart.
    """
    top = sorted({folder.parts[0] for folder in folders if folder.parts})
    nested = {folder.parts[0] for folder in folders if len(folder.parts) > 1}
    splits = {
        name: SPLIT_NAMES[name.lower()] for name in top if name in nested and name.lower() in SPLIT_NAMES
    }
    if splits:
        clear = len(splits) == len(top) == len({*splits.values()}) and "train" in splits.values()
    else:
        suspects = {name for name in top if SPLIT_LIKE.search(name.lower())}
        clear = not suspects or not suspects & nested and len(suspects) < len(top)
    if not clear:
        raise ValueError(
            f"splits and classes cannot be told apart in {os.fspath(root)!r}, which has the folders "
            f"{listed(top)}; wanted {LAYOUT}"
        )
    return splits


def _columns(table):
    """The names of a table's columns; none where there is no table."""
    if not table.is_file():
        return []
    with open(table, encoding="utf-8-sig", newline="") as file:
        return _header(csv.reader(file))


def _header(rows):
    """The names in the next row, stripped, `filename` being another name of `file`."""
    columns = (column.strip() for column in next(rows, []))
    return ["file" if column == "filename" else column for column in columns]


def _table(root, task):
    """The class names or the columns', and by split the paths and their labels."""
    table = root / TABLE
    if not table.is_file():
        raise ValueError(f"task {task!r} needs the table {os.fspath(table)!r}, which is missing")
    with open(table, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        columns = _header(rows)
        names = tuple(column for column in columns if column not in ("file", "split"))
        is_single = task == "single_label"
        fits = names == ("label",) if is_single else names and "" not in names
        if "file" not in columns or not fits or len(set(columns)) < len(columns):
            labels = "label" if is_single else "one for each class or target"
            raise ValueError(
                f"{os.fspath(table)}, line 1: wanted the columns file (or filename), split (may be missing) "
                f"and {labels}, each once; got {', '.join(columns) or 'nothing'}"
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
            split = SPLIT_NAMES.get(row.get("split", "train").lower())
            if split is None:
                raise ValueError(
                    f"{where}, column split: wanted one of {', '.join(SPLIT_NAMES)}; got {row['split']!r}"
                )
            read = _text if is_single else _number
            label = tuple(read(row[name], task, f"{where}, column {name}") for name in names)
            found.setdefault(split, []).append((path, *label) if is_single else (path, label))
    if "train" not in found:
        raise ValueError(f"{os.fspath(table)} has no samples to train on")
    if is_single:
        return _numbered(root, found)
    return names, {split: tuple(zip(*samples)) for split, samples in found.items()}


def _text(text, task, where):
    if not text:
        raise ValueError(f"{where}: wanted the name of a class; got ''")
    return text


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


def file_orientations(paths):
    """The EXIF orientation of each image, 1 to 8; None for those that cannot be read.

    Example:
        >>> _ = (tmp / "text.jpg").write_text("no image")
        >>> file_orientations([str(tmp / "text.jpg")])
        [None]
    """
    # The first call compiles the function, which several threads would otherwise do at once.
    first = [file_orientation(path) for path in paths[:1]]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        rest = pool.map(file_orientation, paths[1:])
        return first + [*tqdm(rest, "checking images", len(paths) - 1, unit="image", delay=2, disable=None)]
