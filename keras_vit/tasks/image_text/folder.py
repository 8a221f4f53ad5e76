"""Folders of images and captions, in the form of `imagefolder` of Hugging Face's datasets."""

import dataclasses
import json
import os

from keras_vit.data.files import file_of_row, json_lines, read_csv, read_table
from keras_vit.data.folder_splits import split_among, split_fields, split_of_row
from keras_vit.data.samples import samples_of_files
from keras_vit.data.texts import Texts

TABLES = ("metadata.csv", "metadata.jsonl")
FILE, TEXT, SPLIT = "file_name", "text", "split"
COLUMNS = f"{FILE}, {TEXT} and perhaps {SPLIT}"
LAYOUT = (
    f"{' or '.join(TABLES)} with {FILE} and {TEXT} of each caption, in the folder or in each split's folder"
)


def load_caption_folder(root, files, *, on_bad_image="fail", seed=0):
    r"""Load a folder of images and captions.

    Args:
        root: The folder, a pathlib.Path. It, or each of its folders train, val and test, has a table
            `metadata.csv` (with the names of the columns in its first line) or `metadata.jsonl` (an object on
            each line): `file_name`, the path of an image relative to the table's folder, and `text`, its
            caption. An image with several captions has several rows. The split of an image is its `split` in
            the table, else its folder train, val or test, else train.
        files: As for `visible_files`.
        on_bad_image, seed: As for `load_dataset`.

    Returns:
        (the paths of the files that are used, fields of a `Dataset` with `texts`). There are no classes: a
        label is the index of an image in its split.

    Raises:
        ValueError: if there is no table, or a row of it is wrong; for an unreadable image.

    Example:
        >>> rows = [f"{number}.png,{text} {number}" for number in range(9) for text in ("dot", "a dot")]
        >>> for number in range(9):
        ...     keras.utils.save_img(tmp / f"{number}.png", np.zeros((8, 8, 3)))
        >>> _ = (tmp / "metadata.csv").write_text("\n".join(["file_name,text", *rows]))
        >>> _, found = load_caption_folder(tmp, keras_vit.data.files.visible_files(tmp))
        >>> len(found["splits"]["test"]), found["texts"].wordings["test"][0]
        (1, ('dot 4', 'a dot 4'))

    Source: https://huggingface.co/docs/datasets/image_dataset#imagefolder
    """
    folders = [folder for folder in files if _is_place(folder)]
    tables = [folder / name for folder in folders for name in files[folder] if name in TABLES]
    captions, split_of = _read_tables(root, tables)
    by_split, stated_by = {}, {}
    for path in sorted(captions):
        split, pattern = split_of[path]
        by_split.setdefault(split, []).append(path)
        stated_by.setdefault(split, []).extend([pattern] if pattern else [])
    by_split = {split: (paths, [0] * len(paths)) for split, paths in by_split.items()}
    splits, bad = samples_of_files(by_split, on_bad_image)
    fields = split_fields(splits, stated_by, seed)
    splits = fields["splits"] = {
        split: dataclasses.replace(samples, labels=tuple(range(len(samples))))
        for split, samples in fields["splits"].items()
    }
    texts = {split: tuple(tuple(captions[p]) for p in pattern.images) for split, pattern in splits.items()}
    used = {*captions, *(os.fspath(root / table) for table in tables)}
    return used, {**fields, "class_names": (), "texts": Texts(texts), "bad_images": bad}


def _is_place(folder):
    """Whether a folder, relative to the root, is one of tables: the root, or a folder of a split."""
    return not folder.parts or len(folder.parts) == 1 and split_among(folder.parts)[0] is not None


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
        for where, row in (_csv_rows if table.suffix == ".csv" else _json_rows)(root / table):
            path, split = _place_of(root, table, row, where)
            caption = row[TEXT].strip()
            if not caption:
                raise ValueError(f"{where}, column {TEXT}: expected a caption; got {row[TEXT]!r}")
            if split_of.setdefault(path, split)[0] != split[0]:
                raise ValueError(f"{where}: {row[FILE]!r} is in split {split_of[path][0]}, too")
            if (path, caption) in lines:
                raise ValueError(f"{where}: {row[FILE]!r} has this caption in {lines[path, caption]}, too")
            lines[path, caption] = where.rpartition(", ")[2]
            captions.setdefault(path, []).append(caption)
    if not captions:
        raise ValueError(f"no captions in {os.fspath(root)!r}; expected {LAYOUT}")
    splits = sorted({split for split, _ in split_of.values()})
    if "train" not in splits:
        splits = ", ".join(splits)
        raise ValueError(f"{os.fspath(root)!r} has no images to train on; it has {splits}")
    return captions, split_of


def _place_of(root, table, row, where):
    """The path of a row's image, its split, and what states it."""
    file = os.path.normpath(os.path.join(table.parent, row[FILE].strip()))
    path = file_of_row(root, file, f"{where}, column {FILE}")
    return path, split_of_row(root, path, row.get(SPLIT, ""), root / table, f"{where}, column {SPLIT}")


def _csv_rows(table):
    """Pairs of a place for messages and a row, of a table with the names of its columns in the first line."""
    return read_table(table, read_csv(table), {FILE, TEXT}.issubset, COLUMNS)


def _json_rows(table):
    """Pairs of a place for messages and a row, of a table with an object on each line."""
    for where, row in json_lines(table):
        values = [row.get(FILE), row.get(TEXT), row.get(SPLIT, "")] if isinstance(row, dict) else [None]
        if not all(isinstance(value, str) for value in values):
            got = json.dumps(row, ensure_ascii=False)[:80]
            raise ValueError(f"{where}: expected an object with {COLUMNS}, all text; got {got}")
        yield where, row
