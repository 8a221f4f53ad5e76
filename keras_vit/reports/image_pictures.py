"""The pictures of images: thumbnails."""

import numpy as np
from PIL import Image

from keras_vit.data.batches import evaluation_batches
from keras_vit.preprocessing.image_files import image_bytes
from keras_vit.reports.page import gallery, picture

THUMBNAIL = (192, 192)  # pixels


class ImagePictures:
    """Thumbnails with the prediction and the true label below.

    Args:
        report: Report.
        model: The model that was evaluated.
        task: LabelTask.
        predictions: Its predictions of all samples.
        names: A name for each output.
        files: A name for each sample, empty where it is in no file.

    Attributes:
        task_name: The name of the task that the pictures are of; None for all others.
    """

    task_name = None

    def __init__(self, report, model, task, predictions, names, files):
        self.report, self.model, self.task = report, model, task
        self.predictions, self.names, self.files = predictions, names, files

    def add_details(self, samples, result, split):
        """Add what these labels have beside scores, from the samples and the result of the evaluation."""

    def add(self, heading, words, indices, shown, split):
        """Add a section of some samples.

        Args:
            heading: Its heading.
            words: What it shows.
            indices: Of the samples.
            shown: Their (model input, label).
            split: The title of the split.
        """
        inputs, labels = zip(*shown)
        pictures = map(self._thumbnail, inputs, labels, self._outputs(inputs), indices)
        self.report.add(heading, words, gallery([*pictures]))

    def _outputs(self, inputs):
        """The output for each model input, computed together where all have one size."""
        batches = [inputs] if len({image.shape for image in inputs}) == 1 else [[image] for image in inputs]
        outputs = [self.model.predict_on_batch(np.stack(batch)) for batch in batches]
        return np.concatenate(outputs).astype("float64")

    def _thumbnail(self, image, label, output, index):
        """A small picture with the prediction, and the truth where it differs."""
        label_type = self.task.label
        predicted, true = label_type.decide(output), label_type.format(label, self.names)
        caption = label_type.format(predicted, self.names) + self.task.confidence(output)
        if not np.array_equal(predicted, label):
            caption += f"; is {true}"
        png = thumbnail(self.model.preprocessing.colors(image))
        return picture(png, f"An image of {true}", caption, self.files[index])


def thumbnail(colors):
    """Return a small PNG of an image, (height, width, 3) in [0, 1]."""
    small = Image.fromarray(np.round(colors * 255).astype("uint8"))
    small.thumbnail(THUMBNAIL)
    return image_bytes(small)


def read_samples(preprocessing, samples, indices):
    """Return the (model input, label) of samples."""
    batches = evaluation_batches(samples.take(indices), preprocessing, 1)
    return [(images[0].numpy(), labels[0].numpy()) for images, labels in batches]
