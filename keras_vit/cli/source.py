"""What --model names, as a model: one of a run or checkpoint, or an exported one."""

import json
import os
import pathlib

from keras_vit.weights import from_pretrained
from keras_vit.weights.checkpoint import read_model
from keras_vit.weights.fetch import WEIGHTS, fetch


def open_model(source):
    """The model of a run's folder, a `.keras` file or a checkpoint's source, or an exported one.

    Returns:
        VisionTransformer; or for a SavedModel (its folder, an export's, a `.tar.gz`), a `.tflite` or a
        `.onnx` file, each a path or an address, an `ExportedModel`.

    Raises:
        ValueError: if there is none, or it holds no Vision Transformer.
    """
    if not is_exported(source):
        return open_live(source)
    from keras_vit.export.archive import saved_model_folder
    from keras_vit.export.runtimes import open_exported

    single = os.fspath(source).endswith((".tflite", ".onnx"))
    return open_exported(fetch(source) if single else saved_model_folder(source))


def open_live(source, image_size=None):
    """The VisionTransformer of a run's folder, a `.keras` file or a checkpoint's source.

    Args:
        source: What --model names.
        image_size: (height, width) to resize its positions to; None: as it is.

    Raises:
        ValueError: if there is none, or it is an exported model, which computes and no more.
    """
    if is_exported(source):
        raise ValueError(f"{source!r} is an exported model; wanted the run, .keras file or checkpoint")
    path = pathlib.Path(source).expanduser()
    if path.is_dir():
        if not any((path / name).is_file() for name in ("model.keras", *WEIGHTS)):
            raise ValueError(
                f"{source!r} holds no finished run, no checkpoint and no export: there is no model.keras in "
                f"it, nor {', '.join(WEIGHTS)} or saved_model.pb"
            )
        path = path / "model.keras" if (path / "model.keras").is_file() else path
    if path.suffix == ".keras" and not path.is_file():
        raise ValueError(f"no such model file: {source!r}")
    if image_size:
        return from_pretrained(trained_file(source), image_size=image_size)
    return read_model(path) if path.suffix == ".keras" else from_pretrained(source)


def is_exported(source):
    """Whether --model names what `keras-vit export` writes: by its ending, or by what is in the folder."""
    path = pathlib.Path(source).expanduser()
    if os.fspath(source).endswith((".tflite", ".onnx", ".tar.gz")):
        return True
    if (path / "model.keras").is_file():
        return False
    return any(
        next(path.glob(where), None) for where in ("saved_model.pb", "[0-9]*/saved_model.pb", "saved_model")
    )


def trained_file(source):
    """The finished model in a run's folder, or the source as it is."""
    file = pathlib.Path(source).expanduser() / "model.keras"
    return str(file) if file.is_file() else source


def run_of(source):
    """The configuration of the run that a model is from; empty for other models."""
    path = pathlib.Path(source).expanduser()
    config = (path if path.is_dir() else path.parent) / "config.json"
    try:
        found = json.loads(config.read_text())
        return found if "recipe" in found else {}  # Hugging Face's files have this name, too
    except (OSError, ValueError, TypeError):
        return {}


def seed_of(source):
    """The seed of the split that a run's model was trained and tested on; 0 for other models."""
    return int(run_of(source).get("recipe", {}).get("seed", 0))


def task_of(source, model=None):
    """What a model's outputs mean: as its export says, or its run; else "single_label"."""
    described = getattr(model, "description", None)
    return described.task if described else run_of(source).get("recipe", {}).get("task", "single_label")
