"""The outputs of an export of keypoints: heat maps, and their points where the format can decode them."""

import pathlib

import numpy as np

from keras_vit.export.exported_model import ExportedModel, on_model_input
from keras_vit.export.outputs.rows import RowOutputs, checked_values
from keras_vit.export.tolerance import problem_of_rows
from keras_vit.lazy import LazyModule
from keras_vit.models.vit.geometry import DYNAMIC_SIZE
from keras_vit.tasks.keypoints.estimating import SURE, decoded, estimate_keypoints
from keras_vit.tasks.keypoints.labels import label_of
from keras_vit.tasks.keypoints.pictures import point_colors
from keras_vit.tasks.task import names_or_indices

signatures, tf = LazyModule("keras_vit.export.signatures"), LazyModule("tensorflow")
# They need TensorFlow.
cropping = LazyModule("keras_vit.tasks.keypoints.cropping")
decoding = LazyModule("keras_vit.tasks.keypoints.decoding")

MAPS, POINTS = "heat_maps", "points"
MAX_DISTANCE = 0.1  # of 99 % of the points in floats, in pixels of the model's input
MAX_FRACTION = 0.02  # of integers, the mean distance as a fraction of the input's longer side


class ExportedKeypointEstimator(ExportedModel):
    """An export of `KeypointEstimator`, which has its method `estimate_keypoints`."""

    estimate_keypoints = on_model_input(estimate_keypoints)


class KeypointOutputs(RowOutputs):
    """A heat map and a place for each point of an object.

    `of_images` returns a dict of `heat_maps` (batch, rows, columns, points) and, unless the model is for any
    size, `points` (batch, points, 3): x and y in pixels of the model's input, and the score. `of_uint8`
    returns the same of whole images, each widened with black to the proportions of the model's input, in
    pixels of the image. `of_litert` returns the heat maps alone, which phone GPUs compute as a whole.
    """

    task, kind, model_class = "keypoints", "keypoint_estimator", "KeypointEstimator"
    method, does = "estimate_keypoints", "estimates keypoints"
    attributes = ("flip_index", "skeleton", "sigmas")
    exported = ExportedKeypointEstimator
    on_pages, can_roll_out = True, False
    page_script = pathlib.Path(__file__).with_name("page.js")
    page_words = "analyzed", "Show the points"
    # The place between pixels follows from small differences of the largest values.
    in_float = (MAPS,)
    resizing = (
        "Crop an object with the aspect ratio of this size, with black outside of the image, and resize the "
        "crop bilinearly, without antialiasing: the centers of its outer pixels stay on the edges."
    )

    def of_images(self, images, stages):
        if self.description.image_size == DYNAMIC_SIZE:
            return self.of_litert(images, stages)
        height, width = self.description.image_size
        return self._decoded(images, stages, tf.constant([0.0, 0.0, width - 1, height - 1]))

    def of_litert(self, images, stages):
        return {MAPS: stages(images)["logits"]}

    def _decoded(self, images, stages, windows):
        """The outputs of model input, with points in the images of which it shows windows (…, 4)."""
        outputs = self.of_litert(images, stages)
        return {**outputs, POINTS: decoding.points_of(outputs[MAPS], windows)}

    def of_uint8(self, images, stages):
        if self.description.image_size == DYNAMIC_SIZE:
            return super().of_uint8(images, stages)
        window = self._window(images)
        return self._decoded(self._cropped(images, window), stages, tf.cast(window, tf.float32))

    def of_bytes(self, image_bytes, stages):
        """The outputs of `serving_bytes`, of each encoded image as a whole.

        Returns:
            dict of `heat_maps` (batch, rows, columns, points); `points` (batch, points, 3): x and y in pixels
            of the image, and the score; and `windows` (batch, 4): left, top, width and height of the part of
            the image that the maps show, as of `crops.window_of`.
        """
        d = self.description
        images = tf.TensorSpec((None, *d.image_size, d.channels), tf.float32)
        windows = tf.TensorSpec((4,), tf.float32)
        compute = tf.function(
            lambda images, window: self._decoded(images, stages, window),
            input_signature=[images, windows],
            autograph=False,
        )
        batched = compute.get_concrete_function().structured_outputs
        specs = {name: tf.TensorSpec(x.shape[1:], x.dtype) for name, x in batched.items()}

        def found(image):
            window = self._window(image)
            shown = tf.cast(window, tf.float32)
            outputs = compute(self._cropped(image, window), shown)
            return {**{name: x[0] for name, x in outputs.items()}, "windows": shown}

        return signatures.map_encoded(found, image_bytes, d.channels, {**specs, "windows": windows})

    def _window(self, images):
        """The window of whole images (batch, height, width, channels)."""
        size = tf.unstack(tf.shape(images)[1:3])
        return cropping.window_of(label_of([[0, 0, 0]]), size, self.description.image_size)

    def _cropped(self, images, window):
        """The part of images in 0…255 that a window shows, in [0, 1]."""
        spec = tf.TensorSpec((*self.description.image_size, self.description.channels), tf.float32)
        return tf.map_fn(
            lambda image: cropping.cropped(image, window, self.preprocessing) / 255.0,
            images,
            fn_output_signature=spec,
        )

    def compared(self, outputs):
        return outputs[MAPS]

    def differences(self, live, outputs):
        """The distances of the points with a live score above 0.2, in pixels of the model's input.

        They are `mean_point_distance` and `point_distance_99`, the 99th percentile; None without such points.
        """
        (places, scores), (others, _) = decoded(live), decoded(outputs)
        size = np.array([live.shape[2], live.shape[1]])
        steps = (np.array(self.description.native_image_size[::-1]) - 1) / np.maximum(size - 1, 1)
        distances = np.linalg.norm((others - places) * steps, axis=2)[scores > SURE]
        if not distances.size:
            return {"mean_point_distance": None, "point_distance_99": None}
        return {
            "mean_point_distance": float(distances.mean()),
            "point_distance_99": float(np.percentile(distances, 99)),
        }

    def problem(self, bounds, row, images, live):
        """As in `RowOutputs`; of integers by the points' mean distance, and by the AP on labeled objects.

        How far a point may be off depends on its sigma and on the object, which the AP knows.
        """
        if bounds.metric == "max_logit_difference":
            problem, unknown = problem_of_rows(bounds, row, images)
            distance = row["point_distance_99"]
            if problem or distance is None or distance <= MAX_DISTANCE:
                return problem, unknown
            return (
                f"1% of its points are {distance:.2g} pixels or more off; the bound is {MAX_DISTANCE}",
                None,
            )
        mean, most = row["mean_point_distance"], MAX_FRACTION * max(self.description.native_image_size)
        if row["score"] is None:
            return None, "its points are compared with the live model's on images of a data set"
        if mean is None:
            return None, f"no point of the live model has a score above {SURE} to be compared"
        if mean > most:
            return f"its points are {mean:.2g} pixels off on average; the bound is {most:.2g}", None
        if row["score"] < row["least_score"]:
            return f"its AP is {row['score']:.1%}; the bound is {row['least_score']:.1%}", None
        return None, None

    @property
    def colors(self):
        return point_colors(self.description.num_classes).tolist()

    @property
    def page_facts(self):
        d = self.description
        labels = names_or_indices(d.class_names, d.num_classes)
        return {"labels": labels, "skeleton": d.skeleton or ()}

    def page_check(self, outputs):
        return {MAPS: checked_values(outputs[MAPS][0])}

    @property
    def words(self):
        d = self.description
        return (
            f"`{MAPS}`: a heat map for each of {d.num_classes} keypoints (batch, rows, columns, "
            f"{d.num_classes}), whose largest value is near 1 where the point is. `points` (batch, "
            f"{d.num_classes}, 3), not in LiteRT files: x and y in pixels, and the score. The signature "
            "`serving_bytes` makes both of whole encoded images, and `windows`, the part of the image that "
            "the maps show: left, top, width and height in pixels by their centers. "
            "`open_exported(…).estimate_keypoints` crops the images to boxes and returns points."
        )
