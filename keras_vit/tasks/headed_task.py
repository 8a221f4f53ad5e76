"""Tasks whose model is an encoder with a head of its own: segmentation and detection."""

import math

import numpy as np

from keras_vit.models.backbones import backbone
from keras_vit.tasks.task import LabelTask, check_arguments

VALIDATION_BATCH = 64  # of objects or of images with objects, at most


class HeadedTask(LabelTask):
    """A task with labels that move with the image, and a `HeadedModel` around the encoder.

    Attributes:
        head_class: The class of the model, whose `kind` is the name of its arguments in `from_pretrained`.
        outputs_in_words: What the model's outputs are.
    """

    ends_with_tokens = True
    recipe_fields = ("head_options",)
    head_class = outputs_in_words = None

    def check_recipe(self, recipe):
        recipe.check_moves_labels()
        super().check_recipe(recipe)

    def options(self, dataset):
        return {"num_classes": None}

    def loading(self, options, recipe, dataset):
        head = self._head(recipe, dataset)
        return {"representation_size": None, self.head_class.kind: head, **options, "num_classes": 0}

    def around(self, model, config, dataset):
        head = self._head(config.recipe, dataset)
        return self.head_class(model, **head) if backbone(model) is model else model

    def _head(self, recipe, dataset):
        options = recipe.head_options or {}
        check_arguments("head_options", options, self.head_class)
        classes = {"num_classes": len(dataset.class_names), "class_names": dataset.class_names}
        return {**classes, "split_seed": recipe.held_out_seed, **options}

    def check_model(self, model):
        if getattr(model, "task", None) != self.name or model.is_classifier:
            raise ValueError(
                f"expected a model whose outputs are {self.outputs_in_words}, for task {self.name!r}"
            )


class ObjectTask(HeadedTask):
    """A `HeadedTask` whose labels and predictions are objects in images, scored by COCO's average precision.

    Attributes:
        validation_scores: The names of the scores of the validation split.
    """

    validation_metric = primary_metric = "ap"
    primary_metric_title = "AP"
    reads_images = True
    top = 100
    validation_scores = ()

    def validate(self, model, dataset, recipe):
        """The scores of the validation split; none of a split without objects, where they are undefined."""
        size = min(recipe.batch_size, VALIDATION_BATCH)
        scores = self.scores(self.predict(model, dataset.split("validation"), size))
        return {name: scores[name] for name in self.validation_scores if scores[name] is not None}


class MapTask(HeadedTask):
    """A `HeadedTask` whose labels and outputs are maps.

    Attributes:
        max_values: The maximum number of outputs of the images that an export is compared on.
        method: The name of the model's method from images to maps at their own sizes.
    """

    reads_images = True
    max_values = method = None

    def preprocessing(self, model):
        return model.preprocessing

    def check_labels(self, labels, num_outputs):
        for label in labels:
            self.label.check(label[np.newaxis], num_outputs)

    def sampled(self, samples, preprocessing, count):
        from keras_vit.tasks.computing import sampled_maps  # needs TensorFlow

        return sampled_maps(samples, preprocessing, count)

    def max_samples(self, description):
        return max(self.max_values // (math.prod(description.image_size) * description.num_classes), 1)

    def check_samples(self, labels, description):
        self.check_labels(labels, description.num_classes)

    def computed(self, model, samples, batch_size):
        from keras_vit.tasks.computing import computed_maps  # needs TensorFlow

        return computed_maps(model, samples, batch_size)

    def rows(self, model, paths, inputs, top, windows=False, write=None):
        """As in `LabelTask`, of maps at the images' own sizes.

        Args:
            model, paths, inputs, top: As for `LabelTask`.
            windows: Whether to compute images in windows at their own scale; otherwise each is resized to the
                model's size, if it has one.
            write: A function of a path, the image and its map, or None.
        """
        whole = model.preprocessing.image_size is not None and not windows
        for path, image, values in zip(paths, inputs, getattr(model, self.method)(inputs, whole=whole)):
            if write:
                write(path, image, values)
            yield self.row(model, values, top)

    def row(self, model, values, top):
        """What `rows` has of a map."""
        raise NotImplementedError
