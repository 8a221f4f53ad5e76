"""The loss and the scores of a depth map in float64, pixel by pixel, from their definitions."""

import math

import numpy as np


def pixels_of(label, quantity, max_depth):
    """The (row, column, channel) of the numbers of a map that count."""
    limit = math.inf if max_depth is None or quantity != "metric" else max_depth
    is_valid = np.isfinite(label) if quantity == "values" else (label > 0) & (label <= limit)
    return [tuple(place) for place in np.argwhere(is_valid)]


def normalized(values):
    """A dict of numbers without their median, the lower of two, divided by the mean deviation from it."""
    median = sorted(values.values())[(len(values) - 1) // 2]
    spread = sum(abs(value - median) for value in values.values()) / len(values)
    return {place: (value - median) / spread for place, value in values.items()}


def depth_loss(label, output, quantity, max_depth=None, variance_focus=0.5, gradient_weight=0.5, scales=4):
    """The loss of one image (height, width, channels)."""
    places = pixels_of(label, quantity, max_depth)
    true, own = ({place: float(of[place]) for place in places} for of in (label, output))
    if quantity in ("metric", "relative"):
        residuals = {place: math.log(own[place]) - math.log(true[place]) for place in places}
        focus = variance_focus if quantity == "metric" else 1.0
        squares = math.fsum(r * r for r in residuals.values()) / len(places)
        mean = math.fsum(residuals.values()) / len(places)
        loss = math.sqrt(squares - focus * mean**2 + 1e-6)
    else:
        if quantity == "disparity":
            true, own = normalized({place: 1 / depth for place, depth in true.items()}), normalized(own)
        residuals = {place: own[place] - true[place] for place in places}
        loss = math.fsum(map(abs, residuals.values())) / len(places)
    for scale in range(scales):
        step = 2**scale
        kept = [(y, x, c) for y, x, c in places if y % step == 0 and x % step == 0]
        pairs = [((y, x, c), other) for y, x, c in kept for other in ((y + step, x, c), (y, x + step, c))]
        edges = [abs(residuals[one] - residuals[other]) for one, other in pairs if other in residuals]
        loss += gradient_weight * math.fsum(edges) / max(len(kept), 1)
    return loss


def depth_scores(label, output, quantity, max_depth=math.inf):
    """The scores of one image (height, width, 1) as a dict; None without a pixel that counts."""
    places = pixels_of(label, "metric", max_depth)
    if not places:
        return None
    true, own = ([float(of[place]) for place in places] for of in (label, output))
    if quantity in ("relative", "disparity"):
        target = true if quantity == "relative" else [1 / depth for depth in true]
        matrix = np.column_stack([own, np.ones(len(own))])
        (scale, shift), *_ = np.linalg.lstsq(matrix, np.array(target), rcond=None)
        own = [scale * value + shift for value in own]
        if quantity == "disparity":
            own = [1 / value if value > 0 else math.inf for value in own]
    farthest = max(true) if quantity == "disparity" and math.isinf(max_depth) else max_depth
    own = [min(max(value, 1e-3), farthest) for value in own]
    count, pairs = len(true), [*zip(own, true)]
    logs = [math.log(o) - math.log(t) for o, t in pairs]
    mean = math.fsum(logs) / count
    return {
        **{f"a{k}": sum(max(o / t, t / o) < 1.25**k for o, t in pairs) / count for k in (1, 2, 3)},
        "abs_rel": math.fsum(abs(o - t) / t for o, t in pairs) / count,
        "rmse": math.sqrt(math.fsum((o - t) ** 2 for o, t in pairs) / count),
        "log10": math.fsum(abs(math.log10(o / t)) for o, t in pairs) / count,
        "silog": 100 * math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / count),
        "mae": math.fsum(abs(o - t) for o, t in pairs) / count,
    }
