"""An image has one class, any number of classes, or one or several numbers."""

import numpy as np

from keras_vit.labels.label_kind import ExclusiveClasses, IndependentClasses, LabelKind, parse_number


class ClassIds(ExclusiveClasses):
    """Exactly one class, whose index the label is."""

    name = "single_label"
    axes = 0
    is_class_id = True
    columns = "label"

    def check(self, labels, num_outputs):
        if labels.ndim != 1:
            raise ValueError(
                f"expected a class index per sample, or another task; got labels of shape {labels.shape[1:]}"
            )
        if labels.dtype.kind not in "iu":
            raise ValueError(f"expected class indices, ints; got labels of dtype {labels.dtype}")
        if labels.max(initial=0) >= num_outputs:
            raise ValueError(
                f"the samples have labels up to {labels.max()}, but the model has {num_outputs} classes"
            )
        if labels.min(initial=0) < 0:
            raise ValueError(f"a sample has the label {labels.min()}: this split's labels are unknown")

    def parse(self, text):
        if not text:
            raise ValueError("expected the name of a class; got ''")
        return text

    def format(self, label, names):
        return str(names[label])

    def stored(self, label, names):
        return names[label] if names else None

    def fits_columns(self, names):
        return names == ("label",)


class ClassRows(IndependentClasses):
    """Any number of classes: a 0 or a 1 for each."""

    name = "multi_label"
    noun = ("label", "labels")

    def check(self, labels, num_outputs):
        super().check(labels, num_outputs)
        if not (is_known := np.isin(labels, (0, 1))).all():
            raise ValueError(f"expected labels of 0 and 1; got {labels[~is_known][0]:g}")

    def parse(self, text):
        # All labels share these two objects.
        return 1.0 if parse_number(text, lambda number: number in (0, 1), "0 or 1") else 0.0

    def format(self, label, names):
        return ", ".join(str(name) for name, has in zip(names, label) if has) or "none"


class Numbers(LabelKind):
    """A number for each output."""

    name = "regression"
    noun = ("target", "targets")


KINDS = (ClassIds(), ClassRows(), Numbers())
