"""An export folder: a model in several formats, each verified in its own runtime before any appears."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import pathlib
import time

from tqdm import tqdm

from keras_vit.data.datasets import title_of
from keras_vit.evaluation.outputs import check_classes
from keras_vit.export.archive import extract_archive
from keras_vit.export.description import describe
from keras_vit.export.hub import Facts, Measurement, check_names, export_hub
from keras_vit.export.onnx import PACKAGES, export_onnx, optional
from keras_vit.export.runtimes import open_exported
from keras_vit.export.saved_model import export_saved_model, float32_copy
from keras_vit.export.tflite import PRECISIONS, export_tflite
from keras_vit.export.verify import (
    JUDGED,
    draw_images,
    exact_products,
    judge,
    live_reference,
    live_run,
    row_of,
)
from keras_vit.models.arguments import FREE
from keras_vit.writing import atomic_path, free_path

FORMATS = ("saved_model", "tflite", "onnx", "hub")
RANGED = 200  # images that int8 takes the ranges of its numbers from
METRICS = {  # in the words of the Hub's page
    "accuracy": "top-1 accuracy",
    "mean_average_precision": "mean average precision",
    "mae": "mean absolute error",
}
VERSIONS_OF = ("keras_vit", "keras", "tensorflow", "ai-edge-litert", "onnxruntime")


def export_folder(
    model,
    path,
    formats=("saved_model", "tflite"),
    *,
    precisions=("float32", "float16", "dynamic_int8"),
    task=None,
    representation=False,
    dataset=None,
    split="test",
    seed=0,
    images=512,
    image_size=None,
    batch_size=None,
    integer_io=None,
    version=1,
    name="vit",
    publisher="keras-vit",
    facts=None,
):
    """Write a model in several formats, run each in its own runtime, and compare it with the live model.

    Writes `saved_model/1/`, `model_float32.tflite` and one such file for each other precision,
    `model.onnx`, `hub/NAME.tar.gz` with its page, and `verification.json`; all of them or, if anything
    fails, none.

    Args:
        model: A `VisionTransformer` on the TensorFlow backend.
        path: Folder to write; it must not exist. Only another version of the SavedModel alone is added to
            a folder that there is, with `verification-VERSION.json` beside.
        formats: Any of "saved_model", "tflite", "onnx" and "hub".
        precisions: Of LiteRT: any of "float32", "float16", "dynamic_int8" and "int8".
        task: What the outputs mean: "single_label", "multi_label" or "regression"; None for the
            data set's, or the first.
        representation: Whether to export the representation instead of what the head puts out.
        dataset: A `Dataset` to verify on; its training split gives "int8" the ranges of its numbers.
            None for noise, which tells the float formats' errors alone.
        split: The split to verify on.
        seed: By which the data was split that the model was trained on; `evaluate` splits alike then.
        images: How many images of it to take, at most.
        image_size: Of a model that takes any size: (height, width) to verify at, and that of LiteRT's
            files.
        batch_size: Images in a batch of LiteRT's files; None for any number.
        integer_io: Of "int8": None (floats in and out), "uint8" or "int8".
        version: Number of the SavedModel's folder, of which TF Serving takes the largest.
        name, publisher: Of the Hub archive.
        facts: Facts for the Hub page, beside what the model itself tells and what is measured here.

    Returns:
        dict, as in `verification.json`: the `dataset` (None: noise) and how many `images` of it; what
        the task is `judged` by; `live` and each of the `formats` with what `row_of` says, and each
        format's `path`, `export_seconds` and `warning` (or None); the `versions` and `seconds`.

    Raises:
        ValueError: if the folder exists, an argument is unknown, weights are not finite, a format
            cannot hold the model, or an export breaks its bound in `verify.BOUNDS`. Nothing is left
            under its name then.
        ImportError: if ONNX's packages are not installed.

    Example:
        >>> report = export_folder(model, "export", dataset=load_dataset("digits"))
        >>> sorted(report["formats"])
        ['saved_model', 'tflite_dynamic_int8', 'tflite_float16', 'tflite_float32']
        >>> report["formats"]["tflite_float32"]["max_logit_difference"] < 1e-5
        True
    """
    start = time.perf_counter()
    path = pathlib.Path(path).expanduser()
    task = task or (dataset.task if dataset else "single_label")
    _check(formats, precisions, task, dataset, batch_size, integer_io)
    if "hub" in formats:
        check_names(name, publisher, version)
    live = model
    changed = model.dtype_policy.name != "float32" or "dense_layers" in model.get_config()
    if representation or changed:  # exports compute in float32, with plain kernels
        live = float32_copy(model, representation)
    if dataset and live.is_classifier:
        check_classes(live, dataset)
    description = _sized(describe(live, task), image_size)
    with _new_folder(path, formats, version) as folder, exact_products():
        scratch = folder.parent / "scratch"  # goes with the temporary folder
        saved_model = (folder if "saved_model" in formats else scratch) / "saved_model" / str(version)
        reference = live_reference(live, description, dataset and dataset.split(split), images)
        rows = {"live": row_of(reference, reference.run if representation else live_run(model))}

        def to_saved_model(target):
            export_saved_model(model, target, task=task, representation=representation, seed=seed)

        def to_tflite(precision, target):
            of_int8 = {}
            if precision == "int8":
                ranged = draw_images(dataset.split("train"), description.preprocessing, RANGED)[0]
                of_int8 = {"integer_io": integer_io, "calibration": ranged}
            sizes = {"batch_size": batch_size, "image_size": image_size}
            export_tflite(saved_model, target, precision=precision, **sizes, **of_int8)

        def to_onnx(target):
            export_onnx(saved_model, target)

        def to_hub(target):
            """With what was measured by then."""
            told = facts or Facts()
            found = _measured(rows["saved_model"], reference, dataset, split, live.image_size == FREE)
            told = dataclasses.replace(told, accuracy=(*told.accuracy, *found))
            export_hub(saved_model, target, name=name, publisher=publisher, version=version, facts=told)

        writers = {"saved_model": (saved_model, to_saved_model)}  # from which all others are made
        for precision in precisions if "tflite" in formats else ():
            file = folder / f"model_{precision}.tflite"
            writers[f"tflite_{precision}"] = file, functools.partial(to_tflite, precision)
        if "onnx" in formats:
            writers["onnx"] = folder / "model.onnx", to_onnx
        if "hub" in formats:
            writers["hub"] = folder / "hub", to_hub
        bar = tqdm(writers.items(), "exporting", unit="format", delay=2, disable=None)
        for format, (target, write) in bar:
            began = time.perf_counter()
            write(target)
            seconds = time.perf_counter() - began
            opened = target
            if format == "hub":
                opened = extract_archive(target / f"{name}.tar.gz", scratch / "hub")
            row = row_of(reference, open_exported(opened).predict_on_batch, target)
            refused, warning = judge(format, row, len(reference.images))
            if refused:
                raise ValueError(f"the exported {format} is not kept: {refused}")
            final = str(path / target.relative_to(folder)) if target.is_relative_to(folder) else None
            rows[format] = {"path": final, **row, "export_seconds": seconds, "warning": warning}
        report = {
            "dataset": dataset and f"{title_of(dataset.name)}, {split}",
            "images": len(reference.images),
            "judged": JUDGED[task],
            "live": rows.pop("live"),
            "formats": {name: row for name, row in rows.items() if row["path"]},
            "versions": _versions(),
            "seconds": time.perf_counter() - start,
        }
        (folder / "verification.json").write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
    return report


@contextlib.contextmanager
def _new_folder(path, formats, version):
    """A temporary folder that becomes `path`, or whose SavedModel becomes a new version in it.

    The latter is for TF Serving, which watches `path / "saved_model"`.
    """
    versions = path / "saved_model"
    if not (versions.is_dir() and tuple(formats) == ("saved_model",)):
        with atomic_path(path, overwrite=False) as folder:
            folder.mkdir()
            yield folder
        return
    target = versions / str(version)
    if target.exists():
        free = free_path(target).name
        raise ValueError(f"{str(path)!r} has a version {version}; choose version={free} (--version {free})")
    with atomic_path(target, overwrite=False) as target:
        folder = target.parent / "export"
        folder.mkdir()
        yield folder
        (folder / "saved_model" / str(version)).rename(target)
        (folder / "verification.json").replace(path / f"verification-{version}.json")


def _check(formats, precisions, task, dataset, batch_size, integer_io):
    """Refuse at once what would be found out after other formats have been made."""
    for given, known, what in ((formats, FORMATS, "formats"), (precisions, PRECISIONS, "precisions")):
        unknown = [name for name in given if name not in known]
        if unknown or not given:
            raise ValueError(f"{what} {unknown or given} are unknown; choose from {known}")
    if batch_size is not None and not (isinstance(batch_size, int) and batch_size > 0):
        raise ValueError(f"batch_size must be an int above 0 or None; got {batch_size!r}")
    int8 = "tflite" in formats and "int8" in precisions
    if int8 and (dataset is None or "train" not in dataset.splits):
        raise ValueError(
            "int8 takes the ranges of its numbers from images: give a data set with a train split"
        )
    if integer_io is not None and not int8:
        raise ValueError(f"integer_io is of LiteRT's int8, which is not among {formats} and {precisions}")
    if "onnx" in formats:
        for package in PACKAGES:
            optional(package)
    if dataset and dataset.task != task:
        raise ValueError(
            f"{dataset.name} has labels of the task {dataset.task!r}, but the model's is {task!r}"
        )


def _sized(description, image_size):
    """The Description with a size to verify at: of a model that takes any, the given one or its usual."""
    if description.image_size != FREE:
        if image_size not in (None, description.image_size):
            raise ValueError(
                f"the model is of {description.image_size} pixels; image_size asks for {image_size}"
            )
        return description
    return dataclasses.replace(description, image_size=tuple(image_size or description.usual_size))


def _measured(row, reference, dataset, split, any_size):
    """What the SavedModel was found to be worth, for the Hub's page."""
    if row["score"] is None:
        return ()
    metric = METRICS[JUDGED[reference.task]]
    size = reference.images.shape[1:3] if any_size else None
    return (Measurement(row["score"], title_of(dataset.name), split, len(reference.images), metric, size),)


def _versions():
    found = {}
    for package in VERSIONS_OF:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
