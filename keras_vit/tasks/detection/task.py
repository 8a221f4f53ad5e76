"""Object detection: objects in an image, each with a class and a box."""

import dataclasses
import math

import numpy as np

from keras_vit.labels import label_kind
from keras_vit.labels.box_rows import COLUMNS, MAX_BOXES
from keras_vit.lazy import LazyModule
from keras_vit.tasks.detection import scores as scoring
from keras_vit.tasks.detection.detecting import best_detections
from keras_vit.tasks.headed_task import ObjectTask
from keras_vit.tasks.task import concatenate, names_or_indices

SHOWN = 0.3  # the least score of an object in a row of `predict`
DRAWN = 0.7  # the largest IoU of two boxes in a picture
SIDES = COLUMNS[:4]
loss_module = LazyModule("keras_vit.tasks.detection.loss")
detectors = LazyModule("keras_vit.tasks.detection.model")


class Detection(ObjectTask):
    """Object detection: a class and a box for each object."""

    label = label_kind("detection")
    title = "object detection"
    slug = "object-detection"
    outputs_in_words = "boxes and classes"
    recipe_fields = ("head_options", "mosaic")
    head_class = property(lambda self: detectors.ObjectDetector)
    validation_scores = ("ap", "ap50", "f1")

    def loss(self, recipe, model):
        return loss_module.DetectionLoss()

    def label_shape(self, model, recipe):
        return (MAX_BOXES, 7), "float32"

    def predict(self, model, samples, batch_size):
        from keras_vit.tasks.computing import computed_boxes  # needs TensorFlow

        predictions = []
        size = batch_size if model.preprocessing.image_size else 1
        for outputs, boxes, sizes in computed_boxes(model, samples, size):
            for rows in boxes:
                self.label.check(rows[np.newaxis], model.num_classes)
            detections = best_detections(outputs, sizes, model.preprocessing)
            predictions.append(scoring.predictions_of(detections, boxes, sizes, model.num_classes))
        return concatenate(predictions)

    def rows(self, model, paths, inputs, top, threshold=SHOWN, iou=None, write=None):
        """As in `LabelTask`, with `objects` in place of `classes`: their scores, and sides in pixels.

        The `width` and `height` of the image are there, too.

        Args:
            model, paths, inputs: As for `LabelTask`.
            top: The maximum number of objects.
            threshold: The least score of an object.
            iou: The largest IoU of two objects; None for any, but 0.7 for those that `write` gets.
            write: A function of a path, the image and its `Detections`, or None.
        """
        objects = model.detect(inputs, threshold, top if iou is None else max(top, self.top))
        return object_rows(model, paths, inputs, objects, top, iou, DRAWN if iou is None else iou, write)

    def draw_predictions(self, report, model, inputs, names):
        from keras_vit.tasks.detection.figures import detection_figure  # needs matplotlib

        colors = [model.preprocessing.colors(image) for image in inputs]
        classes = names_or_indices(model.class_names, model.num_classes)
        detections = [scoring.distinct(one, DRAWN) for one in self.detections(model, inputs, SHOWN)]
        figure = detection_figure(colors, detections, None, names, classes, "Objects")
        report.draw("Predictions", "objects", figure, "Objects")

    def detections(self, model, inputs, threshold):
        """The `Detections` in each model input, of any sizes, in pixels of this input."""
        prepare = dataclasses.replace(model.preprocessing, resize="squash")
        detections = []
        for image in inputs:
            outputs = model.predict_on_batch(image[np.newaxis])
            detections += best_detections(outputs, [image.shape[:2]], prepare, threshold=threshold)
        return detections

    scores = staticmethod(scoring.detection_scores)
    per_class = staticmethod(scoring.detection_classes)
    class_score = "ap"
    confusion = staticmethod(scoring.detection_confusion)

    def confusion_names(self, names):
        return [*names, "background"]

    def errors(self, predictions):
        return 1 - scoring.image_f1(predictions)

    def correct(self, predictions):
        return scoring.image_f1(predictions) == 1

    def sampled(self, samples, preprocessing, count):
        from keras_vit.tasks.computing import sampled_boxes  # needs TensorFlow

        return sampled_boxes(samples, preprocessing, count)

    def check_samples(self, labels, description):
        for rows, _ in labels:
            self.label.check(rows[np.newaxis], description.num_classes)

    def compared(self, reference, outputs, labels, description):
        """As in `LabelTask`; the agreement is the F1 of the objects with a score of at least 0.3."""
        prepare, sizes = description.preprocessing, [(2**10, 2**10)] * len(reference)
        both = (best_detections(rows, sizes, prepare) for rows in (reference, outputs))
        agreement = scoring.agreement(*both, SHOWN)
        if labels is None:
            return agreement, None
        boxes, sizes = zip(*labels)
        detections = best_detections(outputs, sizes, prepare)
        return agreement, scoring.predictions_of(detections, boxes, sizes, description.num_classes)

    def max_samples(self, description):
        return max(2**26 // math.prod(description.image_size), 1)


def object_rows(model, paths, inputs, found, top, iou, drawn, write):
    """Yield the rows of `Detection.rows`.

    Args:
        model, paths, inputs, top, write: As for `Detection.rows`.
        found: The `Detections`, or `Instances`, in each image.
        iou, drawn: The largest IoU of two boxes in a row, and in what `write` gets; None for any.
    """
    names = names_or_indices(model.class_names, model.num_classes)
    for path, image, scored in zip(paths, inputs, found):
        if iou is not None:
            scored = scoring.distinct(scored, iou, top)
        if write:
            write(path, image, scored if drawn is None else scoring.distinct(scored, drawn))
        objects = zip(scored.classes.tolist(), scored.scores.tolist(), scored.boxes.tolist())
        yield {
            "width": image.shape[1],
            "height": image.shape[0],
            "objects": [
                {"name": names[number], "score": score, **dict(zip(SIDES, box))}
                for number, score, box in objects
            ],
        }


TASK = Detection()
