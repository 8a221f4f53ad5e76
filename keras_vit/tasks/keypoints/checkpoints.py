"""Keypoint estimators in checkpoints."""

from keras_vit.weights.stored_parts import HeadedParts


class KeypointEstimatorParts(HeadedParts):
    """The parts of a `KeypointEstimator`."""

    plural, stored_head = "keypoint estimators", None

    def __init__(self, model):
        super().__init__(model)
        self.missing = (
            f"{self.plural} have no layout; save the `encoder` (num_classes=0 of a file), or all of it as "
            ".keras"
        )

    def head(self):
        return {"num_classes": None, "class_names": None}

    def described(self, config):
        return config

    def hub_words(self):
        return "keypoint-detection", f"estimation of {self.model.num_classes} keypoints", ""
