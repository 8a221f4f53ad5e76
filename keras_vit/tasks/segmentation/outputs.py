"""The outputs of an export of class maps, also of encoded images and at the images' own sizes."""

import pathlib

from keras_vit.export.exported_model import ExportedModel, on_model_input
from keras_vit.export.outputs.maps import MapOutputs
from keras_vit.export.outputs.rows import checked_values
from keras_vit.inspection.class_colors import class_colors
from keras_vit.lazy import LazyModule
from keras_vit.models.windows import segment
from keras_vit.tasks.segmentation.scores import one_hot

signatures, tf = LazyModule("keras_vit.export.signatures"), LazyModule("tensorflow")

MAP = "class_map"
# A mean over fewer images and pixels is too coarse to be compared; either is enough. In a model of
# `digits_scenes`, the fraction of an image's pixels that disagree had a standard deviation of 0.85 to 0.9 of
# its mean, so 32 images give the mean to a sixth. Large images are few, but each has many independent
# regions.
MIN_MAPS = 32
MIN_PIXELS = 1_000_000


class ExportedSegmenter(ExportedModel):
    """An export of `ImageSegmenter`, which has its method `segment`."""

    segment = on_model_input(segment)


class ClassMapOutputs(MapOutputs):
    """The class of each pixel.

    `of_images` returns a dict of `logits` (batch, height, width, classes); `class_map`, the class of each
    pixel (batch, height, width), uint8 for up to 256 classes and int32 for more; and `scores`, the
    probabilities of these classes. `of_uint8` returns the same at the images' own size. A LiteRT file has
    the class map alone, so that few bytes are read.
    """

    task, kind, model_class = "segmentation", "segmenter", "ImageSegmenter"
    method, does = "segment", "segments images"
    exported = ExportedSegmenter
    page_script = pathlib.Path(__file__).with_name("page.js")
    # The minimum agreement of the pixels' classes; the logits of "mask" are logarithms, which magnify the
    # rounding of small scores.
    agreement = {"exact": 1.0, "half": 0.995, "rounded": 0.995}
    page_words = "segmented", "Show the classes"

    def of_images(self, images, stages):
        return _with_maps(self.values(images, stages))

    def of_litert(self, images, stages):
        return {MAP: class_map(stages(images)["logits"])}

    def of_uint8(self, images, stages):
        return _with_maps(self.whole_values(images, stages))

    def of_bytes(self, image_bytes, stages):
        """The outputs of `serving_bytes`: a mask of each encoded image, of the image's own size.

        Returns:
            dict of `mask_bytes`: the contents of gray PNG files, whose values are the classes.
        """

        def mask(image):
            classes = class_map(self.whole_values(image, stages))
            # A PNG file has values of 8 or 16 bits.
            values = tf.cast(classes, tf.uint8 if self.description.num_classes <= 256 else tf.uint16)
            return tf.io.encode_png(tf.expand_dims(values[0], -1))

        spec, channels = tf.TensorSpec((), tf.string), self.description.channels
        return {"mask_bytes": signatures.map_encoded(mask, image_bytes, channels, spec, parallel=8)}

    def compared(self, outputs):
        return outputs.get("logits", outputs[MAP])

    def as_live(self, output):
        """Logits as they are; the classes of a map one-hot.

        Their mean over windows or their resized form then has the highest value at the class that is most
        frequent.
        """
        return output if output.ndim == 4 else one_hot(output, self.description.num_classes)

    def problem(self, bounds, row, images, live):
        pixels, least = live[..., 0].size, self.agreement[bounds.level]
        # Lower precisions confuse classes that are close to each other, as most are in noise.
        is_coarse = row["score"] is None or (images < MIN_MAPS and pixels < MIN_PIXELS)
        if least < 1 and is_coarse:
            return None, (
                f"agreement with the live model is checked on {MIN_MAPS} or more images, or "
                f"{MIN_PIXELS:,} or more pixels, of a data set"
            )
        if row["agreement"] >= least:
            return None, None
        agrees = f"it agrees with the live model on {row['agreement']:.2%} of {pixels:,} pixels"
        return f"{agrees}; the bound is {least:.1%}", None

    @property
    def colors(self):
        return class_colors(self.description.num_classes).tolist()

    def page_check(self, outputs):
        return {MAP: {**checked_values(outputs[MAP]), "exact": True}}

    @property
    def words(self):
        count = f"{self.description.num_outputs:,}"
        return (
            f"`logits` of {count} classes for each pixel (batch, height, width, {count}). The signature "
            "`serving_default` returns them with `class_map`, the class of each pixel, and `scores`, its "
            "probability; `serving_bytes` makes of encoded images `mask_bytes`, PNG files of the images' "
            "sizes whose gray values are the classes. `assets/labels.txt` names the classes in this order, "
            "one a line."
        )


def class_map(logits):
    """The class of each pixel: the first one with the highest logit.

    >>> class_map(tf.constant([[[[0.0, 1.0]]]])).numpy()
    array([[[1]]], dtype=uint8)
    """
    if logits.shape[-1] == 1:  # ML Drift would compare it with the zeros that fill up its channels.
        return tf.cast(tf.reduce_mean(0 * logits, axis=-1), tf.uint8)
    classes = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return tf.cast(classes, tf.uint8) if logits.shape[-1] <= 256 else classes


def _with_maps(logits):
    scores = tf.reduce_max(tf.nn.softmax(logits), axis=-1)
    return {MAP: class_map(logits), "logits": logits, "scores": scores}
