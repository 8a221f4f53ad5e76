"""The outputs of an export of depth, or of other values of pixels, also at the images' own sizes."""

import pathlib

import numpy as np

from keras_vit.export.exported_model import ExportedModel, on_model_input
from keras_vit.export.outputs.maps import MapOutputs
from keras_vit.export.outputs.rows import checked_values
from keras_vit.export.tolerance import problem_of_rows
from keras_vit.lazy import LazyModule
from keras_vit.tasks.depth.estimating import DEPTHS, estimate, is_bounded
from keras_vit.tasks.depth.pictures import LARGEST, depth_colors

signatures, tf = LazyModule("keras_vit.export.signatures"), LazyModule("tensorflow")

NAMES = {"metric": "depth", "relative": "depth", "disparity": "disparity", "values": "values"}
MAX_CHANNELS = 4  # of a PNG file
MAX_DIFFERENCE = 0.02  # on average, of 8 bits, relative to each depth


class ExportedDepthEstimator(ExportedModel):
    """An export of `DepthEstimator`, which has its method `estimate`."""

    estimate = on_model_input(estimate)


class DepthOutputs(MapOutputs):
    """Depths, disparities or other values of each pixel.

    `of_images` returns a dict with float32 (batch, height, width, values): `depth` of the quantities
    "metric", in the unit of the labels, and "relative", up to a factor; `disparity`, inverse depth up to a
    factor and an addend; or `values`. `of_uint8` returns the same at the images' own size.
    """

    task, kind, model_class = "depth", "depth_estimator", "DepthEstimator"
    method, does = "estimate", "estimates depth"
    attributes = ("quantity", "max_depth", "activation")
    exported = ExportedDepthEstimator
    page_script = pathlib.Path(__file__).with_name("page.js")
    page_words = "measured", "Show the depth"

    @property
    def name(self):
        """The name of the output."""
        return NAMES[self.description.quantity]

    @property
    def in_float(self):
        # 1/256 of the range of depths would be all of the nearest ones.
        return (self.name,)

    @property
    def on_pages(self):
        return self.description.num_classes == 1

    @property
    def takes_bytes(self):
        return super().takes_bytes and self.description.num_classes <= MAX_CHANNELS

    def of_images(self, images, stages):
        return {self.name: self.values(images, stages)}

    def of_litert(self, images, stages):
        # There are more channels in this form of some heads.
        return {self.name: stages(images)["logits"][..., : self.description.num_classes]}

    def of_uint8(self, images, stages):
        return {self.name: self.whole_values(images, stages)}

    def of_bytes(self, image_bytes, stages):
        """The outputs of `serving_bytes`: a map of each encoded image, of the image's own size.

        Returns:
            dict of `map_bytes`, the contents of PNG files with 16 bits; and `scales` and `offsets`, float32
            (batch,): a value of the map is its pixel's number times the scale, plus the offset, which is 0 of
            depth and disparity.
        """
        d = self.description

        def encoded(image):
            values = self.whole_values(image, stages)[0]
            offset = tf.reduce_min(values) if d.quantity == "values" else tf.constant(0.0)
            largest = d.max_depth if is_bounded(d) else tf.reduce_max(values - offset)
            scale = tf.maximum(tf.cast(largest, tf.float32) / LARGEST, np.finfo("float32").tiny)
            numbers = tf.clip_by_value(tf.round((values - offset) / scale), 0.0, LARGEST)
            png = tf.io.encode_png(tf.cast(tf.cast(numbers, tf.int32), tf.uint16))
            return {"map_bytes": png, "scales": scale, "offsets": offset}

        spec = {name: tf.TensorSpec((), tf.float32) for name in ("scales", "offsets")}
        spec["map_bytes"] = tf.TensorSpec((), tf.string)
        return signatures.map_encoded(encoded, image_bytes, d.channels, spec, parallel=8)

    def compared(self, outputs):
        return outputs[self.name]

    def differences(self, live, outputs):
        """`mean_relative_difference`, of depths relative to each, of others to the mean of all."""
        difference, scale = np.abs(outputs - live), np.abs(live)
        if self.description.quantity not in DEPTHS:
            scale = scale.mean()
        return {"mean_relative_difference": float(np.mean(difference / np.maximum(scale, _TINY)))}

    def problem(self, bounds, row, images, live):
        if bounds.metric == "max_logit_difference":
            return problem_of_rows(bounds, row, images)
        difference = row["mean_relative_difference"]
        if difference <= MAX_DIFFERENCE:
            return None, None
        differs = f"its outputs differ from the live model by {difference:.1%} on average"
        if row["score"] is None:  # Noise has no depth.
            return None, f"{differs}, of noise; this is checked on images of a data set"
        return f"{differs}; the bound is {MAX_DIFFERENCE:.0%}", None

    @property
    def colors(self):
        return depth_colors(np.arange(256), 0, 255).tolist()

    def page_check(self, outputs):
        return {self.name: checked_values(outputs[self.name][0])}

    @property
    def words(self):
        d = self.description
        meanings = {
            "metric": f"depth along the optical axis, up to {d.max_depth:g} in the unit of its training data",
            "relative": "depth along the optical axis, up to a factor",
            "disparity": "inverse depth, up to a factor and an addend",
            "values": f"{d.num_classes} values",
        }
        return (
            f"`{self.name}`: {meanings[d.quantity]}, for each pixel (batch, height, width, {d.num_classes}). "
            "The signature `serving_uint8` returns it at the size of the images; `serving_bytes` makes of "
            "encoded images `map_bytes`, PNG files of their sizes with 16 bits, whose numbers times `scales` "
            "plus `offsets` are the values."
        )


_TINY = np.finfo("float32").tiny
