"""A model as a web page that computes pictures, by LiteRT.js."""

from __future__ import annotations

import base64
import gzip
import io
import pathlib
import re
import shutil
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

from keras_vit.export.checks import damaged
from keras_vit.export.description import Description, describe, read_description
from keras_vit.export.outputs import outputs_of
from keras_vit.export.tflite import Compute, export_tflite, open_tflite
from keras_vit.models.vit.geometry import grid_shape
from keras_vit.rules import boolean, integer, one_of, optional
from keras_vit.types import Path, Size
from keras_vit.writing import atomic_path

if TYPE_CHECKING:
    from keras_vit.export.formats import ExportJob
    from keras_vit.export.outputs.rows import RowOutputs

PARTS = pathlib.Path(__file__).with_name("web")
PAGE, MODEL = "index.html", "model.tflite"
LITERT_VERSION = "2.5.3"  # of npm's @litertjs/core in web/litert; `make litert-js` fetches it
RUNTIME = {"wasm": "litert_wasm.wasm.gz", "glue": "litert_wasm.js.gz"}  # the page's names for them
LICENSE = "LICENSE.txt"
PRECISIONS = ("dynamic_int8", "float16", "float32")  # of the model, the smallest first
CHANNELS = (1, 3)
MAX_SINGLE_FILE = 2**28  # bytes of a model; the strings of browsers are limited


def export_web(
    saved_model: Path,
    path: Path,
    *,
    precision: str = "dynamic_int8",
    image_size: Size | None = None,
    title: str = "Vision Transformer",
    drawing: int | None = None,
    single_file: bool = False,
    attention: bool = False,
    model: Path | None = None,
) -> pathlib.Path:
    """Write a page that computes pictures in the browser, on the device that shows it.

    A picture is chosen, dropped, pasted or taken by the camera; the page prepares it as the model's
    `preprocessing` does, and shows the outputs, of a classifier the best classes. It requests nothing but its
    own files. It computes with WebGPU where available, otherwise with WebAssembly. When it is opened, it
    computes a test image and uses WebGPU only if its outputs agree with Python's. Outputs of pixels, such as
    classes, and the objects of a detector are drawn over the picture, and over what the camera shows while it
    is on, as are keypoints. Those are shown that have at least the score that a slider sets.

    Args:
        saved_model: Folder that `export_saved_model` wrote, of a model with a head.
        path: Folder to write; it must not exist. Any web server can serve it; its page is `index.html`.
        precision: Of the LiteRT model in it: "dynamic_int8", "float16" or "float32".
        image_size: (height, width) to fix for a model of any size; None: the size that its position grid
            is for.
        title: The page's title.
        drawing: None, or for models of drawn characters the side in pixels of the scans that they were
            trained on: the page then has a field to draw on, in white on black.
        single_file: Whether `index.html` contains everything. It then also works without a server, opened
            from the file system.
        attention: Whether it shows attention rollout over the picture, which takes about a fifth more time.
        model: The file that `export_tflite` wrote with the same options and batches of one image, which is
            copied; None to convert the SavedModel.

    Returns:
        pathlib.Path of the folder.

    Raises:
        ValueError: if the folder exists, an argument does not fit, the model has no head or other channels
            than 1 or 3, or it is too large for one file.
        OSError: if it cannot be written, as on a full disk. Nothing is left under its name then.

    Example:
        >>> folder = export_saved_model(model, "export/saved_model/1")
        >>> sorted(file.name for file in export_web(folder, "export/web").iterdir())
        ['LICENSE.txt', 'index.html', 'litert_wasm.js.gz', 'litert_wasm.wasm.gz', 'model.tflite']
        >>> [file.name for file in export_web(folder, "export/one", single_file=True).iterdir()]
        ['index.html']

    Source: LiteRT.js (`@litertjs/core`), whose files are in `export/web/litert`.
    """
    saved_model, path = (pathlib.Path(name).expanduser() for name in (saved_model, path))
    check_page(precision, drawing, single_file, attention)
    description = read_description(saved_model)
    check_model(description, attention=attention)
    description = description.with_size(image_size)
    with atomic_path(path, overwrite=False) as folder:
        folder.mkdir()
        if model is None:
            options: dict[str, Any] = {"image_size": description.image_size, "rollout": attention}
            litert = export_tflite(saved_model, folder / MODEL, precision=precision, **options)
        else:
            litert = pathlib.Path(shutil.copyfile(model, folder / MODEL))
        if single_file and litert.stat().st_size > MAX_SINGLE_FILE:
            raise ValueError(
                f"a page in a single file holds a model of at most {MAX_SINGLE_FILE:,} bytes; got one of "
                f"{litert.stat().st_size:,}: export a folder, or with the precision dynamic_int8"
            )
        facts = _facts(description, litert, drawing)
        size = litert.stat().st_size / 2**10
        height, width = description.image_size
        summary = (
            f"{description.parameters:,} parameters, LiteRT {precision} of {size:,.0f} KiB, pictures of "
            f"{height}×{width} pixels."
        )
        assets = {}
        if single_file:
            assets["model"] = gzip.compress(litert.read_bytes(), 6, mtime=0)
            assets |= {name: (PARTS / "litert" / file).read_bytes() for name, file in RUNTIME.items()}
            litert.unlink()
        else:
            for file in (*RUNTIME.values(), LICENSE):
                shutil.copyfile(PARTS / "litert" / file, folder / file)
        page = _page(title, summary, outputs_of(description), facts, assets)
        (folder / PAGE).write_text(page, encoding="utf-8")
    return path


def write_job(job: ExportJob, path: pathlib.Path) -> None:
    """Write the page of an `ExportJob`, with the LiteRT file that lies next to it if that is the same."""
    options = _options(job)
    model = path.with_name(f"model_{options['precision']}.tflite")
    is_same = model.exists() and job.batch_size == 1 and not job.attention
    about: dict[str, Any] = {"image_size": job.image_size, "model": model if is_same else None}
    export_web(job.saved_model, path, title=job.name, **about, **options)


def check_job(job: ExportJob) -> None:
    """Raise ValueError unless a page can show the model of an `ExportJob`, with these options."""
    check_page(**_options(job))
    check_model(describe(job.model, job.task), job.representation, job.attention)


def _options(job: ExportJob) -> dict[str, Any]:
    names = ("single_file", "drawing", "attention")
    smallest = next(name for name in PRECISIONS if name in (job.precisions or PRECISIONS))
    return {"precision": smallest, **{name: getattr(job, name) for name in names}}


def open_web(path: pathlib.Path, threads: int | None = None) -> tuple[Description, Compute, int | None]:
    """The arguments of `ExportedModel` for the folder of a page: its model, in Python's LiteRT."""
    if (path / MODEL).is_file():
        return open_tflite(path / MODEL, threads)
    try:
        asset = re.search(r'id="asset-model">([^<]*)<', (path / PAGE).read_text(encoding="utf-8"))
        packed = io.BytesIO(base64.b64decode(asset[1], validate=True))  # type: ignore[index]  # TypeError below
        with gzip.open(packed) as unpacked:
            content = unpacked.read(MAX_SINGLE_FILE + 1)
        if len(content) > MAX_SINGLE_FILE:
            raise ValueError(f"its model has more than {MAX_SINGLE_FILE:,} bytes")
    except (TypeError, ValueError, OSError, EOFError) as error:
        raise damaged(path, error) from None
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / MODEL
        file.write_bytes(content)
        return open_tflite(file, threads)


def check_page(
    precision: str = "dynamic_int8",
    drawing: int | None = None,
    single_file: bool = False,
    attention: bool = False,
) -> None:
    """Raise ValueError for options of `export_web` that do not fit."""
    one_of(PRECISIONS).check("precision of a web page", precision)
    optional(integer(at_least=1)).check("drawing", drawing)
    boolean.check("single_file", single_file)
    boolean.check("attention", attention)


def check_model(description: Description, representation: bool = False, attention: bool = False) -> None:
    """Raise ValueError unless a page can show what this model computes of pictures."""
    outputs = outputs_of(description)
    if representation or not outputs.on_pages:
        raise ValueError("a web page shows one row of class scores or values; this model has none")
    if attention and not outputs.can_roll_out:
        raise ValueError(
            "attention rollout is shown on pages of models with one row of outputs for each image"
        )
    if attention and description.architecture["num_layers"] is None:
        raise ValueError("attention rollout needs an encoder, which this model does not have")
    one_of(CHANNELS).check("the channels of a web page's pictures", description.channels)


def _facts(description: Description, model: pathlib.Path, drawing: int | None) -> dict[str, Any]:
    """What the page reads: the preprocessing, the class names, and outputs to compare its own with."""
    outputs = outputs_of(description)
    prepare = outputs.preprocessing
    names = ("resize", "interpolation", "antialias", "crop_rounding", "image_size", "channels", "before_crop")
    return {
        "preprocessing": {name: getattr(prepare, name) for name in names},
        "grid": grid_shape(description.image_size, description.patch_size, description.resnet),
        "labels": description.class_names or description.labels,  # A regression's values have names, too.
        "colors": outputs.colors,
        **outputs.page_facts,
        "check": outputs.page_check(open_tflite(model)[1](check_input(description))),
        "drawing": drawing,
        "files": {"model": MODEL, **RUNTIME},
    }


def check_input(description: Description) -> np.ndarray:
    """The image whose outputs a page knows: pseudo-random in [0, 1), and the same in JavaScript."""
    shape = (1, *description.image_size, description.channels)
    values = np.arange(np.prod(shape), dtype="uint32") * np.uint32(2654435761)
    return (values / 2**32).astype("float32").reshape(shape)


def _page(
    title: str, summary: str, outputs: RowOutputs, facts: Mapping[str, Any], assets: Mapping[str, bytes]
) -> str:
    """The HTML, with the style, the scripts and, in a single file, all assets."""
    scripts = ("litert/litert.js", "preprocessing.js", outputs.page_script, "page.js")
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PARTS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    return templates.get_template("page.html").render(
        title=title,
        done=outputs.page_words[0],
        overlay=outputs.page_words[1],
        summary=summary,
        style=_text_of("page.css"),
        version=LITERT_VERSION,
        facts=facts,
        assets={name: base64.b64encode(content).decode() for name, content in assets.items()},
        license=_text_of(f"litert/{LICENSE}"),
        script="\n".join(map(_text_of, scripts)),
    )


def _text_of(part: Path) -> str:
    return (PARTS / part).read_text(encoding="utf-8")
