"""Tasks that train the model of a task with labels in another way."""

from keras_vit.tasks import get_task
from keras_vit.tasks.task import Task


class WrappedTask(Task):
    """A task around another one, which has the data set, the trained model and its scores.

    Args:
        config: RunConfig.

    Attributes:
        inner: The other task.
        recipe_fields: Of the class the fields of recipes and runs that `inner` does not use, of an instance
            those of both.
    """

    def __init__(self, config):
        self.config = config
        self.inner = inner = get_task(config.recipe.task)
        self.recipe_fields = (*inner.recipe_fields, *type(self).recipe_fields)
        self.name, self.label = inner.name, inner.label
        self.validation_metric, self.higher_is_better = inner.validation_metric, inner.higher_is_better
        self.augment, self.validate, self.figures = inner.augment, inner.validate, inner.figures

    @staticmethod
    def applies(config):
        """Whether a configuration asks for this task."""
        raise NotImplementedError

    def check_recipe(self, recipe):
        self.inner.check_recipe(recipe)

    def options(self, dataset):
        return self.inner.options(dataset)

    def loading(self, options, recipe, dataset):
        return self.inner.loading(options, recipe, dataset)

    def around(self, model, config, dataset):
        return self.inner.around(model, config, dataset)

    def preprocessing(self, model):
        return self.inner.preprocessing(model)

    def prepare(self, model, samples, recipe):
        self.inner.prepare(model.trained(), samples, recipe)

    def note(self, model):
        return self.inner.note(model.trained())

    def label_shape(self, model, recipe):
        return self.inner.label_shape(model.trained(), recipe)

    def batches(self, batches, model, source, **place):
        return self.inner.batches(batches, model.trained(), source, **place)

    def loss(self, recipe, model):
        return self.inner.loss(recipe, model.trained())

    def metrics(self, model):
        return self.inner.metrics(model.trained())

    def test(self, model, finished, dataset, recipe):
        return self.inner.test(model.trained(), finished, dataset, recipe)

    def classifier(self, finished, dataset):
        return self.inner.classifier(finished, dataset)

    def confidence(self, output):
        return self.inner.confidence(output)
