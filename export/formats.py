"""The formats that models are exported to: how each is written, opened and checked.

A new format is a module of this package, its row in `FORMATS`, and its name in `keras_vit/names.py`. The
module has the functions

* `write_job(job, path)`, which writes the model of an `ExportJob`;
* `check_job(job)`, which raises an error for options that it cannot be written with, before anything is;
* the row's `opener`, from (path, threads or None) to the arguments of `ExportedModel`, or of a tower to its
  function from inputs to outputs.

Of several precisions, the first two also take `precision`. A module is imported when its format is used.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from keras_vit.export.checks import CALIBRATED
from keras_vit.export.tolerance import Tolerance
from keras_vit.lazy import LazyModule
from keras_vit.rules import one_of
from keras_vit.types import Path, Size

if TYPE_CHECKING:
    import keras
    import numpy as np

ARCHIVES = (".tar.gz", ".tgz")
_GPU = "ML Drift (GPU of Android, WebGPU)"


@dataclasses.dataclass(frozen=True)
class ExportJob:
    """A model and the options of every format; each format reads what concerns it.

    Args:
        model: A model of images on the TensorFlow backend.
        saved_model: Folder of its SavedModel, which all other formats are converted from; not read while
            options are checked.
        task, representation, seed: As for `export_saved_model`.
        batch_size, image_size, integer_io, calibration: As for `export_tflite`; calibration images do not
            concern other precisions than int8 and full_int8.
        name, publisher, version, facts: As for `export_hub`; the name is also a web page's title.
        precisions: All that are exported, of which a web page takes one; None for the default of each format.
        single_file, drawing, attention: Of a web page, as for `export_web`.
        fused_attention: As for `export_onnx`.
        towers: The `ImageTextModel` whose image tower the model is, or None.
    """

    model: keras.Model
    saved_model: pathlib.Path = pathlib.Path()
    task: str | None = None
    representation: bool = False
    seed: int = 0
    batch_size: int = 1
    image_size: Size | None = None
    integer_io: str | None = None
    calibration: np.ndarray | Sequence[np.ndarray] | None = None
    name: str = "vit"
    publisher: str = "keras-vit"
    version: int = 1
    facts: Any = None
    precisions: Sequence[str] | None = None
    single_file: bool = False
    drawing: int | None = None
    attention: bool = False
    fused_attention: bool = False
    towers: Any = None

    def calibration_of(self, precision: str) -> np.ndarray | Sequence[np.ndarray] | None:
        """The calibration images, of a precision that needs some."""
        return self.calibration if precision in CALIBRATED else None


@dataclasses.dataclass(frozen=True)
class Format:
    """One format of one precision.

    Args:
        option: Its name in `formats=` and `--formats`; the precisions of a format share it.
        path: Where it lies in an export folder, with `precision` and the job's `version` and `name` in
            braces.
        tolerance: `Tolerance` of its outputs.
        write: Function of (ExportJob, path to write).
        open: Function of (path, threads or None) that returns the arguments of `ExportedModel`, or of
            another part its function from inputs to outputs.
        check: Function of an ExportJob that raises an error for options that this format cannot be written
            with, before anything is written.
        suffixes: Of its file, of which the first is written; empty for a folder.
        precision: Its name in `precisions=` and `--precisions`, if the format has several.
        is_default: Whether it is written where no precisions are named.
        holds: The precisions of which it holds a file of another format, if there are several.
        needs_keras: Whether Keras and TensorFlow are imported where it is opened.
        beside: The suffix of a second file that belongs to it and lies next to it; "" for none.
        page: A file by which its folder is recognized; "" for a SavedModel.
        repackages: Whether it contains a file of another format.
        delegates: Of a runtime with several, by name: whether the export is run on each, for its report.
        part: Of the two towers, "text" or "image_text", as in `towers.references`; "" of other exports.
    """

    option: str
    path: str
    tolerance: Tolerance
    write: Callable[[ExportJob, pathlib.Path], None]
    open: Callable[[pathlib.Path, int | None], Any]
    check: Callable[[ExportJob], None] = lambda job: None
    suffixes: tuple[str, ...] = ()
    precision: str | None = None
    is_default: bool = True
    holds: tuple[str, ...] = ()
    needs_keras: bool = False
    beside: str = ""
    page: str = ""
    repackages: bool = False
    delegates: dict[str, str] = dataclasses.field(default_factory=dict)
    part: str = ""

    @property
    def is_calibrated(self) -> bool:
        """Whether it needs calibration images."""
        return self.precision in CALIBRATED

    @property
    def name(self) -> str:
        """Its key in reports, such as "tflite_int8"."""
        return "_".join(filter(None, (self.part, self.option, self.precision)))

    def target(self, folder: pathlib.Path, job: ExportJob) -> pathlib.Path:
        """Its path in an export folder."""
        return folder / self.path.format(version=job.version, name=job.name, precision=self.precision)


def _functions(
    module: ModuleType, opener: str, checks: bool = True, write: str = "write_job", **options: str
) -> dict[str, Any]:
    """The fields of a `Format` that are functions of a `LazyModule`, which is imported when one is called."""

    def imported(name: str, **options: str) -> Callable[..., Any]:
        return lambda *args: getattr(module, name)(*args, **options)

    check = {"check": imported("check_job", **options)} if checks else {}
    return {"write": imported(write, **options), "open": imported(opener), **check}


_TFLITE = LazyModule("keras_vit.export.tflite")
_ONNX = LazyModule("keras_vit.export.onnx")
_OPENVINO = LazyModule("keras_vit.export.openvino")
_SAVED_MODEL = LazyModule("keras_vit.export.saved_model")
_HUB = LazyModule("keras_vit.export.hub")
_WEB = LazyModule("keras_vit.export.web")
_TOWERS = LazyModule("keras_vit.export.towers")


def _file(
    module: ModuleType, option: str, path: str, precision: str, tolerance: Tolerance, **options: Any
) -> Format:
    """One precision of a runtime, by default written in float32 alone."""
    options = {"is_default": precision == "float32", **options}
    functions = _functions(module, f"open_{option}", precision=precision)
    suffixes = (pathlib.PurePath(path).suffix,)
    return Format(option, path, tolerance, **functions, suffixes=suffixes, precision=precision, **options)


_DELEGATES = {"XNNPACK (CPU)": "run", _GPU: "not run; every operation is one that it computes"}
_litert = functools.partial(_file, _TFLITE, "tflite", "model_{precision}.tflite", delegates=_DELEGATES)
_onnx = functools.partial(_file, _ONNX, "onnx", "model_{precision}.onnx")
_openvino = functools.partial(_file, _OPENVINO, "openvino", "openvino/model_{precision}.xml", beside=".bin")
_EXACT = Tolerance("max_logit_difference", 1e-5, level="exact")
_HALF = Tolerance("max_logit_difference", 5e-3, level="half")
_AGREEING = Tolerance("agreement", 0.99)
SAVED_MODEL = Format(
    "saved_model",
    "saved_model/{version}",
    _EXACT,
    **_functions(_SAVED_MODEL, "open_saved_model", checks=False),
    needs_keras=True,
)
FORMATS = (
    SAVED_MODEL,
    _litert("float32", _EXACT),
    _litert("float16", _HALF, is_default=True),
    _litert("dynamic_int8", _AGREEING, is_default=True),
    _litert("int8", _AGREEING),
    # Rounding all activations to 8 bits can cost accuracy that no option restores.
    _litert("full_int8", dataclasses.replace(_AGREEING, required=False)),
    _onnx("float32", _EXACT),
    _onnx("dynamic_int8", _AGREEING),
    _onnx("int8", _AGREEING),
    _openvino("float32", _EXACT),
    _openvino("bfloat16", _AGREEING),
    _openvino("int8", _AGREEING),
    Format(
        "hub",
        "hub/{name}.tar.gz",
        _EXACT,
        **_functions(_HUB, "open_archive"),
        suffixes=ARCHIVES,
        needs_keras=True,
        repackages=True,
    ),
    Format(
        "web",
        "web",
        _AGREEING,  # that of its smallest precision
        **_functions(_WEB, "open_web"),
        page="index.html",
        holds=("dynamic_int8", "float16", "float32"),
        repackages=True,
        delegates={
            "XNNPACK (CPU)": "run by Python; in the browser the page checks its outputs",
            "ML Drift (WebGPU)": "not run; the page checks its outputs before it uses it",
        },
    ),
)


def _towers(part: str, opener: str) -> Format:
    functions = _functions(_TOWERS, opener, checks=False, write="write_towers", part=part)
    return dataclasses.replace(SAVED_MODEL, path=f"{part}/{SAVED_MODEL.path}", **functions, part=part)


def _text_litert(precision: str, tolerance: Tolerance) -> Format:
    delegates = {**_DELEGATES, _GPU: "not run; it has no GATHER, which reads the embeddings of tokens"}
    row = _litert(precision, tolerance, is_default=True, delegates=delegates, part="text")
    functions = _functions(_TOWERS, "open_text", checks=False, write="write_text", precision=precision)
    return dataclasses.replace(row, **functions, path=f"text/{row.path}")


TOWER_FORMATS = (  # in addition to the image tower's formats; `export_folder` checks the image tower's
    _towers("text", "open_text"),
    _towers("image_text", "open_zero_shot"),
    _text_litert("float32", _EXACT),
    _text_litert("float16", _HALF),
    _text_litert("dynamic_int8", Tolerance("max_logit_difference", 0.1, required=False)),
)


def in_order(formats: Iterable[Format]) -> list[Format]:
    """The formats to write for these: the SavedModel, from which the others are converted, and then they.

    >>> [format.name for format in in_order(choose_formats(("onnx",)))]
    ['saved_model', 'onnx_float32']
    """
    return [SAVED_MODEL, *(format for format in formats if format is not SAVED_MODEL)]


def precisions_of(option: str | None = None) -> list[str]:
    """The names of the precisions of one format, or of all.

    >>> precisions_of("openvino"), precisions_of("onnx")
    (['float32', 'bfloat16', 'int8'], ['float32', 'dynamic_int8', 'int8'])
    """
    rows = [format for format in FORMATS if option in (None, format.option)]
    return [*dict.fromkeys(name for row in rows for name in (row.precision, *row.holds) if name)]


def suffixes() -> list[str]:
    """The suffixes of exported files and archives.

    >>> suffixes()
    ['.tflite', '.onnx', '.xml', '.tar.gz', '.tgz']
    """
    return [*dict.fromkeys(suffix for format in FORMATS for suffix in format.suffixes)]


def choose_formats(formats: Sequence[str], precisions: Sequence[str] | None = None) -> list[Format]:
    """The `Format`s with one of the given options, in those of the given precisions that each has.

    Args:
        formats: Their names.
        precisions: Names of precisions; None for the default of each format.

    Returns:
        list of `Format`.

    Raises:
        ValueError: for another name, a format of several precisions without one of these, or a precision
            that none of these formats has.

    Example:
        >>> [format.name for format in choose_formats(("onnx", "tflite"), ("float32", "float16"))]
        ['tflite_float32', 'tflite_float16', 'onnx_float32']
        >>> [format.name for format in choose_formats(("onnx", "tflite"))]
        ['tflite_float32', 'tflite_float16', 'tflite_dynamic_int8', 'onnx_float32']
        >>> choose_formats(("onnx",), ("fp8",))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: precisions must be one of 'float32', 'float16', ...; got 'fp8'
    """
    options = dict.fromkeys(format.option for format in FORMATS)
    asked: list[tuple[str, Sequence[Any], Iterable[str]]] = [("formats", formats, options)]
    asked += [] if precisions is None else [("precisions", precisions, precisions_of())]
    for what, names, known in asked:
        for name in names or [names]:
            one_of(known).check(what, name)
    chosen = rows_of(FORMATS, formats, precisions)
    for option in dict.fromkeys(formats):
        if option not in {format.option for format in chosen}:
            available = ", ".join(precisions_of(option))
            raise ValueError(f"the precisions of {option} are {available}; got {', '.join(precisions or ())}")
    # A SavedModel and a Hub archive, which have no precision, compute in the model's own type.
    written = {name for format in chosen for name in (format.precision or "float32", *format.holds)}
    if missing := [name for name in precisions or () if name not in written]:
        raise ValueError(
            f"expected precisions of {', '.join(formats)}; got {', '.join(missing)}, which none of them has"
        )
    return chosen


def rows_of(rows: Iterable[Format], formats: Sequence[str], precisions: Sequence[str] | None) -> list[Format]:
    """The rows with one of these options and, where they have precisions, one of these.

    >>> [format.name for format in rows_of(TOWER_FORMATS, ("tflite", "onnx"), ("float32", "int8"))]
    ['text_tflite_float32']
    """

    def is_wanted(row: Format) -> bool:
        known = {row.precision, *row.holds} - {None}
        return row.is_default if precisions is None else not known or not known.isdisjoint(precisions)

    return [row for row in rows if row.option in formats and is_wanted(row)]


def suffix_of(source: Path) -> str | None:
    """The suffix of a path or URL that names an exported file or archive; None for other names.

    Example:
        >>> suffix_of("https://host/vit.tflite?download=true"), suffix_of("vit.npz")
        ('.tflite', None)
    """
    path = re.sub(r"(https?://[^?#]*).*", r"\1", os.fspath(source))
    return next(filter(path.endswith, suffixes()), None)


def format_of(path: Path) -> Format:
    """The `Format`, of whatever precision, of an exported file or folder on this machine, or of a file's URL.

    Raises:
        ValueError: for a file with another suffix.

    Example:
        >>> format_of("vit.onnx").option
        'onnx'
    """
    if os.path.isdir(path):
        pages = (row for row in FORMATS if row.page and os.path.isfile(os.path.join(path, row.page)))
        return next(pages, SAVED_MODEL)
    suffix = suffix_of(path)
    if suffix is None:
        raise ValueError(f"expected a file that ends in {', '.join(suffixes())}; got {os.fspath(path)!r}")
    return next(row for row in FORMATS if suffix in row.suffixes)
