"""Samples with labels in their records only, as in TensorFlow Datasets."""


class Unread:
    """Samples whose labels are unknown until they are read."""

    labels = task = None
    exif = False

    def __init__(self, samples):
        self.evaluation_records = samples.evaluation_records
        self.count = len(samples)

    def __len__(self):
        return self.count
