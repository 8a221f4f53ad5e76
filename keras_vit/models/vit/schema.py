"""The schema of the model's options: one field of `ViTConfig` for each argument of `VisionTransformer`.

A field holds the option's name, the type of its normal form, its default, rule (what its value must be, in
words and as a function), group and one line of documentation. The constructor's signature, checks and
documentation are made from it, and so is what configuration files may hold. A new option is a field here and
its use in `vision_transformer.py` or `encoder.py`; `make stubs` writes its type for editors. A class of
transformers with another input, such as `PackedVisionTransformer`, has the options of that input in a schema
of its own, a subclass of `ViTConfig`.

* `OPTIONS`: dict of the fields of all classes by name, in the constructor's order.
  `OPTIONS["pooling"].default`, `.type` and `.metadata["rule"]` (a `keras_vit.rules.Rule` with `words` and
  `accepts`), `["doc"]`, `["group"]`.
* `DEFAULTS`: dict of the defaults of those that have one.
* `FRONT_ENDS`: dict of classes by option, for the options that `VisionTransformer` does not have.
* `ViTConfig(**options)`: checks all options, alone and together, and brings them into their normal forms.
  Options are its attributes, and `vars(config)` is a dict of all of them.
* `class_and_options(options)`: the class of a model with these options, such as a configuration file's.
* `check_options(options, source)`: checks options of a configuration file, each by its own rule.

The groups are "size" (what the shapes of a checkpoint's arrays and of the images determine), "architecture"
(what else decides the outputs: a checkpoint's layout can store a value only if it says so), "training" (no
effect on inference) and "metadata" (no effect on what is computed).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from keras_vit.interpolation import INTERPOLATIONS
from keras_vit.layers.attention import check_heads
from keras_vit.layers.layer_norm import NORMS
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.layers.position_embedding import KINDS
from keras_vit.layers.rotary import rotary_options
from keras_vit.messages import did_you_mean, listed
from keras_vit.models.vit.geometry import (
    DYNAMIC_SIZE,
    grid_shape,
    is_dynamic,
    kv_heads_of_blocks,
    prefix_tokens,
)
from keras_vit.models.vit.option_rules import contradictions
from keras_vit.models.vit.resnet_stem import FORMS
from keras_vit.names_elsewhere import NOTED
from keras_vit.preprocessing import Preprocessing, is_float32
from keras_vit.rules import SIZE, Rule, boolean, check_fields, integer, number, one_of, optional, pair, text

if TYPE_CHECKING:
    from keras_vit.models.vit.vision_transformer import VisionTransformer

_Class = TypeVar("_Class", bound="type[VisionTransformer]")

# What a copy of a trained model changes for inference.
INFERENCE = {"dtype": "float32"} | dict.fromkeys(
    ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate", "patch_dropout_rate"), 0.0
)
POOLINGS = ("token", "gap", "token_gap", "map", None)


def _is_list_of(rule: Rule) -> Callable[[Any], bool]:
    def accepts(value: Any) -> bool:
        return isinstance(value, Sequence) and not isinstance(value, str) and all(map(rule.accepts, value))

    return accepts


def _is_preprocessing(value: Any) -> bool:
    try:
        return isinstance(value, Preprocessing) or bool(Preprocessing(**{**value, "image_size": None}))
    except (TypeError, ValueError):
        return False


_positive = integer(at_least=1)
_rate = number(0, below=1)
_image_size = Rule(f"{SIZE.words}, or (None, None)", lambda size: is_dynamic(size) or SIZE.accepts(size))
_units = Rule("a list of positive ints, one per stage,", _is_list_of(_positive))
_names = Rule("a list of names", _is_list_of(text))
_float32 = Rule("a number that float32 can hold", is_float32)
_rotary = Rule("a kind of rotary positions or a dict of arguments", lambda v: isinstance(v, str | dict))
_kv_heads = Rule(
    "a positive int, or one for each block", lambda v: _positive.accepts(v) or _is_list_of(_positive)(v)
)
_epsilon = Rule("a number above 0 that float32 can hold", lambda value: is_float32(value) and value > 0)
_preprocessing = Rule("a keras_vit.Preprocessing or a dict of its arguments", _is_preprocessing)


def option(
    group: str, rule: Rule, doc: str, default: Any = None, normalize: Callable[[Any], Any] | None = None
) -> Any:
    """A field of the schema.

    Args:
        group: "size", "architecture", "training" or "metadata", as explained above.
        rule: The `Rule` for its value.
        doc: A line of documentation.
        default: Its default value; `dataclasses.MISSING` makes it a required argument.
        normalize: A function to the normal form of a value that is not None.
    """
    fields = {"rule": rule, "doc": doc, "group": group, "normalize": normalize}
    return dataclasses.field(default=default, metadata=fields)


size, architecture, training, metadata = (
    functools.partial(option, group) for group in ("size", "architecture", "training", "metadata")
)
required = functools.partial(size, default=dataclasses.MISSING)
switch = functools.partial(architecture, boolean, default=False)


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """All options of a Vision Transformer, checked and in their normal forms.

    Args:
        image_size, …: As for `VisionTransformer`, without its dtype.

    Raises:
        ValueError: for a value that breaks its option's rule, or options that contradict each other.

    Example:
        >>> config = ViTConfig(32, 8, 24, num_layers=2, mlp_dim=48, num_heads=3)
        >>> config.image_size, config.class_token, config.position_grid
        ((32, 32), True, None)
        >>> OPTIONS["pooling"].metadata["rule"].words
        "one of 'token', 'gap', 'token_gap', 'map', None"
    """

    contradictions = contradictions
    default_interpolation = "bilinear"  # of a learned position table, if `position_interpolation` is None

    image_size: tuple[int | None, int | None] = required(
        _image_size,
        "(height, width) in pixels, or one int. (None, None) accepts any size that the patch size divides: "
        "the stored position grid is resized at each call.",
        normalize=lambda size: DYNAMIC_SIZE if is_dynamic(size) else pair(size, "image_size"),
    )
    patch_size: tuple[int, int] = required(
        SIZE,
        "(height, width) of a patch in pixels (of the stem's output for a hybrid), or one int.",
        normalize=lambda size: pair(size, "patch_size"),
    )
    hidden_size: int = required(_positive, "Size of a token's vector.")
    num_layers: int | None = required(
        optional(_positive),
        "Number of encoder blocks. None omits the Transformer: the grid of patches is pooled directly (a "
        "BiT-like ResNet).",
    )
    mlp_dim: int | None = required(optional(_positive), "Size of the MLPs' hidden layer.")
    num_heads: int | None = required(
        optional(_positive), "Number of attention heads; it must divide hidden_size."
    )
    num_classes: int | None = size(
        optional(_positive),
        "Number of outputs of the head. None or 0 builds no head: the model outputs the representation.",
    )
    pooling: str | None = architecture(
        one_of(POOLINGS),
        '"token" (the class token), "gap" (mean over the patch tokens), "token_gap" (both, concatenated, '
        'as in DINOv2), "map" (a learned probe attends to all tokens) or None (the head is applied to every '
        "token).",
        default="token",
    )
    pooling_heads: int | None = architecture(
        optional(_positive), 'Number of heads of pooling "map"; None for num_heads.'
    )
    pooling_mlp_dim: int | None = size(
        optional(_positive), 'Size of the hidden layer of pooling "map"; None for mlp_dim.'
    )
    pool_prefix: bool = switch(
        'Whether the probe of pooling "map" attends to prefix tokens, too.', default=True
    )
    representation_size: int | None = size(
        optional(_positive), "Size of a layer `pre_logits` before the head, or None."
    )
    representation_activation: str | None = architecture(
        one_of(("tanh", None)),
        'Activation of `pre_logits`: "tanh", or None in the projection of an image-text model.',
        default="tanh",
    )
    unit_representation: bool = switch(
        "Whether the representation is divided by its length, as in an image-text model."
    )
    resnet: tuple[int, ...] | None = architecture(
        optional(_units),
        "Bottleneck units per stage of the ResNet stem, such as (3, 4, 9); () for its root block only; None "
        "for no stem.",
        normalize=tuple,
    )
    resnet_width: int = size(_positive, "Channels of the stem's root block.", default=64)
    resnet_form: str = architecture(
        one_of(FORMS), '"vit_jax" or "timm": whose epsilons the stem uses.', default="vit_jax"
    )
    position_embedding: str = architecture(
        one_of(KINDS), '"learned", "sincos2d" or "none".', default="learned"
    )
    position_grid: tuple[int, int] | None = size(
        optional(SIZE),
        "(rows, columns) of the learned table, resized at each call if the image has another grid. By "
        "default the grid of image_size, or of a 224-pixel image if the size is dynamic.",
        normalize=lambda size: pair(size, "position_grid"),
    )
    position_interpolation: str | None = architecture(
        optional(one_of(INTERPOLATIONS)),
        "How the learned table is resized to another grid, at each call and by `from_pretrained`, as in "
        '`resize_position_grid`. None means "bilinear", as in the paper\'s code, and "bilinear_antialias" '
        "for packed patches.",
    )
    rotary: dict[str, Any] | None = architecture(
        optional(_rotary),
        'Rotary positions: "axial", "mixed" or "dinov3", or a dict of `kind` and other arguments of '
        "`RotaryPositions` (`base`, `reference_grid`, `order`, `offset`, `rotate_registers`); None for none.",
        normalize=rotary_options,
    )
    relative_positions: bool = switch(
        "Whether each block has a learned bias for each head and offset between two patches (BEiT)."
    )
    prefix_positions: bool = switch(
        "Whether the class, distillation and register tokens have rows of their own in the table (the paper) "
        "or are prepended after the positions are added (`big_vision`, DeiT III).",
        default=True,
    )
    activation: str = architecture(
        one_of(ACTIVATIONS),
        '"gelu_tanh" (official), "gelu_erf" (timm, Hugging Face), "quick_gelu" (CLIP) or "silu" (of gates).',
        default="gelu_tanh",
    )
    gated_mlp: bool = switch(
        'Whether the MLPs of the blocks have a gate; with activation "silu" they are SwiGLU.'
    )
    norm: str = architecture(one_of(NORMS), '"layer" or "rms": the norms of the encoder.', default="layer")
    norm_epsilon: float = architecture(
        _epsilon, "Added to the variance in every norm of the Transformer.", default=1e-6
    )
    qkv_bias: bool = switch("Whether query, key and value have biases.", default=True)
    key_bias: bool = switch("Whether the key has one if query and value have (BEiT: no).", default=True)
    linear_bias: bool = switch(
        "Whether the blocks' MLPs and last projections of the attention have biases.", default=True
    )
    num_kv_heads: int | tuple[int, ...] | None = architecture(
        optional(_kv_heads),
        "Number of key and value heads, or one for each block (grouped-query attention); None for num_heads.",
        normalize=lambda heads: heads if isinstance(heads, int) else tuple(heads),
    )
    qk_norm: bool = switch("Whether each head's query and key are normalized.")
    attention_sub_norm: bool = switch("Whether there is a norm before the last projection of the attention.")
    mlp_sub_norm: bool = switch("Whether there is a norm of the MLPs' hidden layer.")
    class_token: bool | None = architecture(
        optional(boolean),
        'Whether there is a class token. By default only with pooling "token" or "token_gap".',
    )
    num_registers: int = architecture(integer(at_least=0), "Number of register tokens.", default=0)
    distillation: bool = switch(
        "Whether there are DeiT's distillation token and second head; the logits are the mean of the two."
    )
    layer_scale: float | None = architecture(
        optional(_float32), "Initial value of a learned factor per channel on each residual branch, or None."
    )
    scale_mlp: bool = switch("Whether layer_scale also applies to the MLPs' branches.", default=True)
    patch_padding: int = architecture(
        integer(at_least=0),
        "Rows and columns of zeros above and left of the image, by which patches begin earlier (ViTPose).",
        default=0,
    )
    patch_norm: bool = switch("Whether the patches are normalized after their embedding.")
    pre_norm: bool = switch(
        "Whether there is a layer norm `pre_norm` before the first block (CLIP); the patch embedding then "
        "has no bias."
    )
    post_norm: bool = switch(
        "Whether the blocks' norms are applied to the outputs of attention and MLP instead of their inputs."
    )
    final_norm: bool = switch("Whether there is a norm after the last block.", default=True)
    norm_after_pooling: bool = switch(
        "Whether the last norm follows the pooling (`pooled_norm`) instead of preceding it (`encoder_norm`)."
    )
    in_channels: int = size(_positive, "Channels of the image.", default=3)
    preprocessing: Preprocessing = metadata(
        optional(_preprocessing),
        "How images become model input, a `Preprocessing` or a dict of its arguments, whose `image_size` is "
        "the model's by default; None for the official one.",
    )
    class_names: tuple[str, ...] | None = metadata(
        optional(_names), "One name per class, or None.", normalize=tuple
    )
    task: str | None = metadata(
        optional(text),
        'What the outputs mean: "single_label", "multi_label" or "regression"; None if unknown.',
    )
    split_seed: int | None = metadata(
        optional(integer(at_least=0)), "Seed of the split of the training data; None if unknown."
    )
    pretraining: str | None = metadata(
        optional(one_of(("supervised", "self_supervised", "image_text", "unknown"))),
        'What the weights learned from before: "supervised" (labels), "self_supervised" (images alone), '
        '"image_text" (images with texts) or "unknown"; None for random weights.',
    )
    dropout_rate: float = training(
        _rate, "As in `EncoderBlock`; also applied after the positions.", default=0.0
    )
    attention_dropout_rate: float = training(_rate, "As in `EncoderBlock`.", default=0.0)
    max_rotary_rescale: float | None = training(
        optional(number(above=1)),
        "In training, scale all coordinates of the rotary positions by one random factor a step, of at most "
        "this and at least its inverse (DINOv3); None for no factor.",
    )
    stochastic_depth_rate: float = training(
        _rate, "Of the last block; the others' rates increase linearly to it from 0.", default=0.0
    )
    patch_dropout_rate: float = training(
        _rate,
        "In training, the blocks get a random subset of the patch tokens of each image, without this "
        "fraction of them (`PatchDropout`).",
        default=0.0,
    )

    def __post_init__(self) -> None:
        if self.num_classes == 0 and not isinstance(self.num_classes, bool):
            self._set("num_classes", None)
        check_fields(self)
        for name, field in options_of(self).items():
            value, normalize = getattr(self, name), field.metadata["normalize"]
            if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
                self._set(name, float(value))  # JSON files hold none of NumPy's numbers.
            elif normalize and value is not None:
                self._set(name, normalize(value))
        self._set_without_effect()
        for message in self.contradictions():
            raise ValueError(message)
        if self.num_layers is not None:
            for kv_heads in kv_heads_of_blocks(self):  # type: ignore[arg-type]  # It has a Transformer.
                check_heads(self.hidden_size, self.num_heads, kv_heads)
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise ValueError(
                f"class_names must hold num_classes={self.num_classes} names; got {len(self.class_names)}"
            )
        has_table = self.position_embedding == "learned" or self.relative_positions
        if self.position_interpolation is None or not has_table:
            self._set("position_interpolation", self.default_interpolation)
        if self.position_grid is None and self.image_size == DYNAMIC_SIZE:
            grid = grid_shape((224, 224), self.patch_size, self.resnet)
            self._set("position_grid", tuple(max(side, 1) for side in grid))
        self._set("preprocessing", _resolved_preprocessing(self))

    def _set_without_effect(self) -> None:
        """Give options without effect one value, which a file that does not hold them implies."""
        if self.class_token is None:
            self._set("class_token", self.pooling in ("token", "token_gap"))
        if self.pooling != "map" or not prefix_tokens(vars(self)):
            self._set("pool_prefix", True)
        if not self.qkv_bias:
            self._set("key_bias", True)
        if self.layer_scale is None:
            self._set("scale_mlp", True)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def packing(self) -> dict[str, Any]:
        """The options of a `Preprocessing` that decide whether it packs patches."""
        return {"patch_size": None, "max_num_patches": None}


if TYPE_CHECKING:

    class TransformerConfig(ViTConfig):
        """A `ViTConfig` with a Transformer, in its normal form."""

        num_layers: int
        mlp_dim: int
        num_heads: int
        class_token: bool
        position_interpolation: str


# `with_options` fills them.
OPTIONS: dict[str, dataclasses.Field[Any]] = {}
DEFAULTS: dict[str, Any] = {}
FRONT_ENDS: dict[str, type[VisionTransformer]] = {}


def options_of(schema: ViTConfig | type[ViTConfig]) -> dict[str, dataclasses.Field[Any]]:
    """dict of the fields of a schema by name.

    >>> [*options_of(ViTConfig)][:3]
    ['image_size', 'patch_size', 'hidden_size']
    """
    return {field.name: field for field in dataclasses.fields(schema)}


def with_options(cls: _Class) -> _Class:
    """Class decorator: register a class of transformers with its `schema`.

    Its constructor, which takes `*args` and `**kwargs`, gets a signature with the options. In its docstring
    the line "{options}" is replaced by the descriptions of the options that its parent does not have.
    """
    options = options_of(cls.schema)
    new = {name: field for name, field in options.items() if name not in OPTIONS}
    if OPTIONS:
        FRONT_ENDS.update(dict.fromkeys(new, cls))
    OPTIONS.update(new)
    required = dataclasses.MISSING
    DEFAULTS.update({name: field.default for name, field in new.items() if field.default is not required})
    self, *further = inspect.signature(cls.__init__).parameters.values()
    parameter_kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    parameters = [
        inspect.Parameter(name, parameter_kind, default=DEFAULTS.get(name, empty)) for name in options
    ]
    further = [parameter for parameter in further if parameter.kind is not parameter.VAR_POSITIONAL]
    cls.__init__.__signature__ = inspect.Signature([self, *parameters, *further])  # type: ignore[attr-defined]
    if cls.__doc__:  # Python's option -OO removes it
        # Python 3.13 removes the indentation of docstrings, and cleandoc that of earlier ones.
        cls.__doc__ = inspect.cleandoc(cls.__doc__).replace("{options}", describe_options(new))
    return cls


def describe_options(options: Mapping[str, dataclasses.Field[Any]]) -> str:
    """Options as entries of a docstring's `Args:` section, all but the first line indented.

    >>> print(describe_options(OPTIONS).splitlines()[3].strip())
    hidden_size: Size of a token's vector.
    """
    entries = (f"{name}: {field.metadata['doc']}" for name, field in options.items())
    wrap = textwrap.TextWrapper(108, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return "\n".join(map(wrap.fill, entries)).lstrip()


def class_and_options(
    options: Mapping[str, Any], default: type[VisionTransformer]
) -> tuple[type[VisionTransformer], dict[str, Any]]:
    """Find the class of transformers that has these options.

    Options that it does not have are dropped if they have their defaults, as in a checkpoint's options.

    Args:
        options: dict of values by name.
        default: The class if `VisionTransformer` has all of the options.

    Returns:
        (the class, dict of its options).

    Raises:
        ValueError: for options of several classes.

    Example:
        >>> options = {"hidden_size": 24, "palette": 16, "max_num_patches": None}
        >>> cls, options = class_and_options(options, keras_vit.VisionTransformer)
        >>> cls.__name__, options
        ('PixelTransformer', {'hidden_size': 24, 'palette': 16})
    """
    set_options = {n: v for n, v in options.items() if n in FRONT_ENDS and v != DEFAULTS[n]}
    classes = {FRONT_ENDS[name]: None for name in set_options}
    if len(classes) > 1:
        names = " and ".join(cls.__name__ for cls in classes)
        raise ValueError(f"expected options of one model; got {set_options}, of {names}")
    cls = next(iter(classes), default)
    return cls, {n: v for n, v in options.items() if FRONT_ENDS.get(n, cls) is cls}


def refuse_unknown(names: Iterable[str], cls: type[VisionTransformer] | None = None) -> None:
    """Raise ValueError for names that are none of the options of a class of transformers, or of any class."""
    options = OPTIONS if cls is None else options_of(cls.schema)
    if unknown := sorted({*names} - options.keys()):
        name = "VisionTransformer" if cls is None else cls.__name__
        if unknown[0] in FRONT_ENDS:
            owner = FRONT_ENDS[unknown[0]].__name__
            raise ValueError(f"{name} has no option {unknown[0]}; use keras_vit.{owner}, which has it")
        hints = [f" ({NOTED[each]})" if each in NOTED else did_you_mean(each, options) for each in unknown]
        hinted = ", ".join(map("".join, zip(unknown, hints)))
        raise ValueError(f"{name} has no option {hinted}; its options are {listed(options, 10)}")


def check_options(options: Mapping[str, Any], source: str) -> None:
    """Raise ValueError for an option that does not exist, or whose value breaks its rule.

    Args:
        options: dict of values by name. Rules across options are not checked.
        source: What the message begins with, such as the name of a file.

    Example:
        >>> check_options({"num_heads": 0}, "config.json")
        Traceback (most recent call last):
        ValueError: config.json: num_heads must be a positive int or None; got 0
    """
    for name, value in options.items():
        if name not in OPTIONS:
            hint = did_you_mean(name, OPTIONS)
            raise ValueError(f"{source}: VisionTransformer has no option {name!r}{hint}")
        OPTIONS[name].metadata["rule"].check(f"{source}: {name}", value)


def _resolved_preprocessing(c: ViTConfig) -> Preprocessing:
    size = None if c.image_size == DYNAMIC_SIZE else c.image_size
    preprocessing, packing = c.preprocessing, c.packing
    if preprocessing is None:
        half, packs = (0.5,) * c.in_channels, packing["max_num_patches"] is not None
        return Preprocessing(size, antialias=packs, mean=half, std=half, **packing)
    resolved = (
        Preprocessing(**{"image_size": size, **preprocessing})
        if isinstance(preprocessing, dict)
        else preprocessing
    )
    if differing := {name: value for name in packing if (value := getattr(resolved, name)) != packing[name]}:
        expected = {name: packing[name] for name in differing}
        raise ValueError(f"expected a preprocessing with {expected}, as the model has them; got {differing}")
    if resolved.channels != c.in_channels or (size and resolved.image_size != size):
        raise ValueError(
            f"preprocessing makes images of size {resolved.image_size or 'any'} with {resolved.channels} "
            f"channels, but the model takes size {size or 'any'} with {c.in_channels}"
        )
    return resolved
