"""The options that several subcommands have, and the types of options.

The library checks the values of options; the parser only names them. `add` is a parser's `add_argument`.
"""

import argparse
import ast
import csv
import re

from keras_vit import names, tasks

CHECKPOINT = "checkpoint: a path, hf://org/repo, https://…, gs://…, or a name listed by `keras-vit models`"
EXPORT = "export of keras-vit (SavedModel folder, .tar.gz, .tflite, .onnx, folder of a page)"
FILES = "folders, patterns such as 'a/**/*.jpg', or - for a list of them on standard input"
PATHS = f"image files, URLs, {FILES}"
LABELS = "a .json file of the texts of each class, a text file with one class a line, or imagenet_1k"
COMMAS = "separated by commas, in double quotes where they hold one"
SIZE = "side in pixels, or HEIGHTxWIDTH"
OF_DATASET = ("data_dir", "field", "classes")  # that have no effect without --dataset
OF_MODEL = ("trust", "sha256")  # without --model
ON_BAD_FILE = names.ON_BAD_IMAGE[:2]  # of commands that read image files, not a data set


def model(add, exported=True, also="", required=True):
    export = f"{EXPORT}, " if exported else ""
    add("--model", required=required, help=f"workdir of a run, .keras file, {also}{export}or {CHECKPOINT}")
    trust(add, program=exported)


def device(add):
    text = "cpu, gpu, one GPU by its number as gpu:1, or auto: the GPUs, and without any the CPU"
    add("--device", type=_device, default="auto", help=text)


def _device(text):
    if not re.fullmatch(r"auto|cpu|gpu(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"expected auto, cpu, gpu or gpu:NUMBER; got {text!r}")
    return text


def patch_size(add):
    text = "side of the patches in pixels, to which the patch kernel is resized (default: the model's)"
    add("--patch_size", type=positive_int, metavar="PIXELS", help=text)


def trust(add, program=False):
    accepted = "a SavedModel, which is a program, from a URL, and " if program else ""
    add("--trust", action="store_true", help=f"accept {accepted}plain http:// from another machine")
    add("--sha256", metavar="DIGEST", help="expected SHA-256 of the file")


def features(add):
    """A model and a data set, or embeddings that were computed before."""
    model(add, exported=False, required=False)
    dataset(add, required=False)
    on_bad_image(add)
    device(add)
    add("--embeddings", metavar="DIR", help="folder of keras-vit embed, in place of --model and --dataset")


def dataset(add, *aliases, required=True):
    several = "; or several in proportion to numbers: A*0.7 + B*0.3"
    add(*aliases, "--dataset", dest="dataset", required=required, help=either(names.DATA_SETS) + several)
    add("--data_dir", metavar="DIR", help="data folder of tfds: and vtab:")
    text = "place of labels or captions: label=json:KEY of tar files, label=COLUMN or image=COLUMN of Parquet"
    add("--field", action="append", default=[], metavar="FIELD", help=f"{text}; 2:label=KEY of source 2")
    text = "text file with a class on each line, perhaps with a tab and other names that stand for it"
    add("--classes", metavar="FILE", help=text)


def split(add):
    add("--split", default="test", help=either(names.SPLITS))
    add("--seed", type=non_negative_int, help="of a split that the data set lacks (default: the run's or 0)")
    batch_size(add)


def batch_size(add):
    add("--batch_size", type=positive_int, default=64, help="images computed at a time")


def on_bad_image(add, choices=names.ON_BAD_IMAGE, default="fail"):
    computed = "" if default else " (default: keep without labels)"
    add("--on_bad_image", default=default, help=f"unreadable images of a folder: {either(choices)}{computed}")


def neighbors(add):
    text = "number of nearest images that vote, instead of a linear classifier"
    add("--neighbors", type=positive_int, metavar="NUMBER", help=text)


def task(add):
    add("--task", help=f"{either(tasks.NAMES)} (default: the run's, or single_label)")


def labels(add):
    text = f"models with a text tower: {LABELS}, or names separated by commas: cat,dog,'a red car'"
    add("--labels", help=text)
    prompts(add)


def prompts(add):
    add("--prompts", metavar="FILE", help="one template a line, as 'a photo of a {}'; or clip_80, or clip_7")


def objective(add):
    objectives = ", ".join(tasks.OBJECTIVES)
    add("--objective", default="classify", help=f"classify, or without labels: {objectives}")
    add("--target", default="mean_color", help=f"of masked_patch: {either(names.TARGETS)}")


def precisions(add):
    runtimes = {
        "LiteRT": names.LITERT_PRECISIONS,
        "ONNX": names.ONNX_PRECISIONS,
        "OpenVINO": names.OPENVINO_PRECISIONS,
    }
    known = ", ".join(f"of {runtime} {','.join(known)}" for runtime, known in runtimes.items())
    default = f"(default: {','.join(names.LITERT_PRECISIONS[:3])} of LiteRT, float32 of others)"
    add("--precisions", type=words, help=f"{known} {default}")


def changes(add, name, text):
    add("--set", action="append", default=[], metavar=f"{name}=VALUE", help=text)


def json(add):
    add("--json", metavar="FILE", help="also write the result as JSON; - prints it in place of the table")


def either(choices):
    """Return names as a choice.

    >>> either(("fail", "skip")), either(("train", "validation", "test"))
    ('fail or skip', 'train, validation or test')
    """
    *others, last = choices
    return f"{', '.join(others)} or {last}"


def non_negative_int(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a non-negative integer; got {text!r}")
    return int(text)


def positive_int(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive integer; got {text!r}")
    return int(text)


def fraction(text):
    """Parse a number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1; got {text!r}")
    return number


def words(text):
    """Parse names separated by commas, with quotes where they hold one.

    >>> words('wall, "door, double door"')
    ('wall', 'door, double door')
    """
    try:
        return tuple(separated(text, "names")) or ("",)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def separated(text, noun):
    """Split a text at its commas, as `words`; empty for none. A line break is a ValueError with the noun."""
    try:
        return next(csv.reader([text], skipinitialspace=True))
    except csv.Error:
        raise ValueError(f"expected {noun} separated by commas; got {text!r}") from None


def ints(text):
    return tuple(map(non_negative_int, text.split(",")))


def positive_ints(text):
    return tuple(map(positive_int, text.split(",")))


def image_size(text):
    """Parse `384` or `384x512` to (height, width)."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"expected a side in pixels or HEIGHTxWIDTH; got {text!r}")
    return int(sides[0]), int(sides[-1])


def patch(text):
    """Parse `ROW,COLUMN` to two integers."""
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected ROW,COLUMN from 0; got {text!r}")
    return int(parts[0]), int(parts[1])


def refuse_unused(args, names, needed):
    """Raise ValueError for options that are given and have no effect.

    Args:
        args: The arguments of a command.
        names: Those of the options without effect.
        needed: What they need, in words.
    """
    if unused := [f"--{name}" for name in names if getattr(args, name)]:
        raise ValueError(f"expected {needed} with {', '.join(unused)}; got none")


def settings(pairs):
    """Parse `["base_lr=0.01", "flip=False"]` to a dict; a value that is no Python literal is a string."""
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise ValueError(f"--set expects FIELD=VALUE; got {pair!r}")
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = text
    return values


def changed_fields(arguments, names):
    """The fields of a recipe that a command changes, by --set or by options with the names of fields.

    Args:
        arguments: dict of the arguments of the command.
        names: Those options.

    >>> changed_fields({"set": ["flip=False"], "seed": 0, "remat": False, "dtype": None}, ("seed", "remat"))
    {'flip': False, 'seed': 0}
    """
    changes = settings(arguments["set"])
    for name in names:
        if (value := arguments[name]) is not None and value is not False:
            if name in changes:
                raise ValueError(f"expected --{name} or --set {name}=; got both")
            changes[name] = value
    return changes
