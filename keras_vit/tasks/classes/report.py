"""The pictures of classification, with a class for each image."""

import collections

from keras_vit.reports.image_pictures import ImagePictures
from keras_vit.reports.page import table

MAX_ERRORS = 10  # pairs of classes
MAX_FILES = 3  # names of files for each pair


class ClassPictures(ImagePictures):
    """Thumbnails, and a table of the classes that are confused most often."""

    task_name = "single_label"

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
