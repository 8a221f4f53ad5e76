"""Classification by texts that describe the classes."""

import numpy as np


class ZeroShotClassifier:
    """An ImageTextModel and texts of classes as a classifier, which `classify` and `evaluation` accept.

    Args:
        model: An `ImageTextModel`.
        labels: As for its `class_vectors`: a list of texts, or a dict from names of classes to their texts.

    Attributes:
        class_names: The names of the classes.
        vectors: float32 (classes, size): the vector of each class, of length 1.
        probabilities: The task whose probabilities belong to the model's objective: "multi_label" for
            "sigmoid", where each label is decided alone, and "single_label" for "softmax".

    Raises:
        ValueError: as `class_vectors`.

    Example:
        >>> text = {"vocabulary_size": 9, "length": 4, "hidden_size": 24, "num_layers": 1}
        >>> text = {**text, "mlp_dim": 48, "num_heads": 3}
        >>> image = keras_vit.VisionTransformer(32, 8, 24, 1, 48, 3)
        >>> two_towers = keras_vit.ImageTextModel(image, text)
        >>> two_towers.text_preprocessing = lambda texts: np.array([[len(text) % 9] * 4 for text in texts])
        >>> classifier = ZeroShotClassifier(two_towers, {"cat": ["a cat", "a kitten"], "car": "a red car"})
        >>> classifier.class_names, classifier.predict_on_batch(np.zeros((3, 32, 32, 3))).shape
        (['cat', 'car'], (3, 2))

    Source: Radford et al. 2021 (CLIP, arXiv 2103.00020), section 3.1.
    """

    is_classifier = True
    task, split_seed = "single_label", None

    def __init__(self, model, labels):
        self.model = model
        self.class_names, self.vectors = model.class_vectors(labels)
        self.num_classes = len(self.class_names)
        self.preprocessing, self.image_size = model.preprocessing, model.image_size
        self.patch_size, self.resnet = model.image.patch_size, model.image.resnet
        self.probabilities = "multi_label" if model.objective == "sigmoid" else "single_label"

    def predict_on_batch(self, images):
        """The logits (images, classes) of preprocessed images."""
        vectors = np.asarray(self.model.image_encoder.predict_on_batch(images))
        return self.model.similarity(vectors, self.vectors)
