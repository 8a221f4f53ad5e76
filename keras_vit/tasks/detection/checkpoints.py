"""Detectors in checkpoints."""

from keras_vit.weights.stored_parts import StoredParts


class DetectorParts(StoredParts):
    """The parts of an `ObjectDetector`, which a layout has only with a text tower."""

    missing = (
        "of detectors only those with a text tower have layouts, 'huggingface' and 'scenic'; save the "
        "`encoder` (num_classes=0 of a file), or all of it as .keras"
    )

    def __init__(self, model):
        super().__init__(model)
        self.form = "detector" if model.text is None else "word_detector"

    def classifier(self):
        return self.model

    def hub_words(self):
        if self.model.text is not None:
            return "zero-shot-object-detection", "detection of objects that words describe", ""
        return "object-detection", f"detection of objects of {self.model.num_classes} classes", ""
