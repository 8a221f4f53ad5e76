"""Read a checkpoint: source → file → arrays by our names, and the options of the stored model."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import zipfile

import keras
import numpy as np
from absl import logging

from keras_vit.engine.adapting import adaptable_layers, plain_arrays
from keras_vit.lazy import LazyModule
from keras_vit.messages import listed
from keras_vit.models.backbones import backbone, image_model
from keras_vit.models.configured import ConfiguredModel
from keras_vit.models.vit.geometry import min_parameters, stem_stride
from keras_vit.models.vit.schema import DEFAULTS, OPTIONS
from keras_vit.rules import one_of
from keras_vit.tasks import decoders, two_towers
from keras_vit.variants import CHOICES, parse_variant
from keras_vit.weights import pretraining
from keras_vit.weights.architecture import infer_arguments
from keras_vit.weights.array_files import (
    check_unpacked_size,
    check_zip,
    float_arrays,
    load_arrays,
    without_wrappers,
)
from keras_vit.weights.cache import LARGEST_SIDECAR
from keras_vit.weights.catalogue import find, license_note, resolve
from keras_vit.weights.class_names import class_names
from keras_vit.weights.dense_heads import HEADED, read_head
from keras_vit.weights.fetch import fetch
from keras_vit.weights.layouts import LAYOUTS, check_family, detect_layout
from keras_vit.weights.layouts.heads import split_heads
from keras_vit.weights.metadata import read_metadata, with_own_size
from keras_vit.weights.shards import is_index, stored_size

keras_file = LazyModule("keras_vit.weights.keras_file")  # other files do without
KINDS = ("auto", "stored", "classifier", *HEADED, "image_text", "pretrainer")
_EXPECTED = {"image_text": "one with a text tower", "pretrainer": "one trained without labels"}
_BUFFERS = ("position_ids", ".attn.bias", ".attn.masked_bias")  # ends of keys of arrays without weights
# Inferred options that may differ from the metadata: an argument may replace the grid, and no array holds the
# scale's initial value.
_MAY_DIFFER = {"layer_scale", "position_grid"}


@dataclasses.dataclass
class StoredModel:
    """What a checkpoint file holds.

    Attributes:
        path: pathlib.Path of the local file.
        layout: Name of its layout.
        arrays: dict of arrays by our variables' names, in our shapes and the stored types.
        keys: dict from our names to the file's keys.
        unknown: The file's keys that its layout does not have.
        skipped: The file's keys that do not belong to the model, such as the state of an optimizer.
        arguments: dict of `VisionTransformer` arguments of the stored model; without `image_size`
            if it is unknown.
        configuration: Name of the metadata file that was read, or None.
        resizes_at_call: Whether the stored model resizes its position table at each call.
        around: (kind, dict of arguments) of a model around the VisionTransformer in a `.keras` file, or None.
        model_options: dict of the arguments of an `ImageTextModel` or a `MaskedAutoencoder` around the
            VisionTransformer, "text" among them as a dict, if it was asked for; else None.
    """

    path: pathlib.Path
    layout: str
    arrays: dict
    keys: dict
    unknown: list
    skipped: list
    arguments: dict
    configuration: str | None = None
    resizes_at_call: bool = False
    around: tuple[str, dict] | None = None
    model_options: dict | None = None

    def add(self, mapped):
        """Add the `MappedArrays` of what is around the VisionTransformer."""
        self.arrays.update(mapped.arrays)
        self.keys.update(mapped.keys)
        self.unknown += mapped.unknown

    def by_keys(self):
        """Pairs of the file's key and the array, one after another."""
        return ((self.keys[name], array) for name, array in self.arrays.items())

    def mismatches(self, shapes):
        """Compare the arrays with the expected shapes by our names: three lists of differences by title."""
        keys = self.keys
        return {
            "only_in_file": sorted({*self.unknown, *(keys[n] for n in self.arrays if n not in shapes)}),
            "only_in_model": sorted(shapes.keys() - self.arrays.keys()),
            "wrong_shape": [
                f"{keys[name]} {array.shape} for {name} {shapes[name]}"
                for name, array in ((name, self.arrays[name]) for name in sorted(self.arrays))
                if name in shapes and array.shape != shapes[name]
            ],
        }


def read_checkpoint(source, *, kind="auto", variant=None, sha256=None, trust=False, **given):
    """Read a checkpoint and infer the model that it belongs to.

    Args:
        source: As for `from_pretrained`.
        kind: "image_text" reads a text tower, too, "pretrainer" the decoder of a masked autoencoder, and
            "stored" a text tower if the file's keys show one.
        variant: Name of a variant that the file must hold; supplies the options that are not stored.
        sha256, trust: As for `from_pretrained`.
        **given: `VisionTransformer` arguments of the stored model, such as `num_heads` or `position_grid`.

    Returns:
        StoredModel.

    Raises:
        ValueError: if the source cannot be read, the file is damaged or has no known layout, metadata
            contradict the arrays, or an option cannot be inferred; one line says what to do.

    Example:
        >>> read_checkpoint("tests/golden/token.npz").arguments["hidden_size"]
        24
    """
    one_of(KINDS).check("kind", kind)
    path, subtree, row, digest = _fetched(source, sha256, trust)
    if path.suffix == ".keras":
        return _of_keras(path, variant)
    arrays = load_arrays(path, subtree)
    with named(path):
        layout, arrays = _with_layout(arrays)
        skipped = {*layout.skipped_keys(arrays)}
        names = {"position_interpolation": layout.position_interpolation, "pretraining": layout.pretraining}
        implied = {name: read(arrays) for name, read in names.items()}
    if kind == "stored" and two_towers().text_form(layout).has_text_tower(skipped):
        kind = "image_text"
    text_arrays = [key for key in skipped if not key.endswith(_BUFFERS)] if kind in _EXPECTED else ()
    text_arrays = float_arrays({key: arrays[key] for key in text_arrays}, path)
    arrays = float_arrays({key: array for key, array in arrays.items() if key not in skipped}, path)
    folder = path.parent if digest is None else None  # No digest covers its configuration.
    with named(path):
        mapped = layout.read(arrays)
        mapped = mapped._replace(options={**implied, **mapped.options})
        configured = layout.configured_arrays(folder) if folder else {}
        mapped.arrays.update(configured)
        mapped.keys.update(zip(configured, configured))
        metadata, configuration = _metadata(path, layout, variant, row, digest)
        arguments = _infer(layout, mapped, metadata, given)
        check_unpacked_size(4 * min_parameters({**DEFAULTS, **arguments}), stored_size(path))
        if not layout.split_heads and arguments["num_layers"]:
            split_heads(mapped, arguments)
        arrays, keys, unknown, left_out, _ = mapped
        left_out = [*left_out, *sorted(skipped)]
        resizes_at_call = "position_grid" in metadata
        stored = StoredModel(
            path, layout.name, arrays, keys, unknown, left_out, arguments, configuration, resizes_at_call
        )
        if kind == "image_text":
            stored.model_options = two_towers().read_towers(stored, text_arrays, folder)
        elif around := read_head(stored, folder):
            stored.around = around
        elif kind == "pretrainer" and "prediction/kernel" not in arrays:  # which an ImageGPT has
            stored.model_options = decoders().read_decoder(stored, text_arrays, folder)
    return stored


def _fetched(source, sha256, trust):
    """(local path, subtree of a `.npz` file, row of the catalogue, digest); None for what there is not."""
    resolved = resolve(source)
    address, subtree = _split_subtree(resolved)
    row = find(address)
    if note := license_note(row):
        logging.log_first_n(logging.WARNING, note, 1)
    pinned = row is not None and address == row.url
    digest = sha256 or (row.sha256 if pinned else None)
    try:
        path = fetch(address, sha256=digest, size=row.bytes if pinned else None, trust=trust)
    except ValueError as error:
        if row or resolved == source:
            raise
        raise ValueError(f"{source!r} is no local path and in no row of the catalogue; {error}") from None
    if digest and is_index(path):
        raise ValueError(f"{path}: sha256 would not cover the files that the index lists; give a single file")
    return path, subtree, row, digest


def _with_layout(arrays):
    """The layout of a file's arrays, and these without names of wrappers around the model."""
    arrays = without_wrappers(arrays)
    check_family(arrays)
    layout = detect_layout(arrays)
    if layout is None:
        some = listed(sorted(arrays)) or "no arrays"
        raise ValueError(f"in no known layout ({', '.join(LAYOUTS)}); it holds {len(arrays)} arrays: {some}")
    return layout, arrays


def _metadata(path, layout, variant, row, digest):
    """What the variant, the catalogue and files beside the arrays say, and the name of the last source."""
    described, configuration = {}, None
    # Rows of the catalogue have metadata of their own: files that no digest covers are not needed.
    if not (row and digest):
        described, configuration = read_metadata(path, layout, verified=digest is not None)
    catalogue = (f"the catalogue's {row.name}", _metadata_of_row(row)) if row else (None, {})
    return _merge_metadata(_of_variant(variant), catalogue, (configuration, described)), configuration


@contextlib.contextmanager
def named(path):
    """Begin the message of a ValueError with the name of the file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def not_finite(arrays):
    """The names, sorted, of the pairs of a name and an array with NaN or infinity in float32."""
    with np.errstate(invalid="ignore", over="ignore"):  # by some NaN of bfloat16
        is_finite = ((name, np.isfinite(array.astype("float32", copy=False)).all()) for name, array in arrays)
        return sorted({name for name, finite in is_finite if not finite})


def read_model(path, kind="stored"):
    """Load the model of a `.keras` file, not compiled.

    Args:
        path: The file.
        kind: "stored": the model, or its encoder if it was trained without labels; "image_text" or
            "pretrainer": all of such a model.

    Raises:
        ValueError: if the file cannot be read or holds something else.
    """
    with _readable(path):
        store, names = _opened(path)
        with contextlib.closing(store):
            model = keras_file.model_of(path)
            keras_file.assign_weights(model, store)
        _check_all_read(model, names)
    if kind == "stored":
        return backbone(model) if model.kind == "pretrainer" else model
    if model.kind != kind:
        raise ValueError(f"{str(path)!r} holds a {type(model).__name__}; expected {_EXPECTED[kind]}")
    return model


def _opened(path):
    """The weights of a `.keras` file with one of our models, as `keras_file.opened` returns them."""
    options, cls = _configuration(path)
    store, names = keras_file.opened(path)
    inside = options[cls.backbone_argument] if cls.backbone_argument else options
    encoder = min_parameters({**DEFAULTS, **inside})
    # Not their sum, in which a negative number would hide the other.
    for declared in (encoder, cls.min_own_parameters(options)):
        check_unpacked_size(4 * declared, os.path.getsize(path))
    return store, names


def holds_two_towers(path):
    """Whether a `.keras` file holds an `ImageTextModel`, of which only the configuration is read.

    Raises:
        ValueError: if the file cannot be read.
    """
    with _readable(path):
        return _configuration(path)[1].kind == "image_text"


@contextlib.contextmanager
def _readable(path):
    try:
        yield
    except Exception as error:  # damage raises many classes
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"{str(path)!r} is not a readable .keras file: {first[0]}") from None


def _configuration(path):
    """(arguments, class) of the model of ours in a `.keras` file."""
    with zipfile.ZipFile(path) as archive:
        check_zip(archive)
        if archive.getinfo("config.json").file_size > LARGEST_SIDECAR:
            raise ValueError(f"its configuration has more than {LARGEST_SIDECAR} bytes")
        config = json.loads(archive.read("config.json"))
    cls = keras.saving.get_registered_object(config["registered_name"])
    if not (isinstance(cls, type) and issubclass(cls, ConfiguredModel) and cls.kind):
        raise ValueError(f"it holds a {config.get('class_name')}; expected a VisionTransformer")
    return config["config"], cls


def _check_all_read(model, stored):
    """Refuse arrays that no layer reads, which Keras ignores."""
    expected, stored_count = 0, len(stored)
    for layer in model._flatten_layers():
        values = {}
        layer.save_own_variables(values)
        expected += len(values)
    if stored_count != expected:
        raise ValueError(f"its layers hold {stored_count} arrays; those of its configuration hold {expected}")


def _of_keras(path, variant=None):
    """The model of a `.keras` file as a `StoredModel`."""
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)  # Its arrays are read, which one process could not of a mesh's.
    try:
        model, arrays = lazy_arrays(path)
        if arrays is None:
            model = image_model(read_model(path))
            arrays = plain_arrays(model)
        whole, model = model, backbone(model)
        around = None if whole is model else (whole.kind, whole._config())
    finally:
        keras.distribution.set_distribution(distribution)
    arguments = {name: value for name, value in model.get_config().items() if name in OPTIONS}
    check_variant(path, variant, arguments)
    if "position_embedding/table" in arrays:
        arguments["position_grid"] = model.get_layer("position_embedding").grid_size
    arguments = with_own_size(arguments)
    keys = {name: name for name in arrays}
    resizes_at_call = model.position_grid is not None
    return StoredModel(
        path, "keras", arrays, keys, [], [], arguments, resizes_at_call=resizes_at_call, around=around
    )


def lazy_arrays(path, part=image_model):
    """A part of the model of a `.keras` file, without values, and its `StoredArrays`.

    (None, None) if they are not the variables of the model, as with quantized kernels and LoRA factors.
    """
    with _readable(path):
        store, names = _opened(path)
        with keras_file.without_values():
            whole = keras_file.model_of(path)
        model = part(whole)
        adapted = any(layer.lora_enabled or layer.quantization_mode for layer in adaptable_layers(whole))
        arrays = None if adapted else keras_file.stored_arrays(whole, model, store, names)
    return (None, None) if arrays is None else (model, arrays)


def _of_variant(variant):
    """What the name of a variant says about every copy of its weights, as a source of metadata."""
    options = parse_variant(variant) if variant else {}
    return f"variant {variant}", {name: value for name, value in options.items() if name not in CHOICES}


def check_variant(path, variant, arguments):
    """Raise ValueError unless the stored arguments of a file have the options of a variant, or of None."""
    with named(path):
        _merge_metadata(_of_variant(variant), ("it", arguments))


def _split_subtree(source):
    """(path or URL of the file, name of a subtree or None) of `file.npz:subtree`."""
    match = re.fullmatch(r"(.+\.npz):([^:]+)", os.fspath(source))
    return (match[1], match[2].strip("/")) if match else (source, None)


def _metadata_of_row(row):
    """The options of the model in a row of the catalogue."""
    options = {
        "image_size": row.image_size,
        "num_classes": row.num_classes,
        "preprocessing": row.preprocessing,
        "in_channels": len(row.preprocessing["mean"]),
        "position_embedding": "learned",
        "pretraining": pretraining.of_name(row.source),
    }
    if row.class_names:
        options["class_names"] = class_names(row.class_names)
    return options | _of_variant(row.variant)[1] | row.options


def _merge_metadata(*sources):
    """dict from options to (value, source); the first source of an option counts, and others must agree."""
    merged = {}
    for source, options in sources:
        for name, value in options.items():
            value = tuple(value) if isinstance(value, list) else value
            if name == "patch_size" and isinstance(value, int):
                value = (value, value)
            known, first = merged.setdefault(name, (value, source))
            if known != value and name not in ("preprocessing", "class_names", "pretraining"):
                raise ValueError(f"{first} says {name}={known!r}, {source} says {value!r}")
    return merged


def _infer(layout, mapped, metadata, given):
    """The arguments of the stored model, from its arrays, the metadata and what the layout implies."""
    try:
        return _arguments(layout, mapped, metadata, given)
    except ValueError as error:  # perhaps because it is another kind of model
        unknown = f" (unknown keys: {listed(mapped.unknown)})" if mapped.unknown else ""
        raise ValueError(f"{error}{unknown}") from None


def _arguments(layout, mapped, metadata, given):
    values = {name: value for name, (value, _) in metadata.items()}
    layout.leave_out(mapped, values)
    implied = {**mapped.options, **layout.implied(mapped.keys, {**values, **given})}
    inferred = infer_arguments(mapped.arrays, {**implied, **values, **given}, layout.split_heads)
    for name, (value, source) in metadata.items():
        if name in inferred and name not in _MAY_DIFFER and value != inferred[name]:
            raise ValueError(f"{source} says {name}={value!r}, the arrays hold {inferred[name]!r}")
    arguments = {**implied, **values, **{n: v for n, v in given.items() if n != "position_grid"}, **inferred}
    if "activation" not in arguments | given:
        raise ValueError(
            "such models exist with several activations, and no metadata name one; give activation="
        )
    if inferred.get("position_grid") and "image_size" not in values:
        stride = stem_stride(arguments.get("resnet"))
        sides = zip(inferred["position_grid"], arguments["patch_size"])
        arguments["image_size"] = tuple(cells * patch * stride for cells, patch in sides)
    if "pretraining" not in metadata:  # Files of this package have it, also None.
        arguments["pretraining"] = pretraining.of_arguments(arguments)
    return arguments
