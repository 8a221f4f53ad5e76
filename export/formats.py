"""The formats that models are exported to: how each is written, opened and checked.

A new format is a module with its writer and opener, a row in `FORMATS`, and its name in `keras_vit/names.py`.
"""

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Iterable

import numpy as np

from keras_vit.export import hub, onnx, openvino, saved_model, tar_archive, tflite, towers, web
from keras_vit.export.description import describe
from keras_vit.export.hub import Facts
from keras_vit.export.verify import Tolerance
from keras_vit.messages import did_you_mean
from keras_vit.models import ImageSegmenter, ImageTextModel, VisionTransformer


@dataclasses.dataclass(frozen=True)
class ExportJob:
    """A model and the options of every format; each format reads what concerns it.

    Args:
        model: A `VisionTransformer` or an `ImageSegmenter` on the TensorFlow backend.
        saved_model: Folder of its SavedModel, which all other formats are converted from; None while options
            are checked.
        task, representation, seed: As for `export_saved_model`.
        batch_size, image_size, integer_io, calibration: As for `export_tflite`; calibration images do not
            concern other precisions than int8.
        name, publisher, version, facts: As for `export_hub`; the name is also a web page's title.
        page_precision, single_file, drawing, attention: Of a web page, as for `export_web`.
        towers: The `ImageTextModel` whose image tower the model is, or None.
    """

    model: VisionTransformer | ImageSegmenter
    saved_model: pathlib.Path | None = None
    task: str | None = None
    representation: bool = False
    seed: int = 0
    batch_size: int = 1
    image_size: tuple[int, int] | None = None
    integer_io: str | None = None
    calibration: Iterable[np.ndarray] | None = None
    name: str = "vit"
    publisher: str = "keras-vit"
    version: int = 1
    facts: Facts = Facts()
    page_precision: str = "dynamic_int8"
    single_file: bool = False
    drawing: int | None = None
    attention: bool = False
    towers: ImageTextModel | None = None


@dataclasses.dataclass(frozen=True)
class Format:
    """One format of one precision.

    Args:
        option: Its name in `formats=` and `--formats`; the precisions of a format share it.
        path: Where it lies in an export folder, with fields of the `ExportJob` in braces.
        suffix: Of its file; "" for a folder.
        write: Function of (ExportJob, path to write).
        open: Function of (path, threads or None) that returns the arguments of `ExportedModel`, or of
            another part its function from inputs to outputs.
        tolerance: `Tolerance` of its outputs.
        check: Function of an ExportJob that raises an error for options that this format cannot be written
            with, before anything is written.
        precision: Its name in `precisions=` and `--precisions`, if the format has several.
        holds: A file by which its folder is recognized; "" for a SavedModel.
        delegates: Of a runtime with several, by name: whether the export is run on each, for its report.
        part: Of the two towers, "text" or "image_text", as in `image_text.references`; "" of other exports.
    """

    option: str
    path: str
    suffix: str
    write: Callable
    open: Callable
    tolerance: Tolerance
    check: Callable = lambda job: None
    precision: str | None = None
    holds: str = ""
    delegates: dict = dataclasses.field(default_factory=dict)
    part: str = ""

    @property
    def name(self):
        """Its key in reports, such as "tflite_int8"."""
        return "_".join(filter(None, (self.part, self.option, self.precision)))

    def target(self, folder, job):
        """Its path in an export folder."""
        return folder / self.path.format(version=job.version, name=job.name)


def _litert_file(precision):
    return f"model_{precision}.tflite"


def _litert(precision, tolerance):
    def options(job):
        int8 = {"calibration": job.calibration, "integer_io": job.integer_io} if precision == "int8" else {}
        return {"precision": precision, "batch_size": job.batch_size, **int8}

    return Format(
        option="tflite",
        path=_litert_file(precision),
        suffix=".tflite",
        write=lambda job, path: tflite.export_tflite(
            job.saved_model, path, image_size=job.image_size, **options(job)
        ),
        open=tflite.open_tflite,
        tolerance=tolerance,
        check=lambda job: tflite.check_options(**options(job)),
        precision=precision,
        delegates=tflite.DELEGATES,
    )


def _onnx(option, path, precision, tolerance):
    return Format(
        option=option,
        path=path,
        suffix=".onnx",
        write=lambda job, path: onnx.export_onnx(job.saved_model, path, precision=precision),
        open=onnx.open_onnx,
        tolerance=tolerance,
        check=lambda job: onnx.packages(),
    )


def _openvino(precision, tolerance):
    def options(job):
        int8 = {"calibration": job.calibration} if precision == "int8" else {}
        return {"precision": precision, **int8}

    def check(job):
        openvino.check_options(**options(job))
        openvino.packages(precision)

    return Format(
        option="openvino",
        path=f"openvino/model_{precision}.xml",
        suffix=openvino.SUFFIX,
        write=lambda job, path: openvino.export_openvino(
            job.saved_model, path, image_size=job.image_size, **options(job)
        ),
        open=openvino.open_openvino,
        tolerance=tolerance,
        check=check,
        precision=precision,
    )


def _write_saved_model(job, path):
    options = {"task": job.task, "representation": job.representation, "seed": job.seed}
    saved_model.export_saved_model(job.model, path, **options)


def _write_hub(job, path):
    named = {"name": job.name, "publisher": job.publisher, "version": job.version, "facts": job.facts}
    hub.export_hub(job.saved_model, path.parent, **named)


def _page(job):
    names = ("single_file", "drawing", "attention")
    return {"precision": job.page_precision, **{name: getattr(job, name) for name in names}}


def _write_web(job, path):
    model = path.with_name(_litert_file(job.page_precision))
    is_same = model.exists() and job.batch_size == 1 and not job.attention
    options = {"image_size": job.image_size, "title": job.name, "model": model if is_same else None}
    web.export_web(job.saved_model, path, **options, **_page(job))


def _check_web(job):
    web.check_page(**_page(job))
    web.check_model(describe(job.model, job.task), job.representation, job.attention)


_EXACT = Tolerance("max_logit_difference", 1e-5, pixels=1.0)
_AGREEING = Tolerance("agreement", 0.99)
SAVED_MODEL = Format(
    option="saved_model",
    path="saved_model/{version}",
    suffix="",
    write=_write_saved_model,
    open=saved_model.open_saved_model,
    tolerance=_EXACT,
)


def in_order(formats):
    """The formats to write for these: the SavedModel, from which the others are converted, and then they.

    >>> [format.name for format in in_order(choose_formats(("onnx",), ("float32",)))]
    ['saved_model', 'onnx']
    """
    return [SAVED_MODEL, *(format for format in formats if format is not SAVED_MODEL)]


FORMATS = (
    SAVED_MODEL,
    _litert("float32", _EXACT),
    _litert("float16", Tolerance("max_logit_difference", 5e-3)),
    _litert("dynamic_int8", _AGREEING),
    # Rounding the activations to 8 bits can cost accuracy that no option restores.
    _litert("int8", Tolerance("agreement", 0.99, required=False)),
    _onnx("onnx", "model.onnx", "float32", _EXACT),
    _onnx("onnx_int8", "model_int8.onnx", "dynamic_int8", _AGREEING),
    _openvino("float32", _EXACT),
    _openvino("bfloat16", _AGREEING),
    _openvino("int8", _AGREEING),
    Format(
        option="hub",
        path="hub/{name}.tar.gz",
        suffix=".tar.gz",
        write=_write_hub,
        open=hub.open_archive,
        tolerance=_EXACT,
        check=lambda job: hub.check_names(job.name, job.publisher, job.version),
    ),
    Format(
        option="web",
        path="web",
        suffix="",
        holds=web.PAGE,
        write=_write_web,
        open=web.open_web,
        tolerance=_AGREEING,  # that of its smallest precision
        check=_check_web,
        delegates=web.DELEGATES,
    ),
)


def _towers(part, signatures, opened):
    def write(job, path):
        towers.export_image_text(job.towers, path, signatures)

    path = f"{part}/saved_model/{{version}}"
    return Format("saved_model", path, "", write, opened, _EXACT, part=part)


def _text_litert(precision, tolerance):
    def write(job, path):
        towers.export_text_tflite(job.towers, path, precision=precision)

    about = {"precision": precision, "delegates": towers.DELEGATES, "part": "text"}
    path = f"text/{_litert_file(precision)}"
    return Format("tflite", path, ".tflite", write, towers.open_text, tolerance, **about)


TOWER_FORMATS = (  # in addition to the image tower's formats
    _towers("text", towers.TEXT, towers.open_text),
    _towers("image_text", towers.SIGNATURES, towers.open_zero_shot),
    _text_litert("float32", _EXACT),
    _text_litert("float16", Tolerance("max_logit_difference", 5e-3)),
    _text_litert("dynamic_int8", Tolerance("max_logit_difference", 0.1, required=False)),
)


def tower_formats(formats, precisions):
    """The `Format`s of the text tower, and of both towers, with one of these options and precisions.

    Example:
        >>> [format.name for format in tower_formats(("tflite", "onnx"), ("float32", "int8"))]
        ['text_tflite_float32']
    """
    return [f for f in TOWER_FORMATS if f.option in formats and f.precision in (None, *precisions)]


def choose_formats(formats, precisions):
    """The `Format`s with one of the given options and, where a format has several, precisions.

    Example:
        >>> [format.name for format in choose_formats(("onnx", "tflite"), ("float32", "int8"))]
        ['tflite_float32', 'tflite_int8', 'onnx']
        >>> choose_formats(("tfjs",), ("float32",))
        Traceback (most recent call last):
        ValueError: formats must be among saved_model, tflite, onnx, onnx_int8, openvino, hub, web; got tfjs
    """
    options = {format.option: format for format in FORMATS}
    known = {format.precision: format for format in FORMATS if format.precision}
    for what, given, choices in (("formats", formats, options), ("precisions", precisions, known)):
        unknown = [name for name in given if name not in choices]
        if unknown or not given:
            got = ", ".join(str(name) or "''" for name in unknown) or "none"
            hint = did_you_mean(unknown[0], choices) if unknown else ""
            raise ValueError(f"{what} must be among {', '.join(choices)}; got {got}{hint}")
    chosen = [
        format
        for format in FORMATS
        if format.option in formats and (format.precision is None or format.precision in precisions)
    ]
    for option in set(formats) - {format.option for format in chosen}:
        own = ", ".join(format.precision for format in FORMATS if format.option == option)
        raise ValueError(f"the precisions of {option} are {own}; got {', '.join(precisions)}")
    return chosen


def suffixes():
    """The suffixes of exported files and archives."""
    known = (*(format.suffix for format in FORMATS if format.suffix), *tar_archive.SUFFIXES)
    return (*dict.fromkeys(known),)


def suffix_of(source):
    """The suffix of a path or URL that names an exported file or archive; None for other names.

    Example:
        >>> suffix_of("https://host/vit.tflite?download=true"), suffix_of("vit.npz")
        ('.tflite', None)
    """
    path = re.sub(r"(https?://[^?#]*).*", r"\1", os.fspath(source))
    return next(filter(path.endswith, suffixes()), None)


def format_of(path):
    """The `Format`, of whatever precision, of an exported file or folder on this machine.

    Raises:
        ValueError: for a file with another suffix.

    Example:
        >>> format_of("vit.onnx").name
        'onnx'
    """
    path = pathlib.Path(path)
    if path.is_dir():
        held = (format for format in FORMATS if format.holds and (path / format.holds).is_file())
        return next(held, SAVED_MODEL)
    matches = (format for format in FORMATS if format.suffix and format.suffix == suffix_of(path))
    if (match := next(matches, None)) is None:
        raise ValueError(f"expected a file that ends in {', '.join(suffixes())}; got {os.fspath(path)!r}")
    return match
