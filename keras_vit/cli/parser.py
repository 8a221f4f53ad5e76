"""The parser of all subcommands, whose errors suggest what was meant."""

import argparse
import difflib
import itertools
import os
import pathlib
import pkgutil
import re

from absl.flags import argparse_flags

from keras_vit.cli.config_file import config_words
from keras_vit.messages import one_line

CONFIG = "--config"

# The help text of each, a module of this package with `run`, and `add_arguments` or the ACTIONS that have it.
SUBCOMMANDS = {
    "quickstart": "train on scanned digits, evaluate, draw, export, load back and compare",
    "models": "list the variants with parameters and GFLOPs, and the published checkpoints",
    "finetune": "train a model on a data set, from a checkpoint or from random weights",
    "pretrain": "train from random weights, with or without labels",
    "plan": "compile a training step for TPUs or GPUs, without having them: memory, FLOPs, collectives",
    "average": "average the weights of models that were trained from one start (model soups)",
    "evaluate": "accuracy of a model on a split of a data set",
    "fewshot": "accuracy of a simple classifier of the features of a few images per class",
    "probe": "accuracy of a linear classifier on the features of each block, or on embeddings",
    "predict": "classify images or folders of images, segment them, or detect objects in them",
    "embed": "compute vectors of all images of a data set, in parts that can be split and continued",
    "complete": "continue images below their first rows, or sample new ones, by iGPT",
    "search": "find pictures by a picture, or by words",
    "inspect": "figures and a report of what a model has learned and attends to",
    "export": "write a model as SavedModel, LiteRT, ONNX, OpenVINO, Hub archive or web page",
    "benchmark": "images per second and peak memory of a model, live and in each format",
    "weights": "show, convert or upload a checkpoint",
    "data": "show, check or rewrite a data set",
    "checks": "versions, devices, caches and missing packages, for the report of a bug",
}
# What subcommands, options and fields of recipes are called in other tools. {} is the given value.
SUBCOMMANDS_ELSEWHERE = {
    "finetune": "train fit fine_tune tune",
    "average": "soup soups ensemble merge mean",
    "evaluate": "eval test validate score",
    "predict": "infer inference classify run detect segment depth",
    "inspect": "explain visualize visualise attention",
    "export": "deploy serve save",
    "benchmark": "bench time speed profile",
    "models": "list variants catalogue catalog",
    "weights": "convert checkpoint",
    "data": "dataset datasets shards",
    "checks": "env info doctor environment collect_env versions",
    "push": "push_to_hub upload publish",
    "embed": "encode vectors features embeddings extract",
}
OPTIONS_ELSEWHERE = {  # of two with the same name, the first that a subcommand has
    "--total_steps (epochs × images / batch size)": "epochs num_epochs n_epochs max_epochs num_train_epochs",
    "--total_steps {}": "steps num_steps max_steps iterations",
    "--workdir {}": "output output_dir out save_dir logdir project",
    "--weights {}": "weights checkpoint ckpt pretrained init load model_name_or_path",
    "--config {}": "cfg c config_file",
    "--log wandb.integration.keras.WandbMetricsLogger": "wandb log_wandb wandb_project",
    "--log mlflow.keras.MlflowCallback": "mlflow",
    "--log MODULE.CALLBACK": "logger callback callbacks",
    "--threshold {}": "conf confidence conf_thres score_threshold",
    "--iou {}": "nms iou_thres iou_threshold",
    "--precisions float16": "half fp16",
    "--dataset folder:{}": "train_dir train_data data_root dataset_dir imagefolder",
    "--dataset {}": "data data_path dataset_name d",
    "--batch_size {}": "bs batch b per_device_train_batch_size",
    "--batch_sizes {}": "bs batch b batch_size",
    "--image_size {}": "img_size size resolution input_size imgsz",
    "--image {}": "img",
    "--show FOLDER": "save save_img visualize plot vis",
    "--output FILE.csv": "save_txt save_json save_csv",
    "--output {}": "output_dir out save dest o to project",
    "--format json": "json",
    "--json {}": "output output_file out save o",
    "--top {}": "topk top_k k",
    "--device gpu": "gpu gpus num_gpus cuda",
    "--device cpu": "cpu no_cuda",
    "--neighbors {}": "k knn num_neighbors",
    "--labels {}": "zero_shot texts candidate_labels",
    "--classes {}": "class_names names class_map",
    "--max_images {}": "images num_images max_samples num_samples",
    "--proportions {}": "weights",
    "--filter {}": "name search pattern",
    "--formats {}": "format type",
    "--precisions {}": "precision quantize dtype",
    "--split {}": "subset",
    "--set {}": "cfg_options opts override overrides",
    "--model {}": "model_name model_path model_name_or_path arch architecture m",
}
POSITIONALS_ELSEWHERE = {"images": "source input inputs input_dir images image img"}
# Options of other tools that a subcommand does without, and what it does instead.
NOTES = {
    "the same command continues what was interrupted": "resume resume_from continue",
    "images are read by several threads without an option": "workers num_workers j jobs threads nproc",
    "all devices are used that CUDA_VISIBLE_DEVICES allows": "device devices gpu gpus num_gpus cuda cpu",
    "TensorBoard reads the folder of a run": "tensorboard",
    "a split that a data set lacks is held out": "val_split validation_split val_size test_size",
    "images are resized to the model's size": "imgsz img_size image_size size",
    "a model is exported with other precisions: export --precisions float16": "half fp16",
}
FORMATS_ELSEWHERE = {
    "tflite, which phones of Apple run, too": "coreml mlmodel mlpackage",
    "tflite": "litert",
    "web": "tfjs html",
}
MODEL_ELSEWHERE = "weights checkpoint ckpt pretrained load run workdir"  # where --model names no variant
FIELDS_ELSEWHERE = {
    "base_lr": "lr lr0 learning_rate",
    "weight_decay": "wd",
    "warmup_steps": "warmup",
    "clip_norm": "grad_clip clip_grad max_grad_norm",
    "dropout_rate": "dropout drop",
    "stochastic_depth_rate": "drop_path drop_path_rate",
    "patch_dropout_rate": "patch_drop patch_drop_rate",
    "label_smoothing": "smoothing",
    "accumulation_steps": "grad_accum gradient_accumulation_steps",
    "dtype": "amp bf16 fp16 half mixed_precision",
    "optimizer": "opt optim",
    "decay": "sched scheduler lr_scheduler_type",
    "patience": "early_stopping early_stopping_patience es_patience",
    "remat": "gradient_checkpointing",
    **dict.fromkeys(("cutmix", "ema", "freeze", "layer_decay", "mixup", "randaugment", "task"), ""),
}


class _Formatter(argparse.HelpFormatter):
    """Help texts that end in the default of their option."""

    def _get_help_string(self, action):
        return help_text(action)


def help_text(action):
    """Return the help text of an option with its default, which is as on a command line.

    >>> help_text(argparse.Action(["--top"], "top", default=10, help="images listed"))
    'images listed (default: 10)'
    """
    has_default = action.option_strings and action.nargs != 0 and action.default not in (None, [])
    return f"{action.help} (default: {action.default})" if has_default else action.help


class _Parser(argparse_flags.ArgumentParser):
    """A parser whose errors are one line and suggest the intended subcommand or option."""

    def __init__(self, **options):
        # An abbreviation would change its meaning with each new option.
        super().__init__(**options, formatter_class=_Formatter, allow_abbrev=False)

    def error(self, message):
        see = " See" if message.endswith("?") else "; see"
        self.exit(2, f"{self.prog}: {message}{see} {self.prog} --help\n")

    def parse_args(self, args=None, namespace=None):
        """Expand ~ in all values, of which a shell leaves quoted ones and those after = as they are."""
        parsed = super().parse_args(args, namespace)
        for name, value in vars(parsed).items():
            expanded = [*map(_expanded, value)] if isinstance(value, list) else _expanded(value)
            setattr(parsed, name, expanded)
        return parsed

    def parse_known_args(self, args=None, namespace=None):
        """Read --config, and refuse unknown options first, since they explain what is missing."""
        known = dict(self._option_string_actions)
        self._refuse_unknown(args, [*known, "--flagfile", "--undefok"])  # The last two are absl's.
        in_file = {option: action for option, action in known.items() if action.default != argparse.SUPPRESS}
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        finder.add_argument(CONFIG, nargs="?", action="append", default=[])
        in_files = []
        for file in finder.parse_known_args(args)[0].config if in_file.pop(CONFIG, None) else ():
            try:
                words = config_words(file, in_file) if file else []
            except (ValueError, OSError) as error:
                self.error(one_line(error))
            self._refuse_unknown(words, in_file, f"{file}: ")
            in_files += words
        namespace, rest = super().parse_known_args([*in_files, *args], namespace)
        for format in getattr(namespace, "formats", None) or ():
            if meaning := _FORMATS.get(format.lower()):
                self.error(f"unknown format {format}; did you mean {meaning}?")
        for text in (*rest, *getattr(namespace, "set", ())):
            name, equals, value = text.partition("=")
            meaning = _meanings(known, value).get(name, "")
            if equals and meaning.startswith("--set ") and meaning != f"--set {text}":
                self.error(f"unknown field {name}; did you mean {meaning}?")
        return namespace, rest

    def _refuse_unknown(self, words, known, where=""):
        """Refuse options that are not known, with a suggestion.

        Args:
            words: A command line.
            known: The options.
            where: Begins the message.
        """
        known = [*known, *(action.dest for action in self._actions if not action.option_strings)]
        for text in itertools.takewhile(lambda word: not word.startswith("-"), words):
            name, equals, value = text.partition("=")
            meaning = _meanings(known, value).get(name, "") if equals and not self._subparsers else ""
            if meaning and not os.path.exists(text):
                meaning = f"{meaning} {value}" if meaning in known else meaning
                self.error(f"{where}unknown argument {text}; did you mean {meaning}?")
        for text, following in zip(words, [*words[1:], "-"]):
            name, equals, value = text.partition("=")
            if name == "--" or self._subparsers and not name.startswith("-"):
                break
            if re.match("--?[a-zA-Z]", name) and name not in known:
                value = value if equals else "VALUE" if following.startswith("-") else following
                meaning = suggestion(name.strip("-"), _meanings(known, value), _NOTES)
                self.error(f"{where}unknown option {name}{meaning}")

    def _check_value(self, action, value):
        if action.choices is not None and value not in action.choices:
            meanings = {name: name for name in action.choices}
            for choice in SUBCOMMANDS_ELSEWHERE.keys() & meanings:
                meanings |= dict.fromkeys(SUBCOMMANDS_ELSEWHERE[choice].split(), choice)
            message = f"unknown {value!r}{suggestion(value, meanings)} (one of {', '.join(action.choices)})"
            raise argparse.ArgumentError(action, message)


def _expanded(value):
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~") else value


def _meanings(known, value):
    """Return what the names of options mean for a subcommand with these options."""
    rows = [(option, option.strip("-")) for option in known]
    if "--recipe" in known:
        rows += [(f"--set {field}={{}}", f"{field} {names}") for field, names in FIELDS_ELSEWHERE.items()]
    elif "--model" in known:
        rows.append(("--model {}", MODEL_ELSEWHERE))
    rows += [
        ("{}, without an option", names) for name, names in POSITIONALS_ELSEWHERE.items() if name in known
    ]
    rows += [row for row in OPTIONS_ELSEWHERE.items() if row[0].split()[0] in known]
    return {name: meaning.format(value) for meaning, names in reversed(rows) for name in names.split()}


_NOTES = {name: note for note, names in NOTES.items() for name in names.split()}
_FORMATS = {name: format for format, names in FORMATS_ELSEWHERE.items() for name in names.split()}


def suggestion(name, meanings, notes=()):
    """Return the meaning of the closest name, or a note, as the end of a message; empty if none is close.

    The only one that begins with the name is the closest.

    >>> suggestion("predcit", {"predict": "predict", "train": "finetune"})
    '; did you mean predict?'
    >>> suggestion("Train", {"predict": "predict", "train": "finetune"})
    '; did you mean finetune?'
    >>> suggestion("total", {"total_steps": "total_steps"}, {"to": "a note"})
    '; did you mean total_steps?'
    """
    known, name = {**dict(notes), **meanings}, name.replace("-", "_").lower()
    longer = [option for option in meanings if option.startswith(name)]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    if len(longer) == 1 and name not in known:
        close = longer
    if not close:
        return ""
    return f"; did you mean {known[close[0]]}?" if close[0] in meanings else f"; {known[close[0]]}"


def version():
    """Return the version of the package, read from its source, so that Keras is not imported."""
    source = pathlib.Path(__file__).parents[1] / "__init__.py"
    return re.search(r'^__version__ = "(.+)"$', source.read_text(), re.MULTILINE)[1]


def subcommand(name):
    """Import the module of a subcommand."""
    return pkgutil.resolve_name(f"{__package__}.{name}")


def actions(name):
    """Yield (name, help text, `add_arguments`) of a subcommand; of a group None, before its actions."""
    module = subcommand(name)
    yield name, SUBCOMMANDS[name], getattr(module, "add_arguments", None)
    for action, (add_arguments, text) in getattr(module, "ACTIONS", {}).items():
        yield f"{name} {action}", text, add_arguments


def parser(words=None):
    """Return the parser of a command line.

    Args:
        words: The command line, of which only the subcommand is imported; None for a parser of all.
    """
    top = _Parser(
        prog="keras-vit",
        description="Vision Transformers for Keras 3.",
        epilog="keras-vit SUBCOMMAND --help lists its options.",
    )
    top.add_argument("--version", action="version", version=f"keras_vit {version()}")
    groups = {"": top.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)}
    named = SUBCOMMANDS if words is None else [word for word in words if not word.startswith("-")][:1]
    for subcommand_name, help_text in SUBCOMMANDS.items():
        if subcommand_name not in named:
            groups[""].add_parser(subcommand_name, help=help_text)
            continue
        for name, text, add_arguments in actions(subcommand_name):
            group, _, action = name.rpartition(" ")
            subparser = groups[group].add_parser(action, help=text, description=text)
            if add_arguments:
                add_arguments(subparser.add_argument)
                text = "YAML or JSON of these options and their values, which the command line changes"
                subparser.add_argument(CONFIG, action="append", default=[], metavar="FILE", help=text)
            else:
                groups[name] = subparser.add_subparsers(dest="action", metavar="ACTION", required=True)
    return top
