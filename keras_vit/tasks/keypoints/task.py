"""Keypoint estimation: where the named points of an object are."""

import numpy as np
from absl import logging

from keras_vit.labels import label_kind
from keras_vit.labels.box_rows import COLUMNS, DECIMALS
from keras_vit.lazy import LazyModule
from keras_vit.tasks.headed_task import VALIDATION_BATCH, ObjectTask
from keras_vit.tasks.keypoints import scores as scoring
from keras_vit.tasks.keypoints.crops import to_image
from keras_vit.tasks.keypoints.labels import AREA, BOX_ROWS, CORNER, MIRRORED, UNLABELED
from keras_vit.tasks.keypoints.names import default_sigmas, is_same_point
from keras_vit.tasks.task import concatenate, names_or_indices

SIDES = COLUMNS[:4]
NO_PAIRS = (
    "flip=True mirrors images, and no keypoint takes the place of another one then: if some are left and "
    "right of an object, give flip_index in keypoints.json, or flip=False"
)
MAX_VALUES = 2**27  # of the heat maps that an export is compared on: 512 MiB
loss_module = LazyModule("keras_vit.tasks.keypoints.loss")
estimators = LazyModule("keras_vit.tasks.keypoints.model")
pictures = LazyModule("keras_vit.tasks.keypoints.pictures")
estimating = LazyModule("keras_vit.tasks.keypoints.estimating")
samples_module = LazyModule("keras_vit.tasks.keypoints.samples")  # needs TensorFlow


class KeypointEstimation(ObjectTask):
    """Keypoint estimation: the named points of the object in a box, or in the whole image."""

    label = label_kind("keypoints")
    is_same_class = staticmethod(is_same_point)
    title = "keypoint estimation"
    slug = "keypoint-estimation"
    outputs_in_words = "heat maps of keypoints"
    head_class = property(lambda self: estimators.KeypointEstimator)
    bounds_exports = True
    validation_scores = ("ap", "ap50", "pck10")

    def check_recipe(self, recipe):
        super().check_recipe(recipe)
        if recipe.crop_area:
            raise ValueError(
                "expected crop_area=None for keypoints, whose images are cropped around the objects, perhaps "
                f"with scale_jitter and shift; got {recipe.crop_area}"
            )

    def around(self, model, config, dataset):
        flips = self._head(config.recipe, dataset).get("flip_index") or ()
        if config.recipe.flip and len(flips) > 1 and [*flips] == [*range(len(flips))]:
            logging.warning(NO_PAIRS)
        return super().around(model, config, dataset)

    def _head(self, recipe, dataset):
        """As in `HeadedTask`, with what the data set says of its points."""
        known = _known(next(iter(dataset.splits.values()), None))
        return {name: known[name] for name in ("flip_index", "skeleton", "sigmas") if name in known} | (
            super()._head(recipe, dataset)
        )

    def loss(self, recipe, model):
        return loss_module.KeypointLoss(stride=model.stride)

    def label_shape(self, model, recipe):
        return (model.num_classes, 3), "float32"

    def augment(self, recipe, model, preprocessing, exif):
        """As in `Task`: a function that also takes the label, around whose object it crops the image."""
        return samples_module.crop_augmentation(recipe, preprocessing, exif)

    def predict(self, model, samples, batch_size):
        from keras_vit.tasks.computing import computed_batches  # needs TensorFlow

        batches = samples_module.crop_batches(samples, estimating.of_a_size(model.preprocessing), batch_size)
        computed = computed_batches(model.predict_on_batch, batches, samples)
        known = _known(samples)
        return concatenate(
            [self._predictions(outputs, labels, model, known) for outputs, *labels in computed]
        )

    def _predictions(self, outputs, labels, model, known):
        """The `KeypointPredictions` of heat maps.

        Args:
            outputs: (objects, height, width, points).
            labels: The columns of `samples.crop_batches` after the images.
            model: With the names and the sigmas of the points, which may be None.
            known: What the samples say of their points, as of `_known`.
        """
        rows, windows, sizes, images = labels
        self.check_rows(rows, outputs.shape[-1])
        places, point_scores = estimating.decoded(outputs)
        places = to_image(places, windows, outputs.shape[1:3])
        sides = sizes[:, np.newaxis, ::-1].astype("float64")
        truth = rows[:, BOX_ROWS:, :MIRRORED].copy()
        truth[..., :2] = np.where(truth[..., 2:] > UNLABELED, truth[..., :2] * sides, 0)
        boxes = (rows[:, :BOX_ROWS, :2] * sides).reshape(-1, 4).round(DECIMALS)
        areas = (rows[:, CORNER, AREA] * sides.prod(axis=(1, 2))).round(DECIMALS)
        sigmas = getattr(model, "sigmas", None) or known.get("sigmas")
        names = model.class_names or known.get("names")
        return scoring.KeypointPredictions(
            np.concatenate([places, point_scores[..., np.newaxis]], axis=2, dtype="float64"),
            object_scores(point_scores),
            images,
            *(truth, boxes, areas, np.zeros(len(rows), bool), images),
            tuple(sigmas or default_sigmas(names, outputs.shape[-1])),
        )

    def check_rows(self, rows, count):
        """Raise ValueError unless labels in records have so many points."""
        self.label.check(rows[:, BOX_ROWS:, :MIRRORED], count)

    scores = staticmethod(scoring.keypoint_scores)
    per_class = staticmethod(scoring.keypoint_table)
    class_score = "pck10"

    def errors(self, predictions):
        return 1 - predictions.similarities

    def correct(self, predictions):
        return predictions.similarities >= scoring.SAME

    def sampled(self, samples, preprocessing, count):
        """As in `LabelTask`, with the columns of `samples.crop_batches` after the images as labels."""
        from keras_vit.tasks.computing import evenly_spaced  # needs TensorFlow

        images, *labels = _cropped(evenly_spaced(samples, count), preprocessing)
        return images, labels

    def check_samples(self, labels, description):
        self.check_rows(labels[0], description.num_classes)

    def max_samples(self, description):
        height, width = description.image_size
        return max(16 * MAX_VALUES // (height * width * description.num_classes), 1)

    def rows(
        self, model, paths, inputs, top, threshold=None, iou=None, write=None, boxes=None, flip_test=False
    ):
        """As in `LabelTask`, with `keypoints`, a list of objects, in place of `classes`.

        An object has a `score` and `points`, with their scores and places in pixels; with `boxes` also the
        sides of its box. The `width` and `height` of the image are there, too.

        Args:
            model, paths, inputs: As for `LabelTask`.
            top: The maximum number of objects with boxes.
            threshold: The least score of a point; None for any.
            iou: The largest IoU of two objects, which `boxes` knows, too; None without boxes.
            write: A function of a path, the image and its `Poses`, or None.
            boxes: A function of `objects`; None: an image is an object.
            flip_test: As for `estimate_keypoints`.

        Raises:
            ValueError: for an `iou` without `boxes`.
        """
        if iou is not None and boxes is None:
            raise ValueError("--iou is of boxes that overlap, which --objects gives; this one is not given")
        names = names_or_indices(model.class_names, model.num_classes)
        objects = boxes and boxes(paths, inputs, top)
        boxes_by_image = objects and [boxed.boxes for boxed in objects]
        estimates = model.estimate_keypoints(inputs, boxes_by_image, flip_test)
        least = pictures.DRAWN if threshold is None else threshold
        for path, image, points, boxed in zip(paths, inputs, estimates, objects or [None] * len(inputs)):
            if write:
                write(path, image, pictures.Poses(points, model.skeleton, least))
            scores = object_scores(points[..., 2])
            sides = [{}] * len(points)
            if boxed is not None:
                # As of COCO's results: what the detector and the points say together.
                scores = scores * boxed.scores
                sides = [dict(zip(SIDES, box)) for box in boxed.boxes.tolist()]
            yield {
                "width": image.shape[1],
                "height": image.shape[0],
                "keypoints": [
                    {
                        **{"score": score, **box},
                        "points": [
                            {"name": name, "score": value, "x": x, "y": y}
                            for name, (x, y, value) in zip(names, rows)
                            if threshold is None or value >= threshold
                        ],
                    }
                    for score, box, rows in zip(scores.tolist(), sides, points.tolist())
                ],
            }

    def draw_predictions(self, report, model, inputs, names):
        from keras_vit.tasks.keypoints.figures import keypoint_figure  # needs matplotlib

        colors = [model.preprocessing.colors(image) for image in inputs]
        points = [self._points_of(model, image[np.newaxis])[0] for image in inputs]
        figure = keypoint_figure(colors, points, None, names, "Keypoints", model.skeleton)
        report.draw("Predictions", "keypoints", figure, "Keypoints")

    def shown(self, model, samples):
        """The model input of samples, and the predicted and the true points (points, 3) in its pixels."""
        images, labels, windows, sizes, _ = _cropped(samples, model.preprocessing)
        truth = labels[:, BOX_ROWS:, :MIRRORED].copy()
        places = truth[..., :2] * sizes[:, np.newaxis, ::-1] - 0.5 - windows[:, np.newaxis, :2]
        steps = (np.array(images.shape[2:0:-1]) - 1) / windows[:, np.newaxis, 2:]
        truth[..., :2] = places * steps + 0.5
        return images, self._points_of(model, images), truth

    @staticmethod
    def _points_of(model, images):
        """The points (batch, points, 3) in model input, in its pixels, and their scores."""
        outputs = np.asarray(model.predict_on_batch(images))
        places, scores = estimating.decoded(outputs)
        height, width = images.shape[1:3]
        places = to_image(places, np.array([[0, 0, width - 1, height - 1]] * len(images)), outputs.shape[1:3])
        return np.concatenate([places, scores[..., np.newaxis]], axis=2)

    def compared(self, reference, outputs, labels, description):
        return None, None if labels is None else self._predictions(outputs, labels, description, {})


def object_scores(point_scores):
    """The score of each object: the mean of those of its points that are above 0.2; 0 without any.

    Args:
        point_scores: (objects, points).

    Example:
        >>> object_scores(np.array([[0.9, 0.7, 0.1], [0.1, 0.1, 0.1]])).tolist()
        [0.8, 0.0]

    Source: `_get_subset` and `evaluate` of `topdown_coco_dataset.py` of `ViTAE-Transformer/ViTPose`.
    """
    point_scores = np.asarray(point_scores, "float64")
    is_sure = point_scores > estimating.SURE
    return (point_scores * is_sure).sum(axis=1) / np.maximum(is_sure.sum(axis=1), 1)


def _cropped(samples, preprocessing):
    """The columns of `samples.crop_batches` as arrays."""
    batches = samples_module.crop_batches(samples, preprocessing, VALIDATION_BATCH).as_numpy_iterator()
    return [*map(np.concatenate, zip(*batches))]


def _known(samples):
    """What samples say of their points: a dict."""
    return getattr(samples, "label_values", None) or {}


TASK = KeypointEstimation()
