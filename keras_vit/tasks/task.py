"""The defaults that each task overrides, and how predictions of whole batches are stored."""

import dataclasses
import inspect
from typing import Any, NamedTuple

import numpy as np

from keras_vit.messages import did_you_mean
from keras_vit.models.backbones import backbone
from keras_vit.models.classifying import check_head, classified

# Arguments of a model around an encoder that a run sets itself.
_OF_RUN = ("self", "encoder", "num_classes", "class_names", "split_seed", "dtype", "name", "trainable")


class Source(NamedTuple):
    """Where a run's batches come from.

    Attributes:
        dataset: `Dataset`.
        split: Name of the split.
        samples: Its samples, or a part of them.
        recipe: `Recipe`.
    """

    dataset: Any
    split: str
    samples: Any
    recipe: Any


class Task:
    """What a model is trained for; each task overrides what differs.

    Attributes:
        name: Its name in recipes, files and on the command line; None of pairs, which `image_text` chooses.
        validation_metric: The name of the loss or metric on the validation split that selects the best
            checkpoint.
        higher_is_better: Whether the best checkpoint has its highest value.
        label: Its `LabelKind`; None for a task without labels.
        is_same_class: A function of two names, whether they mean the same class; None:
            `weights.class_names.is_same_class`.
        needs_labels: Whether its data sets need labels; otherwise it takes folders of images without any.
        reads_texts: Whether its data sets have texts.
        recipe_fields: The fields of a recipe that this task uses, of those that not every task does.
        ends_with_tokens: Whether the encoder that is trained has no layers after its tokens.
        keeps_whole: Whether a run keeps the whole model, of which only the encoder is used afterwards.
        augment: A method of the recipe, the trained model, its preprocessing and whether to apply the EXIF
            orientation, to a function from an encoded image and its seed, two ints, to what the model is
            trained on; None: images, changed as the recipe says.
        validate: A method of the encoder, the data set and the recipe, to a dict of scores for the metrics of
            the validation split; None: the loss and metrics of its batches.
        draw_differences: A method of the run's report, the finished model, a split, its title and a batch
            size, that shows where the model and its teachers differ most; None for a task without teachers.
        figures: A method of the finished run's whole model and some test images, model input as a NumPy
            array, to a list of `Pictures` for the run's report; None for none.
    """

    name = None
    validation_metric = "loss"
    higher_is_better = False
    label = is_same_class = None
    needs_labels = True
    reads_texts = ends_with_tokens = keeps_whole = False
    recipe_fields = ()
    augment = validate = draw_differences = figures = None

    def check_recipe(self, recipe):
        """Raise ValueError for a recipe with what this task does not have."""

    def loss(self, recipe, model):
        """A Keras loss for a `Recipe` and the trained model; None where the model computes its own."""

    def metrics(self, model):
        """A list of Keras metrics for the trained model."""
        return []

    def options(self, dataset):
        """The arguments of the `VisionTransformer` for a data set's classes."""
        return {"num_classes": None}

    def loading(self, options, recipe, dataset):
        """The arguments of `from_pretrained` for a run that starts from weights.

        Args:
            options: The arguments of a new `VisionTransformer`.
            recipe: `Recipe`.
            dataset: `Dataset`.
        """
        return {"representation_size": None, **options, "num_classes": 0}  # 0 drops the file's head.

    def around(self, model, config, dataset):
        """The model of a run.

        Args:
            model: What the weights hold, or a new `VisionTransformer`.
            config: RunConfig.
            dataset: `Dataset`.
        """
        return model

    def preprocessing(self, model):
        """The `Preprocessing` of a run's model, or a dict of them by the names of several inputs."""
        return backbone(model).preprocessing

    def identity(self):
        """What a run depends on beside its configuration and its data set: a dict of JSON values."""
        return {}

    def prepare(self, model, samples, recipe):
        """Set what is not trained, from the training samples, before the first step."""

    def note(self, model):
        """A line about the model, for the beginning of its training; None for none."""

    def batches(self, batches, model, source, **place):
        """The batches that `fit` takes.

        Args:
            batches: tf.data.Dataset of (images, labels), or of what `augment` returns instead of images.
            model: The trained model.
            source: `Source` of the batches.
            **place: `seed`, `first_step`, `worker` and `workers`.
        """
        return batches

    def test(self, model, finished, dataset, recipe):
        """The scores on the test split for a run's record, of the trained model and the finished one."""
        return {}


class LabelTask(Task):
    """A task with labels: how outputs are scored and described.

    `predictions` below is what `predictions(outputs, labels)` returns for a batch, or `concatenate` for
    several. `names` is a name for each output.

    Attributes:
        label: Its `LabelKind`.
        primary_metric: The key of the most important score.
        primary_metric_title: Its name in a report.
        bounds_exports: Whether exports in integers are refused whose primary metric, a fraction, is below the
            95 % interval of the live model's.
        per_class: A method from predictions and names to a dict for each class, or None.
        class_score: The key of these dicts by which a report lists the worst of many classes.
        confusion: A method from predictions to the confusion matrix of images or pixels, or None.
        reads_images: Whether `rows` takes images, uint8 (height, width, 3), in place of model input.
        title: The task in words, such as "image classification".
        slug: The same on Kaggle.
        top: The number of classes or objects in a row of predictions, unless another is given.
    """

    higher_is_better = True
    recipe_fields = ("class_weights", "probe_first", "head_bias")
    primary_metric = primary_metric_title = title = slug = None
    per_class = class_score = confusion = None
    reads_images = bounds_exports = False
    top = 5

    @property
    def name(self):
        return self.label.name

    def check_recipe(self, recipe):
        if recipe.label_smoothing or recipe.mixes or recipe.class_weights is not None:
            raise ValueError(
                f"label_smoothing, class_weights, mixup and cutmix need single labels; got task {self.name!r}"
            )

    def options(self, dataset):
        return {"num_classes": len(dataset.class_names), "class_names": dataset.class_names}

    def loading(self, options, recipe, dataset):
        return {"representation_size": None, "kind": "classifier", "head": "reset", **options}

    def around(self, model, config, dataset):
        self.check_model(model)
        if config.recipe.head_bias:
            for name in ("head", "head_distillation")[: 1 + model.distillation]:
                bias = model.get_layer(name).bias
                bias.assign(np.full(bias.shape, config.recipe.head_bias, "float32"))
        return model

    def label_shape(self, model, recipe):
        """(shape, dtype) of an image's label in the batches of training."""
        return (model.output_shape[-1],), "float32"

    def test(self, model, finished, dataset, recipe):
        return self.scores(self.checked_predictions(finished, dataset.split("test"), recipe.batch_size))

    def rows(self, model, paths, inputs, top):
        """Predict a batch.

        Args:
            model: A model of this task, or an `ExportedModel`.
            paths: Of the images.
            inputs: The model input, or with `reads_images` a list of images.
            top: The number of classes in a row.

        Returns:
            For each image a dict of `classes`: dicts of `name` and `probability`, by decreasing probability;
            or of a regression `values`.
        """
        return [
            {"classes": [{"name": name, "probability": score} for name, score in best]}
            for best in classified(model, inputs, top, self.name)
        ]

    def value_names(self, model):
        """The name of each of the `values` in `rows`; None where there are classes."""

    def judged_by(self, model):
        """The `primary_metric` of a model, or of its `Description`, and its title."""
        return self.primary_metric, self.primary_metric_title

    def draw_predictions(self, report, model, inputs, names):
        """Draw the predictions for named model inputs in a report, where a table says too little."""

    def sampled(self, samples, preprocessing, count):
        """Images sampled evenly from a split.

        Args:
            samples: A split of a `Dataset`.
            preprocessing: An export's, to float32 in [0, 1].
            count: The maximum number of images.

        Returns:
            (images (n, height, width, channels), labels); class maps are a list, each of its image's own
            size.

        Raises:
            ValueError: if there are no samples, or they have another number of channels.

        Example:
            >>> from keras_vit.export.description import describe
            >>> from keras_vit.tasks import get_task
            >>> samples, preprocessing = load_dataset("digits").split("test"), describe(model).preprocessing
            >>> [len(part) for part in get_task("single_label").sampled(samples, preprocessing, 100)]
            [100, 100]
        """
        from keras_vit.tasks.computing import sampled_images  # needs TensorFlow

        return sampled_images(samples, preprocessing, count)

    def max_samples(self, description):
        """The maximum number of images whose outputs an export is compared on; None for any."""

    def check_samples(self, labels, description):
        """Raise ValueError unless the labels of `sampled` fit an export's `Description`."""
        if description.is_classifier:
            self.check_labels(labels, description.num_classes)

    def compared(self, reference, outputs, labels, description):
        """Compare the outputs of an export with those of the live model.

        Args:
            reference: The live model's outputs.
            outputs: The export's, or its decisions.
            labels: The labels of `sampled`; None for noise.
            description: The `Description` of the export.

        Returns:
            (the fraction of equal decisions or None, the export's predictions or None).
        """
        if labels is None or not description.is_classifier:
            return None, None
        return self.label.agreement(reference, outputs), self.predictions(outputs, labels)

    def classifier(self, finished, dataset):
        """The finished model of a run, as what this task scores."""
        return finished

    def confidence(self, output):
        """The end of a caption of a prediction; empty where no probability belongs to it."""
        return ""

    def checked_predictions(self, model, samples, batch_size):
        """As `predict`, after `check_model`."""
        self.check_model(model)
        return self.predict(model, samples, batch_size)

    def check_model(self, model):
        """Raise ValueError unless a model, or an exported one, has the outputs of this task."""
        check_head(model)

    def check_labels(self, labels, num_outputs):
        """Raise ValueError unless the labels of a batch fit a model with this number of outputs."""
        self.label.check(labels, num_outputs)

    def predict(self, model, samples, batch_size):
        """The predictions of a model for all samples of a split."""
        if samples.labels:  # Some data sets know their labels before they read the images.
            self.check_labels(np.asarray(samples.labels), model.num_classes)
        predictions = []
        for outputs, labels in self.computed(model, samples, batch_size):
            self.check_labels(labels, model.num_classes)
            predictions.append(self.predictions(outputs, labels))
        return concatenate(predictions)

    def computed(self, model, samples, batch_size):
        """Yield the outputs of a model for each batch of a split, and its labels."""
        from keras_vit.tasks.computing import computed  # needs TensorFlow

        return computed(model.predict_on_batch, samples, model.preprocessing, batch_size)

    def predictions(self, outputs, labels):
        """What the methods below need of outputs (batch, outputs) and labels."""
        return Outputs(outputs.astype("float32"), labels.astype("float32"))

    def scores(self, predictions):
        """A dict of scores."""
        raise NotImplementedError

    def confusion_names(self, names):
        """The names of the rows of the confusion matrix, from those of the outputs."""
        return names

    def errors(self, predictions):
        """An error for each sample."""
        raise NotImplementedError

    def correct(self, predictions):
        """A bool for each sample."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Outputs:
    """Predictions of a task whose labels are a number for each output.

    Args:
        outputs, labels: float32 (samples, outputs).
    """

    outputs: np.ndarray
    labels: np.ndarray


def concatenate(predictions: list[Any]):
    """Join the predictions of several batches."""
    first = predictions[0]
    columns = zip(*(vars(part).values() for part in predictions))
    return type(first)(
        *(np.concatenate(column) if isinstance(column[0], np.ndarray) else column[0] for column in columns)
    )


def names_or_indices(names, count):
    """A list of `count` names; indices where `names` is None."""
    names = list(names) if names else [str(i) for i in range(count)]
    if len(names) != count:
        raise ValueError(f"expected {count} class names; got {len(names)}")
    return names


def check_shapes(names, outputs, labels):
    """Raise ValueError unless two arrays have one shape (samples, outputs), with a sample or more."""
    if outputs.shape != labels.shape or outputs.ndim != 2 or not len(outputs):
        raise ValueError(
            f"expected {names} of one shape (samples, outputs), with at least one sample; got "
            f"{outputs.shape} and {labels.shape}"
        )


def check_arguments(field, given, make):
    """Raise ValueError unless a field of the recipe has arguments of a model around an encoder."""
    names = inspect.signature(make.__init__ if isinstance(make, type) else make).parameters
    names = [name for name in names if name not in _OF_RUN]
    if unknown := [name for name in given if name not in names]:
        raise ValueError(
            f"expected {', '.join(names) or 'no arguments'} in the recipe's {field}; got "
            f"{', '.join(map(str, unknown))}{did_you_mean(unknown[0], names)}"
        )
