"""`keras-vit predict`: what a model, live or exported, sees in images."""

import os
import pathlib

from tqdm import tqdm

from keras_vit.cli.report import report, table
from keras_vit.cli.source import named, open_model, task_of
from keras_vit.data.datasets import IMAGE_SUFFIXES
from keras_vit.models.classifying import check_finite, classify

BATCH = 32  # images read and computed at a time


def run(args):
    paths = [path for given in args.images for path in images_of(given)]
    model = open_model(args.model)
    if args.class_names:
        model = named(model, args.class_names)
    task = task_of(args.model, model)
    value = predicted(model, paths, task, args.top)
    if task == "regression":
        columns = "image", *(model.class_names or [f"value {i}" for i in range(model.num_classes)])
        rows = [(found["image"], *(f"{x:.4f}" for x in found["values"])) for found in value]
    else:
        columns = "image", "class", "probability"
        rows = [
            ("" if place else found["image"], best["name"], f"{best['probability']:7.2%}")
            for found in value
            for place, best in enumerate(found["classes"])
        ]
    report(args, value, table(rows, columns))


def predicted(model, paths, task, top):
    """What a model says of image files: for each a dict of `image`, its path, and `classes` or `values`.

    Args:
        model: A `VisionTransformer` with a head, or what `keras_vit.export` opens in its place.
        paths: Of images.
        task: "regression" has `values`; others have `classes` of `name` and `probability`, the best first.
        top: How many classes.
    """
    size = BATCH if model.preprocessing.image_size else 1  # images of several sizes are no batch
    value = []
    for start in tqdm(range(0, len(paths), size), "classifying", unit="batch", delay=2, disable=None):
        batch = paths[start : start + size]
        if task == "regression":
            outputs = check_finite(model.predict_on_batch(model.preprocessing(batch)))
            value += [{"image": path, "values": row.tolist()} for path, row in zip(batch, outputs)]
        else:
            for path, best in zip(batch, classify(model, batch, top, task=task)):
                classes = [{"name": name, "probability": score} for name, score in best]
                value.append({"image": path, "classes": classes})
    return value


def images_of(given):
    """The paths that a file, or a folder of images, stands for."""
    path = pathlib.Path(given)
    if not path.is_dir():
        return [given]
    found = sorted(os.fspath(p) for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise ValueError(f"no images in the folder {given!r}; wanted {', '.join(IMAGE_SUFFIXES)}")
    return found
