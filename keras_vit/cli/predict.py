"""`keras-vit predict`: what a model, live or exported, predicts for images."""

import contextlib
import hashlib
import itertools
import os
import pathlib
import sys
import tempfile

from keras_vit.cli import options
from keras_vit.cli.journal import Journal, content_digest, only_process
from keras_vit.cli.prediction_folder import folders_of
from keras_vit.cli.report import print_now
from keras_vit.cli.rows import COCO, FILES, FORMATS, suffix_of, write_rows
from keras_vit.cli.shown_predictions import Shown
from keras_vit.messages import listed
from keras_vit.preprocessing.web_images import is_url
from keras_vit.rules import check_utf8, one_of
from keras_vit.tasks import prediction_folders
from keras_vit.writing import atomic_path, check_writable

FEW = 32  # images that TensorFlow computes without a graph in less time than it traces one
PARTIAL = ".partial"  # ends the name of the file with the rows of a command that was interrupted


def add_arguments(add):
    options.model(add)
    add("images", nargs="+", help=options.PATHS)
    top = "classes or objects listed for each image (default: 5 classes, all objects)"
    add("--top", type=options.positive_int, help=top)
    add("--classes", metavar="FILE", help="text file with a class on each line, or imagenet_1k")
    options.labels(add)
    add("--format", default="table", help=f"what to print: {options.either(FORMATS)}")
    suffixes = options.either([f".{suffix}" for suffix in FILES])
    output = f"also write a file, {suffixes} (detection); the same command continues it"
    add("--output", metavar="FILE", help=output)
    options.on_bad_image(add, options.ON_BAD_FILE)
    options.device(add)
    shown = "folder to write, with a picture of each image and what is predicted, of every task"
    add("--show", metavar="DIR", help=shown)
    maps = "models of pixels: folder to write, of classes with masks as palette PNGs and overlays"
    add("--masks", "--maps", dest="maps", metavar="DIR", help=maps)
    windows = "models of pixels: at the images' own scale, in overlapping windows (default: whole, resized)"
    add("--windows", action="store_true", help=windows)
    instances = "segmentation by queries (EoMT): list objects with boxes instead of classes of pixels"
    add("--instances", action="store_true", help=instances)
    things = f"--instances: classes that have objects, {options.COMMAS} (default: all)"
    add("--things", type=options.words, metavar="NAMES", help=things)
    boxes = "detection, keypoints, --instances: folder to write, with the objects drawn into PNG files"
    add("--boxes", metavar="DIR", help=boxes)
    threshold = "least score of an object, from 0 to 1 (default: 0.3, with --instances 0.5)"
    add("--threshold", type=options.fraction, help=threshold)
    iou = "leave out objects whose boxes overlap a better one's by more "
    iou += "(default: of detectors 0.7 in pictures and --objects, else 1)"
    add("--iou", type=options.fraction, help=iou)
    for folder in prediction_folders():
        folder.add_arguments(add)


def continues(args):
    return args.output and f"the same command continues {args.output}"


def needs_keras(args):
    """False for an exported file with a runtime of its own."""
    from keras_vit.export.formats import format_of, suffix_of

    keras_options = args.labels, args.prompts, args.maps, args.boxes, args.instances, args.show
    rows = [_given(folder.row_options, args) for folder in prediction_folders()]
    if any(keras_options) or any(rows) or not (suffix_of(args.model) or os.path.isdir(args.model)):
        return True
    return format_of(args.model).needs_keras


def run(args):
    from keras_vit.cli.images import png_files

    _check_options(args)
    paths = _paths(args)
    files = png_files(paths) if args.maps or args.boxes or args.show else {}
    model, task = _opened(args)
    things = {"things": task.things(model, args.things)} if args.things else {}
    if needs_keras(args) and len(paths) <= FEW and not args.windows:
        run_eagerly(model)
    limits = _limits(args)
    folders = _chosen_folders(args, task, limits)
    for folder in prediction_folders():
        limits |= folder.row_arguments(args, paths)
    if args.windows and model.preprocessing.image_size is None:
        print("--windows changes nothing: this model takes whole images of any size", file=sys.stderr)
    with contextlib.ExitStack() as at_end:
        maps = {**({"windows": True} if args.windows else {}), **limits}
        if writers := _writers(args, at_end, folders, model, task, files):
            maps["write"] = lambda *prediction: [write(*prediction) for write in writers]
        journal = args.output and at_end.enter_context(_journal(args, paths, model))
        skipped = _print_rows(args, task, model, paths, journal, {**maps, **things})
        if journal:
            _write_file(args, task, model, journal)
    if skipped:
        print(f"left out, since they cannot be read: {listed(skipped)}", file=sys.stderr)


def _paths(args):
    """Return the paths of the images; those that a Parquet file shall hold are text."""
    from keras_vit.cli.images import images_of

    paths = [path for argument in args.images for path in images_of(argument, urls=True)]
    if args.output and suffix_of(args.output) == "parquet":
        check_utf8(paths)
    return paths


def _writers(args, at_end, folders, model, task, files):
    """Return the functions that write folders for each prediction."""

    def new_folder(path):
        return at_end.enter_context(atomic_path(path, overwrite=False))

    writers = [
        folder.writer(new_folder(getattr(args, folder.option)), model, files, args) for folder in folders
    ]
    if not args.show:
        return writers
    shown = Shown(new_folder(args.show), task, model, files)
    return [*writers, shown.write if task.reads_images else shown.write_row]


def _check_options(args):
    """Raise a ValueError for options that contradict each other or cannot be written."""
    one_of(FORMATS).check("--format", args.format)
    one_of(options.ON_BAD_FILE).check("--on_bad_image", args.on_bad_image)
    if args.things and not args.instances:
        raise ValueError("--things are the classes of --instances, which is not given")
    if args.instances and (args.maps or args.windows):
        raise ValueError("--maps and --windows are of pixels; --boxes draws what --instances finds")
    if args.output is not None:
        if suffix_of(args.output) not in FILES:
            known = options.either([f".{name}" for name in FILES])
            raise ValueError(f"expected --output to end in {known}; got {args.output!r}")
        check_writable(args.output)


def _opened(args):
    """Return the model and its task."""
    from keras_vit.cli.labels import with_labels
    from keras_vit.cli.source import open_model, task_of, with_class_names
    from keras_vit.tasks import get_task, instances

    model = open_model(args.model, args.trust, args.sha256, kind="stored")
    model = with_labels(model, args.labels, args.prompts)
    if args.classes:
        model = with_class_names(model, args.classes)
    task = instances() if args.instances else get_task(task_of(args.model, model))
    task.check_model(model)
    return model, task


def run_eagerly(model):
    """Compute a Keras model without a graph on TensorFlow."""
    import keras

    if isinstance(model, keras.Model) and keras.backend.backend() == "tensorflow":
        model.run_eagerly = True


def _limits(args):
    """Return the given bounds of scores and overlaps of objects, by name."""
    return {name: number for name in ("threshold", "iou") if (number := getattr(args, name)) is not None}


def _chosen_folders(args, task, limits):
    """Return the folders to write, after checking that the task has what the options ask for."""
    folders = folders_of("detection" if args.instances else task.name)
    has_task = f"this one's task is {task.name!r}"
    if (args.maps or args.windows) and "maps" not in folders:
        raise ValueError(f"--maps and --windows need a model with outputs for each pixel; {has_task}")
    needs_boxes = args.boxes or limits or (args.output and suffix_of(args.output) == COCO)
    if needs_boxes and "boxes" not in folders:
        raise ValueError(
            f"--boxes, --threshold, --iou and a file of .{COCO} need a model that detects objects; {has_task}"
        )
    chosen = [folder for option, folder in folders.items() if getattr(args, option)]
    for folder in prediction_folders():
        if folder.task != task.name and (names := _given(folder.row_options, args)):
            raise ValueError(f"{', '.join(names)} need a model of the task {folder.task!r}; {has_task}")
        folder.check_rows(args)
        names = _given(folder.options, args)
        if names and folder not in chosen:
            model = f" and a model of the task {folder.task!r}; {has_task}" * (folder.task != task.name)
            raise ValueError(f"{', '.join(names)} need --{folder.option}{model}")
    for folder in chosen:
        folder.check(args)
    return chosen


def _given(names, args):
    """Those of some options that are given."""
    return [f"--{name}" for name in names if getattr(args, name) not in (None, False)]


def _print_rows(args, task, model, paths, journal, maps):
    """Print the predictions; the paths that are left out."""
    from keras_vit.cli.image_batches import predicted

    first, skip, skipped = journal.count if journal else 0, args.on_bad_image == "skip", []
    progress = args.format == "table" or not sys.stdout.isatty()
    rows = predicted(task, model, paths, args.top or task.top, first, progress, skip, **maps)
    readable = _readable(journal.recorded(rows) if journal else rows, skipped, skip)
    for text in FORMATS[args.format](readable, task.value_names(model)):
        print_now(text, end="")
    if len(skipped) == len(paths):
        raise ValueError(f"none of these images can be read: {listed(skipped)}")
    return skipped


def _write_file(args, task, model, journal):
    """Write --output from the journal."""
    from keras_vit.tasks.task import names_or_indices

    suffix, names = suffix_of(args.output), task.value_names(model)
    if suffix == COCO:
        names = names_or_indices(model.class_names, model.num_classes)
    rows = _readable(journal.rows(), [], args.on_bad_image == "skip")
    write_rows(args.output, suffix, rows, names, task.name)
    journal.path.unlink()


def _readable(rows, skipped, skip):
    """The rows of images that can be read; with `skip` the paths of others are added to a list."""
    for row in rows:
        if "error" not in row:
            yield row
        elif skip:
            skipped.append(row["image"])
        else:  # The interrupted command left it out.
            raise ValueError(row["error"])


@contextlib.contextmanager
def _journal(args, paths, model):
    """The journal of --output, from which the same command continues if there are many images."""
    from keras_vit.cli.source import trained_file

    file = pathlib.Path(args.output).expanduser()
    is_device = file.exists() and not file.is_file()
    if len(paths) <= FEW or args.maps or args.boxes or args.show or is_device:
        with tempfile.TemporaryDirectory() as folder:
            yield Journal(pathlib.Path(folder, "rows"), {})
        return
    images = "\n".join(paths).encode(errors="surrogateescape")
    states = [(of.st_size, of.st_mtime_ns) for of in map(os.stat, itertools.filterfalse(is_url, paths))]
    names = model.class_names and [*model.class_names]
    origin = {
        "model": content_digest(trained_file(args.model)),
        "list of images": hashlib.sha256(images).hexdigest(),
        "state of the images": hashlib.sha256(repr(states).encode()).hexdigest(),
        **{"--labels": content_digest(args.labels), "--prompts": content_digest(args.prompts)},
        **{"--top": args.top, "--windows": args.windows, "--classes": names},
        **{f"--{name}": number for name, number in _limits(args).items()},
        **_row_origin(args),
        **({"--instances": True, "--things": args.things and [*args.things]} if args.instances else {}),
    }
    with only_process(file):
        yield Journal(file.with_name(file.name + PARTIAL), origin)


def _row_origin(args):
    """The options of tasks that change rows and are given, with digests of the files that they name."""
    from keras_vit.cli.source import trained_file

    names = [name for folder in prediction_folders() for name in folder.row_options]
    values = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return {
        f"--{name}": content_digest(trained_file(value)) if isinstance(value, str) else value
        for name, value in values.items()
    }
