"""The pictures of detection."""

from keras_vit.reports.image_pictures import ImagePictures
from keras_vit.tasks.detection.figures import detection_figure, precision_recall_figure
from keras_vit.tasks.detection.scores import best_threshold, distinct, image_f1, precision_recall
from keras_vit.tasks.detection.task import DRAWN


class DetectionPictures(ImagePictures):
    """Images with predicted and true boxes, and precision by recall."""

    task_name = "detection"

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
        detections = [distinct(one, DRAWN) for one in self.task.detections(self.model, inputs, least)]
        colors = [self.model.preprocessing.colors(image) for image in inputs]
        figure = detection_figure(colors, detections, truth, captions, self.names, heading)
        words = f"Each image as the model receives it, with the objects of a score of at least {least:.2f}."
        self.report.add(heading, words)
        self.report.draw(heading, heading.split()[0].lower(), figure, f"{heading} of {split}")
