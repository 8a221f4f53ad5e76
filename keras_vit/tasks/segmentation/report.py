"""The pictures of segmentation."""

import numpy as np

from keras_vit.reports.image_pictures import ImagePictures, read_samples
from keras_vit.tasks.segmentation.figures import class_example_figure, iou_figure, segmentation_figure

MAX_EXAMPLES = 24  # classes of which an example is drawn


class ClassMapPictures(ImagePictures):
    """Images with their class maps over them, and the IoU and an example of each class."""

    task_name = "segmentation"

    def add_details(self, samples, result, split):
        report, predictions, classes = self.report, self.predictions, result["classes"]
        labeled = [number for number, row in enumerate(classes) if row["pixels"]]
        if not labeled:  # All pixels are ignored.
            return
        report.draw("Scores", "iou", iou_figure(classes, split), f"IoU of each class of {split}")
        images = np.repeat(np.arange(len(predictions.lengths)), predictions.lengths)
        true, predicted, pixels = predictions.pairs.T
        chosen = sorted(sorted(labeled, key=lambda number: classes[number]["iou"])[:MAX_EXAMPLES])
        largest, captions = [], []
        for number in chosen:
            is_true, is_predicted = true == number, predicted == number
            largest.append(np.bincount(images[is_true], pixels[is_true]).argmax())
            here = pixels * (images == largest[-1])
            iou = here[is_true & is_predicted].sum() / here[is_true | is_predicted].sum()
            captions.append(f"{classes[number]['name']}: IoU {iou:.2f}")
        inputs, truth = zip(*read_samples(self.model.preprocessing, samples, largest))
        heading = "Classes"
        figure = class_example_figure(*self._maps(inputs), truth, chosen, captions, heading)
        which = "each class" if len(chosen) == len(labeled) else f"the {len(chosen)} classes of lowest IoU"
        report.add(heading, f"For {which}, the image with most of its pixels.")
        report.draw(heading, "examples", figure, f"Examples of classes of {split}")

    def add(self, heading, words, indices, shown, split):
        scores = self.predictions.image_iou
        captions = [": ".join(filter(None, (self.files[i], f"IoU {scores[i]:.2f}"))) for i in indices]
        inputs, truth = zip(*shown)
        figure = segmentation_figure(*self._maps(inputs), truth, captions, self.names, heading)
        self.report.add(heading, "Each image as the model receives it, with the mean IoU of its classes.")
        self.report.draw(heading, heading.split()[0].lower(), figure, f"{heading} of {split}")

    def _maps(self, inputs):
        """The colors of model inputs, and the predicted class maps."""
        colors = [self.model.preprocessing.colors(image) for image in inputs]
        return colors, self.task.maps(self.model, inputs)
