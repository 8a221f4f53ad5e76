"""Save a model as a checkpoint file in another project's layout."""

from __future__ import annotations

import contextlib
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit import rules
from keras_vit.messages import names_arguments
from keras_vit.models.vit.geometry import grid_shape, is_dynamic, prefix_tokens
from keras_vit.rules import one_of
from keras_vit.types import Path
from keras_vit.weights.array_files import FLOATS, write_arrays
from keras_vit.weights.fetch import LOCAL_WEIGHTS
from keras_vit.weights.kinds import parts_of
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.heads import merged_heads
from keras_vit.weights.layouts.hub_config import as_text
from keras_vit.weights.metadata import configuration_digest, sidecar_text
from keras_vit.writing import atomic_path, check_writable

if TYPE_CHECKING:
    import keras


@names_arguments
def save_weights(
    model: keras.Model,
    path: Path,
    layout: str,
    *,
    dtype: str | keras.DTypePolicy = "float32",
    overwrite: bool = False,
    **options: Any,
) -> pathlib.Path:
    """Save a model's weights in a layout that another project reads.

    Options that the arrays do not determine (activation, epsilon, preprocessing, class names) are saved in
    `NAME.json` next to `NAME.npz`, which `from_pretrained` reads; Hugging Face's layout also gets its own
    `config.json` and `preprocessor_config.json`, and open_clip's its `open_clip_config.json`. The weights and
    `NAME.json` hold the same digest, by which `from_pretrained` refuses a pair of an interrupted save. LoRA
    factors are merged into their kernels, and quantized kernels are dequantized.

    Args:
        model: VisionTransformer; for "huggingface" also an `ImageGPT`, an `ImageSegmenter` with head "mask",
            a `DepthEstimator` with head "dpt", or a `KeypointEstimator`; for "huggingface" and "scenic" an
            `ObjectDetector` with a text tower; an `ImageTextModel` for all layouts but "timm" and "scenic"; a
            `MaskedAutoencoder` for "huggingface" and "timm", whose names facebookresearch/mae has.
        path: File to write: `.npz` for "vit_jax" and "big_vision", `.safetensors` for "timm", `.msgpack` for
            "scenic"; for "huggingface" and "open_clip" a folder, in which `model.safetensors` or
            `open_clip_model.safetensors` is written.
        layout: "vit_jax", "big_vision", "timm", "huggingface", which chooses the model type that expresses
            the model, "open_clip", for an `ImageTextModel` only, or "scenic", for an `ObjectDetector` with a
            text tower only.
        dtype: Stored type: "float32", "float16", "bfloat16" or "float64"; of a dtype policy that of its
            variables.
        overwrite: Whether to replace existing files.
        **options: `scan=True` stacks the blocks of "big_vision" along a first axis.

    Returns:
        pathlib.Path of the file.

    Raises:
        ValueError: if the layout cannot express the model, with the options that it does not support; for
            a wrong suffix, an unknown layout or dtype, or an existing file.

    Example:
        >>> path = save_weights(model, tmp / "model.npz", "vit_jax")
        >>> keras_vit.from_pretrained(path).hidden_size == model.hidden_size
        True
    """
    one_of(LAYOUTS).check("layout", layout)
    rules.path.check("path", path)
    parts = parts_of(model)
    dtype = one_of(FLOATS).check("dtype", getattr(dtype, "variable_dtype", dtype))
    name, layout = layout, LAYOUTS[layout]
    if unknown := options.keys() - layout.write_options:
        known = ", ".join(layout.write_options) or "none"
        raise ValueError(f"the layout {name!r} has the options {known}; got {', '.join(sorted(unknown))}")
    form, arrays, config = _expressed(model, parts, name)
    further = parts.files() if layout.in_folder else {}
    file, *sidecars = files_to_write(path, name, overwrite, further=further)

    prefix_positions = layout.prefix_positions and parts.prefix_positions
    arrays, config = _with_prefix_positions(arrays, config, prefix_positions)
    arrays, config = layout.adapted(arrays, config)
    text_arrays = parts.others
    if not layout.split_heads:
        arrays, text_arrays = merged_heads(arrays), merged_heads(text_arrays)
    written = form.write(model, layout.write(arrays, config, **options), text_arrays, **options)
    config = parts.described(config)
    digest = configuration_digest(config)
    configs = layout.write_config({**config, **parts.head()}) if layout.in_folder else []
    configs[:1] = [form.written_config(model, values) for values in configs[:1]]
    project = dict(zip(layout.config_files, configs))
    texts = [sidecar_text(config, name, digest, project), *map(as_text, configs)]
    new_folder = not file.parent.exists()
    file.parent.mkdir(exist_ok=True)
    try:
        with contextlib.ExitStack() as stack:
            # Renamed in reverse order, the weights last, so that they never exist without their
            # configuration. If the process ends before that, the digests of the new configuration and the
            # old weights differ, and `from_pretrained` refuses the pair.
            weights, *text_files = [stack.enter_context(atomic_path(path)) for path in (file, *sidecars)]
            for text_file, text in zip(text_files, texts, strict=True):
                text_file.write_text(text)
            for further_name, content in further.items():
                stack.enter_context(atomic_path(file.with_name(further_name))).write_bytes(content)
            del parts, arrays, text_arrays  # so that an array can be freed when the next one is converted
            write_arrays(((key, written.pop(key)) for key in [*written]), weights, dtype, digest)
    finally:
        if new_folder and not any(file.parent.iterdir()):
            file.parent.rmdir()
    return file


def _expressed(model, parts, name):
    """The layout's form of the model, and the arrays and options that it holds."""
    layout = LAYOUTS[name]
    form, reasons = layout.forms.get(parts.form), [parts.missing]
    if form:
        arrays, config = form.adapted(model, *parts.split())
        reasons = layout.unsupported(config) or layout.unsupported_arrays(arrays, config)
        reasons = reasons or form.unsupported(model, config) or _unsupported_positions(layout, config)
    if reasons:
        raise ValueError(f"the layout {name!r} cannot express this model: {'; '.join(reasons)}")
    return form, arrays, config


def _unsupported_positions(layout, config):
    """Why the authors' model would resize its positions in another way."""
    fixed = not is_dynamic(config["image_size"])
    grid = fixed and grid_shape(config["image_size"], config["patch_size"], config["resnet"])
    resized = config["position_embedding"] == "learned" and config["position_grid"] not in (None, grid)
    stored, expected = config["position_interpolation"], layout.interpolation_at_call(config)
    if not resized or expected in (None, stored):
        return []
    return [f"position_interpolation={stored!r} at each call (supported: {expected!r})"]


# Of files that have a `NAME.json` next to them.
_SUFFIXES = (".npz", ".safetensors", ".bin", ".pth", ".msgpack")


def files_to_write(path, layout, overwrite, option="overwrite=True", further=()):
    """The paths of the weights and of the files that are saved next to them.

    Args:
        path, layout, overwrite: As for `save_weights`.
        option: How to replace a file, for the message.
        further: The names of other files that are written next to them.

    Raises:
        ValueError: for a path that cannot be written, or an existing file without `overwrite`.
    """
    layout = LAYOUTS[layout]
    files = _files(pathlib.Path(path).expanduser(), layout)
    existing = [file for file in (*files, *map(files[0].with_name, further)) if file.exists()]
    if existing and not overwrite:
        raise ValueError(f"{str(existing[0])!r} exists; give another name or {option}")
    preferred = LOCAL_WEIGHTS[: LOCAL_WEIGHTS.index(layout.file)] if layout.in_folder else ()
    for file in map(files[0].with_name, preferred):
        if file.is_file():
            raise ValueError(f"{str(file)!r} would be loaded in place of {layout.file}; give another name")
    leftovers = [file for suffix in _SUFFIXES if (file := files[0].with_suffix(suffix)).is_file()]
    if leftovers := [file for file in leftovers if file != files[0]]:
        raise ValueError(
            f"{files[1].name} would be read with {str(leftovers[0])!r}, too, which it does not describe; "
            "give another name"
        )
    if files[0].parent.is_dir():
        for file in files:
            check_writable(file)
    return files


def _files(path, layout):
    if not layout.in_folder and path.suffix != layout.suffix:
        raise ValueError(f"expected a {layout.suffix} file for the layout {layout.name!r}; got {str(path)!r}")
    if layout.in_folder and (path.suffix in _SUFFIXES or path.is_file()):
        raise ValueError(f"expected a folder for the layout {layout.name!r}; got {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {str(path.parent)!r} to write into")
    if layout.in_folder:
        weights = path / layout.file
        return weights, weights.with_suffix(".json"), *(path / name for name in layout.config_files)
    return path, path.with_suffix(".json")


def _with_prefix_positions(arrays, config, prefix_positions):
    """Add zero rows for the prefix tokens to the position table, or add their rows to the tokens.

    The sums of tokens and positions stay the same. None leaves all as it is.
    """
    table = arrays.get("position_embedding/table")
    if prefix_positions is None or table is None or config["prefix_positions"] == prefix_positions:
        return arrays, config
    arrays, row = dict(arrays), 0
    tokens = [(f"{name}/token", count) for name, count, _ in reversed(prefix_tokens(config))]
    if prefix_positions:
        rows = np.zeros((1, sum(count for _, count in tokens), table.shape[-1]), table.dtype)
        arrays["position_embedding/table"] = np.concatenate([rows, table], axis=1)
    else:
        for name, count in tokens:
            arrays[name] = arrays[name] + table[:, row : row + count]
            row += count
        arrays["position_embedding/table"] = table[:, row:]
    return arrays, {**config, "prefix_positions": prefix_positions}
