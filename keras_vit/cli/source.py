"""What --model names, as a model."""

import json
import pathlib

from keras_vit.weights import from_pretrained
from keras_vit.weights.checkpoint import read_model
from keras_vit.weights.fetch import WEIGHTS


def open_model(source):
    """The model of a run's folder, a `.keras` file or a checkpoint's source.

    Raises:
        ValueError: if there is none, or it holds no Vision Transformer.
    """
    path = pathlib.Path(source).expanduser()
    if path.is_dir():
        if not any((path / name).is_file() for name in ("model.keras", *WEIGHTS)):
            raise ValueError(
                f"{source!r} holds no finished run and no checkpoint: there is no model.keras in it, "
                f"nor {' or '.join(WEIGHTS)}"
            )
        path = path / "model.keras" if (path / "model.keras").is_file() else path
    if path.suffix != ".keras":
        return from_pretrained(source)
    if not path.is_file():
        raise ValueError(f"no such model file: {source!r}")
    return read_model(path)


def trained_file(source):
    """The finished model in a run's folder, or the source as it is."""
    file = pathlib.Path(source).expanduser() / "model.keras"
    return str(file) if file.is_file() else source


def seed_of(source):
    """The seed of the split that a run's model was trained and tested on; 0 for other models."""
    path = pathlib.Path(source).expanduser()
    config = (path if path.is_dir() else path.parent) / "config.json"
    try:
        return int(json.loads(config.read_text())["recipe"]["seed"])
    except (OSError, ValueError, KeyError, TypeError):  # no run's folder
        return 0
