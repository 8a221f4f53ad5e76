"""Depth estimators in checkpoints."""

from keras_vit.weights.stored_parts import HeadedParts


class DepthEstimatorParts(HeadedParts):
    """The parts of a `DepthEstimator`, of which one kind of head has a layout."""

    plural, stored_head = "depth estimators", "dpt"

    def head(self):
        return {"num_classes": None, "class_names": None}

    def described(self, config):
        return config

    def hub_words(self):
        return "depth-estimation", "depth estimation", ""
