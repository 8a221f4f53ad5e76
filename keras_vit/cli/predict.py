"""`keras-vit predict`: what a model, live or exported, predicts for images."""

import contextlib
import itertools
import os
import pathlib
import sys

from keras_vit.cli import options
from keras_vit.cli.report import print_now
from keras_vit.cli.rows import FORMATS
from keras_vit.rules import one_of
from keras_vit.writing import atomic_open, atomic_path, check_writable

HELP = "classify or segment images or folders of images"
FEW = 32  # images that TensorFlow computes without a graph in less time than it traces one


def add_arguments(add):
    options.model(add)
    add("images", nargs="+", help=options.PATHS)
    add("--top", type=options.positive_int, default=5, help="classes listed for each image (default: 5)")
    add("--class_names", metavar="NAMES", help="imagenet_1k, or a text file with one name per line")
    options.labels(add)
    formats = options.either(FORMATS)
    add("--format", default="table", help=f"what to print: {formats} (default: table)")
    add("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    add("--output", metavar="FILE", help="also write a file, in the format of its suffix")
    masks = "segmentation: folder to write, with masks as palette PNGs and overlays"
    add("--masks", metavar="DIR", help=masks)
    windows = "segmentation: at the images' own scale, in overlapping windows (default: resized as a whole)"
    add("--windows", action="store_true", help=windows)


def needs_keras(args):
    """False for an exported file with a runtime of its own."""
    from keras_vit.export.formats import format_of, suffix_of

    if args.labels or args.prompts or args.masks or not (suffix_of(args.model) or os.path.isdir(args.model)):
        return True
    return format_of(args.model).needs_keras


def run(args):
    from keras_vit.cli.images import images_of
    from keras_vit.cli.labels import with_labels
    from keras_vit.cli.source import open_model, task_of, with_class_names
    from keras_vit.tasks import get_task

    suffix = args.output and pathlib.Path(args.output).suffix[1:].lower()
    one_of(FORMATS).check("--format", args.format)
    if args.output is not None:
        if suffix not in FORMATS or suffix == "table":
            raise ValueError(f"expected --output to end in .csv, .jsonl or .json; got {args.output!r}")
        check_writable(args.output)
    paths = [path for argument in args.images for path in images_of(argument, urls=True)]
    if args.masks:
        from keras_vit.cli.masks import mask_files, mask_writer

        files = mask_files(paths)
    kind = "image_text" if args.labels else "stored"
    model = open_model(args.model, args.trust, args.sha256, kind=kind)
    model = with_labels(model, args.labels, args.prompts, "--labels")
    if args.class_names:
        model = with_class_names(model, args.class_names)
    task = get_task(task_of(args.model, model))
    task.check_model(model)
    if needs_keras(args) and len(paths) <= FEW and not args.windows:
        import keras

        if isinstance(model, keras.Model) and keras.backend.backend() == "tensorflow":
            model.run_eagerly = True
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
            maps["write"] = mask_writer(folder, model, files)
        results = task.rows(model, paths, args.top, progress, **maps)
        if args.output is not None:
            results, copy = itertools.tee(results)
        for text in FORMATS[args.format](results, names):
            print_now(text, end="")
        if args.output is not None:
            with atomic_open(args.output) as file:
                file.writelines(FORMATS[suffix](copy, names))
