"""Semantic segmentation: each pixel of an image has a class, or none that counts."""

import numpy as np

from keras_vit.labels import label_kind
from keras_vit.lazy import LazyModule
from keras_vit.messages import listed
from keras_vit.tasks.headed_task import MapTask
from keras_vit.tasks.segmentation import scores as scoring
from keras_vit.tasks.task import names_or_indices

# Two classes of a pixel whose live logits differ by this fraction of the largest are equal in float32.
EQUAL_LOGITS = 1e-5
losses, metrics = LazyModule("keras_vit.losses"), LazyModule("keras_vit.metrics")
segmenters = LazyModule("keras_vit.tasks.segmentation.model")


class Segmentation(MapTask):
    """Semantic segmentation: a class for each pixel."""

    label = label_kind("segmentation")
    validation_metric = "mean_iou"
    primary_metric = "mean_iou"
    primary_metric_title = "mean IoU"
    title = "semantic segmentation"
    slug = "semantic-segmentation"
    outputs_in_words = "class maps"
    recipe_fields = ("head_options", "class_weights")
    max_values = 2**28  # 1 GiB of float32
    method = "segment"
    head_class = property(lambda self: segmenters.ImageSegmenter)

    def loss(self, recipe, model):
        return losses.SegmentationCrossEntropy()

    def metrics(self, model):
        return [metrics.MeanIoU(model.output_shape[-1])]

    def note(self, model):
        """A line with the loaded and the new layers of the head."""
        new = model.initial_weights
        if new is None:
            return None
        weights = [w for layer in model.own_layers() for w in layer.weights if "float" in w.dtype]
        layers = {weight.path.partition("/")[0]: weight.path in new for weight in weights}
        loaded, new = ([name for name in layers if layers[name] == is_new] for is_new in (False, True))
        return (
            f"layers of the head from the weights: {listed(loaded) or 'none'}; new: {listed(new) or 'none'}"
        )

    def label_shape(self, model, recipe):
        return model.output_shape[1:-1], "int32"

    def batches(self, batches, model, source, **place):
        from keras_vit.tasks.segmentation.samples import with_pixel_weights  # needs TensorFlow

        return with_pixel_weights(batches)

    def predict(self, model, samples, batch_size):
        if model.preprocessing.image_size is None:
            # In a batch, images would be padded to one size, which their tokens would attend to.
            return scoring.predict_maps(lambda image: model.segment([image])[0], samples, model.num_classes)
        return super().predict(model, samples, batch_size)

    def row(self, model, values, top):
        """The `fraction` of the pixels of each of the most frequent classes."""
        names = names_or_indices(model.class_names, model.num_classes)
        counts = np.bincount(values.ravel(), minlength=len(names))
        best = [i for i in np.argsort(-counts, kind="stable")[:top] if counts[i]]
        return {"classes": [{"name": names[i], "fraction": int(counts[i]) / values.size} for i in best]}

    def draw_predictions(self, report, model, inputs, names):
        from keras_vit.tasks.segmentation.figures import segmentation_figure  # needs matplotlib

        colors = [model.preprocessing.colors(image) for image in inputs]
        classes = names_or_indices(model.class_names, model.num_classes)
        figure = segmentation_figure(
            colors, self.maps(model, inputs), None, names, classes, "Predicted classes"
        )
        report.draw("Predictions", "overlays", figure, "Predicted classes")

    def maps(self, model, inputs):
        """The class map of each model input, of any sizes."""
        return [self.label.decide(model.predict_on_batch(image[np.newaxis]))[0] for image in inputs]

    predictions = staticmethod(scoring.SegmentationPredictions.of)
    scores = staticmethod(scoring.segmentation_scores)
    per_class = staticmethod(scoring.segmentation_classes)
    class_score = "accuracy"

    def confusion(self, predictions):
        return predictions.confusion_matrix

    def compared(self, reference, outputs, labels, description):
        is_decided = outputs.ndim < reference.ndim
        chosen = np.expand_dims((outputs if is_decided else outputs.argmax(-1)).astype("int64"), -1)
        known = chosen < reference.shape[-1]
        logits = np.take_along_axis(reference, np.where(known, chosen, 0), -1)
        scale = max(float(np.abs(reference).max()), float(np.finfo("float32").tiny))
        agrees = known & (reference.max(-1, keepdims=True) - logits <= EQUAL_LOGITS * scale)
        predictions = None
        if labels is not None:
            logits = scoring.one_hot(outputs, description.num_classes) if is_decided else outputs
            predictions = self.predictions(logits, labels)
        return float(np.mean(agrees)), predictions

    def errors(self, predictions):
        return 1 - predictions.image_iou

    def correct(self, predictions):
        # No map is right in every pixel: the labeled images with the highest IoU count as the best.
        return predictions.lengths > 0


TASK = Segmentation()
