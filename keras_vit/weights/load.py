"""Load a checkpoint: read → adapt to the requested options → check → assign."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

import keras
import numpy as np

from keras_vit.engine.adapting import copy_with_weights, plain_arrays
from keras_vit.engine.sharding import whole
from keras_vit.layers.dense import without_state
from keras_vit.lazy import LazyModule
from keras_vit.messages import listed
from keras_vit.models import ImageGPT, MaskedAutoencoder, VisionTransformer
from keras_vit.models.backbones import backbone
from keras_vit.models.vit.geometry import DYNAMIC_SIZE, grid_shape, is_dynamic, prefix_tokens
from keras_vit.models.vit.schema import refuse_unknown
from keras_vit.preprocessing import Preprocessing
from keras_vit.rules import one_of, path
from keras_vit.tasks import two_towers
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
    check_variant,
    holds_two_towers,
    named,
    not_finite,
    read_checkpoint,
    read_model,
)
from keras_vit.weights.class_names import class_names
from keras_vit.weights.fetch import fetch

if TYPE_CHECKING:
    from keras_vit.models import DINO, ImageSegmenter, ImageTextModel, MaskedPatchPredictor, ObjectDetector
    from keras_vit.models.vit.option_types import LoadOptions

tokenizers = LazyModule("keras_vit.weights.tokenizer")  # which models of images do without
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
        kind: "auto": a model of images: an `ImageSegmenter`, `ObjectDetector`, `DepthEstimator` or
            `KeypointEstimator` if the file is of one, and otherwise a `VisionTransformer`, such as the image
            tower of a SigLIP or the encoder of a masked autoencoder.
            "stored": an `ImageTextModel` if the file has a text tower, and otherwise as "auto".
            "classifier": a `VisionTransformer`, also of a segmenter's file, with or without a head.
            "segmenter": an `ImageSegmenter`, of a segmenter's file or as `segmenter` says; "detector",
            "depth_estimator" and "keypoint_estimator": an `ObjectDetector`, `DepthEstimator` or
            `KeypointEstimator` in the same way. "image_text": an
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
    request = _Request(
        *(source, kind, heads.get(kind), overrides, image_size, num_classes, pooling),
        *(representation_size, head, variant, sha256, trust, check_finite),
    )
    request.check()
    if (model := _whole_model(request)) is not None:
        return model
    checkpoint = _stored_model(request)
    plan = _plan(checkpoint, request)
    encoder, model = _build(checkpoint, plan, request)
    request.refuse_not_finite(checkpoint.by_keys(), checkpoint.path)
    _fill(checkpoint, plan, encoder, model, request)
    return model


@dataclasses.dataclass
class _Request:
    """The arguments of `from_pretrained`.

    Attributes:
        new_head: Arguments of a model with a head around the encoder, of the class of `kind`, or None.
        options: Other arguments of `VisionTransformer`.
    """

    source: Path
    kind: str
    new_head: dict | None
    options: dict
    image_size: Size | None
    num_classes: int | None
    pooling: str | None
    representation_size: int | str | None
    head: str
    variant: str | None
    sha256: str | None
    trust: bool
    check_finite: bool

    def check(self):
        """Raise ValueError for arguments that contradict each other; read the class names of a file."""
        self.source = os.fsdecode(path.check("source", self.source))
        one_of(HEADS).check("head", self.head)
        if self.kind in dense_heads.HEADED and self.num_classes == 0 and self.new_head is None:
            raise ValueError(f"num_classes=0 removes the {self.kind}'s head, but kind={self.kind!r} needs it")
        if self.head == "keep" and self.num_classes == 0:
            raise ValueError("num_classes=0 removes the head, but head='keep' keeps it")
        if isinstance(self.options.get("class_names"), str | os.PathLike):
            self.options["class_names"] = class_names(self.options["class_names"])
        refuse_unknown(self.options.keys() - {"dtype", "name", "trainable"})

    def check_without_head(self):
        if self.num_classes or self.head != "auto":
            raise ValueError("a model with a text tower or a decoder has no head; got num_classes or head")

    def refuse_not_finite(self, arrays, path):
        """Raise ValueError for NaN or infinity in pairs of a name and an array, unless they are accepted."""
        if self.check_finite and (names := not_finite(arrays)):
            raise ValueError(
                f"{path} holds NaN or infinity in {listed(names)}; the file is damaged, or its training "
                "diverged"
            )

    @property
    def keeps_representation(self):
        return (self.pooling, self.representation_size) == ("auto", "auto")

    def fetched(self, file):
        """The local path of a file."""
        return fetch(resolve(file), sha256=self.sha256, trust=self.trust)

    def tokenizer(self, **options):
        """The `TextPreprocessing` next to the file; None under a digest, which does not cover its files."""
        return None if self.sha256 else tokenizers.read_text_preprocessing(resolve(self.source), **options)


class _Plan(NamedTuple):
    """The model to build from a checkpoint.

    Attributes:
        config: Arguments of the `VisionTransformer`.
        headed: Kind of the stored model with a head that is built, or None.
        names: The class names of the stored head, or those asked for.
        grid: The stored grid of the position table, or None.
    """

    config: dict
    headed: str | None
    names: tuple | None
    grid: tuple | None


def _whole_model(request):
    """The model of a `.keras` file with two towers, or of training without labels; None for other sources."""
    if request.kind not in ("image_text", "stored", "pretrainer"):
        return None
    names = ("pretrainer.keras",) * (request.kind == "pretrainer") + ("model.keras",)
    files = (os.path.join(os.path.expanduser(request.source), name) for name in names)
    request.source = next(filter(os.path.isfile, files), request.source)
    if request.kind == "pretrainer":
        request.check_without_head()
    if not request.source.endswith(".keras"):
        return None
    path = request.fetched(request.source)
    if request.kind == "pretrainer":
        if request.image_size is not None or request.options or not request.keeps_representation:
            raise ValueError("a .keras file of a pretrainer is loaded as it is; got other options")
    elif request.kind == "stored" and not holds_two_towers(path):
        return None
    else:
        request.check_without_head()
        if not request.keeps_representation:
            raise ValueError(
                "an image tower keeps its pooling and its representation; got "
                f"pooling={request.pooling!r}, representation_size={request.representation_size!r}"
            )
    model = read_model(path, "pretrainer" if request.kind == "pretrainer" else "image_text")
    check_variant(path, request.variant, backbone(model).get_config())
    weights = (weight for weight in model.weights if "float" in weight.dtype)
    request.refuse_not_finite(((weight.path, whole(weight)) for weight in weights), path)
    size = {} if request.image_size is None else {"image_size": request.image_size}
    return _with_options(model, path, {**size, **request.options})


def _stored_model(request):
    """The `StoredModel` of a source; arguments of a new head are completed by those of the stored one."""
    has_stored_text = request.kind == "detector" and (request.new_head or {}).get("text") == "stored"
    checkpoint = read_checkpoint(
        request.source,
        kind="stored" if has_stored_text else request.kind,
        variant=request.variant,
        sha256=request.sha256,
        trust=request.trust,
        **{name: request.options[name] for name in _STORED if name in request.options},
    )
    if has_stored_text:
        request.new_head = dense_heads.with_stored_text(checkpoint, request.new_head, request.tokenizer)
    is_stored = dense_heads.stored_kind(checkpoint) == request.kind
    if request.new_head is not None and is_stored:
        request.new_head = dense_heads.HEADED[request.kind].with_stored(
            checkpoint.around[1], request.new_head
        )
    if request.new_head is None and request.kind in dense_heads.HEADED and not is_stored:
        raise ValueError(
            f"{checkpoint.path}: expected a {request.kind}'s file, or its head in {request.kind}={{…}}"
        )
    if request.kind == "pretrainer" or checkpoint.model_options:
        request.check_without_head()
        request.num_classes = 0
    if request.kind != "pretrainer":
        _remove(checkpoint.arrays, "prediction/")  # of an ImageGPT
    return checkpoint


def _plan(checkpoint, request):
    """The `_Plan` of a model: the stored arguments, and those that are asked for."""
    stored = checkpoint.arguments
    grid = stored.pop("position_grid", None)
    request.options.pop("position_grid", None)
    config = {**stored, **request.options}
    if request.pooling != "auto":
        config["pooling"] = request.pooling
        if request.pooling != stored["pooling"] and "class_token" not in request.options:
            config.pop("class_token", None)
    if request.representation_size != "auto":
        config["representation_size"] = request.representation_size
    headed, names = dense_heads.stored_kind(checkpoint), None
    if headed:
        names = config.pop("class_names", None) or checkpoint.around[1].get("class_names")
        if request.new_head is None and (request.num_classes == 0 or request.kind == "classifier"):
            headed = dense_heads.drop_head(checkpoint.arrays)
            config["num_classes"] = request.num_classes or None
    elif request.new_head is not None:
        config["num_classes"] = None
    elif request.num_classes is not None:
        config["num_classes"] = request.num_classes or None
    if request.new_head is not None and stored.get("norm_after_pooling") and stored["pooling"] == "token":
        config["norm_after_pooling"] = stored["norm_after_pooling"] = False
        _norm_all_tokens(checkpoint)
    _plan_size(config, grid, checkpoint, request)
    if config["num_classes"] != stored["num_classes"]:
        for name in {"class_names", "task", "split_seed"} - request.options.keys():
            config.pop(name, None)
    if "preprocessing" not in request.options:
        config["preprocessing"] = _preprocessing(config, stored)
    return _Plan(config, headed, names, grid)


def _plan_size(config, grid, checkpoint, request):
    """Set the options of a configuration that depend on the image size."""
    if request.image_size is not None:
        config["image_size"] = request.image_size
        config["max_num_patches"] = request.options.get("max_num_patches")
    elif config.get("max_num_patches"):
        config["image_size"] = DYNAMIC_SIZE
    elif "image_size" not in config:
        raise ValueError(
            f"{checkpoint.path}: without a position table the image size is unknown; give image_size"
        )
    is_packed = checkpoint.configuration or checkpoint.arguments.get("max_num_patches")
    if config.get("max_num_patches") and not is_packed:
        config["position_interpolation"] = request.options.get("position_interpolation")  # None: NaFlex's
    if is_dynamic(config["image_size"]) or (request.image_size is None and checkpoint.resizes_at_call):
        config["position_grid"] = grid


def _build(checkpoint, plan, request):
    """The encoder, and the model that it is or is in, with new weights."""
    with named(checkpoint.path):
        encoder = model = VisionTransformer.from_config(plan.config)
        if request.new_head is not None:
            model = dense_heads.HEADED[request.kind](encoder, **request.new_head)
        elif plan.headed:
            is_asked = "class_names" in request.options
            model = dense_heads.headed(
                checkpoint, encoder, request.num_classes, plan.names, request.tokenizer, is_asked
            )
        elif request.kind == "pretrainer":
            options = checkpoint.model_options
            model = MaskedAutoencoder(encoder, **options) if options else ImageGPT(encoder)
        elif checkpoint.model_options:
            model = two_towers().image_text_model(encoder, **checkpoint.model_options)
            model.text_preprocessing = request.tokenizer(default=two_towers().tokenizer_family(checkpoint))
    return encoder, model


def _fill(checkpoint, plan, encoder, model, request):
    """Adapt the arrays of a checkpoint to a model and assign them."""
    arrays, stored = checkpoint.arrays, checkpoint.arguments
    reset = _drop(arrays, encoder, stored, request.head)
    if request.new_head is not None:
        reset += dense_heads.reset_head(checkpoint, model, plan.names, request.head)
    elif plan.headed:
        reset += dense_heads.reset_classes(checkpoint, model, request.head)
    unread = {layer.name for layer in encoder.layers} - {layer.name for layer in model.layers}
    for name in unread if model.kind in dense_heads.HEADED else ():
        _remove(arrays, f"{name}/")  # such as the blocks after the last one that the head reads
    _resize(arrays, encoder, stored, plan.grid)
    _assign(checkpoint, model, reset)
    model.initial_weights = tuple(reset)


def _kind(kind, heads):
    """The kind of model, from the arguments of `from_pretrained`."""
    one_of(KINDS).check("kind", kind)
    chosen = {kind} - {"auto", "stored"}
    chosen |= {name for name, options in heads.items() if options is not None}
    if len(chosen) > 1:
        raise ValueError(f"expected one kind of model; got arguments for {' and '.join(sorted(chosen))}")
    return chosen.pop() if chosen else kind


def _with_options(model, path, options):
    """The model of a file; of two towers the image tower with these options of `from_pretrained`."""
    if not options:
        return model
    image = from_pretrained(path, num_classes=0, check_finite=False, **options)
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
