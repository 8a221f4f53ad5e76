"""The console script `keras-vit`: its parser and its exit status.

The module is outside the package so that `--help` need not import Keras; a subcommand's module is imported
when it runs. The library checks the values of options; the parser only names them.
"""

import argparse
import ast
import contextlib
import difflib
import importlib
import importlib.util
import os
import pathlib
import re
import sys
import tempfile

from absl.flags import argparse_flags

CHECKPOINT = "checkpoint: a path, hf://org/repo, https://…, gs://…, or a name listed by `keras-vit models`"
EXPORT = "export of keras-vit (SavedModel folder, .tar.gz, .tflite, .onnx, folder of a page)"
PATHS = "image files, their URLs, folders of files, or - for a list of them on standard input, one per line"
LABELS = "a .json file of the texts of each class, a text file with one class a line, or imagenet_1k"
SIZE = "side in pixels, or HEIGHTxWIDTH"

# What subcommands, options and fields of recipes are called in other tools. {} is the given value.
SUBCOMMANDS_ELSEWHERE = {
    "finetune": "train fit fine_tune tune",
    "evaluate": "eval test validate score",
    "predict": "infer inference classify run",
    "inspect": "explain visualize visualise attention",
    "export": "deploy serve save",
    "benchmark": "bench time speed profile",
    "models": "list variants catalogue catalog",
    "weights": "convert checkpoint",
}
OPTIONS_ELSEWHERE = {  # of two with the same name, the first that a subcommand has
    "--total_steps (epochs × images / batch size)": "epochs num_epochs n_epochs max_epochs",
    "--total_steps {}": "steps num_steps max_steps iterations",
    "--workdir {}": "output output_dir out save_dir logdir",
    "--weights {}": "weights checkpoint ckpt pretrained init load",
    "--strategy {}": "gpus num_gpus device devices",
    "--dataset {}": "data data_path dataset_name d",
    "--batch_size {}": "bs batch b",
    "--batch_sizes {}": "bs batch b batch_size",
    "--image_size {}": "img_size size resolution input_size",
    "--image {}": "img",
    "--output {}": "output_dir out save dest o",
    "--top {}": "topk top_k k",
    "--filter {}": "name search pattern",
    "--formats {}": "format type",
    "--precisions {}": "precision quantize dtype",
    "--split {}": "subset",
    "--model {}": "model_name model_path arch architecture m",
}
MODEL_ELSEWHERE = "weights checkpoint ckpt pretrained load run workdir"  # where --model names no variant
FIELDS_ELSEWHERE = {
    "base_lr": "lr learning_rate",
    "weight_decay": "wd",
    "warmup_steps": "warmup",
    "clip_norm": "grad_clip clip_grad max_grad_norm",
    "dropout_rate": "dropout drop",
    "stochastic_depth_rate": "drop_path drop_path_rate",
    "label_smoothing": "smoothing",
    "accumulation_steps": "grad_accum gradient_accumulation_steps",
    "dtype": "amp bf16 fp16 mixed_precision",
    "optimizer": "opt optim",
    "remat": "gradient_checkpointing",
    **dict.fromkeys(("cutmix", "ema", "freeze", "layer_decay", "mixup", "randaugment", "seed", "task"), ""),
}


def _quickstart(add):
    add("--workdir", help="folder of the run (default: runs/quickstart-N); an unfinished one is continued")


def _models(add):
    add("--image_size", type=positive_int, default=224, help="side of the image that the GFLOPs are for")
    add("--num_classes", type=non_negative_int, default=1000, help="size of the head; 0 for none")
    add("words", nargs="*", metavar="TEXT", help="part of name, source or variant, or a pattern with * or ?")
    add("--filter", action="append", default=[], metavar="TEXT", help="the same; all must match")
    add("--variant", help="list this size only, such as B/16")
    add("--cached", action="store_true", help="list only the checkpoints that are in the cache")
    _output(add)


def _training(add, recipe, recipe_help):
    weights = "" if recipe else "--weights or "  # pretrain starts from none
    add("--model", help=f"variant such as B/16; not needed with {weights}a recipe with sizes")
    _dataset(add)
    recipe_help = (
        f"hyperparameters, such as digits or augreg; an unknown name lists all (default: {recipe_help})"
    )
    add("--recipe", default=recipe, help=recipe_help)
    add("--workdir", required=True, help="folder of the run; an unfinished one is continued")
    add("--image_size", type=image_size, help=SIZE)
    add("--total_steps", type=positive_int, help="steps of the run")
    add("--batch_size", type=positive_int, help="images per step, over all devices")
    on_jax = "on JAX single, data_parallel, fsdp or model_parallel=AxB"
    known = f"auto, single, mirrored, multi_worker (reads TF_CONFIG) or tpu; {on_jax}"
    add("--strategy", default="auto", help=known)
    _set(add, "FIELD", "any field of the recipe, as base_lr=0.01; pydoc keras_vit.training.Recipe lists them")
    _on_bad_image(add)
    add("--tokenizer", metavar="PATH[:FAMILY]", help="tokenizer of captions (default: that of the weights)")
    add("--deterministic", action="store_true", help="bit-identical results on GPUs, too; slower")


def _finetune(add):
    _training(add, None, "finetune, with steps and a batch size that fit the number of images")
    add("--weights", help=f"run of keras-vit, .keras file, or {CHECKPOINT}")
    add("--sha256", metavar="DIGEST", help="expected SHA-256 of the weights")


def _pretrain(add):
    _training(add, "pretrain_imagenet", "pretrain_imagenet")
    _objective(add)


def _plan(add):
    add("--model", help="variant such as B/16; not needed with a recipe with sizes")
    add("--topology", required=True, help="kind and grid of TPU chips: v5e:4x4, v5p:4x4x4, v6e:8x8")
    add("--batch_size", type=positive_int, help="images per step, on all chips (default: the recipe's)")
    add("--strategy", default="auto", help="data_parallel (default), fsdp, model_parallel[=AxB] or single")
    recipe = "whose training step is compiled (default: pretrain_imagenet)"
    add("--recipe", default="pretrain_imagenet", help=recipe)
    add("--dtype", help="float32, mixed_bfloat16 or mixed_float16 (default: the recipe's)")
    add("--remat", action="store_true", help="recompute the blocks' activations in the backward pass")
    add("--accumulation_steps", type=positive_int, help="micro-batches (default: the recipe's)")
    add("--image_size", type=image_size, help=f"{SIZE} (default: the recipe's)")
    add("--num_classes", type=positive_int, default=1000, help="size of the head (default: 1000)")
    _objective(add)
    _set(add, "FIELD", "any field of the recipe")
    add("--extrapolate", action="store_true", help="compile 2 and 4 blocks only, and extrapolate to all")
    _output(add)


def _evaluate(add):
    _model(add)
    _dataset(add)
    _split(add)
    _on_bad_image(add)
    _task(add)
    add("--per_class", action="store_true", help="add a row for each class")
    add("--confusion", metavar="FILE.png", help="draw the confusion matrix")
    add("--zero_shot", metavar="FILE", help=f"image-text models: {LABELS}")
    _prompts(add)
    add(
        "--retrieval", action="store_true", help="image-text models: recall of a folder's captions and images"
    )
    add("--real", metavar="FILE.json", help="ReaL labels of ImageNet's validation images")
    _output(add)


def _fewshot(add):
    _model(add, exported=False)
    _dataset(add)
    add("--shots", type=ints, default=(1, 5, 10, 25), help="images per class (default: 1,5,10,25)")
    add("--seeds", type=ints, default=(0, 1, 2), help="seeds that select the images (default: 0,1,2)")
    add("--l2", type=float, default=1024.0, help="weight of the L2 penalty (default: 1024)")
    add("--k", type=positive_int, help="number of nearest images that vote, instead of a linear classifier")
    add("--batch_size", type=positive_int, default=64, help="images computed at a time")
    _output(add)


def _probe(add):
    _model(add, exported=False)
    _dataset(add)
    add("--shots", type=positive_int, help="training images per class (default: all)")
    add("--seeds", type=ints, default=(0,), help="seeds that select the images (default: 0)")
    add("--figure", metavar="FILE.png", help="draw the accuracy of each block")
    add("--batch_size", type=positive_int, default=64, help="images computed at a time")
    _output(add)


def _predict(add):
    _model(add)
    add("images", nargs="+", help=PATHS)
    add("--top", type=positive_int, default=5, help="classes listed for each image (default: 5)")
    add("--class_names", metavar="NAMES", help="imagenet_1k, or a text file with one name per line")
    _labels(add)
    add("--format", default="table", help="what to print: table, csv, jsonl or json (default: table)")
    add("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    add("--output", metavar="FILE", help="also write a file, in the format of its suffix")
    masks = "segmentation: folder to write, with masks as palette PNGs and overlays"
    add("--masks", metavar="DIR", help=masks)
    windows = "segmentation: at the images' own scale, in overlapping windows (default: resized as a whole)"
    add("--windows", action="store_true", help=windows)


def _complete(add):
    _model(add, exported=False)
    add("images", nargs="*", help=PATHS)
    add("--rows", type=int, help="rows of the model's input that are kept; the others are sampled")
    add("--count", type=positive_int, help="number of new images, in place of images to complete")
    add("--temperature", type=float, default=1.0, help="below 1 for more probable colors (default: 1)")
    add("--top_k", type=positive_int, help="sample among this many colors (default: all)")
    add("--seed", type=non_negative_int, default=0, help="determines what is sampled (default: 0)")
    add("--output", metavar="DIR", required=True, help="new folder for the images, as PNG files")


def _search_index(add):
    _model(add, exported=False)
    add("images", nargs="+", help=PATHS)
    add(
        "--index",
        required=True,
        metavar="DIR",
        help="folder of the index; one that exists is brought up to date",
    )
    _on_bad_image(add)
    _output(add)


def _search_query(add):
    add("query", nargs="+", help="an image file; or words, for an image-text model")
    add("--index", required=True, metavar="DIR", help="folder that keras-vit search index has written")
    add("--top", type=positive_int, default=10, help="images listed (default: 10)")
    add("--model", help="the index's model, if its path or URL has changed")
    _trust(add)
    _output(add)


def _inspect(add):
    _model(add)
    add("--image", nargs="+", action="extend", default=[], metavar="IMAGE", help="image files, or folders")
    _dataset(add, required=False)
    _split(add)
    _on_bad_image(add)
    _task(add)
    add("--image_size", type=image_size, help=f"{SIZE} (default: the model's)")
    add("--block", type=int, help="block of the heads: 0, 1, …, -1 (default: the last, or the probe)")
    add("--output", required=True, metavar="DIR", help="folder to write")
    add("--json", action="store_true", help="print JSON instead of a table")


def _export(add):
    _model(add, exported=False)
    folder = "folder to write; an existing export only accepts a saved_model with another --version"
    add("--output", required=True, metavar="DIR", help=folder)
    formats = "of saved_model,tflite,onnx,onnx_int8,openvino,hub,web (default: saved_model,tflite)"
    add("--formats", type=names, default=("saved_model", "tflite"), help=formats)
    _precisions(add)
    _dataset(add, required=False)
    add("--split", default="test", help="split to verify on (default: test); int8 is calibrated on train")
    add("--images", type=positive_int, default=512, help="maximum number of images of it (default: 512)")
    _on_bad_image(add)
    _task(add)
    _labels(add)
    add("--representation", action="store_true", help="export feature vectors instead of class scores")
    add("--image_size", type=image_size, help=f"{SIZE} (default: the model's)")
    add(
        "--batch_size",
        type=positive_int,
        default=1,
        help="images in a batch of the LiteRT files (default: 1)",
    )
    add("--integer_io", help="input and output type of LiteRT's int8: uint8 or int8 (default: float32)")
    add("--version", type=non_negative_int, default=1, help="number of the SavedModel's folder (default: 1)")
    add("--name", help="of the Hub archive (default: the model's)")
    add("--publisher", default="keras-vit", help="of the Hub archive: lowercase letters, digits and -")
    add("--licence", help="of the weights, for the Hub model card: Apache-2.0, …")
    add("--url", metavar="URL", help="URL at which the Hub archive will be published")
    add("--single_file", action="store_true", help="web: put everything into web/index.html")
    side = "web: add a field to draw on, whose drawings are reduced to SIDE×SIDE pixels"
    add("--attention", action="store_true", help="web: show attention rollout over the picture")
    add("--drawing", type=positive_int, metavar="SIDE", help=side)
    add("--json", action="store_true", help="print JSON instead of a table")


def _benchmark(add):
    _model(add, also="a variant such as B/16 with random weights, ")
    formats = "of live,saved_model,tflite,onnx,onnx_int8,openvino,hub (default: the first three)"
    add("--formats", type=names, help=formats)
    add(
        "--all", action="store_true", help="every format and precision whose packages are installed, compared"
    )
    _dataset(add, required=False)
    _on_bad_image(add)
    _precisions(add)
    add("--image_size", type=image_size, help=f"{SIZE} (default: the model's or 224)")
    add("--batch_sizes", type=positive_ints, default=(1, 16), help="images per batch (default: 1,16)")
    add("--rounds", type=positive_int, default=9, help="batches measured per format (default: 9)")
    add("--threads", type=positive_int, help="number of threads (default: one per core)")
    _output(add)


def _weights(add):
    add("source", help=f"{CHECKPOINT}, or file.npz:part")
    _set(add, "ARGUMENT", "values that the file lacks or that are changed: num_heads=6, image_size=384")
    _trust(add)
    _output(add)


def _weights_convert(add):
    _weights(add)
    add("destination", help="file to write (.npz, .safetensors); a folder for huggingface")
    add("--layout", required=True, help="vit_jax, big_vision, timm, huggingface or open_clip")
    add("--dtype", default="float32", help="float32, float16, bfloat16 or float64 (default: float32)")
    add("--overwrite", action="store_true", help="replace an existing file")


def _weights_push(add):
    _weights(add)
    add("repository", metavar="ORG/NAME", help="repository to create, or to add a commit to")
    add("--layout", help="huggingface or timm (default: the first that supports the model)")
    add("--private", action="store_true", help="make a new repository private")
    add("--licence", help="of the weights: apache-2.0, … (default: the catalogue's)")
    add("--trained_on", metavar="DATASET", help="in words, or its name on Hugging Face (default: the run's)")


def _labels(add):
    add("--labels", help=f"image-text models: {LABELS}, or names separated by commas: cat,dog,'a red car'")
    _prompts(add)


def _prompts(add):
    add("--prompts", metavar="FILE", help="one template a line, as 'a photo of a {}'; or clip_80, or clip_7")


def _objective(add):
    add("--objective", default="classify", help="classify, or without labels: masked_patch, mae, igpt, dino")
    add("--target", default="mean_color", help="of masked_patch: mean_color, downsized or pixels")


def _dataset(add, required=True):
    add(
        "--dataset",
        required=required,
        help="digits, digits_scenes, digits_words, folder:PATH, tfds:NAME[/CONFIG] or vtab:TASK",
    )
    add("--data_dir", metavar="DIR", help="data folder of tfds: and vtab:")


def _set(add, name, text):
    add("--set", action="append", default=[], metavar=f"{name}=VALUE", help=text)


def _split(add):
    add("--split", default="test", help="train, validation or test (default: test)")
    add("--seed", type=non_negative_int, help="of a split that the data set lacks (default: the run's or 0)")
    add("--batch_size", type=positive_int, default=64, help="images computed at a time")


def _on_bad_image(add):
    add("--on_bad_image", default="fail", help="unreadable images of a folder: fail or skip (default: fail)")


def _task(add):
    add(
        "--task",
        help="single_label, multi_label, regression or segmentation (default: the run's, or single_label)",
    )


def _precisions(add):
    precisions = "of LiteRT float32,float16,dynamic_int8,int8, of OpenVINO float32,bfloat16,int8"
    precisions += " (default: float32,float16,dynamic_int8; LiteRT's int8 is slow on CPUs)"
    add("--precisions", type=names, default=("float32", "float16", "dynamic_int8"), help=precisions)


def _model(add, exported=True, also=""):
    export = f"{EXPORT}, " if exported else ""
    add("--model", required=True, help=f"workdir of a run, .keras file, {also}{export}or {CHECKPOINT}")
    _trust(add, program=exported)


def _trust(add, program=False):
    accepted = "a SavedModel, which is a program, from a URL, and " if program else ""
    add("--trust", action="store_true", help=f"accept {accepted}plain http:// from another machine")
    add("--sha256", metavar="DIGEST", help="expected SHA-256 of the file")


def _output(add):
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--output", metavar="FILE", help="also write the JSON to a file")


SUBCOMMANDS = {
    "quickstart": (_quickstart, "train on scanned digits, evaluate, draw, export, load back and compare"),
    "models": (_models, "list the variants with parameters and GFLOPs, and the published checkpoints"),
    "finetune": (_finetune, "train a model on a data set, from a checkpoint or from random weights"),
    "pretrain": (_pretrain, "train from random weights, with or without labels"),
    "plan": (_plan, "compile a training step for TPUs, without having them: memory, FLOPs, collectives"),
    "evaluate": (_evaluate, "accuracy of a model on a split of a data set"),
    "fewshot": (_fewshot, "accuracy of a simple classifier of the features of a few images per class"),
    "probe": (_probe, "accuracy of a linear classifier on the features of each block"),
    "predict": (_predict, "classify or segment images or folders of images"),
    "complete": (_complete, "continue images below their first rows, or sample new ones, by iGPT"),
    "search": (None, "find pictures by a picture, or by words"),
    "search index": (_search_index, "make or update an index of pictures: new, changed and removed ones"),
    "search query": (_search_query, "list the pictures of an index that are most like a picture or words"),
    "inspect": (_inspect, "figures and a report of what a model has learned and attends to"),
    "export": (_export, "write a model as SavedModel, LiteRT, ONNX, OpenVINO, Hub archive or web page"),
    "benchmark": (_benchmark, "images per second and peak memory of a model, live and in each format"),
    "weights": (None, "show, convert or upload a checkpoint"),
    "weights show": (_weights, "layout, architecture, parameters, and what is missing or unexpected"),
    "weights convert": (_weights_convert, "write a checkpoint in another project's layout"),
    "weights push": (_weights_push, "upload a checkpoint or run to Hugging Face, for transformers or timm"),
}


# The subcommands that read no file but the catalogue's, and start at once.
WITHOUT_KERAS = ("models",)


class _Parser(argparse_flags.ArgumentParser):
    """A parser whose errors are one line and suggest the intended subcommand or option."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse_known_args(self, args=None, namespace=None):
        """Refuse unknown options first, since they explain what is missing."""
        known = [name for action in self._actions for name in action.option_strings]
        known += ["--flagfile", "--undefok"]  # of absl
        for text, following in zip(args, [*args[1:], "-"]):
            name, equals, value = text.partition("=")
            if name == "--" or self._subparsers and not name.startswith("-"):
                break
            if re.match("--?[a-zA-Z]", name) and not any(option.startswith(name) for option in known):
                value = value if equals else "VALUE" if following.startswith("-") else following
                self.error(f"unknown option {name}{suggestion(name.strip('-'), _meanings(known, value))}")
        return super().parse_known_args(args, namespace)

    def _check_value(self, action, value):
        if action.choices is not None and value not in action.choices:
            meanings = {name: name for name in action.choices}
            for choice in SUBCOMMANDS_ELSEWHERE.keys() & meanings:
                meanings |= dict.fromkeys(SUBCOMMANDS_ELSEWHERE[choice].split(), choice)
            message = f"unknown {value!r}{suggestion(value, meanings)} (one of {', '.join(action.choices)})"
            raise argparse.ArgumentError(action, message)


def _meanings(known, value):
    """Return what the names of options mean for a subcommand with these options."""
    rows = [(option, option.strip("-")) for option in known]
    if "--recipe" in known:
        rows += [(f"--set {field}={{}}", f"{field} {names}") for field, names in FIELDS_ELSEWHERE.items()]
    else:
        rows.append(("--model {}", MODEL_ELSEWHERE))
    rows += [row for row in OPTIONS_ELSEWHERE.items() if row[0].split()[0] in known]
    return {name: meaning.format(value) for meaning, names in reversed(rows) for name in names.split()}


def suggestion(name, meanings):
    """Return the meaning of the closest name as the end of a message; empty if none is close.

    >>> suggestion("predcit", {"predict": "predict", "train": "finetune"})
    '; did you mean predict?'
    >>> suggestion("Train", {"predict": "predict", "train": "finetune"})
    '; did you mean finetune?'
    """
    close = difflib.get_close_matches(name.replace("-", "_").lower(), meanings, n=1, cutoff=0.7)
    return f"; did you mean {meanings[close[0]]}?" if close else ""


def version():
    """Return the version of the package, read from its source, so that Keras is not imported."""
    source = pathlib.Path(__file__).with_name("keras_vit") / "__init__.py"
    return re.search(r'^__version__ = "(.+)"$', source.read_text(), re.MULTILINE)[1]


def parser():
    """Return the parser of all subcommands."""
    top = _Parser(
        prog="keras-vit",
        description="Vision Transformers for Keras 3.",
        epilog="keras-vit SUBCOMMAND --help lists its options.",
    )
    top.add_argument("--version", action="version", version=f"keras_vit {version()}")
    groups = {"": top.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)}
    for name, (add_options, text) in SUBCOMMANDS.items():
        group, _, action = name.rpartition(" ")
        subparser = groups[group].add_parser(action, help=text, description=text)
        if add_options:
            add_options(subparser.add_argument)
        else:
            groups[name] = subparser.add_subparsers(dest="action", metavar="ACTION", required=True)
    return top


def non_negative_int(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a non-negative integer; got {text!r}")
    return int(text)


def positive_int(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a positive integer; got {text!r}")
    return int(text)


def names(text):
    return tuple(text.split(","))


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


def settings(pairs):
    """Parse `["base_lr=0.01", "flip=False"]` to a dict; a value that is no Python literal is a string."""
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise ValueError(f"--set expects FIELD=VALUE; got {pair!r}")
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            found[name] = text
    return found


STARTUP_LOGS = re.compile(
    r"I\d{4} |WARNING: All log messages before absl::InitializeLog|INFO: Created TensorFlow Lite "
    r"|To enable the following instructions|fully_quantize: "
    r"|W\d{4} .*(tf_tfl_flatbuffer_helpers|flatbuffer_export)\.cc"
)


@contextlib.contextmanager
def quiet_startup_logs(drop_on_error=False):
    """Remove the start-up logs of TensorFlow and LiteRT from standard error, also those written by C++.

    All other lines are written when the context ends.

    Args:
        drop_on_error: Whether to drop the other lines, too, if the context raises an exception, which
            repeats them.
    """
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException:
            if drop_on_error:
                captured.truncate(0)
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            captured.seek(0)
            lines = captured.read().decode(errors="replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not _is_startup_log(line)))


def _is_startup_log(line):
    if "failed call to cuInit" in line:  # an error only where there is a GPU
        return not os.path.exists("/dev/nvidiactl")
    return STARTUP_LOGS.match(line) is not None


@contextlib.contextmanager
def without_keras():
    """Import modules of the package without the `__init__` of their packages, which import Keras.

    A process that has imported the package keeps it.
    """
    if "keras_vit" in sys.modules:
        yield
        return
    try:
        for name in ("keras_vit", "keras_vit.weights"):
            sys.modules[name] = importlib.util.module_from_spec(importlib.util.find_spec(name))
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "keras_vit"]:
            del sys.modules[name]


def _run(module, args):
    """Run a subcommand's module and flush standard output; return the exit status."""
    status = module.run(args) or 0
    importlib.import_module("keras_vit.cli.report").print_now("", end="")
    return status


def main(argv=None):
    """Run a subcommand; return the exit status: 0, 2 for bad input, 130 if interrupted."""
    args = parser().parse_args(sys.argv[1:] if argv is None else [*argv])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        if args.subcommand in WITHOUT_KERAS:
            with without_keras():
                return _run(importlib.import_module(f"keras_vit.cli.{args.subcommand}"), args)
        with quiet_startup_logs():
            module = importlib.import_module(f"keras_vit.cli.{args.subcommand}")
            importlib.import_module("tensorflow").config.list_physical_devices()
        return _run(module, args)
    except BrokenPipeError:  # the reader of standard output has ended, such as `head`
        _discard_output()
        return 141
    except Exception as error:
        # Bad input, or TensorFlow's error about a file or an image; any other exception is a bug.
        from_tensorflow = type(error).__module__.startswith("tensorflow.")
        if not (from_tensorflow or isinstance(error, ValueError | OSError | ImportError)):
            raise
        try:
            sys.stdout.flush()
        except OSError:  # its disk is full, and Python would try again at exit
            _discard_output()
        text = " ".join(str(error).split())
        # Repeats one_line and printable of keras_vit.messages, which fail to import where the package does.
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
