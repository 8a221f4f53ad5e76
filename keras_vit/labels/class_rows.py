"""An image has any number of classes: the label has a 0 or a 1 for each."""

import numpy as np

from keras_vit.labels.label_kind import LabelKind, parse_number


class ClassRows(LabelKind):
    """A 0 or a 1 for each class."""

    name = "multi_label"
    noun = ("label", "labels")
    activation = "sigmoid"

    def probabilities(self, logits):
        return 0.5 * (1 + np.tanh(0.5 * logits))  # This form of the sigmoid does not overflow.

    def decide(self, outputs):
        return outputs > 0

    def parse(self, text):
        return parse_number(text, lambda number: number in (0, 1), "0 or 1")

    def format(self, label, names):
        return ", ".join(str(name) for name, has in zip(names, label) if has) or "none"
