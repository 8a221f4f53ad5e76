"""An image has any number of classes: the label has a 0 or a 1 for each."""

from keras_vit.labels.label_kind import IndependentClasses, parse_number


class ClassRows(IndependentClasses):
    """A 0 or a 1 for each class."""

    name = "multi_label"
    noun = ("label", "labels")

    def parse(self, text):
        return parse_number(text, lambda number: number in (0, 1), "0 or 1")

    def format(self, label, names):
        return ", ".join(str(name) for name, has in zip(names, label) if has) or "none"


KIND = ClassRows()
