"""The pictures of depth estimation."""

import numpy as np

from keras_vit.reports.image_pictures import ImagePictures
from keras_vit.tasks.depth.estimating import WITHOUT_SCALE
from keras_vit.tasks.depth.figures import depth_figure
from keras_vit.tasks.depth.scores import aligned


class DepthPictures(ImagePictures):
    """Images with their estimated and true depth, of several channels their mean."""

    task_name = "depth"

    def add(self, heading, words, indices, shown, split):
        errors, are_values = self.predictions.errors, self.model.quantity == "values"
        name, bright = ("MAE", "low values") if are_values else ("abs_rel", "near pixels")
        captions = [": ".join(filter(None, (self.files[i], f"{name} {errors[i]:.3f}"))) for i in indices]
        inputs, truth = zip(*shown)
        colors = [self.model.preprocessing.colors(image) for image in inputs]
        figure = depth_figure(
            colors,
            [self._mean(self._estimated(*pair)) for pair in zip(inputs, truth)],
            [self._mean(label) for label in truth],
            captions,
            heading,
        )
        words = f"Each image as the model receives it, with its {name}; {bright} are bright."
        if self.model.quantity in WITHOUT_SCALE:
            words += " Estimates have the scale and shift that fit the true depth best."
        self.report.add(heading, words)
        self.report.draw(heading, heading.split()[0].lower(), figure, f"{heading} of {split}")

    def _estimated(self, image, label):
        """The output for a model input, as depth with the scale of its label."""
        output = np.asarray(self.model.predict_on_batch(image[np.newaxis])[0], "float64")
        quantity = self.model.quantity
        return aligned(output, label, quantity) if quantity in WITHOUT_SCALE else output

    @staticmethod
    def _mean(values):
        return np.asarray(values).mean(axis=-1)
