"""Folders of images and captions, in the form of `imagefolder` of Hugging Face's datasets."""

import json
import os

from keras_vit.data.files import (
    SPLIT_NAMES,
    file_of_row,
    file_orientations,
    read_csv,
    read_text,
    split_of_row,
    visible_files,
)
from keras_vit.data.pairs import Texts
from keras_vit.data.samples import Samples, hold_out_missing
from keras_vit.messages import listed

TABLES = ("metadata.csv", "metadata.jsonl")
FILE, TEXT, SPLIT = "file_name", "text", "split"
COLUMNS = f"{FILE}, {TEXT} and perhaps {SPLIT}"
LAYOUT = (
    f"{' or '.join(TABLES)} with {FILE} and {TEXT} of each caption, in the folder or in each split's folder"
)


def load_caption_folder(root, *, on_bad_image="fail", seed=0):
    r"""Load a folder of images and captions. Hidden files are skipped.

    Args:
        root: The folder, a pathlib.Path. It, or each of its folders train, val and test, has a table
            `metadata.csv` (with the names of the columns in its first line) or `metadata.jsonl` (an object on
            each line): `file_name`, the path of an image relative to the table's folder, and `text`, its
            caption. An image with several captions has several rows. The split of an image is its `split` in
            the table, else its folder train, val or test, else train.
        on_bad_image, seed: As of `load_dataset`.

    Returns:
        As `load_folder`, with `texts`. There are no classes: a label is the index of an image in its split.

    Raises:
        ValueError: if there is no table, or a row of it is wrong; for an unreadable image.

    Example:
        >>> rows = [f"{number}.png,{text} {number}" for number in range(9) for text in ("dot", "a dot")]
        >>> for number in range(9):
        ...     keras.utils.save_img(tmp / f"{number}.png", np.zeros((8, 8, 3)))
        >>> _ = (tmp / "metadata.csv").write_text("\n".join(["file_name,text", *rows]))
        >>> found = load_caption_folder(tmp)
        >>> len(found["splits"]["test"]), found["texts"].wordings["test"][0]
        (1, ('dot 4', 'a dot 4'))

    Source: https://huggingface.co/docs/datasets/image_dataset#imagefolder
    """
    files = [file for in_folder in visible_files(root).values() for file in in_folder]
    tables = [file for file in files if file.name in TABLES and _is_place(file.parent)]
    captions, split_of = _read_tables(root, tables)
    orientations = dict(zip(sorted(captions), file_orientations(sorted(captions))))
    bad = tuple(path for path, orientation in orientations.items() if not orientation)
    splits = {}
    for split in {*split_of.values()}:
        paths = tuple(path for path in orientations if orientations[path] and split_of[path] == split)
        splits[split] = Samples(paths, (0,) * len(paths))
    is_turned = any(orientation and orientation > 1 for orientation in orientations.values())
    if bad and on_bad_image == "fail":
        raise ValueError(
            f"{len(bad)} image(s) cannot be read: {listed(bad)}; remove them or give --on_bad_image skip"
        )
    splits = {
        split: Samples(samples.images, tuple(range(len(samples))), exif=is_turned)
        for split, samples in hold_out_missing(splits, seed).items()
    }
    used = {*captions, *(os.fspath(root / table) for table in tables)}
    return {
        "class_names": (),
        "splits": splits,
        "texts": Texts({split: tuple(tuple(captions[p]) for p in of.images) for split, of in splits.items()}),
        "bad_images": bad,
        "ignored_files": tuple(path for file in files if (path := os.fspath(root / file)) not in used),
    }


def _is_place(folder):
    """Whether a folder, relative to the root, is one of tables: the root, or a folder of a split."""
    return not folder.parts or len(folder.parts) == 1 and folder.name.lower() in SPLIT_NAMES


def _read_tables(root, tables):
    """The captions of each image, and its split, by path."""
    folders = [table.parent for table in tables]
    for table in tables:
        if folders.count(table.parent) > 1:
            raise ValueError(
                f"expected {' or '.join(TABLES)} in {os.fspath(root / table.parent)!r}; got both"
            )
    captions, split_of, lines = {}, {}, {}
    for table in tables:
        for line, row in (_csv_rows if table.suffix == ".csv" else _json_rows)(root / table):
            where = f"{os.fspath(root / table)}, line {line}"
            path, split = _place_of(root, table.parent, row, where)
            caption = row[TEXT].strip()
            if not caption:
                raise ValueError(f"{where}, column {TEXT}: expected a caption; got {row[TEXT]!r}")
            if split_of.setdefault(path, split) != split:
                raise ValueError(f"{where}: {row[FILE]!r} is in split {split_of[path]}, too")
            if (path, caption) in lines:
                raise ValueError(f"{where}: {row[FILE]!r} has this caption in {lines[path, caption]}, too")
            lines[path, caption] = f"line {line}"
            captions.setdefault(path, []).append(caption)
    if not captions:
        raise ValueError(f"no captions in {os.fspath(root)!r}; expected {LAYOUT}")
    if "train" not in split_of.values():
        splits = ", ".join(sorted({*split_of.values()}))
        raise ValueError(f"{os.fspath(root)!r} has no images to train on; it has {splits}")
    return captions, split_of


def _place_of(root, folder, row, where):
    """The path of a row's image, and its split."""
    file = folder / row[FILE].strip()
    path = file_of_row(root, os.fspath(file), f"{where}, column {FILE}")
    above = file.parts[0].lower() if file.parts else ""
    default = above if above in SPLIT_NAMES else "train"
    return path, split_of_row(row.get(SPLIT, ""), default, f"{where}, column {SPLIT}")


def _csv_rows(table):
    """Pairs of a line number and a dict, of a table with the names of its columns in the first line."""
    rows = read_csv(table)
    columns = rows[0][1] if rows else []
    if not {FILE, TEXT} <= {*columns} or len({*columns}) < len(columns):
        raise ValueError(
            f"{os.fspath(table)}, line 1: expected the columns {COLUMNS}, each once; got "
            f"{', '.join(columns) or 'none'}"
        )
    for line, row in rows[1:]:
        if len(row) != len(columns):
            where = f"{os.fspath(table)}, line {line}"
            raise ValueError(f"{where}: expected {len(columns)} values; got {len(row)}")
        yield line, dict(zip(columns, row))


def _json_rows(table):
    """Pairs of a line number and a dict, of a table with an object on each line."""
    for line, text in enumerate(read_text(table).splitlines(), 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            row = text.strip()
        values = [row.get(FILE), row.get(TEXT), row.get(SPLIT, "")] if isinstance(row, dict) else [None]
        if not all(isinstance(value, str) for value in values):
            raise ValueError(
                f"{os.fspath(table)}, line {line}: expected an object with {COLUMNS}, all text; got "
                f"{text.strip()[:80]}"
            )
        yield line, row
