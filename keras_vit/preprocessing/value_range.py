"""The values that float images may have, and their conversion to [0, 255]."""

from keras_vit.rules import Rule, items, number

UNIT_RANGE = (0.0, 1.0)
TOLERANCE = 1e-3  # of the range's width: an earlier resize or augmentation may have rounded
_RULE = Rule("(lowest, highest), such as (0, 255)", lambda v: items(number(), 2).accepts(v) and v[0] < v[1])


def checked_range(value_range):
    """The range as (lowest, highest); of None the default, (0, 1)."""
    return UNIT_RANGE if value_range is None else tuple(_RULE.check("value_range", value_range))


def range_of(dtype, value_range):
    """The (lowest, highest) possible value of images of a dtype."""
    low, high = checked_range(value_range)
    if "float" not in dtype and dtype != "uint8":
        raise ValueError(f"images must be uint8 or float in [{low:g}, {high:g}]; got {dtype}")
    return (0, 255) if dtype == "uint8" else (low, high)


def to_255(pixels, low, high):
    """float32 pixels in [low, high] as pixels in [0, 255]."""
    if low:
        pixels = pixels - low
    return pixels if high - low == 255 else pixels * (255 / (high - low))


def is_inside(value_range, lowest, highest):
    """Whether pixels from `lowest` to `highest` are in the range; False for NaN."""
    low, high = value_range
    tolerance = TOLERANCE * (high - low)
    return (lowest >= low - tolerance) & (highest <= high + tolerance)


def requirement(value_range):
    low, high = value_range
    return (
        f"float images must be in [{low:g}, {high:g}] (pass the range that they use as value_range, such as "
        "value_range=(0, 255), or pass uint8 images)"
    )


def check_inside(value_range, lowest, highest):
    if not is_inside(value_range, lowest, highest):
        raise ValueError(f"{requirement(value_range)}; got values from {lowest:g} to {highest:g}")
