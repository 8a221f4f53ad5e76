"""`keras-vit predict`: what a model, live or exported, sees in images."""

import os
import pathlib

from tqdm import tqdm

from keras_vit.cli.report import report, table
from keras_vit.cli.source import open_model, task_of
from keras_vit.data.datasets import IMAGE_SUFFIXES
from keras_vit.models.classifying import classify

BATCH = 32  # images read and computed at a time


def run(args):
    paths = [path for given in args.images for path in _images(given)]
    model = open_model(args.model)
    task = task_of(args.model, model)
    batches = tqdm(range(0, len(paths), BATCH), "classifying", unit="batch", delay=2, disable=None)
    batches = (paths[i : i + BATCH] for i in batches)
    if task == "regression":
        found = [row for batch in batches for row in model.predict_on_batch(model.preprocessing(batch))]
        value = [{"image": path, "values": row.tolist()} for path, row in zip(paths, found)]
        text = table([(path, *(f"{x:.4f}" for x in row)) for path, row in zip(paths, found)], _columns(model))
        return report(args, value, text)
    found = [best for batch in batches for best in classify(model, batch, args.top, task=task)]
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


def _columns(model):
    return "image", *(model.class_names or [f"value {i}" for i in range(model.num_classes)])


def _images(given):
    path = pathlib.Path(given)
    if not path.is_dir():
        return [given]
    found = sorted(os.fspath(p) for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise ValueError(f"no images in the folder {given!r}; wanted {', '.join(IMAGE_SUFFIXES)}")
    return found
