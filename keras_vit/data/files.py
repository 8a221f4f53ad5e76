"""Files of data sets: names of images and splits, folders, tables, paths in tables, unreadable images."""

import concurrent.futures
import csv
import functools
import io
import json
import os
import pathlib

from keras_vit.data.image_headers import read_header
from keras_vit.messages import listed
from keras_vit.progress import Progress

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".avif", ".heic", ".heif"),
)
CHUNK = 256  # images that a thread checks at a time
UNDECODABLE = "it cannot be decoded"  # why an image is skipped
CLASSES = "classes.txt"  # the names of classes
MOST_NUMBERS = 1_000_000  # classes without names
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def visible_files(root):
    """The names of the files in each folder, sorted; hidden ones and `__MACOSX` are skipped.

    Links to folders are followed, but each folder is there once.

    Returns:
        dict of pathlib.PurePath, relative to the root, to a list of str, with the root and every folder below
        it.

    Example:
        >>> (tmp / "__MACOSX").mkdir()
        >>> for name in ("a.jpg", "._a.jpg", "__MACOSX/b.jpg"):
        ...     _ = (tmp / name).write_text("")
        >>> visible_files(tmp)
        {PurePosixPath('.'): ['a.jpg']}
    """
    files_of, starts, seen = {}, [os.fspath(root)], set()
    above = f"{os.path.realpath(root)}{os.sep}"
    # Links are followed after all folders, so that what is in the root is read in its own place.
    for start in starts:
        for folder, folders, files in os.walk(start):
            real = os.path.realpath(folder)
            is_above = folder != starts[0] and above.startswith(os.path.join(real, ""))
            if real in seen or is_above:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = [name for name in sorted(folders) if not _is_hidden(name)]
            paths = (os.path.join(folder, name) for name in folders)
            starts += [path for path in paths if os.path.islink(path)]
            files = [name for name in sorted(files) if not _is_hidden(name)]
            files_of[pathlib.PurePath(folder).relative_to(root)] = files
    return dict(sorted(files_of.items(), key=lambda item: item[0].parts))


def paths_of(root, files):
    """The paths of what `visible_files` returns.

    >>> [*paths_of(pathlib.Path("a"), {pathlib.PurePath("b"): ["1.jpg", "2.jpg"]})]
    ['a/b/1.jpg', 'a/b/2.jpg']
    """
    for folder, names in files.items():
        above = os.fspath(pathlib.Path(root, folder))  # A million paths of pathlib take 3 seconds.
        start = "" if above == os.curdir else os.path.join(above, "")
        yield from (start + name for name in names)


def image_files(root):
    """Paths of the visible images in a folder and its subfolders, sorted.

    Example:
        >>> _ = [(tmp / name).write_text("") for name in ("b.tiff", "a.JPG", ".c.jpg", "d.txt")]
        >>> [os.path.basename(path) for path in image_files(tmp)]
        ['a.JPG', 'b.tiff']
    """
    return sorted(paths_of(root, images_among(visible_files(root))))


def images_among(files):
    """The images among what `visible_files` returns, in the folders with images."""
    images = {
        folder: [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
        for folder, names in files.items()
    }
    return {folder: names for folder, names in images.items() if names}


def _is_hidden(name):
    return name.startswith(".") or name == "__MACOSX"


def refuse_links_to_one_image(paths):
    """Raise ValueError for images of which two are the same file, by symbolic links.

    An image with several labels has one path, which may come again.

    >>> refuse_links_to_one_image(["images/a.png", "images/b.png"])
    """
    real_folder, seen = functools.cache(os.path.realpath), {}
    for path in dict.fromkeys(paths):
        folder, name = os.path.split(path)
        real = os.path.realpath(path) if os.path.islink(path) else os.path.join(real_folder(folder), name)
        if real in seen:
            raise ValueError(f"expected each image once; got {seen[real]} and {path}, which are one file")
        seen[real] = path


def file_headers(paths, decode=False):
    """The `keras_vit.data.image_headers.Header` of each image; None for those that cannot be read.

    Args:
        paths: A list of str.
        decode: Whether to decode each image. False decodes those whose headers are unusual, and finds
            those that are cut off, but not all that are damaged.

    Example:
        >>> _ = (tmp / "text.jpg").write_text("no image")
        >>> file_headers([str(tmp / "text.jpg")])
        [None]
    """
    from keras_vit.data.decoding.model_input import file_header  # needs TensorFlow

    headers = [None] * len(paths) if decode else mapped(read_header, paths, "reading headers")
    unknown = [number for number, header in enumerate(headers) if header is None]
    # The first call compiles the function, which several threads would otherwise do at the same time.
    first = [file_header(paths[number]) for number in unknown[:1]]
    rest = mapped(file_header, [paths[number] for number in unknown[1:]], "decoding images")
    for number, header in zip(unknown, first + rest):
        headers[number] = header
    return headers


def mapped(function, paths, words):
    """The results of a function for paths, which threads call, with a bar if it takes long.

    >>> mapped(len, ["a.png", "b"], "reading")
    [5, 1]
    """
    chunks = [paths[start : start + CHUNK] for start in range(0, len(paths), CHUNK)]
    results = []
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        Progress(None, words, total=len(paths), unit="image") as bar,
    ):
        for done in pool.map(lambda chunk: [*map(function, chunk)], chunks):
            results += done
            bar.update(len(done))
    return results


def refuse_unreadable(images, on_bad_image, noun="image(s)", reasons=None):
    """Raise ValueError for files that cannot be read, unless `on_bad_image` is "skip".

    Args:
        images: Images that cannot be decoded, in an iterable.
        on_bad_image: As for `load_dataset`.
        noun: What the files are, for the message.
        reasons: dict from further files to the reason.

    Returns:
        dict from all files to the reason, as in `Dataset.bad_images`.

    Example:
        >>> refuse_unreadable(["a.png"], "fail")
        Traceback (most recent call last):
        ValueError: 1 image(s) cannot be read: a.png; remove them or give --on_bad_image skip
    """
    reasons = reasons or {}
    files = [*images, *(f"{path} ({reason})" for path, reason in reasons.items())]
    if files and on_bad_image == "fail":
        raise ValueError(
            f"{len(files)} {noun} cannot be read: {listed(files, 3)}; remove them or give --on_bad_image skip"
        )
    return dict.fromkeys(images, UNDECODABLE) | reasons


def left_out(bad_images):
    """The end of a message about images that are left out, a dict to the reasons; empty for no images.

    >>> left_out({"a.png": "damaged"}), left_out({})
    ('; left out: a.png (damaged)', '')
    """
    reasons = [f"{path} ({reason})" for path, reason in bad_images.items()]
    return f"; left out: {listed(reasons, 2)}" * bool(reasons)


def refuse_wrong(wrong, on_bad_image, noun="box(es)"):
    """Raise ValueError for images with wrong labels, unless `on_bad_image` is "skip".

    Args:
        wrong: dict from images to what is wrong with their labels, lists of str.
        on_bad_image: As for `load_dataset`.
        noun: Of what is wrong, for the message.

    Returns:
        dict from the images to the reason, as in `Dataset.bad_images`.

    Example:
        >>> refuse_wrong({"a.png": ["a.json, image 0 (unknown class 'cow')"]}, "skip")
        {'a.png': "a.json, image 0 (unknown class 'cow')"}
    """
    reasons = [reason for reasons in wrong.values() for reason in reasons]
    if reasons and on_bad_image != "skip":
        raise ValueError(
            f"{len(reasons)} {noun} are wrong: {listed(reasons, 2)}; mend them or give --on_bad_image skip, "
            "which leaves out their images"
        )
    return {image: listed(reasons) for image, reasons in wrong.items()}


def read_text(path):
    """The content of a text file in UTF-8, without the mark that some editors write at its beginning.

    Raises:
        ValueError: if it cannot be read.

    Example:
        >>> _ = (tmp / "a.txt").write_text("cat", encoding="utf-8-sig")
        >>> read_text(tmp / "a.txt")
        'cat'
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{os.fspath(path)!r} is not a readable text file: {error}") from None


def read_names(path):
    r"""The names in a text file, one on each line; none without the file.

    >>> _ = (tmp / "classes.txt").write_text("cat \ndog\n")
    >>> read_names(tmp / "classes.txt"), read_names(tmp / "none.txt")
    (('cat', 'dog'), ())
    """
    return tuple(map(str.strip, read_text(path).rstrip().split("\n"))) if path.is_file() else ()


def numbered_names(count, path):
    """The numbers of classes as their names.

    Args:
        count: The number of classes.
        path: The file that could have their names, for messages.

    Raises:
        ValueError: for more than a million classes, whose numbers are hardly those of classes.

    Example:
        >>> numbered_names(3, "classes.txt")
        ('0', '1', '2')
    """
    if count > MOST_NUMBERS:
        raise ValueError(
            f"expected numbers of classes below {MOST_NUMBERS:,}; got {count - 1}: number them from 0, or "
            f"write their names into {os.fspath(path)!r}"
        )
    return tuple(map(str, range(count)))


def parse_json(text, where):
    """The value of a JSON text.

    Raises:
        ValueError: if it is none, or nested too deeply, with the place.

    Example:
        >>> parse_json("[1", "a.json")
        Traceback (most recent call last):
        ValueError: a.json: expected JSON; got Expecting ',' delimiter: line 1 column 3 (char 2)
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "values nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{where}: expected JSON; got {reason}") from None


def json_lines(path):
    r"""Yield the place and the value of each line of JSON in a file, except empty lines.

    Only "\n" ends a line: in its texts JSON allows other ends of lines, such as U+2028.

    Args:
        path: The path of the file.

    Raises:
        ValueError: if it cannot be read, or a line is no JSON, with the place.

    Example:
        >>> _ = (tmp / "a.jsonl").write_text('{"a": 1}\n\n["a\u2028b"]\n', encoding="utf-8")
        >>> [value for _, value in json_lines(tmp / "a.jsonl")]
        [{'a': 1}, ['a\u2028b']]
    """
    for number, line in enumerate(read_text(pathlib.Path(path)).split("\n"), 1):
        if line.strip():
            where = f"{os.fspath(path)}, line {number}"
            yield where, parse_json(line, where)


def read_csv(path):
    r"""The rows of a table with the numbers of their last lines; rows without values are left out.

    Args:
        path: pathlib.Path.

    Returns:
        List of (line number, list of str).

    Raises:
        ValueError: if it is no table, for example with a quotation mark that is not closed.

    Example:
        >>> _ = (tmp / "a.csv").write_text('file,label\n\na.png,"cat, black"\n')
        >>> read_csv(tmp / "a.csv")
        [(1, ['file', 'label']), (3, ['a.png', 'cat, black'])]
    """
    # Without `strict` an unclosed quotation mark makes one value of the rest of the file.
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        return [(reader.line_num, row) for row in reader if any(value.strip() for value in row)]
    except csv.Error as error:
        raise ValueError(f"{os.fspath(path)}, line {reader.line_num}: {error}") from None


def read_table(path, rows, accepts, expected):
    r"""The rows below the first one, which has the names of the columns.

    Args:
        path: Of the table, for messages.
        rows: As for `read_csv`.
        accepts: A function from the names of the columns to whether they are as expected.
        expected: The names in words.

    Yields:
        (place for messages, dict from columns to texts).

    Raises:
        ValueError: for other columns, or a row of another length.

    Example:
        >>> rows = [(1, ["file", "label"]), (3, ["a.png", "cat"])]
        >>> [*read_table("a.csv", rows, lambda names: "file" in names, "file and label")]
        [('a.csv, line 3', {'file': 'a.png', 'label': 'cat'})]
    """
    columns = rows[0][1] if rows else []
    if not accepts(columns) or len({*columns}) < len(columns):
        raise ValueError(
            f"{os.fspath(path)}, line 1: expected the columns {expected}, each once; got "
            f"{', '.join(columns) or 'none'}"
        )
    for line, values in rows[1:]:
        where = f"{os.fspath(path)}, line {line}"
        if len(values) != len(columns):
            raise ValueError(f"{where}: expected {len(columns)} values; got {len(values)}")
        yield where, dict(zip(columns, values))


def file_of_row(root, file, where):
    """The path of an image that a table names.

    Args:
        root: The folder, pathlib.Path, that has to contain the image.
        file: The path relative to the folder, a str.
        where: The table, line and column, for messages.

    Raises:
        ValueError: if there is no such file in the folder.
    """
    relative = os.path.normpath(file.strip())
    if os.path.isabs(relative) or relative.split(os.sep)[0] == os.pardir:
        raise ValueError(f"{where}: expected a file in {os.fspath(root)!r}; got {file!r}")
    path = os.path.join(root, relative)
    if "\0" in file or not os.path.isfile(path):
        raise ValueError(f"{where}: no such file: {file!r}")
    return path
