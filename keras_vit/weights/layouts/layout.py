"""The interface of a layout: how one project stores a Vision Transformer."""

import re

from keras_vit.layers.dense import STATE
from keras_vit.lazy import LazyModule
from keras_vit.models.vit.schema import DEFAULTS, OPTIONS

hub_config = LazyModule("keras_vit.weights.layouts.hub_config")  # which some layouts do without


class _Anything:
    def __contains__(self, value):
        return True


ANY = _Anything()  # every value of an option
# What every layout can express: options without effect on the outputs, and some that the arrays determine.
# Another option of the groups "size" and "architecture" is refused until a layout names it.
COMMON = {
    **{name: ANY for name, field in OPTIONS.items() if field.metadata["group"] in ("training", "metadata")},
    **dict.fromkeys(("image_size", "patch_size", "hidden_size", "num_layers", "mlp_dim", "num_heads"), ANY),
    **dict.fromkeys(("num_classes", "in_channels", "position_grid", "norm_epsilon"), ANY),
    "position_interpolation": ANY,
    "class_token": (True, False),
    "prefix_positions": (True, False),  # one is converted to the other
    "activation": ("gelu_tanh", "gelu_erf", "quick_gelu"),
    "resnet_width": ANY,  # without effect if there is no `resnet`
    "resnet_form": ("vit_jax", "timm"),
}


# Entries of `get_config()` that say nothing about what the model computes.
_NOT_OPTIONS = {"name", "trainable", "dtype", "clusters", *STATE}


class HeadOptions(dict):
    """The options of a head, which a `ModelForm` adds to the `get_config()` of a VisionTransformer."""


def unsupported_options(config, supported):
    """One reason for each option of a `get_config()` whose value is not among the supported ones.

    An option for which none are given must have its default.
    """
    reasons = []
    for name, value in config.items():
        values = supported.get(name, (DEFAULTS[name],) if name in DEFAULTS else ())
        if name not in _NOT_OPTIONS and not isinstance(value, HeadOptions) and value not in values:
            reasons.append(f"{name}={value!r} (supported: {' or '.join(map(repr, values)) or 'none'})")
    return reasons


def other_values(options, expected, form="{}"):
    """One reason for each option that has another value than the only supported one.

    Args:
        options: dict.
        expected: dict of the supported values.
        form: What the reason says of "NAME=VALUE".

    Example:
        >>> other_values({"causal": True, "length": 5}, {"causal": False}, "the text tower's {}")
        ["the text tower's causal=True (supported: False)"]
    """
    return [
        f"{form.format(f'{name}={options[name]!r}')} (supported: {value!r})"
        for name, value in expected.items()
        if options[name] != value
    ]


def true_reasons(reasons):
    """The reasons that apply: dict from reasons to whether they do."""
    return [reason for reason, applies in reasons.items() if applies]


class ModelForm:
    """How a layout stores a kind of model; as it is, a VisionTransformer and nothing else.

    Attributes:
        usage: Code by which the project loads such a model from Hugging Face, with fields for the task, the
            repository and the architecture; None if it has no class for it.
        kind: The kind of the model, if it has an encoder and a head that a file's arrays show.
    """

    usage = None
    kind = None

    def __init__(self, usage=None):
        self.usage = usage or self.usage

    def has_head(self, arrays):
        """Whether a file with these arrays, by our names, holds a head of this form."""
        return False

    def head_options(self, checkpoint, layout, folder):
        """The arguments of the model around the encoder, of a file with such a head.

        Args:
            checkpoint: `StoredModel`, whose arrays get the form that the model has.
            layout: `Layout` of the file.
            folder: pathlib.Path of the file's folder, or None if its configuration is not read.
        """
        raise NotImplementedError

    def adapted(self, model, arrays, config):
        """The VisionTransformer's arrays by our names and its `get_config()`, as `Layout` writes them."""
        return arrays, config

    def unsupported(self, model, config):
        """List why the layout cannot express what the model has beside a VisionTransformer of `config`."""
        return []

    def write(self, model, arrays, others, **options):
        """The arrays of the file, by its keys.

        Args:
            model: The model.
            arrays: dict of the VisionTransformer's arrays by the file's keys.
            others: dict of the model's other arrays by our names.
            **options: Those of `save_weights`.
        """
        return arrays

    def written_config(self, model, values):
        """The values of the model's `config.json`, made from those of its VisionTransformer."""
        return values


class Layout:
    """A layout of checkpoint files. Each subclass has one instance, in `LAYOUTS`.

    Attributes:
        name: Name in `LAYOUTS`.
        forms: dict of a `ModelForm` for each kind of model that the layout stores, by `StoredParts.form`.
        suffix: Suffix of the files.
        file: Name of the weights in a folder.
        library: Name of the package that reads the files, on Hugging Face.
        in_folder: Whether `save_weights` writes a folder, with the project's own configuration files.
        config_files: Names of those files; `write_config` returns their values.
        table: `Table` of the arrays.
        anchors: Keys of which every file has one.
        prefixes: Prefixes that all keys of a model may have.
        without_prefix: Pattern of the keys that never have the prefix.
        split_heads: Whether the attention kernels have an axis of heads, as ours.
        prefix_positions: Whether prefix tokens have rows in the position table; None: both occur.
        stem_alone: Whether a ResNet without blocks has a file.
        write_options: Names of optional arguments of `write`.
        supported: dict from options of `VisionTransformer` to the values that the layout can express.
            An option without an entry must have its default.
    """

    name = None
    suffix = ".safetensors"
    file = "model.safetensors"
    library = None
    in_folder = False
    forms = {"classifier": ModelForm()}
    config_files = ()
    table = None
    anchors = ()
    prefixes = ("",)
    without_prefix = re.compile("(?!)")
    split_heads = False
    prefix_positions = True
    stem_alone = False
    write_options = ()
    supported = COMMON

    def detect(self, keys):
        """Whether a file with these keys has the layout."""
        return self.prefix(keys) is not None

    def prefix(self, keys):
        """The prefix of the model's keys, or None.

        Raises:
            ValueError: if there are two, because the file holds two models.
        """
        candidates = {p: a for p in self.prefixes for a in self.anchors if p + a in keys}
        if len(candidates) > 1:
            both = " and ".join(prefix + anchor for prefix, anchor in candidates.items())
            raise ValueError(
                f"the file holds {both}: two models, or one array twice; select a subtree to read"
            )
        return next(iter(candidates), None)

    def position_interpolation(self, keys):
        """How the authors of a file with these keys resize its position table, as `resize_position_grid`."""
        return "bilinear"

    def interpolation_at_call(self, config):
        """How the authors' model with this `get_config()` resizes its table at each call, or None."""
        return None

    def pretraining(self, keys):
        """What a file with these keys learned from, as the option of this name; None if they do not say."""
        return None

    def skipped_keys(self, keys):
        """The keys that do not belong to the model, such as the state of an optimizer."""
        return []

    def read(self, arrays):
        """Map the model's arrays, by the file's keys, to our names, as `MappedArrays`."""
        prefix = self.prefix(arrays) or ""

        def name_in_table(key):
            inside = key.removeprefix(prefix)
            expected = inside if self.without_prefix.fullmatch(inside) else prefix + inside
            return inside if key == expected else "/" + key  # which no row has

        return self.table_of(arrays).read(arrays, name_in_table)

    def leave_out(self, mapped, metadata):
        """Move arrays that the model does not use, as metadata say, to the skipped ones.

        Args:
            mapped: `MappedArrays`.
            metadata: dict of options.
        """

    def table_of(self, keys):
        """The `Table` of a file with these keys."""
        return self.table

    def adapted(self, arrays, config):
        """The arrays by our names and `get_config()` of an equal model in the form that the layout stores."""
        return arrays, config

    def write(self, arrays, config):
        """Map arrays by our names to the file's keys, for a model with this `get_config()`."""
        return self.table.write(arrays)

    def implied(self, keys, metadata):
        """The options that the layout implies without storing them.

        Args:
            keys: dict from our names to the file's keys.
            metadata: dict of options from other sources: metadata, and arguments that the caller gives.
        """
        return {}

    def unsupported(self, config):
        """List why the layout cannot express a model with this `get_config()`, one phrase each.

        A subclass adds the combinations of supported values that it cannot express.
        """
        reasons = unsupported_options(config, self.supported)
        if config["num_layers"] is None and (config["resnet"] is None or not self.stem_alone):
            reasons.append("num_layers=None")
        return reasons

    def unsupported_arrays(self, arrays, config):
        """List the values of arrays, by our names, that the layout cannot express."""
        return []

    def read_config(self, folder):
        """Read the options in the project's own configuration files next to the weights.

        Returns:
            dict of options.
        """
        return {}

    def configured_arrays(self, folder):
        """Read the arrays, by our names, that the project has in configuration files next to the weights."""
        return {}

    def write_config(self, config):
        """A dict of the values in each of `config_files`."""
        return []

    def unsupported_in_config(self, config):
        """List the options that `config_files` cannot express."""
        resize, size = config["preprocessing"]["resize"], hub_config.stored_image_size(config)
        is_unknown = {
            "squash_crop": True,
            "pad": "words" not in config,
            "crop": size[0] != size[1],  # transformers resizes to one edge
        }
        return [f"preprocessing with resize={resize!r} to {size[0]}×{size[1]}"] * is_unknown.get(
            resize, False
        )
