"""Segmenters in checkpoints."""

from keras_vit.weights.stored_parts import HeadedParts


class SegmenterParts(HeadedParts):
    """The parts of an `ImageSegmenter`, of which one kind of head has a layout."""

    prefix_positions = False
    plural, stored_head = "segmenters", "mask"

    def hub_words(self):
        return "image-segmentation", f"segmentation into {self.model.num_classes} classes", ""
