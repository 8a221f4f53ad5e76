"""Keypoint estimators in checkpoints."""

from keras_vit.weights.stored_parts import HeadedParts


class KeypointEstimatorParts(HeadedParts):
    """The parts of a `KeypointEstimator`."""

    def __init__(self, model):
        super().__init__(model)
        self.missing = (
            "keypoint estimators are written in one layout, 'huggingface'; save the `encoder` "
            "(num_classes=0 of a file), or all of it as .keras"
        )

    def hub_words(self):
        return "keypoint-detection", f"estimation of {self.model.num_classes} keypoints", ""
