"""An image has one or several numbers."""

from keras_vit.labels.label_kind import LabelKind


class Numbers(LabelKind):
    """A number for each output."""

    name = "regression"
    noun = ("target", "targets")


KIND = Numbers()
