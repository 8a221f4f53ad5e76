"""`keras-vit predict`: what a model, live or exported, predicts for images."""

import itertools
import os
import pathlib
import sys

from tqdm import tqdm

from keras_vit.cli.report import print_now
from keras_vit.cli.rows import FORMATS
from keras_vit.cli.source import open_model, task_of, with_class_names
from keras_vit.data.folder import IMAGE_SUFFIXES, image_files
from keras_vit.models.classifying import check_finite, check_head, classify
from keras_vit.writing import atomic_open, check_writable

BATCH = 32  # images read and computed at a time


def run(args):
    suffix = args.output and pathlib.Path(args.output).suffix[1:].lower()
    if args.format not in FORMATS:
        raise ValueError(f"expected --format to be one of {', '.join(FORMATS)}; got {args.format!r}")
    if args.output is not None:
        if suffix not in FORMATS or suffix == "table":
            raise ValueError(f"expected --output to end in .csv, .jsonl or .json; got {args.output!r}")
        check_writable(args.output)
    paths = [path for argument in args.images for path in images_of(argument)]
    model = open_model(args.model, trust=args.trust, sha256=args.sha256)
    if args.class_names:
        model = with_class_names(model, args.class_names)
    task = task_of(args.model, model)
    check_head(model)
    names = None
    if task == "regression":
        names = model.class_names or [f"value {i}" for i in range(model.num_classes)]
    progress = args.format == "table" or not sys.stdout.isatty()
    results = predicted(model, paths, task, args.top, progress)
    if args.output is not None:
        results, copy = itertools.tee(results)
    for text in FORMATS[args.format](results, names):
        print_now(text, end="")
    if args.output is not None:
        with atomic_open(args.output) as file:
            file.writelines(FORMATS[suffix](copy, names))


def predicted(model, paths, task, top, progress=True):
    """Predict image files: for each a dict of `image`, its path, and `classes` or `values`.

    Args:
        model: A `VisionTransformer` with a head, or an `ExportedModel`.
        paths: Of images.
        task: "regression" has `values`; others have `classes` of `name` and `probability`, by decreasing
            probability.
        top: The number of classes.
        progress: Whether to show a progress bar on a terminal.

    Yields:
        The dicts, as soon as a batch is computed.
    """
    size = BATCH if model.preprocessing.image_size else 1  # images of different sizes cannot be batched
    starts, disable = range(0, len(paths), size), None if progress else True
    for start in tqdm(starts, "classifying", unit="batch", delay=2, disable=disable):
        batch = paths[start : start + size]
        if task == "regression":
            outputs = check_finite(model.predict_on_batch(model.preprocessing(batch)))
            yield from ({"image": path, "values": row.tolist()} for path, row in zip(batch, outputs))
        else:
            for path, best in zip(batch, classify(model, batch, top, task=task)):
                classes = [{"name": name, "probability": score} for name, score in best]
                yield {"image": path, "classes": classes}


def images_of(argument):
    """Return the image files of an argument: a file, a folder of images, or `-`.

    `-` is a list of files and folders on standard input, one per line.

    Raises:
        ValueError: if a file does not exist, or there are no images in a folder or the list.
    """
    if argument != "-":
        return _images_at(argument)
    lines = os.fsdecode(sys.stdin.buffer.read()).split("\n")
    found = [path for line in lines if line.strip() for path in _images_at(line.rstrip("\r"))]
    if not found:
        raise ValueError("expected one path per line on standard input; got no images")
    return found


def _images_at(argument):
    path = pathlib.Path(argument)
    if path.is_file():
        return [argument]
    if not path.is_dir():
        raise ValueError(f"no such image file: {argument}")
    found = image_files(path)
    if not found:
        raise ValueError(f"no images in the folder {argument!r}; expected {', '.join(IMAGE_SUFFIXES)}")
    return found
