"""The outputs of an export of boxes, also of encoded images in pixels of these."""

import pathlib

import numpy as np

from keras_vit.export.exported_model import ExportedModel, on_model_input
from keras_vit.export.outputs.rows import RowOutputs, checked_values
from keras_vit.export.tolerance import MAX_MEAN_DIFFERENCE, differ, too_few
from keras_vit.lazy import LazyModule
from keras_vit.tasks.detection.detecting import detect
from keras_vit.tasks.detection.pictures import box_colors

signatures, tf = LazyModule("keras_vit.export.signatures"), LazyModule("tensorflow")

TOP = 100  # objects in the answer of `serving_bytes`
MIN_IMAGES = 32  # An agreement on fewer is too coarse to be compared with a tolerance.


class ExportedDetector(ExportedModel):
    """An export of `ObjectDetector`, which has its method `detect`."""

    detect = on_model_input(detect)


class DetectionOutputs(RowOutputs):
    """A box and class scores for each patch.

    `of_images` returns a dict of `boxes` (batch, patches, 4): left, top, right and bottom, as fractions of
    the model's input; `logits` (batch, patches, classes); and `scores`, the probabilities. `of_uint8` returns
    the same with boxes as fractions of the images themselves.
    """

    task, kind, model_class = "detection", "detector", "ObjectDetector"
    method, does = "detect", "detects objects"
    on_pages, can_roll_out = True, False
    exported = ExportedDetector
    page_script = pathlib.Path(__file__).with_name("page.js")
    agreement = {"exact": 0.999, "half": 0.98, "rounded": 0.98}  # the minimum F1 of the objects
    page_words = "analyzed", "Show the boxes"
    # The logit of a box next to an edge is 9, and 1/256 of such a range is a hundredth of the image's side.
    in_float = ("boxes",)

    def of_call(self, outputs):
        return tf.concat([outputs["boxes"], outputs["logits"]], axis=-1)

    def of_images(self, images, stages):
        outputs = stages(images)
        boxes, logits = outputs["boxes"], outputs["logits"]
        # On an ellipsis in place of the axes OpenVINO 2026.4 crashes in bfloat16.
        centers, half = boxes[:, :, :2], boxes[:, :, 2:] * 0.5
        boxes = tf.concat([centers - half, centers + half], axis=-1)
        return {"boxes": boxes, "logits": logits, "scores": tf.sigmoid(logits)}

    def of_uint8(self, images, stages):
        outputs = super().of_uint8(images, stages)
        return {**outputs, "boxes": self._of_whole(outputs["boxes"], tf.shape(images)[1:3])}

    def of_bytes(self, image_bytes, stages):
        """The outputs of `serving_bytes`: the objects of each encoded image, by decreasing score.

        Returns:
            dict of `boxes` (batch, objects, 4): left, top, right and bottom, in pixels of the image;
            `scores`, `class_ids` and `classes` (batch, objects). There are up to 100 objects, whatever their
            scores; those outside of the image have the score 0.
        """
        d = self.description
        names = tf.constant(d.labels)
        spec = tf.TensorSpec((*d.image_size, d.channels), tf.float32)
        compute = tf.function(
            lambda image: self.of_images(image[tf.newaxis], stages), input_signature=[spec], autograph=False
        )
        outputs = compute.get_concrete_function().structured_outputs
        count = min(TOP, outputs["scores"].shape[1] * d.num_classes)

        def objects(image):
            size = tf.shape(image)[1:3]
            outputs = compute(signatures.resized(image, self.preprocessing)[0])
            boxes = tf.clip_by_value(self._of_whole(outputs["boxes"][0], size), 0.0, 1.0)
            inside = tf.reduce_all(boxes[:, 2:] > boxes[:, :2], axis=1)  # not of padding
            scores = tf.where(inside[:, tf.newaxis], outputs["scores"][0], 0.0)
            scores, places = tf.math.top_k(tf.reshape(scores, (-1,)), count)
            sides = tf.tile(tf.cast(tf.reverse(size, [0]), tf.float32), [2])
            ids, patches = places % d.num_classes, places // d.num_classes
            outputs = {"boxes": tf.gather(boxes, patches) * sides, "scores": scores}
            return {**outputs, "class_ids": ids, "classes": tf.gather(names, ids)}

        shapes = {"boxes": (4,), "scores": (), "class_ids": (), "classes": ()}
        dtypes = {"boxes": tf.float32, "scores": tf.float32, "class_ids": tf.int32, "classes": tf.string}
        specs = {name: tf.TensorSpec((count, *shape), dtypes[name]) for name, shape in shapes.items()}
        return signatures.map_encoded(objects, image_bytes, d.channels, specs)

    def _of_whole(self, boxes, size):
        """Boxes (…, 4) as fractions of a whole image of a size, from those of the part that is computed."""
        corner, shown = (
            tf.tile(tf.reverse(part, [0]), [2]) for part in self.preprocessing.window(size[0], size[1])
        )
        return boxes * shown + corner

    def compared(self, outputs):
        low, high = outputs["boxes"][..., :2], outputs["boxes"][..., 2:]
        return np.concatenate([(low + high) / 2, high - low, outputs["logits"]], axis=-1)

    def problem(self, bounds, row, images, live):
        """As in `RowOutputs`, by the mean difference.

        Patches compete for an object, and a little rounding changes much where two are equally good.
        """
        bound = MAX_MEAN_DIFFERENCE if bounds.metric == "agreement" else bounds.bound
        mean, least = row["mean_logit_difference"], self.agreement[bounds.level]
        if mean > bound:
            return differ(mean, bound, on_average=True), None
        if row["score"] is None or images < MIN_IMAGES:
            return None, too_few(MIN_IMAGES)
        if row["agreement"] >= least:
            return None, None
        agrees = f"it agrees with the live model on {row['agreement']:.1%} of the objects"
        return f"{agrees} in {images} images; the bound is {least:.1%}", None

    @property
    def colors(self):
        return box_colors(self.description.num_classes).tolist()

    def page_check(self, outputs):
        return {name: checked_values(outputs[name]) for name in ("boxes", "logits")}

    @property
    def head_words(self):
        return "a box and class scores for each patch"

    @property
    def words(self):
        d = self.description
        return (
            "`boxes` (left, top, right and bottom, as fractions of the sides of the model's input), `logits` "
            f"and `scores` of {d.num_classes:,} classes for each patch. The signature `serving_bytes` makes "
            f"of encoded images the {TOP} objects of the highest scores, with boxes in pixels. The model as "
            "a function returns the center, width and height of each box, then its logits, as one array. "
            "`assets/labels.txt` names the classes in this order, one a line."
        )
