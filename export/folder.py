"""An export folder: a model in several formats, each verified in its own runtime before any appears."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distributions
from typing import TYPE_CHECKING, Any

from keras_vit.data.datasets import title_of
from keras_vit.evaluation.predicting import check_classes
from keras_vit.export.description import Description, describe
from keras_vit.export.exported_model import ExportedModel
from keras_vit.export.formats import (
    SAVED_MODEL,
    TOWER_FORMATS,
    ExportJob,
    Format,
    choose_formats,
    in_order,
    rows_of,
)
from keras_vit.export.hub import Facts, Measurement
from keras_vit.export.outputs import outputs_of
from keras_vit.export.saved_model import check_exportable, float32_copy
from keras_vit.export.tolerance import MARGIN
from keras_vit.export.towers import references, text_files
from keras_vit.export.verify import Reference, full_precision_matmul, live_reference, live_run
from keras_vit.messages import names_arguments
from keras_vit.models import ImageTextModel
from keras_vit.models.backbones import backbone
from keras_vit.models.vit.geometry import DYNAMIC_SIZE
from keras_vit.progress import Progress
from keras_vit.rules import integer, number
from keras_vit.tasks import get_task, task_of_model
from keras_vit.types import Path, Size
from keras_vit.writing import atomic_path, free_path

if TYPE_CHECKING:
    import keras
    import numpy as np

    from keras_vit.data.datasets import Dataset

CALIBRATION_IMAGES = 200
VERSIONS_OF = ("keras", "tensorflow", "ai-edge-litert", "onnxruntime", "openvino", "nncf")


@names_arguments
def export_folder(
    model: keras.Model,
    path: Path,
    formats: Sequence[str] = ("saved_model", "tflite"),
    *,
    precisions: Sequence[str] | None = None,
    task: str | None = None,
    representation: bool = False,
    dataset: Dataset | None = None,
    split: str = "test",
    seed: int = 0,
    images: int = 512,
    margin: float = MARGIN,
    image_size: Size | None = None,
    batch_size: int = 1,
    integer_io: str | None = None,
    version: int = 1,
    name: str = "vit",
    publisher: str = "keras-vit",
    facts: Facts | None = None,
    single_file: bool = False,
    drawing: int | None = None,
    attention: bool = False,
    fused_attention: bool = False,
) -> dict[str, Any]:
    """Write a model in several formats, run each in its own runtime, and compare it with the live model.

    Writes `saved_model/1/`, `model_float32.tflite` and one such file for each other precision,
    `model_float32.onnx`, `openvino/model_float32.xml` with its `.bin` file and so on, `hub/NAME.tar.gz` with
    its model card, the page `web/index.html`, and `verification.json`; all of them or, if anything fails,
    none.

    Args:
        model: A model of images, such as a `VisionTransformer`, on the TensorFlow backend. Or an
            `ImageTextModel`: these are then files of its image tower, as `vision_transformer()` returns it,
            and for the formats "saved_model" and "tflite" there are `text/saved_model/1/` and
            `text/model_float32.tflite` of its text tower, as `export_image_text` and `export_text_tflite`
            write them, next to the tokenizer and `image_text.json`, and `image_text/saved_model/1/` of both
            towers.
        path: Folder to write; it must not exist. Only another version of the SavedModel alone is added to
            an existing folder, with `verification-VERSION.json`; not of an `ImageTextModel`.
        formats: Any of "saved_model", "tflite", "onnx", "openvino", "hub" and "web".
        precisions: Each format is written in those of these that it has: LiteRT has "float32", "float16",
            "dynamic_int8", "int8" and "full_int8", ONNX "float32", "dynamic_int8" and "int8", OpenVINO
            "float32", "bfloat16" and "int8". A web page has the smallest of "dynamic_int8", "float16" and
            "float32". None: the first three of LiteRT, and "float32" of the others.
        task: What the outputs mean, as for `export_saved_model`; None for the data set's, or as there.
        representation: Whether to export the representation instead of the head's output.
        dataset: A `Dataset` to verify on, whose training split calibrates "int8" and "full_int8".
            None for noise, on which only the numerical error of the float formats can be measured.
        split: The split to verify on.
        seed: The seed of the split of the data that the model was trained on; `evaluate` then splits alike.
        images: The maximum number of images to verify on.
        margin: The difference of the two best logits of the live model, or with several labels the distance
            of a logit from 0, above which a prediction of 8 bits has to be the same.
        image_size: (height, width) to verify a model of any size at, and to fix in its LiteRT and OpenVINO
            files and on its web page; None for that of its position grid, and OpenVINO files for any size.
        batch_size: Images in a batch of the LiteRT files.
        integer_io: Of "full_int8": None (floats in and out), "uint8" or "int8".
        version: Number of the SavedModel's folder; TF Serving serves the largest.
        name, publisher: Of the Hub archive; the name is also a web page's title.
        facts: `Facts` for the Hub archive's model card, in addition to what is read from the model and
            measured here.
        single_file, drawing, attention: Of a web page, as for `export_web`.
        fused_attention: As for `export_onnx`.

    Returns:
        dict, as in `verification.json`: the `dataset` (None: noise) and the number of `images`; the task's
        primary metric as `judged`; the `margin`; the row of `Reference.measure` for `live` and for each of
        the `formats`, with its `path`, `export_seconds` and `warning` (or None); as `failed` the reason for
        each format that is not written, such as an export beyond its tolerance; the `versions` and `seconds`.

    Raises:
        ValueError: if the folder exists, an argument is unknown, weights are not finite, a format
            cannot hold the model, or every export, or the SavedModel, exceeds its format's tolerance. Nothing
            is left under its name then.
        ImportError: if ONNX's or OpenVINO's packages are not installed.

    Example:
        >>> report = export_folder(model, "export", dataset=load_dataset("digits"))
        >>> sorted(report["formats"])
        ['saved_model', 'tflite_dynamic_int8', 'tflite_float16', 'tflite_float32']
        >>> report["formats"]["tflite_float32"]["max_logit_difference"] < 1e-5
        True
    """
    start = time.perf_counter()
    path = pathlib.Path(path).expanduser()
    formats, precisions = tuple(formats), precisions and tuple(precisions)
    chosen, tower_exports = choose_formats(formats, precisions), list[Format]()
    towers: Any = None
    if isinstance(model, ImageTextModel):
        tower_exports = rows_of(TOWER_FORMATS, formats, precisions)
        towers, model = model, model.vision_transformer()
    live = _float32_model(model, representation)
    task = task_of_model(live, task, dataset.task if dataset else "single_label").name
    description = describe(live, task).with_size(image_size)
    if dataset:
        _check_dataset(dataset, live, description, task)
    number(0).check("margin", margin)
    integer(at_least=1).check("images", images)
    integer(at_least=0).check("version", version)
    page_options: dict[str, Any] = {"single_file": single_file, "drawing": drawing, "attention": attention}
    onnx_options: dict[str, Any] = {"fused_attention": fused_attention}
    _check_options(formats, chosen, integer_io, {"web": page_options, "onnx": onnx_options})
    is_calibrated = any(format.is_calibrated for format in chosen)
    job = ExportJob(
        model,
        task=task,
        representation=representation,
        seed=seed,
        batch_size=batch_size,
        image_size=image_size,
        integer_io=integer_io,
        calibration=calibration_images(dataset, description) if is_calibrated else None,
        name=name,
        publisher=publisher,
        version=version,
        facts=facts or Facts(),
        precisions=precisions,
        **page_options,
        **onnx_options,
        towers=towers,
    )
    for format in chosen:
        format.check(job)
    adds = tuple(formats) == ("saved_model",) and towers is None
    with _new_folder(path, adds, version) as folder, full_precision_matmul():
        samples = dataset.split(split) if dataset else None
        reference = live_reference(live, description, samples, images, margin)
        live_row = reference.measure(reference.run if representation else live_run(model))
        known = job.facts
        metric, title = get_task(task).judged_by(description)
        # Exports have the live model's score, within their tolerance.
        if dataset and live_row["score"] is not None:
            size = reference.images.shape[1:3] if live.image_size == DYNAMIC_SIZE else None
            on = title_of(dataset.name), split, len(reference.images)
            measured = Measurement(live_row["score"], *on, title, size)
            known = dataclasses.replace(known, accuracy=(*known.accuracy, measured))
        job = dataclasses.replace(job, saved_model=SAVED_MODEL.target(folder, job), facts=known)
        compared = {"": reference, **(references(towers, reference) if tower_exports else {})}
        rows, failed = _export_all([*in_order(chosen), *tower_exports], job, folder, compared)
        if SAVED_MODEL not in chosen:
            shutil.rmtree(job.saved_model.parent)
            del rows[SAVED_MODEL.name]
        if not rows:
            raise ValueError("; ".join(failed.values()))
        for name, content in text_files(towers).items() if tower_exports else ():
            (folder / "text" / name).write_bytes(content)
        installed = {d.name: d.version for d in distributions() if d.name in VERSIONS_OF}
        report = {
            "dataset": dataset and f"{title_of(dataset.name)}, {split}",
            "images": len(reference.images),
            "judged": metric,
            "margin": margin,
            "live": live_row,
            "formats": {name: {"path": str(path / file), **row} for name, (file, row) in rows.items()},
            "failed": failed,
            "versions": {"keras_vit": description.version, **installed},
            "seconds": time.perf_counter() - start,
        }
        (folder / "verification.json").write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
    return report


def _float32_model(model: keras.Model, representation: bool) -> keras.Model:
    """The model that exports compute, in float32 and with plain kernels; the model itself if it is one."""
    check_exportable(model)
    is_plain = model.dtype_policy.name == "float32" and "dense_layers" not in model.get_config()
    is_same = is_plain and backbone(model) is model and not representation
    return model if is_same else float32_copy(model, representation)


def _check_dataset(dataset: Dataset, model: keras.Model, description: Description, task: str) -> None:
    if description.labels:
        check_classes(model, dataset)
    if dataset.task != task:
        raise ValueError(f"expected a data set for the task {task!r}; {dataset.name} is for {dataset.task!r}")


def _check_options(
    formats: Sequence[str],
    chosen: Sequence[Format],
    integer_io: str | None,
    options: Mapping[str, Mapping[str, Any]],
) -> None:
    """Raise a ValueError for options of formats that are not written."""
    names = [format.name for format in chosen]
    if integer_io is not None and "tflite_full_int8" not in names:
        raise ValueError(f"integer_io is an option of LiteRT's full_int8 only; got {', '.join(names)}")
    for format, own in options.items():
        ignored = [name for name, value in own.items() if value]
        if ignored and format not in formats:
            raise ValueError(f"{', '.join(ignored)} need the format {format!r}; got {', '.join(formats)}")


def _export_all(
    formats: Sequence[Format], job: ExportJob, folder: pathlib.Path, references: Mapping[str, Reference]
) -> tuple[dict[str, tuple[pathlib.Path, dict[str, Any]]], dict[str, str]]:
    """Write formats and compare them with the live model.

    Returns:
        dict from the names of formats to (path within the folder, row), and one to the reasons for those that
        are not written.
    """
    rows, failed = {}, {}
    bar = Progress(formats, "exporting", unit="format")
    for format in bar:
        start, target = time.perf_counter(), format.target(folder, job)
        try:
            row = _export(format, job, target, references[format.part])
        except ValueError as error:
            failed[format.name] = f"the {format.name} export is discarded: {error}"
            if format is SAVED_MODEL:  # All others are made of it.
                raise ValueError(failed[format.name]) from None
            _remove(target, format)
            bar.note(failed[format.name])
        else:
            rows[format.name] = target.relative_to(folder), row
            bar.note(f"{format.name}: {time.perf_counter() - start:.1f} s, {_verdict(row)}")
    return rows, failed


def _verdict(row: Mapping[str, Any]) -> str:
    """What the comparison of an export with the live model has found, in words.

    >>> _verdict({"max_logit_difference": 2e-7, "warning": None})
    'verified, the largest difference is 2.0e-07'
    """
    difference = row.get("max_logit_difference")
    found = "" if difference is None else f", the largest difference is {difference:.1e}"
    return f"{row.get('warning') or 'verified'}{found}"


def calibration_images(dataset: Dataset | None, description: Description) -> list[np.ndarray] | None:
    """Images of the train split for the calibration of int8, in a list; None if there is no such split."""
    if dataset is None or "train" not in dataset.splits:
        return None
    split, prepare = dataset.split("train"), description.preprocessing
    images, _ = get_task(dataset.task).sampled(split, prepare, CALIBRATION_IMAGES)
    return [images]


def _export(format: Format, job: ExportJob, target: pathlib.Path, reference: Reference) -> dict[str, Any]:
    """Write one format and compare it with the live model: its row in the report."""
    start = time.perf_counter()
    format.write(job, target)
    seconds = time.perf_counter() - start
    opened = format.open(target, None)
    row = reference.measure(opened if callable(opened) else ExportedModel(*opened).main_output, target)
    images = len(reference.images)
    outputs = outputs_of(reference.description)
    warning = format.tolerance.check(row, images, outputs, reference.outputs)
    return {**row, "export_seconds": seconds, "warning": warning, "delegates": format.delegates}


def _remove(target: pathlib.Path, format: Format) -> None:
    """Remove what was written of a format, and its folder if nothing else is in it."""
    if target.is_dir():
        shutil.rmtree(target)
    else:
        for file in (target, target.with_suffix(format.beside)) if format.beside else (target,):
            file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        target.parent.rmdir()


@contextlib.contextmanager
def _new_folder(path: pathlib.Path, adds: bool, version: int) -> Iterator[pathlib.Path]:
    """A temporary folder that becomes `path`, or if it adds, whose SavedModel becomes a new version in it.

    The latter is for TF Serving, which watches `path / "saved_model"`.
    """
    versions = path / "saved_model"
    if not (versions.is_dir() and adds):
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
