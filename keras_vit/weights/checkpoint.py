"""A source to arrays by our names and the model that they belong to: fetch → detect → map → infer."""

import dataclasses
import json
import os
import pathlib
import re
import zipfile

import keras
import numpy as np
from keras.src.saving import serialization_lib  # its scope is not public

from keras_vit.layers.attention import check_heads
from keras_vit.messages import listed
from keras_vit.models.adapting import plain_arrays
from keras_vit.models.arguments import least_parameters, stem_stride
from keras_vit.models.vit import ARGUMENTS, DEFAULTS, VisionTransformer
from keras_vit.variants import parse_variant
from keras_vit.weights.architecture import infer_arguments
from keras_vit.weights.archive import check_hdf5, check_unpacked_size, check_zip, read_arrays
from keras_vit.weights.cache import LARGEST_SIDECAR
from keras_vit.weights.catalogue import find, resolve
from keras_vit.weights.class_names import class_names
from keras_vit.weights.configs import read_configs
from keras_vit.weights.fetch import fetch
from keras_vit.weights.layouts import LAYOUTS, vit_jax

_ATTENTION = re.compile(r".*attention/(query|key|value|out)/(kernel|bias)")
# Not told by arrays, so that two who tell it otherwise do not contradict the file.
_FREE_TO_TELL = {"preprocessing", "class_names", "layer_scale", "image_size", "position_grid"}


@dataclasses.dataclass
class Checkpoint:
    """A checkpoint file, read.

    Attributes:
        path: pathlib.Path of the local file.
        layout: Name of its layout.
        arrays: dict of arrays by our variables' names, in our shapes and the stored types.
        keys: dict from our names to the file's keys.
        unknown: The file's keys that its layout does not have.
        left_out: Keys of what stands beside a model, such as an optimizer's state.
        arguments: dict of `VisionTransformer` arguments of the stored model; without `image_size`
            if nothing tells it.
        configuration: Name of the file beside it that was read, or None.
    """

    path: pathlib.Path
    layout: str
    arrays: dict
    keys: dict
    unknown: list
    left_out: list
    arguments: dict
    configuration: str | None = None


def read_checkpoint(source, *, variant=None, sha256=None, trust=False, **given):
    """Read a checkpoint and find out what model it belongs to.

    Args:
        source: As for `from_pretrained`.
        variant: Name of a variant that the file must hold; it tells what the file does not.
        sha256, trust: As for `from_pretrained`.
        **given: `VisionTransformer` arguments that the caller knows of the stored model, such as
            `num_heads` or `position_grid`.

    Returns:
        Checkpoint.

    Raises:
        ValueError: if the source cannot be had, the file is damaged or in no known layout, what is
            told contradicts the arrays, or something is left open; one line says what and what to do.

    Example:
        >>> read_checkpoint("tests/golden/token.npz").arguments["hidden_size"]
        24
    """
    resolved = resolve(source)
    address, subtree = _split(resolved)
    row = find(address)
    pinned = row is not None and address == row.address
    digest = sha256 or (row.sha256 if pinned else None)
    try:
        path = fetch(address, sha256=digest, size=row.bytes if pinned else None, trust=trust)
    except ValueError as error:
        if row or resolved == source:
            raise
        raise ValueError(f"{source!r} is no local path and in no row of the catalogue; {error}") from None
    if path.suffix == ".keras":
        return _of_keras(path, variant)
    arrays = read_arrays(path, subtree, vit_jax.is_beside)
    try:
        name, layout, reading = _mapped(arrays)
        # The catalogue describes its rows, so that what no digest covers is not needed.
        described = ({}, None) if row and digest else read_configs(path, checked=digest is not None)
        told = _told(
            (f"variant {variant}", parse_variant(variant) if variant else {}),
            (f"the catalogue's {row.name}", _of_row(row)) if row else (None, {}),
            described[::-1],
        )
        arguments = _arguments(layout, reading, told, given)
        check_unpacked_size(4 * least_parameters({**DEFAULTS, **arguments}), path.stat().st_size)
        if not layout.HEADS_APART and arguments["num_layers"]:
            check_heads(arguments["hidden_size"], arguments["num_heads"])
            _split_heads(reading, arguments["num_heads"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return Checkpoint(path, name, *reading, arguments, described[1])


def not_finite(checkpoint):
    """The file's keys of the arrays with NaN or infinity, be it in float32 only; sorted."""
    with np.errstate(invalid="ignore", over="ignore"):  # some NaN of bfloat16
        return sorted({checkpoint.keys[n] for n, a in checkpoint.arrays.items() if not _is_finite(a)})


def _is_finite(array):
    return np.isfinite(array.astype("float32") if array.dtype == "float64" else array).all()


def read_model(path):
    """The VisionTransformer of a `.keras` file, with its head, not compiled.

    Raises:
        ValueError: if the file cannot be read or holds something else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            check_zip(archive)
            if archive.getinfo("config.json").file_size > LARGEST_SIDECAR:
                raise ValueError(f"its configuration has more than {LARGEST_SIDECAR} bytes")
            config = json.loads(archive.read("config.json"))
            stored = check_hdf5(archive, "model.weights.h5")
        kind = keras.saving.get_registered_object(config["registered_name"])
        is_ours = isinstance(kind, type) and issubclass(kind, VisionTransformer)
        if is_ours:
            declared = 4 * least_parameters({**DEFAULTS, **config["config"]})
            check_unpacked_size(declared, os.path.getsize(path))
            # Also where the process has called keras.config.enable_unsafe_deserialization().
            with serialization_lib.SafeModeScope(True):
                model = keras.saving.load_model(path, compile=False, safe_mode=True)
            _check_all_read(model, stored)
    except Exception as error:  # of many classes, as the damage is
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"{str(path)!r} is no .keras file that can be read: {first[0]}") from None
    if not is_ours:
        raise ValueError(f"{str(path)!r} holds a {config.get('class_name')}; wanted a VisionTransformer")
    return model


def _check_all_read(model, stored):
    """Refuse arrays that no layer has read: Keras ignores those of layers that the configuration lacks."""
    wanted, found = 0, sum(path.startswith("layers/") for path in stored)
    for layer in model._flatten_layers():
        values = {}
        layer.save_own_variables(values)
        wanted += len(values)
    if found != wanted:
        raise ValueError(f"its layers hold {found} arrays; those of its configuration hold {wanted}")


def _of_keras(path, variant=None):
    """A model that Keras saved, as a checkpoint with our names and all arguments."""
    model = read_model(path)
    for name, value in (parse_variant(variant) if variant else {}).items():
        if getattr(model, name) != value and getattr(model, name) != (value, value):
            raise ValueError(
                f"{path}: variant {variant} says {name}={value!r}, it has {getattr(model, name)!r}"
            )
    arrays = plain_arrays(model)
    arguments = {name: value for name, value in model.get_config().items() if name in ARGUMENTS}
    if "position_embedding/table" in arrays:
        arguments["position_grid"] = model.get_layer("position_embedding").grid_size
    return Checkpoint(path, "keras", arrays, {name: name for name in arrays}, [], [], arguments)


def _split(source):
    """(address of the file, name of a part of it or None) of `file.npz:part`."""
    match = re.fullmatch(r"(.+\.npz):([^:]+)", os.fspath(source))
    return (match[1], match[2].strip("/")) if match else (source, None)


def _of_row(row):
    """What a row of the catalogue tells of the model, as constructor arguments."""
    told = {"image_size": row.image_size, "num_classes": row.num_classes, "preprocessing": row.preprocessing}
    told |= {"in_channels": len(row.preprocessing["mean"]), "position_embedding": "learned"}
    if row.class_names:
        told["class_names"] = class_names(row.class_names)
    return told | (parse_variant(row.variant) if row.variant else {}) | row.options


def _mapped(arrays):
    for name, layout in LAYOUTS.items():
        if layout.detect(arrays):
            return name, layout, layout.read(arrays)
    some = listed(sorted(arrays)) or "no arrays"
    raise ValueError(f"in no known layout ({', '.join(LAYOUTS)}); it holds {len(arrays)} arrays: {some}")


def _told(*sources):
    """What is known without the arrays: argument → (value, who says so)."""
    told = {}
    for origin, values in sources:
        for name, value in values.items():
            value = tuple(value) if isinstance(value, list) else value
            if name == "patch_size" and isinstance(value, int):
                value = (value, value)
            known, who = told.setdefault(name, (value, origin))
            if known != value and name not in ("preprocessing", "class_names"):
                raise ValueError(f"{who} says {name}={known!r}, {origin} says {value!r}")
    return told


def _arguments(layout, reading, told, given):
    values = {name: value for name, (value, _) in told.items()}
    implied = layout.implied(reading.keys, values)
    inferred = infer_arguments(reading.arrays, {**implied, **values, **given}, layout.HEADS_APART)
    for name, (value, who) in told.items():
        if name in inferred and name not in _FREE_TO_TELL and value != inferred[name]:
            raise ValueError(f"{who} says {name}={value!r}, the arrays hold {inferred[name]!r}")
    arguments = {**implied, **values, **inferred}
    if "activation" not in arguments | given:
        raise ValueError("nothing tells the activation, which such models have several of; give activation=")
    if inferred.get("position_grid") and "image_size" not in values:
        stride = stem_stride(arguments.get("resnet"))
        sides = zip(inferred["position_grid"], arguments["patch_size"])
        arguments["image_size"] = tuple(cells * patch * stride for cells, patch in sides)
    return arguments


def _split_heads(reading, num_heads):
    """Give the attention arrays of layouts without an axis of heads that axis."""
    for name, array in reading.arrays.items():
        match = _ATTENTION.fullmatch(name)
        if not match:
            continue
        axes = 2 if match[2] == "kernel" else 1
        if array.ndim != axes:
            raise ValueError(f"{reading.keys[name]} must have {axes} axes; {name} has {array.shape}")
        before, after = (0, 1) if match.groups() == ("out", "kernel") else (axes - 1, axes)
        if match.groups() != ("out", "bias") and array.shape[before] % num_heads == 0:
            heads = (num_heads, array.shape[before] // num_heads)
            reading.arrays[name] = array.reshape(*array.shape[:before], *heads, *array.shape[after:])


def merged_heads(arrays):
    """The arrays with the axis of heads joined to the one of a head's channels, as torch has it."""
    merged = dict(arrays)
    for name, array in arrays.items():
        match = _ATTENTION.fullmatch(name)
        if match and match.groups() == ("out", "kernel"):
            merged[name] = array.reshape(-1, array.shape[-1])
        elif match and match[1] != "out":
            merged[name] = array.reshape(*array.shape[:-2], -1)
    return merged
