"""What --model names, as a model: one of a run or checkpoint, or an exported one."""

import dataclasses
import json
import os
import pathlib
import re

from keras_vit.export.exported_model import open_exported
from keras_vit.export.formats import suffix_of
from keras_vit.models import VisionTransformer
from keras_vit.training.workdir import Workdir
from keras_vit.variants import parse_variant
from keras_vit.weights import from_pretrained
from keras_vit.weights.checkpoint import read_model
from keras_vit.weights.class_names import class_names
from keras_vit.weights.fetch import LOCAL_WEIGHTS, fetch

VERIFIED = "verification.json"  # what every export's folder holds
HUBS = r"https?://(www\.)?(tfhub\.dev|kaggle\.com/models)/"  # whose addresses end in no suffix


def open_model(source, trust=False, sha256=None):
    """The model of a run's folder, a `.keras` file or a checkpoint's source, or an exported one.

    Args:
        source: What --model names.
        trust: Whether a program or plain `http://` is accepted from another machine.
        sha256: Digest that the file must have, or None.

    Returns:
        VisionTransformer; or for a SavedModel (its folder, an export's, a `.tar.gz` or `.tgz`), a `.tflite`
        or a `.onnx` file, each a path or an address, an `ExportedModel`.

    Raises:
        ValueError: if there is none, or it holds no Vision Transformer.
    """
    if not is_exported(source):
        return open_live(source, trust=trust, sha256=sha256)
    return open_exported(source, trust=trust, sha256=sha256)


def named(model, names):
    """The model with other class names.

    Args:
        model: What `open_model` returns.
        names: As `keras_vit.weights.class_names` takes them.

    Raises:
        ValueError: if there are no such names, or not as many as the model has classes.
    """
    found = class_names(names)
    if len(found) != model.num_classes:
        raise ValueError(f"{names!r} has {len(found)} class names; the model has {model.num_classes} classes")
    if isinstance(model, VisionTransformer):
        model.class_names = found
        return model
    return dataclasses.replace(model, description=dataclasses.replace(model.description, class_names=found))


def open_live(source, image_size=None, trust=False, sha256=None):
    """The VisionTransformer of a run's folder, a `.keras` file or a checkpoint's source.

    Args:
        source: What --model names.
        image_size: (height, width) to resize its positions to; None: as it is.
        trust, sha256: As for `open_model`.

    Raises:
        ValueError: if there is none, or it is an exported model, which computes and no more.
    """
    source = os.fspath(source)
    check_weights(source)
    if is_exported(source):
        raise ValueError(f"{source!r} is an exported model; wanted the run, .keras file or checkpoint")
    path = pathlib.Path(source).expanduser()
    if path.is_dir():
        if not _has_weights(path):
            raise ValueError(
                f"{source!r} holds no finished run, no checkpoint and no export: there is no "
                f"{', '.join(LOCAL_WEIGHTS)} or saved_model.pb in it"
            )
        path = path / "model.keras" if (path / "model.keras").is_file() else path
    if path.suffix == ".keras" and "://" not in source:
        if not path.is_file():
            raise ValueError(f"no such model file: {source!r}")
        if not image_size:
            return read_model(fetch(path, sha256=sha256))
    return from_pretrained(trained_file(source), image_size=image_size, trust=trust, sha256=sha256)


def check_weights(source):
    """Refuse the name of a variant, unless there is a file of this name.

    Raises:
        ValueError: if it is one.
    """
    try:
        parse_variant(source)
    except ValueError:
        return
    if not pathlib.Path(source).exists():
        raise ValueError(
            f"{source!r} is a variant and has no weights: train it with keras-vit finetune --model {source}, "
            f"or give a checkpoint, such as one that keras-vit models {source} lists"
        )


def is_exported(source):
    """Whether --model names what `keras-vit export` writes: by its ending or host, or what is in the folder.

    >>> [is_exported(f"https://{rest}") for rest in ("host/vit.tgz", "tfhub.dev/me/vit/1", "host/vit.npz")]
    [True, True, False]
    """
    if suffix_of(source) or re.match(HUBS, os.fspath(source)):
        return True
    path = pathlib.Path(source).expanduser()
    # Weights come first: they are data, and a SavedModel beside them is a program.
    return not _has_weights(path) and ((path / VERIFIED).is_file() or _has_saved_model(path))


def _has_weights(folder):
    return any((folder / name).is_file() for name in LOCAL_WEIGHTS)


def _has_saved_model(folder):
    where = ("saved_model.pb", "[0-9]*/saved_model.pb", "saved_model")
    return any(next(folder.glob(pattern), None) for pattern in where)


def trained_file(source):
    """The finished model in a run's folder, or the source as it is."""
    file = pathlib.Path(source).expanduser() / "model.keras"
    return str(file) if file.is_file() else source


def run_of(source):
    """The configuration of the run that a model is from; empty for other models.

    Raises:
        ValueError: if the recipe in it has no seed or task of the right kind.
    """
    path = pathlib.Path(source).expanduser()
    config = (path if path.is_dir() else path.parent) / "config.json"
    try:
        found = json.loads(config.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict) or "recipe" not in found:  # Hugging Face's files have this name, too
        return {}
    recipe = found["recipe"]
    is_recipe = isinstance(recipe, dict)
    if not (is_recipe and type(recipe.get("seed", 0)) is int and isinstance(recipe.get("task", ""), str)):
        raise ValueError(f"{os.fspath(config)!r} is damaged: wanted a recipe with an int seed and a str task")
    return found


def finished_run(source):
    """The Workdir of the run that a model is from, or None where that is not known or it has not finished."""
    path = pathlib.Path(source).expanduser()
    config = run_of(source)
    workdir = config and Workdir(path if path.is_dir() else path.parent, config)
    return workdir if workdir and workdir.result else None


def seed_of(source, model):
    """The seed of the split that a model was trained and tested on; 0 where nothing tells.

    Args:
        source: What --model names.
        model: What was opened there.
    """
    if isinstance(model, VisionTransformer):  # older files do not hold it
        known = model.split_seed
        return int(run_of(source).get("recipe", {}).get("seed", 0)) if known is None else known
    return model.description.seed


def task_of(source, model):
    """What a model's outputs mean, "single_label" where nothing tells; the arguments are as of `seed_of`."""
    if isinstance(model, VisionTransformer):
        return model.task or run_of(source).get("recipe", {}).get("task", "single_label")
    return model.description.task
