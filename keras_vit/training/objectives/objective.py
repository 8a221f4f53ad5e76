"""The definition of an objective without labels."""

import dataclasses
from collections.abc import Callable

from keras_vit.tasks.task import Objective


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretraining(Objective):
    """An objective without labels: the model around an encoder that is trained, and its batches.

    Args:
        model: A function from the encoder, a VisionTransformer without a head, to the model that is trained;
            the encoder is its attribute `encoder`.
        batches: A function of a tf.data.Dataset of (images, labels), the trained model, and the keyword
            arguments `seed`, `first_step`, `worker` and `workers`, to the batches that `fit` takes.
        scores: A function of the trained model, the encoder of the finished run, the data set and the recipe,
            to a dict of scores for the run's record. They begin with "test_" if they are of the test split.
    """

    model: Callable
    batches: Callable
    scores: Callable = lambda model, encoder, dataset, recipe: {}
