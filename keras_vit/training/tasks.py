"""What kind of labels there are: the loss, the metrics, and which of them says what is best."""

import dataclasses
from collections.abc import Callable

import keras
from keras import ops

from keras_vit.training.losses import SigmoidCrossEntropy, SoftmaxCrossEntropy

MEAN = "mean_with_sample_weight"  # the weighted sum divided by the weights


@dataclasses.dataclass(frozen=True)
class Task:
    """How a model is trained and judged on one kind of labels.

    Args:
        loss: A function of the recipe that makes the loss.
        metrics: A function of the number of outputs that makes the metrics.
        best: The metric of the validation split that says which checkpoint is the best.
        largest: Whether the largest is the best.
    """

    loss: Callable
    metrics: Callable
    best: str
    largest: bool


@keras.saving.register_keras_serializable("keras_vit")
class Accuracy(keras.metrics.MeanMetricWrapper):
    """The share of images whose best class is the label's, or the largest of its row.

    Keras's "accuracy" settles by the first batch which of the two labels are; MixUp has rows in training
    and validation has class numbers.

    Example:
        >>> float(Accuracy()(np.array([1, 0]), np.array([[0.2, 0.8], [0.3, 0.7]])))
        0.5
    """

    def __init__(self, name="accuracy", dtype=None):
        super().__init__(_hits, name=name, dtype=dtype)

    def get_config(self):
        return {"name": self.name, "dtype": self.dtype}


def _hits(y_true, y_pred):
    if len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] == y_pred.shape[-1]:
        y_true = ops.argmax(y_true, axis=-1)
    best = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
    return ops.cast(ops.equal(ops.reshape(ops.cast(y_true, "int32"), ops.shape(best)), best), "float32")


def _classes(recipe):
    cross_entropy = {"softmax": SoftmaxCrossEntropy, "sigmoid": SigmoidCrossEntropy}[recipe.loss]
    return cross_entropy(recipe.label_smoothing)


def _precision(outputs):
    area = keras.metrics.AUC(
        curve="PR", multi_label=True, num_labels=outputs, from_logits=True, name="average_precision"
    )
    return [area]


TASKS = {
    "single_label": Task(_classes, lambda outputs: [Accuracy()], "accuracy", True),
    "multi_label": Task(lambda recipe: SigmoidCrossEntropy(), _precision, "average_precision", True),
    "regression": Task(
        lambda recipe: keras.losses.MeanSquaredError(reduction=MEAN),
        lambda outputs: [keras.metrics.MeanAbsoluteError(name="absolute_error")],
        "absolute_error",
        False,
    ),
    # Not a kind of labels: what the patches of an image showed.
    "colors": Task(
        lambda recipe: keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=MEAN),
        lambda outputs: [],
        "loss",
        False,
    ),
    "pixels": Task(
        lambda recipe: keras.losses.MeanSquaredError(reduction=MEAN), lambda outputs: [], "loss", False
    ),
}
