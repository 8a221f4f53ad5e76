"""Open what --model names: a run, a checkpoint or an exported model."""

import dataclasses
import json
import os
import pathlib
import re

from keras_vit.cli import options
from keras_vit.cli.report import introduce
from keras_vit.export.exported_model import ExportedModel, open_exported
from keras_vit.export.formats import SAVED_MODEL, format_of, suffix_of
from keras_vit.lazy import LazyModule
from keras_vit.models.backbones import image_model
from keras_vit.names import SPLITS
from keras_vit.rules import one_of
from keras_vit.tasks import get_task
from keras_vit.training.workdir import Workdir
from keras_vit.variants import is_variant
from keras_vit.weights.class_names import class_names
from keras_vit.weights.fetch import LOCAL_WEIGHTS, fetch

# Exported models are opened without these modules, which import Keras and TensorFlow.
checkpoint, load = LazyModule("keras_vit.weights.checkpoint"), LazyModule("keras_vit.weights.load")
datasets, predicting = LazyModule("keras_vit.data.datasets"), LazyModule("keras_vit.evaluation.predicting")
MODEL = "model.keras"  # of a finished run
RECIPE = {"seed": int, "split_seed": (int, type(None)), "task": str}  # types of entries used here
VERIFICATION = "verification.json"  # in the folder of every export
HUBS = r"https?://(www\.)?(tfhub\.dev|kaggle\.com/models)/"  # whose URLs have no suffix


def open_model(source, trust=False, sha256=None, kind="auto", patch_size=None):
    """Open the model of a run's folder, a `.keras` file or a checkpoint, or an exported model.

    Args:
        source: What --model names.
        trust: Whether a program or plain `http://` is accepted from another machine.
        sha256: Expected digest of the file, or None.
        kind: As for `from_pretrained`.
        patch_size: As for `open_live`; an export has its own.

    Returns:
        A model of this kind; or for a SavedModel (its
        folder, an export's, a `.tar.gz` or `.tgz`), a `.tflite` or a `.onnx` file, each a path or a URL, or
        the folder of a web page, an `ExportedModel`.

    Raises:
        ValueError: if there is none, or it holds no Vision Transformer.
    """
    if patch_size or not is_exported(source):
        return open_live(source, trust=trust, sha256=sha256, kind=kind, patch_size=patch_size)
    return open_exported(source, trust=trust, sha256=sha256)


def with_class_names(model, names):
    """Return the model with other class names.

    Args:
        model: What `open_model` returns.
        names: As for `keras_vit.weights.class_names`.

    Raises:
        ValueError: if there are no such names, or not as many as the model has classes.
    """
    names_of_classes = class_names(names)
    if len(names_of_classes) != (model.num_classes or 0):
        classes = f"{model.num_classes or 'no'} classes"
        raise ValueError(f"{names!r} has {len(names_of_classes)} class names; the model has {classes}")
    if isinstance(model, ExportedModel):
        description = dataclasses.replace(model.description, class_names=names_of_classes)
        return dataclasses.replace(model, description=description)
    model.class_names = names_of_classes
    return model


def open_live(source, image_size=None, trust=False, sha256=None, kind="auto", patch_size=None):
    """Open the model of a run's folder, a `.keras` file or a checkpoint, as `open_model`.

    Args:
        source: What --model names.
        image_size: (height, width) to which its positions are resized; None: the model's.
        trust, sha256, kind: As for `open_model`.
        patch_size: Side of a patch in pixels, to which the patch kernel is resized; None: the model's.

    Raises:
        ValueError: if there is none, or it is an exported model.
    """
    source = os.fspath(source)
    check_weights(source)
    if is_exported(source):
        raise ValueError(f"{source!r} is an exported model; expected the run, .keras file or checkpoint")
    path = pathlib.Path(source).expanduser()
    if path.is_dir() and not _has_weights(path):
        raise ValueError(
            f"{source!r} holds no finished run, no checkpoint and no export: it has no "
            f"{', '.join(LOCAL_WEIGHTS)} or saved_model.pb"
        )
    path = pathlib.Path(trained_file(source)).expanduser()
    if path.suffix == ".keras" and "://" not in source:
        if not path.is_file():
            raise ValueError(f"no such model file: {source!r}")
        if not (image_size or patch_size):
            model = checkpoint.read_model(fetch(path, sha256=sha256))
            return image_model(model) if kind == "auto" else model
    checks = {"trust": trust, "sha256": sha256, "kind": kind}
    checks |= {"patch_size": patch_size} if patch_size else {}
    return load.from_pretrained(trained_file(source), image_size=image_size, **checks)


def check_weights(source):
    """Raise ValueError if this is the name of a variant, and no file has this name."""
    if is_variant(source) and not pathlib.Path(source).exists():
        raise ValueError(
            f"{source!r} is a variant and has no weights: train it with keras-vit finetune --model {source}, "
            f"or give a checkpoint, such as one that keras-vit models {source} lists"
        )


def is_exported(source):
    """Whether --model names an export: by its suffix or host, or the contents of a folder.

    >>> [is_exported(f"https://{rest}") for rest in ("host/vit.tgz", "tfhub.dev/me/vit/1", "host/vit.npz")]
    [True, True, False]
    """
    if suffix_of(source) or re.match(HUBS, os.fspath(source)):
        return True
    path = pathlib.Path(source).expanduser()
    if path.is_dir() and format_of(path) is not SAVED_MODEL:  # a web page
        return True
    # Weights have precedence: they are data, and a SavedModel next to them is a program.
    programs = ("saved_model.pb", "[0-9]*/saved_model.pb", "saved_model", VERIFICATION)
    return not _has_weights(path) and any(next(path.glob(pattern), None) for pattern in programs)


def _has_weights(folder):
    return any((folder / name).is_file() for name in LOCAL_WEIGHTS)


def trained_file(source):
    """Return the finished model in a run's folder; another source unchanged."""
    file = pathlib.Path(source).expanduser() / MODEL
    return str(file) if file.is_file() else source


def run_of(source):
    """Return the configuration of the run that a model is from; empty for other models.

    Raises:
        ValueError: if the types of the recipe's seed or task are wrong.
    """
    config = _folder(source) / "config.json"
    if not os.path.exists(os.path.expanduser(source)):  # a name or URL, which no folder here is about
        return {}
    try:
        trained = json.loads(config.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(trained, dict) or "recipe" not in trained:  # Hugging Face's files have this name, too
        return {}
    recipe = trained["recipe"]
    is_recipe = isinstance(recipe, dict)
    if not (is_recipe and all(isinstance(recipe[name], RECIPE[name]) for name in {*RECIPE} & {*recipe})):
        raise ValueError(f"{os.fspath(config)!r} is damaged: expected an int seed and a str task in recipe")
    return trained


def finished_run(source):
    """Return the Workdir of the finished run that a model is from, or None."""
    config = run_of(source)
    workdir = config and Workdir(_folder(source), config)
    return workdir if workdir and workdir.result else None


def _folder(source):
    path = pathlib.Path(source).expanduser()
    return path if path.is_dir() else path.parent


def seed_of(source, model):
    """Return the seed of the split that a model was trained and tested on; 0 if it is unknown.

    Args:
        source: What --model names.
        model: What was opened there.
    """
    if isinstance(model, ExportedModel):
        return model.description.seed
    recipe = _recipe_of(source)  # A model of images and texts does not hold it.
    seeds = (model.split_seed, recipe.get("split_seed"), recipe.get("seed", 0))
    return next(seed for seed in seeds if seed is not None)


def task_of(source, model):
    """Return a model's task, "single_label" if it is unknown; the arguments are as for `seed_of`."""
    if isinstance(model, ExportedModel):
        return model.description.task
    return model.task or _recipe_of(source).get("task", "single_label")


def open_dataset(args, model, task, texts=False, same_classes=True):
    """Open the data set of --dataset, in the model's split unless --seed is given, and print its sizes.

    Args:
        args: The arguments of a command.
        model: What `open_model` returned.
        task, texts: As for `load_dataset`.
        same_classes: Whether a classifier has to have the classes of the data set.

    Raises:
        ValueError: if a classifier or segmenter does not have its classes.
    """
    seed = getattr(args, "seed", None)
    seed = seed_of(args.model, model) if seed is None else seed
    labels = {"task": task, "texts": texts, "fields": args.field, "classes": args.classes}
    one_of(SPLITS).check("--split", getattr(args, "split", "test"))
    dataset = datasets.load_dataset(args.dataset, seed, args.on_bad_image, **labels, data_dir=args.data_dir)
    if same_classes and (model.is_classifier or get_task(task).label.moves):
        predicting.check_classes(model, dataset)
    introduce(args, dataset)
    return dataset


def features_source(args):
    """What a command computes features of, as its result names it: --model and --dataset, or --embeddings.

    Raises:
        ValueError: unless one of both is given.
    """
    named = {name: getattr(args, name) for name in ("model", "dataset") if getattr(args, name)}
    if args.embeddings and not named:
        options.refuse_unused(args, options.OF_DATASET, "--dataset")
        options.refuse_unused(args, options.OF_MODEL, "--model")
        return {"embeddings": args.embeddings}
    if args.embeddings or len(named) < 2:
        received = ", ".join(f"--{name}" for name in (*named, *(["embeddings"] * bool(args.embeddings))))
        raise ValueError(f"expected --model and --dataset, or --embeddings alone; got {received or 'none'}")
    return named


def open_embeddings(args):
    """Read --embeddings: features and labels for training, those for testing, and the class names."""
    from keras_vit.embeddings.labeled import read_labeled

    dataset = read_labeled(args.embeddings)
    introduce(args, dataset)
    train, test = dataset.split("train"), dataset.split("test")
    return train.vectors, train.labels, test.vectors, test.labels, dataset.class_names


def open_for_features(args):
    """Open the model of --model and the data set of --dataset, in the model's split, and print its sizes."""
    model = open_live(args.model, trust=args.trust, sha256=args.sha256)
    return model, open_dataset(args, model, "single_label", same_classes=False)


def _recipe_of(source):
    return run_of(source).get("recipe", {})
