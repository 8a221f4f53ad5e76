"""The sizes of the published models by their names in the paper: "B/16", "R50+L/32"."""

import re

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

# The names that `vit_jax` and `big_vision` published. Other patch sizes are valid, too ("S/2").
PUBLISHED = (
    *("mu/16", "Ti/16", "S/16", "S/32", "M/16", "B/8", "B/16", "B/32", "L/16", "L/32", "So400m/14"),
    *("H/14", "g/14", "g-opt/16", "G/14", "G-opt/16", "e/14"),
    *("R+Ti/16", "R26+S/32", "R26+B/32", "R50+B/16", "R50+L/32"),
)


def parse_variant(name):
    """The constructor arguments of a variant.

    Args:
        name: A size of `VARIANTS`, a slash and a patch size in pixels; for a hybrid, with a stem and a plus
            before it: "Ti/16", "B/8", "S/2", "R26+S/32".

    Returns:
        dict of `hidden_size`, `num_layers`, `mlp_dim`, `num_heads`, `patch_size`, and for a hybrid
        `resnet`.

    Raises:
        ValueError: for an unknown name.

    Example:
        >>> parse_variant("R26+S/32")["resnet"], parse_variant("B/8")["patch_size"]
        ((2, 2, 2, 2), 8)
    """
    match = re.fullmatch(r"(?:(R\d*)\+)?([A-Za-z0-9-]+)/([1-9]\d*)", name) if isinstance(name, str) else None
    if not match or match[2] not in VARIANTS:
        raise ValueError(
            f"variant {name!r} is unknown; expected a size, a slash and a patch size, such as 'B/16' or "
            f"'R50+B/16', with one of the sizes {', '.join(VARIANTS)}"
        )
    stem, size, patch_size = match.groups()
    sizes = dict(zip(("hidden_size", "num_layers", "mlp_dim", "num_heads"), VARIANTS[size]))
    if stem is None:
        return {**sizes, "patch_size": int(patch_size)}
    key = f"{stem}+/{patch_size}"
    if key not in STEMS:
        known = ", ".join(k.replace("+/", f"+{size}/") for k in STEMS)
        raise ValueError(f"hybrid {name!r} is unknown; those of this size are {known}")
    resnet, patch = STEMS[key]
    return {**sizes, "patch_size": patch, "resnet": resnet}


def variant_of(arguments):
    """The name of the published size with these arguments of `VisionTransformer`, or None.

    >>> variant_of(parse_variant("S/16")), variant_of({"patch_size": (16, 8)})
    ('S/16', None)
    """
    patch, resnet = arguments["patch_size"], arguments.get("resnet")
    height, width = patch if isinstance(patch, tuple | list) else (patch, patch)
    have = {**arguments, "patch_size": height, "resnet": resnet and tuple(resnet)}
    for size in VARIANTS if height == width else ():
        for name in (f"{size}/{height}", *(key.replace("+/", f"+{size}/") for key in STEMS)):
            if ({"resnet": None} | parse_variant(name)).items() <= have.items():
                return name
    return None


def cost(variant, image_size=224, num_classes=1000, pooling="token"):
    """The number of tokens, parameters and operations of a variant.

    Args:
        variant: A name as `parse_variant` takes it.
        image_size: Side of the square image in pixels.
        num_classes: Size of the head; None for no head.
        pooling: "token" or "gap".

    Returns:
        dict of `tokens`, `parameters` and `flops`: the multiplications and additions of convolutions and
        matmuls in the forward pass of one image.

    Raises:
        ValueError: for an unknown variant or pooling, or an image that the patch does not divide.

    Example:
        >>> cost("B/16")["parameters"], round(cost("B/16")["flops"] / 1e9, 1)
        (86567656, 35.1)
    """
    c = parse_variant(variant)
    if pooling not in ("token", "gap"):
        raise ValueError(f"expected pooling 'token' or 'gap'; got {pooling!r}")
    d, mlp = c["hidden_size"], c["mlp_dim"]
    parameters, multiplications, side, channels = 0, 0, image_size, 3
    if "resnet" in c:
        parameters, multiplications, side, channels = _stem_cost(c["resnet"], image_size)

    if side % c["patch_size"]:
        raise ValueError(
            f"{variant} needs a grid (the image, or the stem's output) that its patch size of "
            f"{c['patch_size']} divides; got {side}×{side}"
        )
    positions = (side // c["patch_size"]) ** 2
    tokens = positions + (pooling == "token")
    patch = c["patch_size"] ** 2 * channels * d
    block = 4 * d * d + 2 * d * mlp
    parameters += patch + d + tokens * d + (pooling == "token") * d + 2 * d
    parameters += c["num_layers"] * (block + 4 * d + d + mlp + 4 * d)
    multiplications += positions * patch + c["num_layers"] * (tokens * block + 2 * tokens * tokens * d)
    if num_classes:
        parameters += (d + 1) * num_classes
        multiplications += d * num_classes
    return {"tokens": tokens, "parameters": parameters, "flops": 2 * multiplications}


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
