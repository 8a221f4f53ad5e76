"""`keras-vit predict`: what a model sees in images."""

import os
import pathlib

from tqdm import tqdm

from keras_vit.cli.report import report, table
from keras_vit.cli.source import open_model
from keras_vit.data.datasets import IMAGE_SUFFIXES

BATCH = 32  # images read and computed at a time


def run(args):
    paths = [path for given in args.images for path in _images(given)]
    model = open_model(args.model)
    batches = tqdm(range(0, len(paths), BATCH), "classifying", unit="batch", delay=2, disable=None)
    found = [best for i in batches for best in model.classify(paths[i : i + BATCH], args.top)]
    value = [
        {"image": path, "classes": [{"name": name, "probability": score} for name, score in best]}
        for path, best in zip(paths, found)
    ]
    rows = [
        (path if place == 0 else "", name, f"{score:7.2%}")
        for path, best in zip(paths, found)
        for place, (name, score) in enumerate(best)
    ]
    report(args, value, table(rows, ("image", "class", "probability")))


def _images(given):
    path = pathlib.Path(given)
    if not path.is_dir():
        return [given]
    found = sorted(os.fspath(p) for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise ValueError(f"no images in the folder {given!r}; wanted {', '.join(IMAGE_SUFFIXES)}")
    return found
