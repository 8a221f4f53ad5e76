"""The console script `keras-vit`: its parser, on absl alone.

It stands outside the package so that `--help` need not import Keras; a verb's module is imported
when the verb is called.
"""

import argparse
import ast
import contextlib
import difflib
import importlib
import os
import pathlib
import re
import sys
import tempfile

from absl.flags import argparse_flags

VERBS = {
    "quickstart": "train on scanned digits, evaluate, draw, export, load back and compare",
    "models": "list the variants with parameters and GFLOPs, and the published checkpoints",
    "finetune": "train a model on a data set, from a checkpoint or from random weights",
    "pretrain": "train from random weights by a recipe, with labels or by predicting masked patches",
    "evaluate": "accuracy of a model on a split of a data set",
    "fewshot": "accuracy of a linear classifier on a model's representation, from a few images of each class",
    "predict": "classify images or folders of images",
    "inspect": "figures and a page of what a model has learned and what it looks at",
    "export": "write a model as SavedModel, LiteRT, ONNX or TF Hub archive, and compare with the live one",
    "benchmark": "images a second and peak memory of a model on this machine, live and in each format",
    "weights": "show what a checkpoint holds, or convert it to another layout",
}
WEIGHTS = {
    "show": "layout, architecture, parameters, and what is missing or extra",
    "convert": "write a checkpoint in another project's layout",
    "push": "upload a checkpoint or run to Hugging Face, for transformers or timm",
}
LAYOUTS = ("vit_jax", "big_vision", "timm", "huggingface")
DTYPES = ("float32", "float16", "bfloat16", "float64")
TASKS = ("single_label", "multi_label", "regression")
OBJECTIVES = ("classify", "masked_patch")
TARGETS = ("mean_color", "downsized", "pixels")
RECIPES = (
    *("digits", "finetune", "finetune_imagenet", "finetune_cifar10", "finetune_cifar100", "finetune_pets"),
    *("finetune_flowers", "finetune_vtab", "linear_probe", "pretrain_jft", "pretrain_imagenet21k"),
    *("pretrain_imagenet", "augreg", "augreg_imagenet21k", "plain_s16", "plain_s16_150", "plain_s16_300"),
    "masked_patch",
)
ROWS = ("table", "csv", "jsonl", "json")
STRATEGIES = ("auto", "single", "mirrored", "multi_worker", "tpu")
SOURCES = "checkpoint: a path, hf://org/repo, https://…, gs://…, or a name that `keras-vit models` lists"


# Names from other tools, by what does the same here; VALUE stands for the value that was given.
ELSEWHERE = {
    "finetune": "train fit fine_tune tune learn",
    "evaluate": "eval test validate score accuracy",
    "predict": "infer inference classify label detect run",
    "inspect": "explain visualize visualise attention",
    "export": "deploy serve save",
    "benchmark": "bench time speed profile",
    "models": "list variants zoo catalogue catalog",
    "weights": "convert convert_weights checkpoint",
    "quickstart": "demo start",
}
OPTIONS_ELSEWHERE = {  # by command; "" is for all of them
    "finetune pretrain": {
        "--total_steps (epochs × images / batch size)": "epochs num_epochs n_epochs max_epochs",
        "--total_steps VALUE": "steps num_steps max_steps train_steps iterations",
        "--set base_lr=VALUE": "lr learning_rate base_lr base_learning_rate",
        "--set weight_decay=VALUE": "weight_decay wd",
        "--set warmup_steps=VALUE": "warmup warmup_steps num_warmup_steps",
        "--set clip_norm=VALUE": "clip clip_norm grad_clip clip_grad max_grad_norm",
        "--set dropout_rate=VALUE": "dropout dropout_rate drop",
        "--set stochastic_depth_rate=VALUE": "stochastic_depth_rate drop_path drop_path_rate",
        "--set label_smoothing=VALUE": "label_smoothing smoothing",
        "--set accumulation_steps=VALUE": "accumulation_steps gradient_accumulation_steps grad_accum",
        "--set dtype=mixed_bfloat16": "dtype bf16 fp16 amp mixed_precision",
        "--set optimizer=VALUE": "optimizer opt optim",
        "--set task=VALUE": "task",
        "--set mixup=VALUE": "mixup mixup_alpha",
        "--set cutmix=VALUE": "cutmix cutmix_alpha",
        "--set randaugment='(LAYERS, MAGNITUDE)'": "randaugment rand_augment aa auto_augment",
        "--set freeze=VALUE": "freeze freeze_up_to",
        "--set ema=VALUE": "ema model_ema ema_decay",
        "--set remat=True": "remat checkpoint_activations gradient_checkpointing",
        "--set layer_decay=VALUE": "layer_decay layerwise_lr_decay llrd",
        "--set seed=VALUE": "seed random_seed",
        "--workdir VALUE": "output output_dir out save_dir log_dir logdir",
        "--weights VALUE": "checkpoint ckpt pretrained init load",
        "--strategy (auto takes all GPUs)": "gpu gpus num_gpus device devices distribute",
    },
    "evaluate fewshot predict inspect export benchmark": {
        "--model VALUE": "weights checkpoint ckpt pretrained load run workdir",
    },
    "": {
        "--model VALUE": "model_name model_path arch architecture m",
        "--dataset VALUE": "data data_path dataset_name d",
        "--dataset folder:VALUE": "folder dir train_dir",
        "--batch_size VALUE": "bs batch b",
        "--batch_sizes VALUE": "bs batch b batch_size",
        "--image_size VALUE": "img_size size resolution input_size",
        "--top VALUE": "topk top_k k n",
        "--image VALUE": "images img",
        "--output VALUE": "output_dir out save save_path dest destination o",
        "--split VALUE": "subset",
        "--filter VALUE": "name search pattern",
        "--formats VALUE": "format type",
        "--precisions VALUE": "precision quantize dtype",
        "--licence VALUE": "license",
    },
}


class _Parser(argparse_flags.ArgumentParser):
    """A parser whose messages are one line and name the command or option that was probably meant."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse_known_args(self, args=None, namespace=None):
        """As in argparse; unknown options are refused first, since they explain what is missing."""
        args = sys.argv[1:] if args is None else list(args)
        known = [name for action in self._actions for name in action.option_strings]
        known += ["--flagfile", "--undefok"]  # absl reads them first
        for text, following in zip(args, [*args[1:], "-"]):
            name, equals, value = text.partition("=")
            if name == "--" or self._subparsers and not name.startswith("-"):
                break
            if re.match("--?[a-zA-Z]", name) and not any(option.startswith(name) for option in known):
                value = value if equals else "VALUE" if following.startswith("-") else following
                self.error(f"unknown option {name}{self._suggestion(name, value, known)}")
        return super().parse_known_args(args, namespace)

    def _suggestion(self, name, value, known):
        meanings = {option.strip("-"): option for option in known}
        for commands, hints in OPTIONS_ELSEWHERE.items():
            if not commands or self.prog.split()[-1] in commands.split():
                for hint, names in hints.items():
                    if hint.split()[0] in known:
                        meanings = dict.fromkeys(names.split(), hint.replace("VALUE", value)) | meanings
        return suggestion(name.strip("-"), meanings)

    def _check_value(self, action, value):
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, unknown(value, action.choices))


def unknown(value, choices):
    """What a message says of a value that is not one of the choices."""
    meanings = {name: choice for choice in choices for name in (choice, *ELSEWHERE.get(choice, "").split())}
    return f"unknown {value!r}{suggestion(value, meanings)} (one of {', '.join(choices)})"


def suggestion(name, meanings):
    """The meaning of the name or of the nearest one, as the end of a message; empty if none is near.

    >>> suggestion("predcit", {"predict": "predict", "train": "finetune"})
    '; did you mean predict?'
    >>> suggestion("Train", {"predict": "predict", "train": "finetune"})
    '; did you mean finetune?'
    """
    near = difflib.get_close_matches(name.replace("-", "_").lower(), meanings, n=1, cutoff=0.7)
    return f"; did you mean {meanings[near[0]]}?" if near else ""


def version():
    """The version of the package, read from its source, so that Keras is not imported."""
    source = pathlib.Path(__file__).with_name("keras_vit") / "__init__.py"
    return re.search(r'^__version__ = "(.+)"$', source.read_text(), re.MULTILINE)[1]


def parser():
    """The parser of all verbs."""
    top = _Parser(
        prog="keras-vit",
        description="Vision Transformers for Keras 3.",
        epilog="keras-vit VERB --help tells more.",
    )
    top.add_argument("--version", action="version", version=f"keras_vit {version()}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    sub = {name: verbs.add_parser(name, help=text, description=text) for name, text in VERBS.items()}

    add = sub["quickstart"].add_argument
    add("--workdir", help="folder of the run (default: runs/quickstart-N); an unfinished one is continued")

    add = sub["models"].add_argument
    add("--image_size", type=positive_int, default=224, help="side of the image that the GFLOPs are for")
    add("--num_classes", type=whole_number, default=1000, help="size of the head; 0 for none")
    add(
        "words",
        nargs="*",
        metavar="TEXT",
        help="part of the name, source or variant, or with * and ? the whole",
    )
    add("--filter", action="append", default=[], metavar="TEXT", help="the same; all must match")
    add("--variant", help="show this size alone, such as B/16")
    add("--cached", action="store_true", help="show the checkpoints alone that are here already")
    _output(add)

    sized = "(default: finetune, with steps and a batch size that fit the number of images)"
    _training(sub["finetune"].add_argument, None, sized)
    _training(sub["pretrain"].add_argument, "pretrain_imagenet", "(default: pretrain_imagenet)")
    sub["finetune"].add_argument("--weights", help=f"run of keras-vit, .keras file, or {SOURCES}")
    sub["finetune"].add_argument("--sha256", metavar="DIGEST", help="SHA-256 that the weights must have")
    sub["finetune"].set_defaults(objective="classify", target=TARGETS[0])
    add = sub["pretrain"].add_argument
    add("--objective", choices=OBJECTIVES, default="classify", help="masked_patch needs no labels")
    add("--target", choices=TARGETS, default=TARGETS[0], help="what masked patches predict of each patch")
    sub["pretrain"].set_defaults(weights=None, sha256=None)

    add = sub["evaluate"].add_argument
    _model(add)
    _dataset(add)
    add("--split", default="test", help="train, validation or test (default: test)")
    add("--seed", type=whole_number, help="of the split, if the data set has none (default: the run's or 0)")
    add("--batch_size", type=positive_int, default=64, help="images computed at a time")
    add("--on_bad_image", choices=("fail", "skip"), default="fail", help="what an unreadable image does")
    add("--task", choices=TASKS, help="what the labels are (default: as of the model, or single_label)")
    add("--per_class", action="store_true", help="a row for each class, too")
    add("--confusion", metavar="FILE.png", help="draw which classes are taken for which")
    add("--real", metavar="FILE.json", help="ReaL's labels of ImageNet's validation images")
    _output(add)

    add = sub["fewshot"].add_argument
    _model(add, exported=False)
    _dataset(add)
    add("--shots", type=ints, default=(1, 5, 10, 25), help="images of each class (default: 1,5,10,25)")
    add("--seeds", type=ints, default=(0, 1, 2), help="which images are drawn (default: 0,1,2)")
    add("--l2", type=float, default=1024.0, help="weight of the penalty (default: 1024)")
    add("--batch_size", type=positive_int, default=64, help="images computed at a time")
    _output(add)

    add = sub["predict"].add_argument
    _model(add)
    lists = "image files, folders of them, or - for a list of both on standard input, one per line"
    add("images", nargs="+", help=lists)
    add("--top", type=positive_int, default=5, help="classes to name for each image (default: 5)")
    add("--class_names", metavar="NAMES", help="imagenet_1k, or a text file with one name a line")
    add("--format", choices=ROWS, default="table", help="what to print (default: table)")
    add("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    suffixes = ", ".join(f".{name}" for name in ROWS[1:])
    add("--output", metavar="FILE", help=f"write a file, too, in the format of its suffix: {suffixes}")

    _inspect(sub["inspect"].add_argument)
    _export(sub["export"].add_argument)
    _benchmark(sub["benchmark"].add_argument)

    actions = sub["weights"].add_subparsers(dest="action", metavar="ACTION", required=True)
    parsers = [actions.add_parser(name, help=text, description=text) for name, text in WEIGHTS.items()]
    show, convert, push = parsers
    for action in parsers:
        add = action.add_argument
        add("source", help=f"{SOURCES}, or file.npz:part")
        told = "what the file does not tell, or what to change: num_heads=6, image_size=384"
        add("--set", action="append", default=[], metavar="ARGUMENT=VALUE", help=told)
        _trust(add)
    convert.add_argument("destination", help="file to write (.npz, .safetensors); a folder for huggingface")
    convert.add_argument("--layout", required=True, choices=LAYOUTS, help="whose layout to write")
    convert.add_argument("--dtype", choices=DTYPES, default="float32", help="how numbers are stored")
    convert.add_argument("--overwrite", action="store_true", help="replace what is there")
    add = push.add_argument
    add("repository", metavar="ORG/NAME", help="repository to make, or to add a commit to")
    add(
        "--layout",
        choices=("huggingface", "timm"),
        help="whose layout to write (default: the first that can)",
    )
    add("--private", action="store_true", help="make a new repository private")
    add("--licence", help="of the weights: apache-2.0, … (default: the catalogue's)")
    add("--trained_on", metavar="DATASET", help="in words, or its name there (default: the run's)")
    for action in parsers:
        _output(action.add_argument)
    return top


def _training(add, recipe, default):
    add("--model", help="variant such as B/16; not needed with --weights")
    _dataset(add)
    numbers = f"the hyperparameters: {', '.join(RECIPES)} {default}"
    add("--recipe", type=one_of(RECIPES), default=recipe, help=numbers)
    add("--workdir", required=True, help="folder of the run; an unfinished one is continued")
    add("--image_size", type=image_size, help="side in pixels, or HEIGHTxWIDTH")
    add("--total_steps", type=positive_int, help="steps of the run")
    add("--batch_size", type=positive_int, help="images in a step, on all devices together")
    fields = "any field of the recipe, as base_lr=0.01; pydoc keras_vit.training.Recipe lists them"
    add("--strategy", choices=STRATEGIES, default="auto", help="devices; multi_worker reads TF_CONFIG")
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help=fields)
    add("--on_bad_image", choices=("fail", "skip"), default="fail", help="what an unreadable image does")
    add("--deterministic", action="store_true", help="the same bits each time on GPUs, too; slower")


def _inspect(add):
    _model(add, exported=False)
    of = "image files, or folders of them"
    add("--image", nargs="+", action="extend", default=[], metavar="IMAGE", help=of)
    _dataset(add, required=False)
    add("--split", default="test", help="train, validation or test (default: test)")
    add("--seed", type=whole_number, help="of the split, if the data set has none (default: the run's or 0)")
    add("--batch_size", type=positive_int, default=64, help="images computed at a time")
    bad = "what an unreadable image of the data set does"
    add("--on_bad_image", choices=("fail", "skip"), default="fail", help=bad)
    add("--task", choices=TASKS, help="what the outputs mean (default: as of the run, or single_label)")
    add("--image_size", type=image_size, help="side in pixels, or HEIGHTxWIDTH (default: the model's)")
    block = (
        "whose heads are drawn, from 0, or from the last: -1 (default: the last; with pooling=map the probe)"
    )
    add("--block", type=int, help=block)
    add("--output", required=True, metavar="DIR", help="folder to write")
    add("--json", action="store_true", help="print JSON instead of a table")


def _export(add):
    _model(add, exported=False)
    new = "folder to write; only saved_model is added to one that there is, with another --version"
    add("--output", required=True, metavar="DIR", help=new)
    of = "of saved_model,tflite,onnx,hub (default: saved_model,tflite)"
    add("--formats", type=names, default=("saved_model", "tflite"), help=of)
    _precisions(add)
    _dataset(add, required=False)
    add("--split", default="test", help="what to verify on (default: test); int8 is calibrated on train")
    add("--images", type=positive_int, default=512, help="how many of it at most (default: 512)")
    add("--on_bad_image", choices=("fail", "skip"), default="fail", help="what an unreadable image does")
    add("--task", choices=TASKS, help="what the outputs mean (default: the run's, or single_label)")
    add("--representation", action="store_true", help="export feature vectors instead of class scores")
    add("--image_size", type=image_size, help="side in pixels, or HEIGHTxWIDTH (default: the model's)")
    add("--batch_size", type=positive_int, help="images in a batch of LiteRT's files (default: any)")
    add("--integer_io", choices=("uint8", "int8"), help="what goes into and comes out of LiteRT's int8")
    add("--version", type=whole_number, default=1, help="number of the SavedModel's folder (default: 1)")
    add("--name", help="of the Hub archive (default: the model's)")
    add("--publisher", default="keras-vit", help="of the Hub archive: lower-case letters, digits and -")
    add("--licence", help="of the weights, for the Hub page: Apache-2.0, …")
    add("--url", metavar="URL", help="where the Hub archive will lie")
    add("--json", action="store_true", help="print JSON instead of a table")


def _benchmark(add):
    _model(add, also="a variant such as B/16 with random weights, ")
    of = "of live,saved_model,tflite,onnx,hub (default: live,saved_model,tflite; for an export: itself)"
    add("--formats", type=names, help=of)
    _precisions(add)
    add("--image_size", type=image_size, help="side in pixels, or HEIGHTxWIDTH (default: the model's or 224)")
    add("--batch_sizes", type=positive_ints, default=(1, 16), help="images at a time (default: 1,16)")
    add("--rounds", type=positive_int, default=9, help="how often each computes a batch (default: 9)")
    add("--threads", type=positive_int, help="threads to compute with (default: one a core)")
    _output(add)


def _precisions(add):
    of = "of LiteRT: float32,float16,dynamic_int8,int8 (default: all but int8)"
    add("--precisions", type=names, default=("float32", "float16", "dynamic_int8"), help=of)


def _dataset(add, required=True):
    add("--dataset", required=required, help="digits, folder:PATH, tfds:NAME[/CONFIG] or vtab:TASK")
    add("--data_dir", metavar="DIR", help="where tfds: and vtab: find their data")


def _model(add, exported=True, also=""):
    others = "what keras-vit export wrote (SavedModel folder, .tar.gz, .tflite, .onnx), " if exported else ""
    add("--model", required=True, help=f"workdir of a run, .keras file, {also}{others}or {SOURCES}")
    _trust(add, program=exported)


def _trust(add, program=False):
    """What is asked of a file before it is opened."""
    of = "a SavedModel, which is a program, from an address, and " if program else ""
    add("--trust", action="store_true", help=f"accept {of}plain http:// from another machine")
    add("--sha256", metavar="DIGEST", help="SHA-256 that the file must have")


def _output(add):
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--output", metavar="FILE", help="write the JSON to a file, too")


def whole_number(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"wanted a whole number; got {text!r}")
    return int(text)


def positive_int(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"wanted a whole number above 0; got {text!r}")
    return int(text)


def ints(text):
    """`1,5,10` as a tuple."""
    return tuple(positive_int(part) if part != "0" else 0 for part in text.split(","))


def positive_ints(text):
    return tuple(positive_int(part) for part in text.split(","))


def one_of(known):
    """A type for a name of a list."""

    def parse(text):
        if text not in known:
            raise argparse.ArgumentTypeError(unknown(text, known))
        return text

    return parse


def names(text):
    """`saved_model,onnx` as a tuple."""
    return tuple(text.split(","))


def image_size(text):
    """`384` or `384x512` as (height, width)."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"wanted a side in pixels or HEIGHTxWIDTH; got {text!r}")
    return int(sides[0]), int(sides[-1])


def settings(pairs):
    """`["base_lr=0.01", "flip=False"]` as a dict; a value that is no Python literal is a string."""
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise ValueError(f"--set wants FIELD=VALUE; got {pair!r}")
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            found[name] = text
    return found


@contextlib.contextmanager
def quiet_startup_logs(drop_on_error=False):
    """Remove the start-up logs of TensorFlow and LiteRT from standard error, also those written by C++.

    All other lines are written at the end.

    Args:
        drop_on_error: Whether to drop the other lines, too, when an exception that repeats them is raised.
    """
    real = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            if drop_on_error:
                held.truncate(0)
            raise
        finally:
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            lines = held.read().decode(errors="replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not _is_startup_log(line)))


STARTUP_LOGS = re.compile(
    r"I\d{4} |WARNING: All log messages before absl::InitializeLog|INFO: Created TensorFlow Lite "
    r"|To enable the following instructions|fully_quantize: "
    r"|W\d{4} .*(tf_tfl_flatbuffer_helpers|flatbuffer_export)\.cc"
)


def _is_startup_log(line):
    if "failed call to cuInit" in line:  # an error only where there is a GPU
        return not os.path.exists("/dev/nvidiactl")
    return STARTUP_LOGS.match(line) is not None


def main(argv=None):
    """Run a verb; the exit status: 0, 2 for bad input, 130 if interrupted."""
    args = parser().parse_args(sys.argv[1:] if argv is None else argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        with quiet_startup_logs():
            verb = importlib.import_module(f"keras_vit.cli.{args.verb}")
            importlib.import_module("tensorflow").config.list_physical_devices()
        status = verb.run(args) or 0
        importlib.import_module("keras_vit.cli.report").print_now("", end="")
        return status
    except BrokenPipeError:  # the reader of standard output has ended, as `head` does
        _discard_output()
        return 141
    except Exception as error:
        # Bad input, or TensorFlow's word on a file or an image; anything else is our fault.
        from_tensorflow = type(error).__module__.startswith("tensorflow.")
        if not (from_tensorflow or isinstance(error, ValueError | OSError | ImportError)):
            raise
        try:
            sys.stdout.flush()
        except OSError:  # the disk that it goes to is full, and Python would try again at its end
            _discard_output()
        text = " ".join(str(error).split())
        # As keras_vit.messages.printable, which is not there where the package cannot be imported.
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        print(f"keras-vit: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("keras-vit: interrupted", file=sys.stderr)
        return 130


def _discard_output():
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
