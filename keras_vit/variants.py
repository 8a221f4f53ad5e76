"""The sizes of the published models by their names: "B/16", "R50+L/32", "DINOv3-S/16".

`VARIANTS` holds the sizes of plain Vision Transformers, `STEMS` the ResNet stems of hybrids, and `FAMILIES`
the later families, whose sizes have options of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from keras_vit.messages import did_you_mean
from keras_vit.types import Size

SIZES = ("hidden_size", "num_layers", "mlp_dim", "num_heads")

# Width, depth and heads. Ti to H: Dosovitskiy et al. 2021, table 1, and Steiner et al. 2021,
# table 1; the others: Zhai et al. 2022, table 2, Alabdulmohsin et al. 2023 and `big_vision`.
#   hidden_size, num_layers, mlp_dim, num_heads
VARIANTS = {
    "mu": (32, 1, 128, 2),
    "Ti": (192, 12, 768, 3),
    "S": (384, 12, 1536, 6),
    "M": (512, 12, 2048, 8),
    "B": (768, 12, 3072, 12),
    "L": (1024, 24, 4096, 16),
    "So400m": (1152, 27, 4304, 16),
    "H": (1280, 32, 5120, 16),
    "g": (1408, 40, 6144, 16),
    "g-opt": (1536, 40, 6144, 16),
    "G": (1664, 48, 8192, 16),
    "G-opt": (1536, 48, 8192, 16),
    "e": (1792, 56, 15360, 16),
}

# The ResNet stems of hybrids: bottleneck units per stage, and the patch size in the stem's output. In
# "R50+…/16" the patches are 1×1 in a stem without stage 4, whose stride is 16. "R+…/16" is the stem's root
# block with a stride of 4 and patches of 8×8, so that a token covers 32 pixels; the name's 16 is the
# publishers'. Source: `vit_jax/configs/models.py`.
#   units per stage, patch_size
STEMS = {
    "R+/16": ((), 8),
    "R26+/32": ((2, 2, 2, 2), 1),
    "R50+/16": ((3, 4, 9), 1),
    "R50+/32": ((3, 4, 6, 3), 1),
}


def _size(*numbers, **options):
    return dict(zip(SIZES, numbers, strict=True), **options)


def _rotary(kind, base, reference_grid=None, order="yx", offset=0.0, rotate_registers=False):
    """Rotary positions with every argument, as the schema stores them."""
    grid = reference_grid and (reference_grid, reference_grid)
    options = {"kind": kind, "base": base, "reference_grid": grid, "order": order, "offset": offset}
    return {**options, "rotate_registers": rotate_registers}


def _pe_rotary(grid, offset=1.0):
    return {"rotary": _rotary("axial", 10_000.0, grid, "xy", offset)}


def _grouped(layers, heads):
    """Sapiens2's grouped queries: half as many heads of key and value, but in eight blocks at each end."""
    return {"num_kv_heads": (heads,) * 8 + (heads // 2,) * (layers - 16) + (heads,) * 8}


_TOKEN = {"class_token": True, "activation": "gelu_erf"}
_MEAN = {**_TOKEN, "pooling": "gap", "norm_after_pooling": True}  # of the patches, with a class token
_SWIGLU = {"gated_mlp": True, "activation": "silu"}

_DINOV2 = {**_TOKEN, "layer_scale": 1e-5}
_DINOV2_G = {**_size(1536, 40, 4096, 24), **_SWIGLU}
_DINOV2_SIZES = {"S/14": {}, "B/14": {}, "L/14": {}, "g/14": _DINOV2_G}
_REGISTERS = {"num_registers": 4, "prefix_positions": False}
_DINOV3 = {
    **_TOKEN,
    "rotary": _rotary("dinov3", 100.0),
    "position_embedding": "none",
    "num_registers": 4,
    "key_bias": False,
    "layer_scale": 1e-5,
    "norm_epsilon": 1e-5,
}
_EVA02 = {**_MEAN, **_SWIGLU, "key_bias": False, "rotary": _rotary("axial", 10_000.0, 16)}
_SUB_NORMS = {"attention_sub_norm": True, "mlp_sub_norm": True}
_BEIT = {**_MEAN, "relative_positions": True, "position_embedding": "none", "key_bias": False}
_PE = {**_TOKEN, "pre_norm": True, "norm_epsilon": 1e-5}
_PE_FEATURES = {**_PE, "pooling": "gap", "final_norm": False}
_PE_G = _size(1536, 50, 8960, 16, class_token=False, **_pe_rotary(32, offset=0.0))
_ROPE = {**_TOKEN, "layer_scale": 1e-5, "prefix_positions": False}
_ROPE_SIZES = {"S/16": {}, "B/16": {}, "L/16": {}}
_ROPE_AXIAL = {"rotary": _rotary("axial", 100.0, order="xy")}
_ROPE_MIXED = {"rotary": _rotary("mixed", 10.0, order="xy")}
_RADIO = {**_TOKEN, "final_norm": False, "prefix_positions": False}

# The families of 2021 to 2026: the options of all their sizes; then each size with its published patch size
# and what differs from the size of `VARIANTS` with this name. Sources: the authors' code, and timm 1.0.31,
# whose modules have the same numbers of parameters.
FAMILIES = {
    # Bao et al. 2021 (arXiv 2106.08254); Peng et al. 2022 (2208.06366); Wang et al. 2022 (2208.10442)
    "BEiT": (_BEIT, {"B/16": {"layer_scale": 0.1}, "L/16": {"layer_scale": 1e-5}}),
    "BEiTv2": ({**_BEIT, "layer_scale": 1e-5}, {"B/16": {}, "L/16": {}}),
    "BEiT-3": ({**_MEAN, **_SUB_NORMS, "norm_epsilon": 1e-5}, {"B/16": {}, "L/16": {}, "g/14": {}}),
    # Fang et al. 2022 (2211.07636); Sun et al. 2023 (2303.15389)
    "EVA": (_MEAN, {"L/14": {}, "g/14": {"key_bias": False}}),
    "EVA-CLIP": ({**_TOKEN, "key_bias": False}, {"g/14": {}}),
    # Fang et al. 2023 (2303.11331)
    "EVA-02": (
        _EVA02,
        {
            "Ti/14": _size(192, 12, 512, 3),
            "S/14": _size(384, 12, 1024, 6),
            "B/14": _size(768, 12, 2048, 12, mlp_sub_norm=True),
            "L/14": _size(1024, 24, 2730, 16, mlp_sub_norm=True),
        },
    ),
    "EVA-02-CLIP": (
        {"class_token": True, "key_bias": False},
        {
            "B/16": _size(768, 12, 2048, 12, **_SWIGLU, **_SUB_NORMS, rotary=_EVA02["rotary"]),
            "L/14": _size(1024, 24, 2730, 16, **_SWIGLU, **_SUB_NORMS, rotary=_EVA02["rotary"]),
            "E/14": _size(1792, 64, 15360, 16, activation="gelu_erf", post_norm=True),
        },
    ),
    # Zhai et al. 2023 (2303.15343); Tschannen et al. 2025, SigLIP 2 (2502.14786)
    "SigLIP": (
        {"pooling": "map"},
        {"B/32": {}, "B/16": {}, "L/16": {}, "So400m/14": {}, "So400m/16": {}, "g-opt/16": {}},
    ),
    # Oquab et al. 2023 (2304.07193); Darcet et al. 2023, registers (2309.16588)
    "DINOv2": (_DINOV2, _DINOV2_SIZES),
    "DINOv2-reg": ({**_DINOV2, **_REGISTERS}, _DINOV2_SIZES),
    "TIPSv2": (
        {**_TOKEN, "layer_scale": 1.0, "num_registers": 1, "prefix_positions": False},
        {"B/14": {}, "L/14": {}, "So400m/14": {}, "g/14": _DINOV2_G},
    ),
    # Chen et al. 2024 (2412.05271)
    "InternViT": (
        {**_TOKEN, "layer_scale": 0.1, "final_norm": False},
        {"300M/14": _size(1024, 24, 4096, 16)},
    ),
    # Heo et al. 2024 (2403.13298)
    "RoPE-axial": ({**_ROPE, **_ROPE_AXIAL, "position_embedding": "none"}, _ROPE_SIZES),
    "RoPE-axial-APE": ({**_ROPE, **_ROPE_AXIAL}, _ROPE_SIZES),
    "RoPE-mixed": ({**_ROPE, **_ROPE_MIXED, "position_embedding": "none"}, _ROPE_SIZES),
    "RoPE-mixed-APE": ({**_ROPE, **_ROPE_MIXED}, _ROPE_SIZES),
    # Fini et al. 2024 (2411.14402)
    "AIMv2": (
        {
            **_SWIGLU,
            "pooling": "gap",
            "norm": "rms",
            "norm_epsilon": 1e-5,
            "patch_norm": True,
            "qkv_bias": False,
            "linear_bias": False,
        },
        {
            "L/14": _size(1024, 24, 2816, 8),
            "H/14": _size(1536, 24, 4096, 12),
            "1B/14": _size(2048, 24, 5632, 16),
            "3B/14": _size(3072, 24, 8192, 24),
        },
    ),
    # Heinrich et al. 2025 (2412.07679) and NVIDIA's model cards
    "C-RADIOv3": (
        {**_RADIO, "num_registers": 7},
        {
            "B/16": {"layer_scale": 1e-5},
            "L/16": {"layer_scale": 1e-5},
            "H/16": {},
            "g/16": _size(1536, 40, 6144, 24),
        },
    ),
    "C-RADIOv4": ({**_RADIO, "num_registers": 9}, {"So400m/16": {}, "H/16": {}}),
    # Bolya et al. 2025, Perception Encoder (2504.13181). The grid of the positions is that of its training
    # images: 384 (Ti, S), 224 (B), 336 (L) and 448 pixels (G); all others 512 pixels, or 448 with 14.
    "PE-core": (
        {**_PE, "pooling": "map", "pooling_heads": 8},
        {
            "Ti/16": _pe_rotary(24),
            "S/16": _pe_rotary(24),
            "B/16": _pe_rotary(14),
            "L/14": _pe_rotary(24),
            "G/14": {**_PE_G, "pooling_mlp_dim": 6144},
        },
    ),
    "PE-spatial": (
        _PE_FEATURES,
        {
            **dict.fromkeys(("Ti/16", "S/16", "B/16", "L/14"), _pe_rotary(32)),
            "G/14": {**_PE_G, "layer_scale": 0.1},
        },
    ),
    "PE-lang": (
        {**_PE_FEATURES, "layer_scale": 0.1},
        {"L/14": _size(1024, 23, 4096, 16, **_pe_rotary(32)), "G/14": {**_PE_G, "num_layers": 47}},
    ),
    # Siméoni et al. 2025 (2508.10104). EUPE and LingBot-Vision are built alike.
    "DINOv3": (
        _DINOV3,
        {
            "S/16": {},
            "S+/16": _size(384, 12, 1536, 6, **_SWIGLU),
            "B/16": {},
            "L/16": {},
            "H+/16": _size(1280, 32, 5120, 20, **_SWIGLU),
            "7B/16": _size(4096, 40, 8192, 32, **_SWIGLU, qkv_bias=False, key_bias=True),
        },
    ),
    "EUPE": (_DINOV3, {"Ti/16": {}, "S/16": {}, "B/16": {}}),
    "LingBot": (
        _DINOV3,
        {"S/16": {}, "B/16": {}, "L/16": {}, "g/16": {**_DINOV2_G, "qkv_bias": False, "key_bias": True}},
    ),
    # github.com/wangf3014/ViT-5
    "ViT-5": (
        {
            **_TOKEN,
            **_REGISTERS,
            "rotary": _rotary("axial", 10_000.0, rotate_registers=True),
            "norm": "rms",
            "qk_norm": True,
            "qkv_bias": False,
            "layer_scale": 1e-4,
        },
        {"S/16": {}, "B/16": {}, "L/16": {}, "XL/16": _size(1152, 28, 4608, 16)},
    ),
    # github.com/facebookresearch/sapiens2 (2604.21681), named by the millions and billions of parameters
    "Sapiens2": (
        {
            **_SWIGLU,
            "class_token": True,
            "num_registers": 8,
            "rotary": _rotary("dinov3", 100.0),
            "position_embedding": "none",
            "norm": "rms",
            "qk_norm": True,
            "layer_scale": 1.0,
            "scale_mlp": False,
        },
        {
            "0.1B/16": _size(768, 12, 3072, 12),
            "0.4B/16": _size(1024, 24, 4096, 16, **_grouped(24, 16)),
            "0.8B/16": _size(1280, 32, 5120, 16, **_grouped(32, 16)),
            "1B/16": _size(1536, 40, 6144, 24, **_grouped(40, 24)),
            "5B/16": _size(2432, 56, 9728, 32, **_grouped(56, 32)),
        },
    ),
}

# The names that the authors published. Other patch sizes are valid, too ("S/2", "DINOv3-S/8").
PUBLISHED = (
    *("mu/16", "Ti/16", "S/16", "S/32", "M/16", "B/8", "B/16", "B/32", "L/16", "L/32", "So400m/14"),
    *("H/14", "g/14", "g-opt/16", "G/14", "G-opt/16", "e/14"),
    *("R+Ti/16", "R26+S/32", "R26+B/32", "R50+B/16", "R50+L/32"),
    *(f"{family}-{size}" for family, (_, sizes) in FAMILIES.items() for size in sizes),
)

# What a plain Vision Transformer has of the options by which families differ.
PLAIN = {
    "rotary": None,
    "relative_positions": False,
    "gated_mlp": False,
    "norm": "layer",
    "linear_bias": True,
    "num_kv_heads": None,
    "qk_norm": False,
    "attention_sub_norm": False,
    "mlp_sub_norm": False,
    "patch_norm": False,
    "post_norm": False,
    "final_norm": True,
}

# Options of a family that are its publishers' choice, or that others change in their copies of the weights:
# how tokens are pooled, whether biases of zero are left out, and initial values.
CHOICES = {"pooling", "norm_after_pooling", "qkv_bias", "key_bias", "layer_scale"}


def _arguments():
    """The arguments of each size by its name without the patch size."""
    arguments = {size: _size(*numbers) for size, numbers in VARIANTS.items()}
    for family, (options, sizes) in FAMILIES.items():
        for name, own in sizes.items():
            size = name.partition("/")[0]
            arguments[f"{family}-{size}"] = {**arguments.get(size, {}), **options, **own}
    return arguments


_ARGUMENTS = _arguments()


def is_variant(name):
    """Whether `parse_variant` accepts a name.

    >>> is_variant("B/16"), is_variant("vit_base_patch16_224")
    (True, False)
    """
    try:
        return bool(parse_variant(name))
    except ValueError:
        return False


def parse_variant(name: str) -> dict[str, Any]:
    """The constructor arguments of a variant.

    Args:
        name: A size of `VARIANTS`, a slash and a patch size in pixels; for a hybrid, with a stem and a plus
            before it; for one of `FAMILIES`, with its name and a hyphen before it: "Ti/16", "B/8", "S/2",
            "R26+S/32", "DINOv3-S/16".

    Returns:
        dict of `hidden_size`, `num_layers`, `mlp_dim`, `num_heads`, `patch_size`; for a hybrid also
        `resnet`, and for a family its further options.

    Raises:
        ValueError: for an unknown name.

    Example:
        >>> parse_variant("R26+S/32")["resnet"], parse_variant("B/8")["patch_size"]
        ((2, 2, 2, 2), 8)
        >>> parse_variant("DINOv3-S/16")["num_registers"]
        4
    """
    match = re.fullmatch(r"(?:(R\d*)\+)?([\w.+-]+)/([1-9]\d*)", name) if isinstance(name, str) else None
    stem, size, patch_size = match.groups() if match else (None, None, None)
    if size not in (VARIANTS if stem is not None else _ARGUMENTS):
        spelling = other_spelling(name)
        hint = f" (did you mean {spelling!r}?)" if spelling else did_you_mean(name, PUBLISHED)
        raise ValueError(
            f"variant {name!r} is unknown{hint}; expected one such as 'B/16', 'R50+B/16' or 'DINOv3-S/16', "
            f"with a size of {', '.join(VARIANTS)}; `keras-vit models` lists all"
        )
    arguments = {**_ARGUMENTS[size]}
    if stem is None:
        return {**arguments, "patch_size": int(patch_size)}
    key = f"{stem}+/{patch_size}"
    if key not in STEMS:
        known = ", ".join(k.replace("+/", f"+{size}/") for k in STEMS)
        hint = did_you_mean(name, PUBLISHED)
        raise ValueError(f"hybrid {name!r} is unknown{hint}; those of this size are {known}")
    resnet, patch = STEMS[key]
    return {**arguments, "patch_size": patch, "resnet": resnet}


_WORDS = {"tiny": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H"}
_WORDS |= {"giant": "g", "gigantic": "G"}
_SIZES_ELSEWHERE = {**{size.lower(): size for size in reversed(VARIANTS)}, **_WORDS}
# vit_base_patch16_224, vit_b_16, ViT-B/16, B16
_ELSEWHERE = re.compile(
    rf"(?:vit|deit3?)?[-_]?({'|'.join(_SIZES_ELSEWHERE)})[-_/]?(?:patch)?([1-9]\d?)(?:[-_]\d+)?(?:\..*)?",
    re.IGNORECASE,
)


def other_spelling(name):
    """The plain variant that a name in another project's spelling means, or None.

    >>> [other_spelling(name) for name in ("vit_base_patch16_224", "vit_b_16", "ViT-So400m-14", "G14")]
    ['B/16', 'B/16', 'So400m/14', 'G/14']
    >>> other_spelling("resnet50") is None
    True
    """
    match = _ELSEWHERE.fullmatch(str(name))
    size = match and (match[1] if match[1] in VARIANTS else _SIZES_ELSEWHERE[match[1].lower()])
    return f"{size}/{match[2]}" if match else None


def variant_of(arguments: Mapping[str, Any]) -> str | None:
    """The name of the published size with these arguments of `VisionTransformer`, or None.

    A family is only named for models with an option that plain Vision Transformers do not have (`PLAIN`).

    >>> variant_of(parse_variant("S/16")), variant_of({"patch_size": (16, 8)})
    ('S/16', None)
    >>> variant_of(parse_variant("DINOv3-S/16")), variant_of(parse_variant("DINOv2-S/14"))
    ('DINOv3-S/16', 'S/14')
    """
    have = {name: _immutable(value) for name, value in arguments.items()}
    patch = have["patch_size"]
    height, width = patch if isinstance(patch, tuple) else (patch, patch)
    have["patch_size"] = height
    for size in _ARGUMENTS if height == width else ():
        stems = [key.replace("+/", f"+{size}/") for key in STEMS if size in VARIANTS]
        for name in (f"{size}/{height}", *stems):
            defaults = {"resnet": None, **PLAIN}
            if size not in VARIANTS:
                defaults |= {"num_registers": 0, "position_embedding": "learned"}
            variant = {**defaults, **parse_variant(name)}
            compared = (*SIZES, "patch_size", *defaults)
            if all(_immutable(variant[k]) == have.get(k, defaults.get(k)) for k in compared):
                return name
    return None


def _immutable(value):
    if isinstance(value, dict):
        return tuple(sorted((name, _immutable(item)) for name, item in value.items()))
    return tuple(value) if isinstance(value, list) else value


def cost(
    variant: str, image_size: Size = 224, num_classes: int = 1000, pooling: str | None = None
) -> dict[str, int]:
    """The number of tokens, parameters and operations of a variant.

    Args:
        variant: A name as `parse_variant` takes it.
        image_size: Side of the square image in pixels; pixels that fill no patch are ignored.
        num_classes: Size of the head; None for no head.
        pooling: "token", "gap" or "map"; None for the family's, or "token".

    Returns:
        dict of `tokens`, `parameters` and `flops`: the multiplications and additions of convolutions and
        matmuls in the forward pass of one image, with all tokens in every block.

    Raises:
        ValueError: for an unknown variant or pooling, a negative class count, or an image that is smaller
            than a patch.

    Example:
        >>> cost("B/16")["parameters"], round(cost("B/16")["flops"] / 1e9, 1)
        (86567656, 35.1)
    """
    c = parse_variant(variant)
    if not isinstance(image_size, int) or image_size < 1:
        raise ValueError(f"image_size must be a positive int; got {image_size!r}")
    if num_classes is not None and num_classes < 0:
        raise ValueError(f"num_classes must be an int of at least 0 or None; got {num_classes!r}")
    pooling = c.get("pooling", "token") if pooling is None else pooling
    if pooling not in ("token", "gap", "map"):
        raise ValueError(f"expected pooling 'token', 'gap' or 'map'; got {pooling!r}")
    d, layers = c["hidden_size"], c["num_layers"]
    parameters, multiplications, side, channels = 0, 0, image_size, 3
    if "resnet" in c:
        parameters, multiplications, side, channels = _stem_cost(c["resnet"], image_size)

    grid = side // c["patch_size"]
    if not grid:
        raise ValueError(
            f"{variant} needs a grid (the image, or the stem's output) of at least its patch size of "
            f"{c['patch_size']}; got {side}×{side}"
        )
    class_token = c.get("class_token", pooling == "token")
    prefix = class_token + c.get("num_registers", 0)
    tokens = grid * grid + prefix
    norm = 1 if c.get("norm") == "rms" else 2  # weights per channel

    kernel = c["patch_size"] ** 2 * channels * d
    parameters += kernel + d * (not c.get("pre_norm", False)) + prefix * d
    norms = c.get("patch_norm", False) + c.get("pre_norm", False) + c.get("final_norm", True)
    parameters += norms * norm * d
    if c.get("position_embedding", "learned") == "learned":
        parameters += (grid * grid + prefix * c.get("prefix_positions", True)) * d
    if (c.get("rotary") or {}).get("kind") == "mixed":
        parameters += layers * d
    multiplications += grid * grid * kernel

    every_head = (c["num_heads"],) * layers
    for kv_heads in c.get("num_kv_heads", every_head):
        weights, small_parameters = _block_cost(c, kv_heads * d // c["num_heads"], norm)
        if c.get("relative_positions"):
            small_parameters += ((2 * grid - 1) ** 2 + 3 * class_token) * c["num_heads"]
        parameters += weights + small_parameters
        multiplications += tokens * weights + 2 * tokens * tokens * d
    if pooling == "map":
        mlp = c.get("pooling_mlp_dim", c["mlp_dim"])
        parameters += 4 * d * d + 2 * d * mlp + mlp + 8 * d
        multiplications += 2 * tokens * d * d + 2 * tokens * d + 2 * d * d + 2 * d * mlp
    if num_classes:
        parameters += (d + 1) * num_classes
        multiplications += d * num_classes
    return {"tokens": tokens, "parameters": parameters, "flops": 2 * multiplications}


def _block_cost(c, kv_size, norm):
    """(parameters in kernels, other parameters) of a block whose keys have `kv_size` channels."""
    d, mlp, gates = c["hidden_size"], c["mlp_dim"], 1 + c.get("gated_mlp", False)
    kernels = 2 * d * d + 2 * d * kv_size + (1 + gates) * d * mlp
    small_parameters = 2 * norm * d
    if c.get("qkv_bias", True):
        small_parameters += d + (1 + c.get("key_bias", True)) * kv_size
    if c.get("linear_bias", True):
        small_parameters += 2 * d + gates * mlp
    if c.get("layer_scale") is not None:
        small_parameters += d * (1 + c.get("scale_mlp", True))
    small_parameters += 2 * norm * (d // c["num_heads"]) * c.get("qk_norm", False)
    small_parameters += norm * d * c.get("attention_sub_norm", False) + norm * mlp * c.get(
        "mlp_sub_norm", False
    )
    return kernels, small_parameters


def _stem_cost(stages, side, width=64):
    """(parameters, multiplications, side of the output, its channels) of a ResNet stem."""

    def conv(kernel, old, new, positions):  # without a bias, with a group norm
        return kernel * kernel * old * new + 2 * new, kernel * kernel * old * new * positions

    side = -(-side // 2)
    costs = [conv(7, 3, width, side * side)]
    side, channels = -(-side // 2), width
    for stage, units in enumerate(stages):
        middle, before = width * 2**stage, side
        side = side if stage == 0 else -(-side // 2)
        for unit in range(units):
            if unit == 0:
                costs.append(conv(1, channels, 4 * middle, side * side))
            costs.append(conv(1, channels, middle, (before if unit == 0 else side) ** 2))
            costs.append(conv(3, middle, middle, side * side))
            costs.append(conv(1, middle, 4 * middle, side * side))
            channels = 4 * middle
    return *(sum(column) for column in zip(*costs)), side, channels
