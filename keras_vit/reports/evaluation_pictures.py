"""The pictures of an evaluation in a report: a class for each kind of labels whose pictures differ."""

import collections

import numpy as np
from PIL import Image

from keras_vit.data.batches import evaluation_batches
from keras_vit.inspection.class_map_figures import class_example_figure, iou_figure, segmentation_figure
from keras_vit.inspection.class_map_pictures import png_bytes
from keras_vit.inspection.detection_figures import detection_figure, precision_recall_figure
from keras_vit.reports.page import gallery, picture, table
from keras_vit.tasks.detection_scores import best_threshold, image_f1, precision_recall

MAX_ERRORS = 10  # pairs of classes
MAX_FILES = 3  # names of files for each pair
MAX_EXAMPLES = 24  # classes of which an example is drawn
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
    """

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
        kind = self.task.label
        predicted, true = kind.decide(output), kind.format(label, self.names)
        caption = kind.format(predicted, self.names) + self.task.confidence(output)
        if not np.array_equal(predicted, label):
            caption += f"; is {true}"
        thumbnail = Image.fromarray(np.round(self.model.preprocessing.colors(image) * 255).astype("uint8"))
        thumbnail.thumbnail(THUMBNAIL)
        return picture(png_bytes(thumbnail), f"An image of {true}", caption, self.files[index])


class ClassPictures(ImagePictures):
    """Thumbnails, and a table of the classes that are confused most often."""

    def add_details(self, samples, result, split):
        errors, names = collections.defaultdict(list), self.names
        labels, best = self.predictions.labels, self.predictions.best[:, 0]
        for true, predicted, file in zip(labels, best, self.files):
            if true != predicted:
                errors[names[true], names[predicted]].append(file)
        most = sorted(errors.items(), key=lambda error: -len(error[1]))[:MAX_ERRORS]
        rows = [(*pair, len(files), ", ".join(files[:MAX_FILES])) for pair, files in most]
        if not any(self.files):
            rows = [row[:3] for row in rows]
        if rows:
            columns = ("true class", "predicted", "images", "files")[: len(rows[0])]
            self.report.add("Confusions", table("The most frequent errors", columns, rows))


class ClassMapPictures(ImagePictures):
    """Images with their class maps over them, and the IoU and an example of each class."""

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
        inputs, truth = zip(*read_samples(self.model, samples, largest))
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


class DetectionPictures(ImagePictures):
    """Images with predicted and true boxes, and precision by recall."""

    def add_details(self, samples, result, split):
        if result["ap"] is None:  # There are no objects.
            return
        thresholds = (0.5, 0.75, 0.9)
        curves = {f"IoU {iou:.2f}": precision_recall(self.predictions, iou) for iou in thresholds}
        title = f"Precision and recall on {split}"
        self.report.draw("Scores", "precision_recall", precision_recall_figure(curves, title), title)

    def add(self, heading, words, indices, shown, split):
        scores, least = image_f1(self.predictions), best_threshold(self.predictions)
        captions = [": ".join(filter(None, (self.files[i], f"F1 {scores[i]:.2f}"))) for i in indices]
        inputs, truth = zip(*shown)
        detections = self.task.detections(self.model, inputs, least)
        colors = [self.model.preprocessing.colors(image) for image in inputs]
        figure = detection_figure(colors, detections, truth, captions, self.names, heading)
        words = f"Each image as the model receives it, with the objects of a score of at least {least:.2f}."
        self.report.add(heading, words)
        self.report.draw(heading, heading.split()[0].lower(), figure, f"{heading} of {split}")


# By the name of a task; others have `ImagePictures`.
PICTURES = {"single_label": ClassPictures, "segmentation": ClassMapPictures, "detection": DetectionPictures}


def read_samples(model, samples, indices):
    """Return the (model input, label) of samples."""
    batches = evaluation_batches(samples.take(indices), model.preprocessing, 1)
    return [(images[0].numpy(), labels[0].numpy()) for images, labels in batches]
