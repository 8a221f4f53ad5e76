"""Depth estimation: each pixel of an image has a distance, or other numbers."""

import math

import numpy as np

from keras_vit.labels import label_kind
from keras_vit.lazy import LazyModule
from keras_vit.tasks.depth import scores as scoring
from keras_vit.tasks.depth.labels import cropped
from keras_vit.tasks.headed_task import MapTask
from keras_vit.tasks.task import concatenate, names_or_indices

STATISTICS = {"minimum": np.min, "median": np.median, "maximum": np.max}  # of a map, in a row of `predict`
CHECKED = 16  # training samples whose depths are compared with the model's largest
loss_module = LazyModule("keras_vit.tasks.depth.loss")
estimators = LazyModule("keras_vit.tasks.depth.model")


class Depth(MapTask):
    """Depth estimation, and the regression of any numbers at each pixel."""

    label = label_kind("depth")
    higher_is_better = False
    primary_metric = "abs_rel"
    primary_metric_title = "absolute relative error"
    title = "depth estimation"
    slug = "depth-estimation"
    outputs_in_words = "maps of depth"
    max_values = 2**27  # 512 MiB of float32
    method = "estimate"
    head_class = property(lambda self: estimators.DepthEstimator)

    def loss(self, recipe, model):
        weights = {name: getattr(model, name) for name in ("variance_focus", "gradient_weight")}
        return loss_module.DepthLoss(model.quantity, model.max_depth, **weights)

    def metrics(self, model):
        return [loss_module.AbsoluteRelativeError(model.max_depth)] if model.quantity == "metric" else []

    def prepare(self, model, samples, recipe):
        """Raise ValueError for values that the model or the recipe takes for depths.

        Also if most depths of some training samples exceed the model's largest.
        """
        are_values = (getattr(samples, "label_values", None) or {}).get("quantity") == "values"
        if are_values and model.quantity != "values":
            raise ValueError(
                f"the data have values that are no depths; the model's quantity is {model.quantity!r}: give "
                'head_options the quantity "values"'
            )
        if are_values and model.num_classes == 1 and (recipe.crop_area or recipe.scale_jitter):
            raise ValueError(
                "crop_area and scale_jitter divide maps of one channel, as depths; for other values set both "
                "to None"
            )
        if model.quantity != "metric" or not hasattr(samples, "__getitem__"):
            return
        indices = np.unique(np.linspace(0, len(samples) - 1, CHECKED).astype(int))
        depths = np.concatenate([np.ravel(samples[int(index)][1]) for index in indices])
        depths = depths[np.isfinite(depths)]
        if depths.size and (beyond := np.mean(depths > model.max_depth)) > 0.5:
            raise ValueError(
                f"expected depths up to the model's max_depth={model.max_depth:g}; got up to "
                f"{depths.max():g}, {beyond:.0%} above it. Set max_depth in head_options, or scale the data"
            )

    def label_shape(self, model, recipe):
        return model.output_shape[1:], "float32"

    def batches(self, batches, model, source, **place):
        from keras_vit.tasks.depth.samples import with_image_weights  # needs TensorFlow

        is_limited = model.quantity == "metric"
        return with_image_weights(batches, model.max_depth if is_limited else math.inf)

    def predict(self, model, samples, batch_size):
        predictions = []
        for outputs, labels in self.computed(model, samples, batch_size):
            self.check_labels(labels, model.num_classes)
            predictions.append(self._predictions(outputs, _scored(labels, samples), model))
        return concatenate(predictions)

    def sampled(self, samples, preprocessing, count):
        images, labels = super().sampled(samples, preprocessing, count)
        return images, _scored(labels, samples)

    def computed(self, model, samples, batch_size):
        from keras_vit.tasks.computing import computed_one_by_one  # needs TensorFlow

        if model.preprocessing.image_size is None:
            # In a batch, images would be padded to one size, which their tokens would attend to.
            pairs = computed_one_by_one(lambda image: model.estimate([image])[0], samples)
            return (([output], [label]) for output, label in pairs)
        return super().computed(model, samples, batch_size)

    def _predictions(self, outputs, labels, model):
        limits = {"max_depth": model.max_depth} if model.quantity == "metric" else {}
        return scoring.DepthPredictions.of(outputs, labels, model.quantity, **limits)

    def row(self, model, values, top):
        """The minimum, median and maximum of each channel as `values`."""
        channels = np.moveaxis(values, -1, 0)
        return {"values": [float(of(one)) for one in channels for of in STATISTICS.values()]}

    def value_names(self, model):
        names = names_or_indices(model.class_names, model.num_classes)
        return [f"{statistic} {name}" for name in names for statistic in STATISTICS]

    def judged_by(self, model):
        return ("mae", "mean absolute error") if model.quantity == "values" else super().judged_by(model)

    def draw_predictions(self, report, model, inputs, names):
        from keras_vit.tasks.depth.figures import depth_figure  # needs matplotlib

        colors = [model.preprocessing.colors(image) for image in inputs]
        maps = [model.predict_on_batch(image[np.newaxis])[0].mean(axis=-1) for image in inputs]
        near_is_high = model.quantity == "disparity"
        title = "Disparity" if near_is_high else "Depth" if model.quantity != "values" else "Values"
        figure = depth_figure(colors, maps, None, names, title, near_is_high)
        report.draw("Predictions", "depths", figure, title)

    scores = staticmethod(scoring.depth_scores)

    def compared(self, reference, outputs, labels, description):
        return None, None if labels is None else self._predictions(outputs, labels, description)

    def errors(self, predictions):
        return predictions.errors

    def correct(self, predictions):
        # No map is right in every pixel: the labeled images with the smallest errors count as the best.
        return predictions.pixels > 0


def _scored(labels, samples):
    """Maps of samples, without what the data set's crop leaves out of the scores."""
    crop = (getattr(samples, "label_values", None) or {}).get("crop")
    return [cropped(label, crop) for label in labels] if crop else labels


TASK = Depth()
