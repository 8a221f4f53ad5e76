"""The defaults that each kind of labels overrides, and what several of them use."""

import math

import numpy as np


class LabelKind:
    """What a label is: how it is read, checked, stored and written, and how outputs decide for one.

    Attributes:
        name: The name of its task, in recipes, files and on the command line.
        noun: Singular and plural of what each output is about.
        axes: The number of a label's axes in records, where a map has one for its channel.
        is_class_id: Whether a label is the index of a class, which a table gives by its name.
        moves: Whether a label moves with the image.
        is_map: Whether a label is a map of the image's pixels.
        has_channels: Of maps, whether they have an axis for their channels in batches, too.
        dtype: Of maps, the dtype in batches.
        outside: Of maps, the value of pixels that the image does not cover.
        map_folders: Of maps, the names of folders that have them beside a folder `images`.
        has_mosaics: Whether the labels of several images fit one image, as mosaics need.
        activation: The name of the function from logits to probabilities in `keras.ops` and `tf.nn`; None if
            outputs are not class scores.
    """

    name = None
    noun = ("class", "classes")
    axes = 1
    is_class_id = moves = is_map = has_channels = has_mosaics = False
    dtype = outside = None
    map_folders = ()
    activation = None

    @property
    def has_classes(self):
        """Whether outputs are class scores."""
        return self.activation is not None

    @property
    def has_rows_of_classes(self):
        """Whether outputs are one row of class scores per image."""
        return self.has_classes and not self.moves

    @property
    def output_name(self):
        """The name of an exported model's output."""
        return "logits" if self.has_classes else "values"

    def probabilities(self, logits):
        """The activation of logits, for NumPy arrays."""
        raise ValueError(f"the task {self.name!r} has no classes")

    def decide(self, outputs):
        """The most likely labels, from outputs."""
        return np.asarray(outputs)

    def margins(self, outputs):
        """How far each decision is from another one, in logits."""
        raise ValueError(f"the task {self.name!r} has no classes")

    def agreement(self, outputs, others):
        """The fraction of decisions that two arrays of outputs share; None if there are no classes."""
        return float(np.mean(self.decide(outputs) == self.decide(others))) if self.has_classes else None

    def check(self, labels, num_outputs):
        """Raise ValueError unless the labels fit a model with this number of outputs."""
        if labels.shape[1:] != (num_outputs,):
            raise ValueError(
                f"expected labels of {num_outputs} numbers, as many as the model's outputs; got the shape "
                f"{labels.shape[1:]} (class indices need the task 'single_label')"
            )

    def geometry(self):
        """The module that moves labels other than maps with their image, such as `keras_vit.data.boxes`.

        Its functions are `moved`, `mirrored` and `visible`. `trained` makes the label of a training image
        by a seed, and `prepared` that of an image in an evaluation.
        """
        raise NotImplementedError

    def mirrored(self, values, is_mirrored):
        """The values of a map after a flip of its pixels; vectors change their direction."""
        return values

    def zoomed(self, values, factor):
        """A map of an image that is enlarged by a factor, relative to what evaluation does with it."""
        return values

    def parse(self, text):
        """Convert a cell of a CSV table to a part of a label, or raise ValueError."""
        return parse_number(text, is_float32, "a number that float32 can hold")

    def format(self, label, names):
        """A label in words, with a name for each output."""
        return ", ".join(f"{name} {x:.4g}" for name, x in zip(names, label))

    def counts(self, labels, names):
        """What the labels of a split contain: a dict of JSON values.

        Args:
            labels: Those of a `Samples`.
            names: Of the classes.
        """
        return {}

    def stored(self, label, names):
        """A label as a JSON value, by names of classes rather than by their order."""
        return list(label)

    def shared_values(self, values):
        """What all sources of a mixture have to share of the `label_values` of their samples, a dict."""
        return {}

    def fits_columns(self, names):
        """Whether a table has these columns of labels."""
        return bool(names) and "" not in names

    columns = "one for each class or target"  # of a table, in words


def is_float32(number):
    """Whether a number is finite as float32, the type of labels.

    >>> is_float32(3.4e38), is_float32(1e300)
    (True, False)
    """
    return abs(number) <= float(np.finfo("float32").max)


def parse_number(text, accepts, expected):
    """The number in a cell of a table; ValueError with what was expected if it is not accepted."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not accepts(number):
        raise ValueError(f"expected {expected}; got {text!r}")
    return number


class IndependentClasses(LabelKind):
    """Each class has a probability of its own: those with a positive logit are decided for."""

    activation = "sigmoid"

    def probabilities(self, logits):
        return 0.5 * (1 + np.tanh(0.5 * logits))  # This form of the sigmoid does not overflow.

    def decide(self, outputs):
        return outputs > 0

    def margins(self, outputs):
        return np.abs(outputs)


class ExclusiveClasses(LabelKind):
    """Exactly one class for each image or pixel, by its index: the one with the highest logit."""

    activation = "softmax"

    def probabilities(self, logits):
        scores = logits - logits.max(-1, keepdims=True)
        np.exp(scores, out=scores)  # Arrays of many classes take longer to allocate than to compute.
        scores /= scores.sum(-1, keepdims=True)
        return scores

    def decide(self, outputs):
        return outputs.argmax(-1)

    def margins(self, outputs):
        if outputs.shape[-1] == 1:
            return np.full(outputs.shape[:-1], np.inf)
        second, first = np.moveaxis(np.partition(outputs, -2, axis=-1)[..., -2:], -1, 0)
        return first - second
