"""How far the outputs of an export may be from the live model's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_vit.export.outputs.rows import RowOutputs

MIN_IMAGES = 256  # An agreement on fewer images is too coarse to be compared with a tolerance.
MARGIN = 0.5  # Logits; what is closer to another class changes with any rounding.
MIN_COSINE = 0.99  # of representations, the mean over the images
# A mean difference above this fraction of the largest logit is an error, and not the rounding of int8.
MAX_MEAN_DIFFERENCE = 0.1


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far a format's outputs may be from the live model's.

    Args:
        metric: "max_logit_difference" or "agreement".
        bound: The maximum of the first, the minimum of the second among the predictions that the live model
            decides by a margin.
        required: Whether an export beyond it is discarded; otherwise there is a warning.
        level: "exact" of float32, "half" of float16, or "rounded": which of the bounds of outputs that are no
            rows holds.
    """

    metric: str
    bound: float
    required: bool = True
    level: str = "rounded"

    def check(
        self,
        row: Mapping[str, Any],
        images: int,
        outputs: RowOutputs,
        live: Any = None,
    ) -> str | None:
        """Compare the row of an export with this tolerance.

        Args:
            row: The dict that `Reference.measure` returned.
            images: The number of images that it was measured on.
            outputs: The export's outputs, as `outputs_of` returns them.
            live: The live model's outputs for these images.

        Returns:
            A warning, or None.

        Raises:
            ValueError: if a required tolerance is exceeded, or the outputs have NaN or infinity.

        Example:
            >>> from keras_vit.export.description import describe
            >>> from keras_vit.export.outputs import outputs_of
            >>> row = {"max_logit_difference": 1e-3, "mean_logit_difference": 1e-4}
            >>> Tolerance("max_logit_difference", 5e-3).check(row, 512, outputs_of(describe(model)))
            >>> Tolerance("max_logit_difference", 1e-5).check(row, 512, outputs_of(describe(model)))
            Traceback (most recent call last):
            ValueError: its outputs differ from the live model by 1.0e-03 of the largest; the bound is 1e-05
        """
        if not math.isfinite(row["max_logit_difference"] or 0):
            raise ValueError("it computes NaN or infinity")
        problem, unknown = outputs.problem(self, row, images, live)
        if problem and self.required:
            raise ValueError(problem)
        return problem or unknown


def problem_of_rows(bounds: Tolerance, row: Mapping[str, Any], images: int) -> tuple[str | None, str | None]:
    """As `RowOutputs.problem`, without the live model's outputs."""
    mean, cosine = row["mean_logit_difference"], row.get("cosine")
    if bounds.metric == "max_logit_difference":
        value = row[bounds.metric]
        return differ(value, bounds.bound) if value > bounds.bound else None, None
    if mean > MAX_MEAN_DIFFERENCE:
        return differ(mean, MAX_MEAN_DIFFERENCE, on_average=True), None
    if cosine is not None:
        has_other_direction = f"its outputs have a mean cosine of {cosine:.3f} to the live model's"
        return f"{has_other_direction}; the bound is {MIN_COSINE}" if cosine < MIN_COSINE else None, None
    if row["least_score"] is not None and row["score"] < row["least_score"]:
        return f"its accuracy is {row['score']:.1%}; the bound is {row['least_score']:.1%}", None
    decided = row["decided"] or 0
    if decided < MIN_IMAGES:
        return None, too_few(MIN_IMAGES, "decided predictions")
    if (value := row["decided_agreement"]) >= bounds.bound:
        return None, None
    agrees = f"it agrees with the live model on {value:.1%} of {decided} decided predictions"
    return f"{agrees}; the bound is {bounds.bound:.0%}", None


def lowest(fraction: float, count: int) -> float:
    """The lower end of the 95 % interval of a fraction of so many images.

    >>> round(lowest(0.9, 100), 3), lowest(0.0, 100)
    (0.826, 0.0)

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    z2 = 1.96**2 / count
    middle, half = fraction + z2 / 2, math.sqrt(z2 * (fraction * (1 - fraction) + z2 / 4))
    return max((middle - half) / (1 + z2), 0.0)


def too_few(least: int, of: str = "images") -> str:
    """The message for an agreement on fewer images than this, or on noise.

    >>> too_few(32)
    'agreement with the live model is checked on 32 or more images of a data set'
    """
    return f"agreement with the live model is checked on {least} or more {of} of a data set"


def differ(value: float, bound: float, on_average: bool = False) -> str:
    """The message for a difference above its bound.

    >>> differ(0.02, 1e-5)
    'its outputs differ from the live model by 2.0e-02 of the largest; the bound is 1e-05'
    """
    relation = f"of the largest{' on average' if on_average else ''}"
    return f"its outputs differ from the live model by {value:.1e} {relation}; the bound is {bound:.0e}"
