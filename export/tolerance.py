"""How far the outputs of an export may be from the live model's."""

import dataclasses
import math

MIN_IMAGES = 256  # An agreement on fewer images is too coarse to be compared with a tolerance.
# A mean difference above this fraction of the largest logit is an error, and not the rounding of int8.
MAX_MEAN_DIFFERENCE = 0.1
# As MIN_IMAGES, of class maps; either is enough. In a model of `digits_scenes`, the fraction of an image's
# pixels that disagree had a standard deviation of 0.85 to 0.9 of its mean, so 32 images give the mean to a
# sixth. Large images are few, but each has many independent regions.
MIN_MAPS = 32
MIN_PIXELS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far a format's outputs may be from the live model's.

    Args:
        metric: "max_logit_difference" or "agreement".
        bound: The maximum of the first, the minimum of the second.
        required: Whether an export beyond it is discarded; otherwise there is a warning.
        pixels: Of a segmenter, the minimum agreement of the pixels' classes, in place of the others: the
            logits of "mask" are logarithms, which magnify the rounding of small scores.
        objects: Of a detector, the minimum agreement of the objects, as an F1. The bound of the largest
            difference is then that of the mean one: patches compete for an object, and a little rounding
            changes much where two are equally good.
    """

    metric: str
    bound: float
    required: bool = True
    pixels: float = 0.995
    objects: float = 0.98

    def check(self, row, images, pixels=None, has_objects=False):
        """Compare the row of an export with this tolerance.

        Args:
            row: The dict that `Reference.measure` returned.
            images: The number of images that it was measured on.
            pixels: Of class maps, the number of their pixels.
            has_objects: Whether the model is a detector.

        Returns:
            A warning, or None.

        Raises:
            ValueError: if a required tolerance is exceeded, or the outputs have NaN or infinity.

        Example:
            >>> row = {"max_logit_difference": 1e-3, "mean_logit_difference": 1e-4, "agreement": 1.0}
            >>> Tolerance("max_logit_difference", 5e-3).check(row, 512)
            >>> Tolerance("max_logit_difference", 1e-5).check(row, 512)
            Traceback (most recent call last):
            ValueError: its outputs differ from the live model by 1.0e-03 of the largest; the bound is 1e-05
        """
        if not math.isfinite(row["max_logit_difference"] or 0):
            raise ValueError("it computes NaN or infinity")
        bound, value, mean = self.bound, row[self.metric], row["mean_logit_difference"]
        differ = "its outputs differ from the live model by {:.1e} of the largest{}; the bound is {:.0e}"
        problem = None
        if pixels is not None:
            # Lower precisions confuse classes that are close to each other, as most are in noise.
            is_coarse = row["score"] is None or (images < MIN_MAPS and pixels < MIN_PIXELS)
            if self.pixels < 1 and is_coarse:
                return (
                    f"agreement with the live model is checked on {MIN_MAPS} or more images, or "
                    f"{MIN_PIXELS:,} or more pixels, of a data set"
                )
            if row["agreement"] < self.pixels:
                agrees = f"it agrees with the live model on {row['agreement']:.2%} of {pixels:,} pixels"
                problem = f"{agrees}; the bound is {self.pixels:.1%}"
        elif has_objects:
            bound = MAX_MEAN_DIFFERENCE if self.metric == "agreement" else bound
            if mean > bound:
                problem = differ.format(mean, " on average", bound)
            elif row["score"] is None or images < MIN_MAPS:
                return f"agreement with the live model is checked on {MIN_MAPS} or more images of a data set"
            elif row["agreement"] < self.objects:
                agrees = f"it agrees with the live model on {row['agreement']:.1%} of the objects"
                problem = f"{agrees} in {images} images; the bound is {self.objects:.1%}"
        elif self.metric == "max_logit_difference":
            problem = differ.format(value, "", bound) if value > bound else None
        elif mean > MAX_MEAN_DIFFERENCE:
            problem = differ.format(mean, " on average", MAX_MEAN_DIFFERENCE)
        elif value is None or images < MIN_IMAGES:
            return f"agreement with the live model is checked on {MIN_IMAGES} or more images of a data set"
        elif value < bound:
            agrees = f"it agrees with the live model on {value:.1%} of {images} images"
            problem = f"{agrees}; the bound is {bound:.0%}"
        if problem and self.required:
            raise ValueError(problem)
        return problem
