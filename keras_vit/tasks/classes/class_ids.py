"""An image has exactly one class: the label is its index."""

from keras_vit.labels.label_kind import ExclusiveClasses


class ClassIds(ExclusiveClasses):
    """The index of a class."""

    name = "single_label"
    axes = 0
    is_class_id = True
    columns = "label"

    def check(self, labels, num_outputs):
        if labels.ndim != 1:
            raise ValueError(
                f"expected a class index per sample, or another task; got labels of shape {labels.shape[1:]}"
            )
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


KIND = ClassIds()
