"""Segmenters in checkpoints."""

from keras_vit.weights.stored_parts import StoredParts


class Parts(StoredParts):
    """The parts of an `ImageSegmenter`, of which one kind of head has a layout."""

    prefix_positions = False

    def __init__(self, model):
        super().__init__(model)
        self.form = f"{model.head}_segmenter"
        self.missing = (
            "of segmenters only head='mask' has a layout, 'huggingface'; save its `encoder` "
            f"(num_classes=0 of a file), or all of it as .keras; got head={model.head!r}"
        )

    def classifier(self):
        return self.model

    def hub_words(self):
        return "image-segmentation", f"segmentation into {self.model.num_classes} classes", ""
