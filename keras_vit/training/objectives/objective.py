"""The definition of an objective without labels, and of the pictures that it adds to a run's report."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from keras_vit.tasks.task import Objective


class Pictures(NamedTuple):
    """A section of a run's report.

    Attributes:
        heading: Its heading.
        words: What is shown, in a sentence or two.
        rows: dict from the title of a row to its images, floats (images, height, width, 1 or 3) in [0, 1].
    """

    heading: str
    words: str
    rows: dict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretraining(Objective):
    """An objective without labels: the model around an encoder that is trained, and its batches.

    Args:
        model: A function from the encoder, a VisionTransformer without a head, and the keyword arguments in
            the recipe's `pretrainer` to the model that is trained, a `Pretrainer`.
        prepare: A function of this model, the training samples and the recipe, which sets what is not trained
            before the first step.
        batches: A function of a tf.data.Dataset of (images, labels), the trained model, and the keyword
            arguments `seed`, `first_step`, `worker` and `workers`, to the batches that `fit` takes.
        augment: A function of the recipe, the trained model, its preprocessing and whether to apply the EXIF
            orientation, to a function from an encoded image and its seed, two ints, to what the model is
            trained on; None: images, changed as the recipe says.
        validate: A function of the encoder, the data set and the recipe, to a dict of scores for the metrics
            of the validation split; None: the loss of its batches.
        scores: A function of the trained model, the encoder of the finished run, the data set and the recipe,
            to a dict of scores for the run's record. They begin with "test_" if they are of the test split.
        figures: A function of the finished run's whole model and some test images, model input as a NumPy
            array, to a list of `Pictures` for the run's report; None for none.
    """

    model: Callable
    batches: Callable
    prepare: Callable = lambda model, samples, recipe: None
    augment: Callable | None = None
    validate: Callable | None = None
    scores: Callable = lambda model, encoder, dataset, recipe: {}
    figures: Callable | None = None
