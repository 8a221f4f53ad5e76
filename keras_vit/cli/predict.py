"""`keras-vit predict`: what a model, live or exported, predicts for images."""

import collections
import contextlib
import itertools
import os
import pathlib
import sys

from keras_vit.cli.labels import with_labels
from keras_vit.cli.report import print_now
from keras_vit.cli.rows import FORMATS
from keras_vit.cli.source import open_model, task_of, with_class_names
from keras_vit.data.files import IMAGE_SUFFIXES
from keras_vit.data.sources.folder import image_files
from keras_vit.data.sources.mask_folder import CLASSES, MASKS, NO_CLASS
from keras_vit.inspection.class_map_pictures import class_overlay, palette_png, png_bytes
from keras_vit.messages import printable
from keras_vit.preprocessing.web_images import is_url
from keras_vit.rules import one_of
from keras_vit.tasks import get_task
from keras_vit.tasks.task import names_or_indices
from keras_vit.writing import atomic_open, atomic_path, check_writable

OVERLAYS = "overlays"
MAX_CLASSES = 255  # in the masks of a data set


def run(args):
    suffix = args.output and pathlib.Path(args.output).suffix[1:].lower()
    one_of(FORMATS).check("--format", args.format)
    if args.output is not None:
        if suffix not in FORMATS or suffix == "table":
            raise ValueError(f"expected --output to end in .csv, .jsonl or .json; got {args.output!r}")
        check_writable(args.output)
    paths = [path for argument in args.images for path in images_of(argument, urls=True)]
    files = mask_files(paths) if args.masks else None
    kind = "image_text" if args.labels else "stored"
    model = open_model(args.model, args.trust, args.sha256, kind=kind)
    model = with_labels(model, args.labels, args.prompts, "--labels")
    if args.class_names:
        model = with_class_names(model, args.class_names)
    task = get_task(task_of(args.model, model))
    task.check_model(model)
    if (args.masks or args.windows) and not task.label.is_map:
        raise ValueError(
            f"--masks and --windows need a model that segments images; this one's task is {task.name!r}"
        )
    if args.windows and model.preprocessing.image_size is None:
        print("--windows changes nothing: this model takes whole images of any size", file=sys.stderr)
    names = task.value_names(model)
    progress = args.format == "table" or not sys.stdout.isatty()
    with contextlib.ExitStack() as at_end:
        maps = {"windows": True} if args.windows else {}
        if args.masks:
            folder = at_end.enter_context(atomic_path(args.masks, overwrite=False))
            maps["write"] = _writer(folder, model, files)
        results = task.rows(model, paths, args.top, progress, **maps)
        if args.output is not None:
            results, copy = itertools.tee(results)
        for text in FORMATS[args.format](results, names):
            print_now(text, end="")
        if args.output is not None:
            with atomic_open(args.output) as file:
                file.writelines(FORMATS[suffix](copy, names))


def lines_of_classes(names):
    """Return class names as lines of `classes.txt`: on one line each, and different from each other.

    >>> lines_of_classes(["sky\\ntree", "-", "sea", "sea"])
    ['sky\\\\ntree', '- (1)', 'sea (2)', 'sea (3)']
    """
    lines = [printable(name).strip() for name in names]
    is_unique = {line: count == 1 for line, count in collections.Counter(["", NO_CLASS, *lines]).items()}
    return [line if is_unique[line] else f"{line} ({i})".strip() for i, line in enumerate(lines)]


def mask_files(paths):
    """Return the relative PNG file for the mask of each image: the image's name below what differs.

    Raises:
        ValueError: if two images have one name.

    >>> mask_files(["a/1.jpg", "b/1.png"])
    {'a/1.jpg': 'a/1.png', 'b/1.png': 'b/1.png'}
    """
    names = names_of([os.path.splitext(path)[0] for path in paths])
    files = {path: f"{name.lstrip('/')}.png" for path, name in zip(paths, names)}
    for file in {*files.values()}:
        images = [path for path, own in files.items() if own == file]
        if len({*map(os.path.abspath, images)}) > 1:
            raise ValueError(f"expected one image for each file {file!r}; got {', '.join(images)}")
    return files


def _writer(folder, model, files):
    """Return a function that writes the mask and the overlay of an image into a new folder."""
    if model.num_classes > MAX_CLASSES:
        raise ValueError(f"masks have at most {MAX_CLASSES} classes; the model has {model.num_classes}")
    folder.mkdir()
    lines = "".join(
        f"{name}\n" for name in lines_of_classes(names_or_indices(model.class_names, model.num_classes))
    )
    (folder / CLASSES).write_text(lines, encoding="utf-8")

    def write(path, image, classes):
        pictures = {MASKS: palette_png(classes), OVERLAYS: png_bytes(class_overlay(image, classes))}
        for kind, content in pictures.items():
            file = folder / kind / files[path]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    return write


def names_of(paths):
    """Return the shortest ends of paths that are unique, so that reports and masks do not name folders.

    >>> names_of(["a/1.png", "a/2.png"]), names_of(["a/1.png", "b/1.png"])
    (['1.png', '2.png'], ['a/1.png', 'b/1.png'])
    """
    paths = [pathlib.PurePath(os.path.abspath(path)) for path in paths]
    for count in itertools.count(1):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len({*names}) == len({*paths}):
            return names


def images_of(argument, urls=False):
    """Return the image files of an argument: a file, a folder of images, `-`, or with `urls` a URL.

    `-` is a list of the others on standard input, one per line.

    Raises:
        ValueError: if a file does not exist, or there are no images in a folder or the list.
    """
    if argument != "-":
        return _images_at(argument, urls)
    lines = os.fsdecode(sys.stdin.buffer.read()).split("\n")
    paths = [path for line in lines if line.strip() for path in _images_at(line.rstrip("\r"), urls)]
    if not paths:
        raise ValueError("expected one path per line on standard input; got no images")
    return paths


def _images_at(argument, urls):
    if urls and is_url(argument):
        return [argument]
    path = pathlib.Path(argument)
    if path.is_file():
        return [argument]
    if not path.is_dir():
        raise ValueError(f"no such image file: {argument}")
    images = image_files(path)
    if not images:
        raise ValueError(f"no images in the folder {argument!r}; expected {', '.join(IMAGE_SUFFIXES)}")
    return images
