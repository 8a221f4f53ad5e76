"""The pictures of keypoint estimation."""

from keras_vit.reports.image_pictures import ImagePictures
from keras_vit.tasks.keypoints.figures import keypoint_figure


class KeypointPictures(ImagePictures):
    """The parts of images that the model receives, with predicted and true points."""

    task_name = "keypoints"

    def add_details(self, samples, result, split):
        self.samples = samples  # `add` crops them around their objects.

    def add(self, heading, words, indices, shown, split):
        similarities = self.predictions.similarities
        captions = [": ".join(filter(None, (self.files[i], f"OKS {similarities[i]:.2f}"))) for i in indices]
        inputs, estimates, truth = self.task.shown(self.model, self.samples.take([int(i) for i in indices]))
        colors = [self.model.preprocessing.colors(image) for image in inputs]
        skeleton = self.model.skeleton
        figure = keypoint_figure(colors, estimates, truth, captions, heading, skeleton)
        about = "Each object as the model receives it, with its similarity to the true points (OKS)."
        self.report.add(heading, about)
        self.report.draw(heading, heading.split()[0].lower(), figure, f"{heading} of {split}")
