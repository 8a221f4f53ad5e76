"""Depth estimators in checkpoints."""

from keras_vit.weights.stored_parts import StoredParts


class Parts(StoredParts):
    """The parts of a `DepthEstimator`, of which one kind of head has a layout."""

    prefix_positions = True

    def __init__(self, model):
        super().__init__(model)
        self.form = f"{model.head}_depth_estimator"
        self.missing = (
            "of depth estimators only head='dpt' has a layout, 'huggingface'; save its `encoder` "
            f"(num_classes=0 of a file), or all of it as .keras; got head={model.head!r}"
        )

    def classifier(self):
        return self.model

    def head(self):
        return {"num_classes": None, "class_names": None}

    def described(self, config):
        return config

    def hub_words(self):
        return "depth-estimation", "depth estimation", ""
