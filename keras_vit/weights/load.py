"""Load a checkpoint: read → adapt to the requested options → check → assign."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import keras
import numpy as np

from keras_vit.engine.adapting import copy_with_weights, plain_arrays
from keras_vit.layers.dense import without_state
from keras_vit.messages import listed
from keras_vit.models import ImageGPT, VisionTransformer
from keras_vit.models.pretraining.masked_autoencoder import MaskedAutoencoder
from keras_vit.models.vit.geometry import DYNAMIC_SIZE, grid_shape, is_dynamic, prefix_tokens
from keras_vit.models.vit.schema import refuse_unknown
from keras_vit.preprocessing import Preprocessing
from keras_vit.rules import one_of
from keras_vit.types import Path, Size
from keras_vit.weights import dense_heads
from keras_vit.weights.array_resizing import (
    adapted_channels,
    resized_patch_kernel,
    resized_positions,
    resized_relative_positions,
)
from keras_vit.weights.catalogue import resolve
from keras_vit.weights.checkpoint import (
    KINDS,
    holds_two_towers,
    named,
    not_finite,
    read_checkpoint,
    read_model,
)
from keras_vit.weights.class_names import class_names
from keras_vit.weights.fetch import fetch
from keras_vit.weights.image_text import image_text_model, tokenizer_family
from keras_vit.weights.tokenizer import read_text_preprocessing

if TYPE_CHECKING:
    from keras_vit.models import DINO, ImageSegmenter, ImageTextModel, MaskedPatchPredictor, ObjectDetector
    from keras_vit.models.vit.option_types import LoadOptions

HEADS = ("auto", "keep", "reset")
# Arguments that describe the stored model, too, where the file is ambiguous.
_STORED = (
    *("num_heads", "position_grid", "prefix_positions", "position_embedding", "activation"),
    *("rotary", "post_norm", "pool_prefix", "pooling_heads", "norm_epsilon"),
)


@overload
def from_pretrained(
    source: Path, *, kind: Literal["segmenter"], **options: Unpack[LoadOptions]
) -> ImageSegmenter: ...
@overload
def from_pretrained(
    source: Path, *, kind: Literal["detector"], **options: Unpack[LoadOptions]
) -> ObjectDetector: ...
@overload
def from_pretrained(
    source: Path, *, kind: Literal["image_text"], **options: Unpack[LoadOptions]
) -> ImageTextModel: ...
@overload
def from_pretrained(
    source: Path, *, kind: Literal["pretrainer"], **options: Unpack[LoadOptions]
) -> DINO | ImageGPT | MaskedAutoencoder | MaskedPatchPredictor: ...
@overload
def from_pretrained(
    source: Path, *, kind: Literal["stored"], **options: Unpack[LoadOptions]
) -> VisionTransformer | ImageSegmenter | ObjectDetector | ImageTextModel: ...
@overload
def from_pretrained(
    source: Path, *, kind: Literal["auto", "classifier"] = "auto", **options: Unpack[LoadOptions]
) -> VisionTransformer: ...
def from_pretrained(
    source: Path,
    *,
    kind: str = "auto",
    image_size: Size | None = None,
    num_classes: int | None = None,
    pooling: str | None = "auto",
    representation_size: int | str | None = "auto",
    head: str = "auto",
    variant: str | None = None,
    sha256: str | None = None,
    trust: bool = False,
    check_finite: bool = True,
    segmenter: dict[str, Any] | None = None,
    detector: dict[str, Any] | None = None,
    **overrides: Any,
) -> keras.Model:
    """Load a Vision Transformer with the weights of a checkpoint.

    The keys of the file determine its layout, and the arrays the architecture. Options that they leave open
    come from a metadata file next to it, the catalogue, a named variant with the same sizes, or an argument.
    Loading is strict: every array is used once and every variable set once, except for what the arguments
    drop or reset.

    Args:
        source: A path; the folder of a finished run; `hf://org/repo[@revision][/file]`, `https://…`,
            `gs://…`; a short name of the catalogue (`list_models`), or the name in timm or on Hugging
            Face, such as "google/vit-base-patch16-224". Official `.npz` files, big_vision's, timm's,
            Hugging Face's and open_clip's (safetensors, or `.bin` and `.pth` if torch is installed) and
            `.keras` files are supported; "file.npz:img" is the subtree of a file under that name.
        kind: "auto": a model of images: an `ImageSegmenter` or `ObjectDetector` if the file is of one, and
            otherwise a `VisionTransformer`, such as the image tower of a SigLIP or the encoder of a masked
            autoencoder.
            "stored": an `ImageTextModel` if the file has a text tower, and otherwise as "auto".
            "classifier": a `VisionTransformer`, also of a segmenter's file, with or without a head.
            "segmenter": an `ImageSegmenter`, of a segmenter's file or as `segmenter` says, and "detector" an
            `ObjectDetector` in the same way. "image_text": an
            `ImageTextModel` with its tokenizer, of a SigLIP, SigLIP 2, CLIP or LiT; `dtype` and
            `dropout_rate` apply to both towers. "pretrainer": all of a model that was trained without
            labels: a `MaskedAutoencoder` with its decoder, an `ImageGPT`, or a run's `pretrainer.keras`.
        image_size: (height, width) or one int; None: as in the file. The position grid is resized
            to it. (None, None) accepts any size at call time, one in each batch.
        num_classes: Classes of the head; None: as in the file; 0: no head, and the encoder of a segmenter
            or detector.
        pooling: "auto": as in the file. "gap" drops the class token of a file that has one.
        representation_size: "auto": as in the file. None drops `pre_logits`, as official
            fine-tuning does.
        head: "keep" the stored head, "reset" it to zero, or "auto": keep it if the class count and
            the layer before it are as in the file, else reset it.
        variant: A name such as "B/16" that the file must agree with.
        sha256: Hexadecimal digest that the file must have. Of the metadata files only a `NAME.json` is then
            read whose digest the file holds, as `save_weights` writes it; a tokenizer is not read.
        trust: Whether plain `http://` is accepted from another machine without a digest.
        check_finite: Whether to refuse arrays with NaN or infinity.
        segmenter: dict of `ImageSegmenter` arguments: such a model around the encoder, instead of a head of
            its own. If the file is of a segmenter whose head has the same options, its weights are loaded,
            too, those for the classes if there are as many of the same names.
        detector: The same of `ObjectDetector`. text="stored" is the text tower of the file, of a CLIP or of
            an open-vocabulary detector, whose other options are then the defaults.
        **overrides: A dict of arguments by the name of another kind of model with a head, as `segmenter`.
            Other arguments of `VisionTransformer`, such as `dropout_rate`. `position_interpolation` is how
            positions are resized, now and at each call; by default as the authors of the file do.
            `max_num_patches=256`
            makes a `PackedVisionTransformer` for images of any aspect ratio (NaFlex), as SigLIP 2 for any
            size was trained; `image_size` makes of such a model one of a single size. `class_names` may
            also be "imagenet_1k" or "imagenet_1k_synsets", or the path of a text file with one name a line.
            `patch_size` resizes the patch kernel as FlexiViT does, `in_channels` sums or repeats its
            channels; `num_heads`, `activation`, `position_grid` (rows, columns) and
            `prefix_positions` also describe the stored model where the file is ambiguous.

    Returns:
        The model, of the class that `kind` says. Its `preprocessing` and `class_names` are those the weights
        were trained with, if known. `initial_weights` has the paths of weights that the file did not hold.

    Raises:
        ValueError: if the source cannot be read; if the file is damaged, holds pickled objects or a
            model that `VisionTransformer` cannot express; if metadata contradict the arrays; or with lists
            of the arrays and variables that do not match.

    Example:
        >>> model = from_pretrained("tests/golden/token.npz", image_size=48, num_classes=10)
        >>> model.image_size, model.position_embedding, model.num_classes
        ((48, 48), 'learned', 10)

    Source: `vit_jax/checkpoint.py`, but strict; `big_vision/models/vit.py`.
    """
    heads = {"segmenter": segmenter, "detector": detector}
    heads |= {name: overrides.pop(name, None) for name in dense_heads.HEADED if name not in heads}
    kind = _kind(kind, heads)
    new_head = heads.get(kind)
    one_of(HEADS).check("head", head)
    if kind in heads and num_classes == 0 and new_head is None:
        raise ValueError(f"num_classes=0 removes the {kind}'s head, but kind={kind!r} needs it")
    if head == "keep" and num_classes == 0:
        raise ValueError("num_classes=0 removes the head, but head='keep' keeps it")
    if isinstance(overrides.get("class_names"), str | os.PathLike):
        overrides["class_names"] = class_names(overrides["class_names"])
    refuse_unknown(overrides.keys() - {"dtype", "name", "trainable"})
    known = {name: overrides[name] for name in _STORED if name in overrides}
    has_text = kind in ("image_text", "stored")
    if has_text and os.path.isfile(run_file := os.path.join(os.path.expanduser(source), "model.keras")):
        source = run_file
    if has_text and os.fspath(source).endswith(".keras"):
        path = fetch(resolve(source), sha256=sha256, trust=trust)
        if kind == "image_text" or holds_two_towers(path):
            _check_no_head(num_classes, head)
            if (pooling, representation_size) != ("auto", "auto"):
                raise ValueError(
                    "an image tower keeps its pooling and its representation; got "
                    f"pooling={pooling!r}, representation_size={representation_size!r}"
                )
            size = {} if image_size is None else {"image_size": image_size}
            return _two_towers_of_keras(path, {**size, **overrides})
    if kind == "pretrainer":
        _check_no_head(num_classes, head)
        run = os.path.expanduser(source)
        files = (os.path.join(run, name) for name in ("pretrainer.keras", "model.keras"))
        file = next(filter(os.path.isfile, files), os.fspath(source))
        if file.endswith(".keras"):
            if image_size is not None or overrides or (pooling, representation_size) != ("auto", "auto"):
                raise ValueError("a .keras file of a pretrainer is loaded as it is; got other options")
            return read_model(fetch(resolve(file), sha256=sha256, trust=trust), kind)
    words = kind == "detector" and (new_head or {}).get("text") == "stored"
    read_kind = "stored" if words else kind
    checkpoint = read_checkpoint(source, kind=read_kind, variant=variant, sha256=sha256, trust=trust, **known)

    def read_tokenizer(**options):
        # No digest covers the tokenizer's files.
        return None if sha256 else read_text_preprocessing(resolve(source), **options)

    if words:
        new_head = dense_heads.with_stored_text(checkpoint, new_head, read_tokenizer)
    if new_head is not None and dense_heads.stored_kind(checkpoint) == kind:
        new_head = dense_heads.HEADED[kind].with_stored(checkpoint.around[1], new_head)
    if kind == "pretrainer" or checkpoint.model_options:
        _check_no_head(num_classes, head)
        num_classes = 0
    stored = checkpoint.arguments
    stored_grid = stored.pop("position_grid", None)
    overrides.pop("position_grid", None)

    config = {**stored, **overrides}
    if pooling != "auto":
        config["pooling"] = pooling
        if pooling != stored["pooling"] and "class_token" not in overrides:
            config.pop("class_token", None)
    if representation_size != "auto":
        config["representation_size"] = representation_size
    headed, names = dense_heads.stored_kind(checkpoint), None
    if new_head is None and kind in heads and headed != kind:
        raise ValueError(f"{checkpoint.path}: expected a {kind}'s file, or its head in {kind}={{…}}")
    if headed:
        stored_around = checkpoint.around[1] if checkpoint.around else {}
        names = config.pop("class_names", None) or stored_around.get("class_names")
        if new_head is None and (num_classes == 0 or kind == "classifier"):
            headed = dense_heads.drop_head(checkpoint.arrays)
            config["num_classes"] = num_classes or None
    elif new_head is not None:
        config["num_classes"] = None
    elif num_classes is not None:
        config["num_classes"] = num_classes or None
    if new_head is not None and stored.get("norm_after_pooling") and stored["pooling"] == "token":
        config["norm_after_pooling"] = stored["norm_after_pooling"] = False
        _norm_all_tokens(checkpoint)
    if image_size is not None:
        config["image_size"] = image_size
        config["max_num_patches"] = overrides.get("max_num_patches")
    elif config.get("max_num_patches"):
        config["image_size"] = DYNAMIC_SIZE
    elif "image_size" not in config:
        raise ValueError(
            f"{checkpoint.path}: without a position table the image size is unknown; give image_size"
        )
    if config.get("max_num_patches") and not (checkpoint.configuration or stored.get("max_num_patches")):
        config["position_interpolation"] = overrides.get("position_interpolation")  # None: that of NaFlex
    if is_dynamic(config["image_size"]) or (image_size is None and checkpoint.resizes_at_call):
        config["position_grid"] = stored_grid
    if config["num_classes"] != stored["num_classes"]:
        for name in {"class_names", "task", "split_seed"} - overrides.keys():
            config.pop(name, None)
    if "preprocessing" not in overrides:
        config["preprocessing"] = _preprocessing(config, stored)

    with named(checkpoint.path):
        encoder = model = VisionTransformer.from_config(config)
        if new_head is not None:
            model = dense_heads.HEADED[kind](encoder, **new_head)
        elif headed:
            model = dense_heads.headed(
                checkpoint, encoder, num_classes, names, read_tokenizer, "class_names" in overrides
            )
        elif kind == "pretrainer":
            options = checkpoint.model_options
            model = MaskedAutoencoder(encoder, **options) if options else ImageGPT(encoder)
        elif checkpoint.model_options:
            model = image_text_model(encoder, **checkpoint.model_options)
            model.text_preprocessing = read_tokenizer(default=tokenizer_family(checkpoint))
    arrays = checkpoint.arrays
    if kind != "pretrainer":
        _remove(arrays, "prediction/")  # of an ImageGPT
    if check_finite and (bad := not_finite(checkpoint)):
        raise ValueError(
            f"{checkpoint.path} holds NaN or infinity in {listed(bad)}; the file is damaged, or its "
            "training diverged"
        )
    reset = _drop(arrays, encoder, stored, head)
    if new_head is not None:
        reset += dense_heads.reset_head(checkpoint, model, names, head)
    elif headed:
        reset += dense_heads.reset_classes(checkpoint, model, head)
    unread = {layer.name for layer in encoder.layers} - {layer.name for layer in model.layers}
    for name in unread if model.kind in heads else ():
        _remove(arrays, f"{name}/")  # such as the blocks after the last one that the head reads
    _resize(arrays, encoder, stored, stored_grid)
    _assign(checkpoint, model, reset)
    model.initial_weights = tuple(reset)
    return model


def _kind(kind, heads):
    """The kind of model, from the arguments of `from_pretrained`."""
    one_of(KINDS).check("kind", kind)
    chosen = {kind} - {"auto", "stored"}
    chosen |= {name for name, options in heads.items() if options is not None}
    if len(chosen) > 1:
        raise ValueError(f"expected one kind of model; got arguments for {' and '.join(sorted(chosen))}")
    return chosen.pop() if chosen else kind


def _check_no_head(num_classes, head):
    if num_classes or head != "auto":
        raise ValueError("a model with a text tower or a decoder has no head; got num_classes or head")


def _two_towers_of_keras(path, options):
    """The `ImageTextModel` of a file, its image tower loaded with these options of `from_pretrained`."""
    model = read_model(path, "image_text")
    if not options:
        return model
    image = from_pretrained(path, num_classes=0, **options)
    text = {**without_state(model.text.get_config()), "dtype": image.dtype_policy, "trainable": True}
    if "dropout_rate" in options:
        text["dropout_rate"] = options["dropout_rate"]
    config = {**without_state(model.get_config()), "image": image, "text": text, "trainable": True}
    return copy_with_weights(model, config, plain_arrays(model) | plain_arrays(image))


_OF_SIZE = ("image_size", "patch_size", "max_num_patches")  # options of a `Preprocessing`


def _preprocessing(config, stored):
    """The stored preprocessing with the image size and the channels of the new model.

    A model for any size keeps the size to which the stored one resized its images, if that was for any, too.
    """
    known = stored.get("preprocessing")
    if known is None:
        return None
    options = {name: value for name, value in dict(known).items() if name not in _OF_SIZE}
    channels = config["in_channels"]
    for name in ("mean", "std"):
        values = tuple(options.get(name, (0.5,) * channels))
        if len(values) != channels:
            average = sum(values) / len(values)
            values = tuple(values[i % len(values)] for i in range(channels)) if channels > 1 else (average,)
        options[name] = values
    size = config["image_size"]
    if config.get("max_num_patches"):
        options |= {"patch_size": config["patch_size"], "max_num_patches": config["max_num_patches"]}
        return Preprocessing(**{**options, "image_size": None, "resize": "squash", "crop_fraction": 1.0})
    return Preprocessing(image_size=dict(known).get("image_size") if is_dynamic(size) else size, **options)


def _drop(arrays, model, stored, head):
    """Remove arrays that the new model does not use; return the names of variables that are reset."""
    if stored["representation_size"] and model.representation_size is None:
        _remove(arrays, "pre_logits/")
    if stored["num_layers"]:
        _drop_tokens(arrays, model, stored)
    new_norm = []
    if model.norm_after_pooling and not stored.get("norm_after_pooling"):
        # Fine-tuning of MAE has a new norm after the pooling instead of the last one.
        _remove(arrays, "encoder_norm/")
        new_norm = [weight.path for weight in model.get_layer("pooled_norm").weights]
    heads = _heads(model._config())
    changed = any(getattr(model, name) != stored[name] for name in ("num_classes", "representation_size"))
    reset = heads if head == "reset" or (head == "auto" and changed) else ()
    for name in {*_heads(stored), *reset}:
        if name in reset or name not in heads:
            _remove(arrays, f"{name}/")
    return new_norm + [f"{name}/{leaf}" for name in reset for leaf in ("kernel", "bias")]


def _norm_all_tokens(checkpoint):
    """Let CLIP's norm of the class token be that of all tokens, as in OWL-ViT."""
    for leaf in ("gamma", "beta"):
        for by_name in (checkpoint.arrays, checkpoint.keys):
            by_name[f"encoder_norm/{leaf}"] = by_name.pop(f"pooled_norm/{leaf}")


def _heads(options):
    if not options["num_classes"]:
        return ()
    return ("head", "head_distillation") if options.get("distillation") else ("head",)


def _drop_tokens(arrays, model, stored):
    """Remove prefix tokens that the new model does not have, and their rows of the position table."""
    kept = {name for name, _, _ in prefix_tokens(model._config())}
    table = arrays.get("position_embedding/table")
    row = 0
    for name, count, _ in reversed(prefix_tokens(stored)):
        rows = count if stored.get("prefix_positions", True) else 0
        if name in kept:
            row += rows
            continue
        _remove(arrays, f"{name}/")
        if table is not None:
            table = np.delete(table, slice(row, row + rows), axis=1)
    if table is not None:
        arrays["position_embedding/table"] = table


def _remove(arrays, prefix):
    for name in [name for name in arrays if name.startswith(prefix)]:
        del arrays[name]


def _resize(arrays, model, stored, stored_grid):
    """Adapt the arrays whose shapes depend on the image size, the patch size and the channels."""
    table = arrays.get("position_embedding/table")
    if stored_grid and table is not None and table.shape[::2] == (1, stored["hidden_size"]):
        grid = model.get_layer("position_embedding").grid_size
        interpolation = model.position_interpolation
        arrays["position_embedding/table"] = resized_positions(table, stored_grid, grid, interpolation)
    if stored.get("relative_positions") and model.relative_positions:
        grid = grid_shape(model.image_size, model.patch_size, model.resnet)
        # A model without a table of positions has the grid of its image.
        stored_grid = stored_grid or grid_shape(
            stored["image_size"], stored["patch_size"], stored.get("resnet")
        )
        for name in [name for name in arrays if name.endswith("/position_bias/table")]:
            arrays[name] = resized_relative_positions(
                arrays[name], stored_grid, grid, model.position_interpolation
            )
    if model.patch_size != stored["patch_size"]:
        arrays["patch_embedding/kernel"] = resized_patch_kernel(
            arrays["patch_embedding/kernel"], model.patch_size
        )
    first = "patch_embedding/kernel" if model.resnet is None else "conv_root/kernel"
    if first in arrays and model.in_channels != stored["in_channels"]:
        arrays[first] = adapted_channels(arrays[first], model.in_channels)


def _assign(checkpoint, model, reset):
    """Assign each array to its variable, or raise ValueError with lists of what does not match."""
    variables = {variable.path: variable for variable in model.weights if "float" in variable.dtype}
    mismatches = checkpoint.mismatches({n: tuple(v.shape) for n, v in variables.items() if n not in reset})
    if any(mismatches.values()):
        lists = [f"{name.replace('_', ' ')}: {listed(found) or 'none'}" for name, found in mismatches.items()]
        raise ValueError(f"{checkpoint.path} does not fit the model. {'; '.join(lists)}")
    arrays = checkpoint.arrays
    with np.errstate(over="ignore"):  # of float64, with check_finite=False
        for name in [*arrays]:
            variables[name].assign(_tensor(arrays.pop(name)))


def _tensor(array):
    """Convert an array to a tensor; the backend transposes faster than NumPy."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    if order == [*range(array.ndim)]:
        return array
    return keras.ops.transpose(array.transpose(order), [order.index(axis) for axis in range(array.ndim)])
