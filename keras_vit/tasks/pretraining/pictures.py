"""The defaults of tasks without labels, and the pictures that they add to a run's report."""

from typing import NamedTuple

from keras_vit.tasks.task import Task, check_arguments


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


class Pretraining(Task):
    """A task without labels: the model around an encoder that is trained.

    Args:
        config: RunConfig.
    """

    needs_labels = False
    ends_with_tokens = keeps_whole = True
    recipe_fields = ("pretrainer",)
    model = None  # the class of the model that is trained, a `Pretrainer`

    def __init__(self, config):
        self.config = config

    def around(self, model, config, dataset):
        options = config.recipe.pretrainer or {}
        check_arguments("pretrainer", options, self.model)
        return self.model(model, **options)
