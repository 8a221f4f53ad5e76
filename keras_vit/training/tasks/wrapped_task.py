"""Tasks that train the model of a task with labels in another way."""

from keras_vit.tasks import get_task


class WrappedTask:
    """A task around another one, which has the data set, the trained model and its scores.

    What a subclass does not define is that of the task `inner`.

    Args:
        config: RunConfig.

    Attributes:
        recipe_fields: Of the class the fields of recipes and runs that `inner` does not use, of an instance
            those of both.
    """

    recipe_fields = ()

    def __init__(self, config):
        self.config = config
        self.inner = get_task(config.recipe.task)
        self.recipe_fields = (*self.inner.recipe_fields, *type(self).recipe_fields)

    def __getattr__(self, name):
        if name == "inner":  # Copies and pickles ask before there is one.
            raise AttributeError(name)
        return getattr(self.inner, name)

    @staticmethod
    def applies(config):
        """Whether a configuration asks for this task."""
        raise NotImplementedError
