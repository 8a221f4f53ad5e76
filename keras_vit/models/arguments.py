"""The constructor arguments of the Vision Transformer: normal forms, and what contradicts what."""

import math
import numbers
from collections.abc import Sequence

import keras

from keras_vit.layers.attention import check_heads
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.layers.patch_embedding import pair
from keras_vit.layers.position_embedding import KINDS
from keras_vit.models.resnet_stem import FORMS, GROUPS
from keras_vit.preprocessing import Preprocessing, is_float32

POOLINGS = ("token", "gap", "map", None)
FLAGS = ("prefix_positions", "qkv_bias", "class_token", "distillation", "pre_norm", "norm_after_pooling")
FREE = (None, None)  # the image size of a model that takes any


def resolve_arguments(**given):
    """The arguments in their normal forms, with defaults that depend on others filled in.

    Args:
        **given: Every argument of `VisionTransformer` but its dtype.

    Returns:
        dict with the same keys.

    Raises:
        ValueError: for arguments that contradict each other, or that no model exists for.
    """
    c = dict(given)
    size = c["image_size"]
    c["image_size"] = FREE if is_free(size) else pair(size, "image_size")
    c["patch_size"] = pair(c["patch_size"], "patch_size")
    for name, wanted in (("resnet", "units per stage"), ("class_names", "names")):
        if c[name] is not None:
            if not isinstance(c[name], Sequence) or isinstance(c[name], str):
                raise ValueError(f"{name} must be a list of {wanted} or None; got {c[name]!r}")
            c[name] = tuple(c[name])
    if c["class_token"] is None:
        c["class_token"] = c["pooling"] == "token"
    _check(c)

    if c["position_grid"] is not None:
        c["position_grid"] = pair(c["position_grid"], "position_grid")
    elif c["image_size"] == FREE:
        grid = grid_of((224, 224), c["patch_size"], c["resnet"])
        c["position_grid"] = tuple(max(cells, 1) for cells in grid)
    c["preprocessing"] = _preprocessing(c)
    return c


def is_free(image_size):
    """Whether this stands for any size: (None, None)."""
    return isinstance(image_size, tuple | list) and tuple(image_size) == FREE


def prefix_tokens(config):
    """(layer name, count, initializer) of the tokens before the grid's, the innermost first."""
    small = keras.initializers.RandomNormal(stddev=0.02)
    tokens = (
        ("register_tokens", config["num_registers"], small),
        ("distillation_token", int(config["distillation"]), small),
        ("class_token", int(config["class_token"]), "zeros"),
    )
    return [token for token in tokens if token[1]]


def stem_stride(resnet):
    """How many pixels one cell of the grid before the patches covers, on each side.

    >>> stem_stride(None), stem_stride(()), stem_stride((3, 4, 9))
    (1, 4, 16)
    """
    return 1 if resnet is None else 4 * 2 ** max(len(resnet) - 1, 0)


def grid_of(image_size, patch_size, resnet):
    """(rows, columns) of the patches that an image is cut into; a stem rounds up.

    >>> grid_of((224, 384), (16, 16), None), grid_of((225, 225), (1, 1), (2, 2, 2, 2))
    ((14, 24), (8, 8))
    """
    stride = stem_stride(resnet)
    return tuple(-(-side // stride) // patch for side, patch in zip(image_size, patch_size))


def least_parameters(config):
    """The numbers in the larger kernels and tables of a model, from its arguments and without building it.

    >>> base = {"hidden_size": 768, "num_layers": 12, "mlp_dim": 3072, "patch_size": 16, "in_channels": 3}
    >>> none = {"num_classes": 1000, "representation_size": None, "num_registers": 0, "resnet": None}
    >>> least_parameters({**base, **none, "position_grid": (14, 14), "resnet_width": 64})
    86443008
    """
    c, hidden = config, config["hidden_size"]
    rows, columns = c["position_grid"] or (0, 0)
    stem = sum(
        units * (3 * c["resnet_width"] * 2**stage) ** 2 for stage, units in enumerate(c["resnet"] or ())
    )
    patch = math.prod(pair(c["patch_size"], "patch_size")) * (1 if c["resnet"] else c["in_channels"])
    blocks = (c["num_layers"] or 0) * (4 * hidden + 2 * (c["mlp_dim"] or 0))
    tokens = rows * columns + c["num_registers"]
    before_head = c["representation_size"] or hidden
    head = before_head * (c["num_classes"] or 0) + hidden * (c["representation_size"] or 0)
    return stem + hidden * (patch + blocks + tokens) + head


def _preprocessing(c):
    size = None if c["image_size"] == FREE else c["image_size"]
    given = c["preprocessing"]
    if given is None:
        half = (0.5,) * c["in_channels"]
        return Preprocessing(size, mean=half, std=half)
    made = Preprocessing(**given) if isinstance(given, dict) else given
    if not isinstance(made, Preprocessing):
        raise ValueError(f"preprocessing must be a keras_vit.Preprocessing or None; got {given!r}")
    if made.channels != c["in_channels"] or (size and made.image_size != size):
        raise ValueError(
            f"preprocessing makes {made.image_size or 'any number of'} pixels in {made.channels} "
            f"channels, but the model takes {size or 'any number'} in {c['in_channels']}"
        )
    return made


def _check(c):
    def require(fact, message):
        if not fact:
            raise ValueError(message)

    def positive(name, none_too=False):
        value = c[name]
        fine = value is None if none_too and value is None else isinstance(value, int) and value > 0
        require(fine, f"{name} must be a positive int{' or None' * none_too}; got {value!r}")

    for name, known in (
        ("pooling", POOLINGS),
        ("position_embedding", KINDS),
        ("activation", tuple(ACTIVATIONS)),
        ("resnet_form", tuple(FORMS)),
    ):
        require(c[name] in known, f"{name} {c[name]!r} is unknown; choose one of {known}")
    for name in ("hidden_size", "in_channels", "resnet_width"):
        positive(name)
    for name in ("num_classes", "representation_size"):
        positive(name, none_too=True)
    for name in ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"):
        value = c[name]
        fine = isinstance(value, numbers.Real) and 0 <= value < 1
        require(fine, f"{name} must be a number in [0, 1); got {value!r}")
    epsilon = c["norm_epsilon"]
    fine = is_float32(epsilon) and epsilon > 0
    require(fine, f"norm_epsilon must be a number above 0 that float32 holds; got {epsilon!r}")
    scale = c["layer_scale"]
    fine = scale is None or is_float32(scale)
    require(fine, f"layer_scale must be a number that float32 holds, or None; got {scale!r}")

    for name in FLAGS:
        require(c[name] in (True, False), f"{name} must be True or False; got {c[name]!r}")

    registers = c["num_registers"]
    require(
        isinstance(registers, int) and registers >= 0,
        f"num_registers must be an int of at least 0; got {registers!r}",
    )
    if c["num_layers"] is None:
        require(
            c["mlp_dim"] is None and c["num_heads"] is None,
            "num_layers=None builds no Transformer, so mlp_dim and num_heads must be None; "
            f"got {c['mlp_dim']!r} and {c['num_heads']!r}",
        )
        require(
            c["pooling"] in ("gap", None) and not prefix_tokens(c),
            f"without a Transformer pooling must be 'gap' or None and there are no class, "
            f"distillation or register tokens; got pooling={c['pooling']!r}",
        )
    else:
        for name in ("num_layers", "mlp_dim", "num_heads"):
            positive(name)
        check_heads(c["hidden_size"], c["num_heads"])
        if c["position_embedding"] == "sincos2d":
            require(
                c["hidden_size"] % 4 == 0 and c["hidden_size"] >= 8,
                f"sincos2d needs a hidden_size in multiples of 4, at least 8; got {c['hidden_size']}",
            )
    if c["pooling"] == "token":
        require(c["class_token"], "pooling='token' reads the class token; got class_token=False")
    if c["distillation"]:
        require(
            c["pooling"] == "token" and c["representation_size"] is None and not c["norm_after_pooling"],
            "distillation needs pooling='token', no representation_size and no norm_after_pooling; got "
            f"{c['pooling']!r}, {c['representation_size']!r} and {c['norm_after_pooling']!r}",
        )
    if c["resnet"] is not None:
        units = c["resnet"]
        require(
            all(isinstance(n, int) and n > 0 for n in units),
            f"resnet must hold a positive int for each stage; got {units!r}",
        )
        require(
            c["resnet_width"] % GROUPS == 0,
            f"resnet_width must be a multiple of {GROUPS}, the groups of its norms; got {c['resnet_width']}",
        )
    task, seed = c["task"], c["split_seed"]
    require(task is None or isinstance(task, str), f"task must be a str or None; got {task!r}")
    fine = seed is None or isinstance(seed, int) and seed >= 0
    require(fine, f"split_seed must be an int of at least 0 or None; got {seed!r}")
    if c["class_names"] is not None:
        require(
            len(c["class_names"]) == c["num_classes"],
            f"{len(c['class_names'])} class_names do not fit num_classes={c['num_classes']}",
        )
