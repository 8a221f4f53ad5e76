"""`keras-vit predict`: what a model, live or exported, sees in images."""

import itertools
import os
import pathlib
import sys

from tqdm import tqdm

from _keras_vit_cli import ROWS
from keras_vit.cli.report import print_now
from keras_vit.cli.rows import FORMATS
from keras_vit.cli.source import named, open_model, task_of
from keras_vit.data.folder import IMAGE_SUFFIXES, image_files
from keras_vit.models.classifying import check_finite, check_head, classify
from keras_vit.writing import atomic_open, check_writable

BATCH = 32  # images read and computed at a time


def run(args):
    written = args.output and pathlib.Path(args.output).suffix[1:].lower()
    if args.output is not None:
        if written not in ROWS[1:]:
            raise ValueError(f"--output wants a file that ends in .csv, .jsonl or .json; got {args.output!r}")
        check_writable(args.output)
    paths = [path for given in args.images for path in images_of(given)]
    model = open_model(args.model, trust=args.trust, sha256=args.sha256)
    if args.class_names:
        model = named(model, args.class_names)
    task = task_of(args.model, model)
    check_head(model)
    names = None
    if task == "regression":
        names = model.class_names or [f"value {i}" for i in range(model.num_classes)]
    progress = args.format == "table" or not sys.stdout.isatty()
    results = predicted(model, paths, task, args.top, progress)
    if args.output is None:
        for text in FORMATS[args.format](results, names):
            print_now(text, end="")
        return
    results = itertools.tee(results)
    texts = [FORMATS[format](copy, names) for format, copy in zip((args.format, written), results)]
    with atomic_open(args.output) as file:
        failure = None
        for printed, text in itertools.zip_longest(*texts, fillvalue=""):
            print_now(printed, end="")
            try:
                failure or file.write(text)
            except OSError as error:  # the rest is printed first
                failure = error
        if failure:
            raise failure


def predicted(model, paths, task, top, progress=True):
    """What a model says of image files: for each a dict of `image`, its path, and `classes` or `values`.

    Args:
        model: A `VisionTransformer` with a head, or what `keras_vit.export` opens in its place.
        paths: Of images.
        task: "regression" has `values`; others have `classes` of `name` and `probability`, the best first.
        top: The count of classes.
        progress: Whether to show a progress bar on a terminal.

    Yields:
        The dicts, as soon as a batch is computed.
    """
    size = BATCH if model.preprocessing.image_size else 1  # images of several sizes are no batch
    starts, bar = range(0, len(paths), size), None if progress else True
    for start in tqdm(starts, "classifying", unit="batch", delay=2, disable=bar):
        batch = paths[start : start + size]
        if task == "regression":
            outputs = check_finite(model.predict_on_batch(model.preprocessing(batch)))
            yield from ({"image": path, "values": row.tolist()} for path, row in zip(batch, outputs))
        else:
            for path, best in zip(batch, classify(model, batch, top, task=task)):
                classes = [{"name": name, "probability": score} for name, score in best]
                yield {"image": path, "classes": classes}


def images_of(given):
    """The paths of images that an argument stands for: a file, a folder of images, or `-`.

    `-` stands for the files and folders listed on standard input, one per line.

    Raises:
        ValueError: if a file does not exist, or there are no images in a folder or the list.
    """
    if given == "-":
        lines = os.fsdecode(sys.stdin.buffer.read()).split("\n")
        found = [path for line in lines if line.strip() for path in _images_at(line.rstrip("\r"))]
        if not found:
            raise ValueError("no images on standard input; wanted one path per line")
        return found
    return _images_at(given)


def _images_at(given):
    path = pathlib.Path(given)
    if path.is_file():
        return [given]
    if not path.is_dir():
        raise ValueError(f"no such image file: {given}")
    found = image_files(path)
    if not found:
        raise ValueError(f"no images in the folder {given!r}; wanted {', '.join(IMAGE_SUFFIXES)}")
    return found
