"""Distillation: a student learns to compute what its teachers do."""

from __future__ import annotations

import dataclasses
import functools
import types

import numpy as np
from keras import ops

from keras_vit import rules
from keras_vit.messages import listed
from keras_vit.models.backbones import backbone
from keras_vit.names import COMPUTE_DTYPES
from keras_vit.tasks.distillation import distances
from keras_vit.tasks.distillation.loss import (
    DistillationLoss,
    OutputMetric,
    TeacherMetric,
    student_output,
)
from keras_vit.tasks.distillation.model import DistillationModel, resized_maps
from keras_vit.tasks.distillation.stored_outputs import StoredOutputs, is_stored, open_outputs
from keras_vit.tasks.task import Task, concatenate, names_or_indices
from keras_vit.tasks.wrapped_task import WrappedTask
from keras_vit.weights.load import from_pretrained
from keras_vit.weights.model_digest import model_digest

SOFT, HARD, FEATURES = METHODS = ("soft", "hard", "features")
KL, SIGMOID_KL = distances.softmax_divergence, distances.sigmoid_divergence
AGREEMENT = distances.agreement
# By task the distance that each method minimizes, and the metrics that show how close the student is.
DISTANCES = {
    "single_label": {SOFT: KL, HARD: distances.hard_cross_entropy},
    "multi_label": {SOFT: SIGMOID_KL},
    "regression": {SOFT: distances.squared_difference},
    "segmentation": {SOFT: KL, HARD: distances.hard_cross_entropy},
    "detection": {SOFT: distances.detection_distance},
}
METRICS = {
    "single_label": {"kl": KL, "agreement": AGREEMENT, "agreement_5": functools.partial(AGREEMENT, k=5)},
    "multi_label": {"kl": SIGMOID_KL, "agreement": distances.decision_agreement},
    "regression": {"squared_difference": distances.squared_difference},
    "segmentation": {"kl": KL, "agreement": AGREEMENT},
    "detection": {},
}
# The metrics for data without labels, of which the first one that a task has selects the best checkpoint.
SELECTING = {"agreement": True, "squared_difference": False, "loss": False}  # whether higher is better
WITHOUT_TEMPERATURE = ("regression",)
WITHOUT_LABEL_WEIGHT = ("segmentation",)  # Its loss has a number for each pixel.
NEIGHBORS = 10  # that are compared of each sample
STORED_TASKS = ("single_label", "multi_label", "regression")  # with a vector for each image


@dataclasses.dataclass(frozen=True)
class DistillationOptions:
    """The `distillation` of a recipe.

    Args:
        method: "soft": the teachers' distribution of classes, or numbers; "hard": their highest class;
            "features": what the encoder of the only teacher computes of the image and its patches.
        temperature: Of the distributions, above 0.
        label_weight: Of the loss of the labels, in [0, 1); the other part is that of the teachers.
        teacher_size: (height, width) of the teachers' images in pixels, or one int; None: their own.
        teacher_dtype: "float32", "mixed_bfloat16" or "mixed_float16", in which the teachers compute.
            Neither changes stored outputs.

    Raises:
        ValueError: for a value that is not allowed.

    Example:
        >>> DistillationOptions(temperature=3.0, label_weight=0.9).method
        'soft'
    """

    method: str = rules.field(rules.one_of(METHODS), default=SOFT)
    temperature: float = rules.field(rules.number(above=0), default=1.0)
    label_weight: float = rules.field(rules.number(0, below=1), default=0.0)
    teacher_size: tuple[int, int] | int | None = rules.field(rules.optional(rules.SIZE), default=None)
    teacher_dtype: str = rules.field(rules.one_of(COMPUTE_DTYPES), default="float32")

    def __post_init__(self):
        rules.check_fields(self)
        if self.method != SOFT and self.temperature != 1:
            raise ValueError(f"temperature needs method {SOFT!r}; got {self.method!r}")
        if self.method == FEATURES and self.label_weight:
            raise ValueError("features are learned without labels: expected label_weight=0")


def options_of(config):
    """The `DistillationOptions` of a RunConfig.

    Raises:
        ValueError: for an unknown or a wrong option, or without teachers.
    """
    options = config.recipe.distillation or {}
    known = [field.name for field in dataclasses.fields(DistillationOptions)]
    if unknown := options.keys() - {*known}:
        raise ValueError(
            f"expected {', '.join(known)} in the recipe's distillation; got {listed(sorted(unknown))}"
        )
    if not config.teachers:
        raise ValueError("distillation needs teachers: expected --teacher with a checkpoint or a run")
    if config.recipe.task in WITHOUT_TEMPERATURE and options.get("temperature", 1) != 1:
        raise ValueError(f"numbers have no temperature: expected 1; got {options['temperature']}")
    return DistillationOptions(**options)


class _Taught(Task):
    """What tasks with teachers share.

    Attributes:
        config: RunConfig.
        options_of_teachers: Its `DistillationOptions`.
        teachers: Those of the last model that was built, each a model on the devices of its run.
    """

    recipe_fields = ("distillation", "teachers")

    def loaded(self, **options):
        """Load the teachers.

        Args:
            **options: Arguments of `from_pretrained`.
        """
        size, dtype = self.options_of_teachers.teacher_size, self.options_of_teachers.teacher_dtype
        options |= {"dtype": dtype} | ({} if size is None else {"image_size": size})
        return [
            open_outputs(source) if is_stored(source) else from_pretrained(source, **options)
            for source in self.config.teachers
        ]

    def draw_differences(self, report, model, samples, split, batch_size):
        from keras_vit.tasks.distillation.report import add_differences  # needs the packages of reports

        add_differences(report, self, model, samples, split, batch_size)

    def preprocessing(self, model):
        return model.preprocessing

    def identity(self):
        return {
            "teachers": [
                teacher.digest if isinstance(teacher, StoredOutputs) else model_digest(teacher)
                for teacher in self.teachers
            ]
        }


class LogitDistillation(_Taught, WrappedTask):
    """The outputs of one teacher or several, of the same classes, beside the labels or without any.

    Args:
        config: RunConfig.
        needs_labels: Whether the data set has to have labels. Otherwise the student has the teacher's
            classes, and labels of the same classes are only used for scores.

    Raises:
        ValueError: for a task or an option that does not go with the method.

    Source: Beyer et al. 2022 ("A good teacher is patient and consistent", arXiv 2106.05237) and
    `big_vision/trainers/proj/distill`; with labels Touvron et al. 2021 (DeiT, arXiv 2012.12877), section 4.
    """

    def __init__(self, config, needs_labels=True):
        super().__init__(config)
        options, recipe = options_of(config), config.recipe
        self.options_of_teachers = options
        self.needs_labels, self.has_labels = needs_labels, needs_labels
        known = DISTANCES.get(recipe.task, {})
        if options.method not in known:
            expected = " or ".join(map(repr, known)) or f"a task among {', '.join(DISTANCES)}"
            raise ValueError(
                f"expected distillation by {expected}; got method {options.method!r} of task {recipe.task!r}"
            )
        self.distance = known[options.method]
        if options.label_weight and (not needs_labels or recipe.task in WITHOUT_LABEL_WEIGHT):
            subject = f"task {recipe.task!r}" if needs_labels else "a run without labels"
            raise ValueError(f"expected label_weight=0 for {subject}; got {options.label_weight}")
        unused = [name for name in ("label_smoothing", "class_weights") if getattr(recipe, name)]
        if unused and not options.label_weight:
            raise ValueError(f"{unused[0]} changes the loss of the labels: expected a label_weight above 0")
        if sources := [*filter(is_stored, config.teachers)]:
            _check_stored(sources[0], recipe)
        if self.distance is KL and recipe.loss == "sigmoid":
            self.distance = SIGMOID_KL
        if not needs_labels:
            self.validate = None
            self.recipe_fields = tuple(name for name in self.recipe_fields if name != "probe_first")
            scored = (*METRICS[recipe.task], "loss")
            self.validation_metric = next(name for name in SELECTING if name in scored)
            self.higher_is_better = SELECTING[self.validation_metric]

    @staticmethod
    def applies(config):
        return has_teachers(config) and _method(config) != FEATURES

    def labels_of(self, dataset):
        """The data set, or the classes of the first teacher in its place."""
        if self.needs_labels:
            return dataset
        teacher = self.teachers[0]
        self.inner.check_model(teacher)
        return types.SimpleNamespace(class_names=names_or_indices(teacher.class_names, teacher.num_classes))

    def options(self, dataset):
        self.teachers = self.loaded()
        return self.inner.options(self.labels_of(dataset))

    def loading(self, options, recipe, dataset):
        return self.inner.loading(options, recipe, self.labels_of(dataset))

    def around(self, model, config, dataset):
        self.dataset = dataset
        student = self.inner.around(model, config, self.labels_of(dataset))
        names = names_or_indices(student.class_names, student.num_classes)
        self.has_labels = self.needs_labels or [*map(str, dataset.class_names)] == [*map(str, names)]
        for source, teacher in zip(config.teachers, self.teachers):
            self.inner.check_model(teacher)
            teacher_names = names_or_indices(teacher.class_names, teacher.num_classes)
            if teacher.num_classes != len(names) or (teacher.class_names and [*teacher_names] != [*names]):
                raise ValueError(
                    f"expected a teacher of the student's {len(names)} classes ({listed(names)}); "
                    f"{source} has {len(teacher_names)} ({listed(teacher_names)})"
                )
        if getattr(student, "distillation", False) and not self.options_of_teachers.label_weight:
            raise ValueError(
                "expected a label_weight above 0 for a student with a distillation token, whose class token "
                f"learns only the labels; got {self.options_of_teachers.label_weight}"
            )
        return DistillationModel(student, self.teachers)

    def prepare(self, model, samples, recipe):
        super().prepare(model, samples, recipe)
        for source, teacher in zip(self.config.teachers, self.teachers):
            if not isinstance(teacher, StoredOutputs):
                continue
            if samples.order != "index":
                raise ValueError(
                    f"expected samples that are accessed by index, as in a folder or in tar files, for the "
                    f"teacher {source}; got the order {samples.order!r}"
                )
            for part in (samples, self.dataset.split("validation"), self.dataset.split("test")):
                teacher.rows(part)  # It refuses other data, before the first step.

    def batches(self, batches, model, source, **place):
        if self.options_of_teachers.label_weight:
            batches = super().batches(batches, model, source, **place)
        arrays = {
            f"teacher_{number}_outputs": teacher.rows(source.samples)
            for number, teacher in enumerate(self.teachers, 1)
            if isinstance(teacher, StoredOutputs)
        }
        if not arrays:
            return batches
        from keras_vit.training.batch_rows import batch_indices, with_inputs  # needs TensorFlow

        recipe = source.recipe
        if source.split != "train":
            place["first_step"] = None
        place |= {"seed": recipe.seed, "steps": recipe.total_steps}
        indices = batch_indices(len(source.samples), recipe.batch_size, **place)
        return with_inputs(batches, indices, arrays)

    def loss(self, recipe, model):
        options = self.options_of_teachers
        distance = functools.partial(self.distance, temperature=options.temperature)
        labels = super().loss(recipe, model) if options.label_weight else None
        return DistillationLoss(distance, model.students, options.label_weight, labels)

    def metrics(self, model):
        student, students = model.trained(), model.students
        shown = [
            TeacherMetric(function, students, name=name)
            for name, function in self._metrics(student.output_shape[-1]).items()
        ]
        if not self.has_labels:
            return shown
        selected = {"": functools.partial(student_output, students=students)}
        for number, name in enumerate(self._prefixes()):
            selected[name] = lambda outputs, row=students + number: outputs[:, row]
        return shown + [
            OutputMetric(metric, select, prefix + metric.name)
            for prefix, select in selected.items()
            for metric in self.inner.metrics(student)
        ]

    def test(self, model, finished, dataset, recipe):
        samples, batch_size = dataset.split("test"), recipe.batch_size
        scores, teachers = {"samples": len(samples)}, self.loaded()
        if self.has_labels:
            scores = super().test(model, finished, dataset, recipe)
            for prefix, teacher in zip(self._prefixes(), teachers):
                if isinstance(teacher, StoredOutputs):
                    predictions = self._predictions(teacher, samples, finished.preprocessing, batch_size)
                else:
                    predictions = self.inner.checked_predictions(teacher, samples, batch_size)
                teacher_scores = self.inner.scores(predictions)
                scores[prefix + self.inner.primary_metric] = teacher_scores[self.inner.primary_metric]
        differences = self.differences(finished, teachers, samples, batch_size)
        return scores | {name: float(values.mean()) for name, values in differences.items()}

    def differences(self, student, teachers, samples, batch_size):
        """The metrics of the student's closeness to its teachers, for each sample of a split.

        Returns:
            dict from the names of `METRICS` to float arrays (samples,), the mean over the teachers.
        """
        from keras_vit.tasks.computing import computed  # needs TensorFlow

        functions = self._metrics(student.num_classes)
        rows = {name: [] for name in functions}
        if not functions:
            return {}
        streams = [
            _batches_of_rows(model.rows(samples), batch_size)
            if isinstance(model, StoredOutputs)
            else computed(model.predict_on_batch, samples, model.preprocessing, batch_size)
            for model in (student, *teachers)
        ]
        for batch in zip(*streams):
            outputs, *targets = (output for output, _ in batch)
            targets = [np.asarray(resized_maps(target, outputs.shape[1:3])) for target in targets]
            for name, function in functions.items():
                values = [np.asarray(function(target, outputs)) for target in targets]
                rows[name].append(np.mean(values, axis=0))
        return {name: np.concatenate(values) for name, values in rows.items()}

    def _predictions(self, teacher, samples, preprocessing, batch_size):
        """The predictions of `StoredOutputs` for a split; some data have labels only beside the images."""
        from keras_vit.data.batches import evaluation_batches  # needs TensorFlow

        rows = _batches_of_rows(teacher.rows(samples), batch_size)
        batches = evaluation_batches(samples, preprocessing, batch_size).as_numpy_iterator()
        parts = [self.inner.predictions(outputs, labels) for (outputs, _), (_, labels) in zip(rows, batches)]
        return concatenate(parts)

    def _metrics(self, classes):
        """The functions of `METRICS` for this number of classes."""
        metrics = METRICS[self.config.recipe.task]
        return {name: metric for name, metric in metrics.items() if name != "agreement_5" or classes > 5}

    def _prefixes(self):
        """What the names of each teacher's scores begin with."""
        count = len(self.config.teachers)
        return ["teacher_"] if count == 1 else [f"teacher_{number}_" for number in range(1, count + 1)]


class FeatureDistillation(_Taught):
    """The features of a teacher's encoder, without labels, by an encoder without a head.

    If there are labels, the finished encoder is scored by those of the nearest training images.

    Args:
        config: RunConfig.

    Source: Ranzinger et al. 2024 (AM-RADIO, arXiv 2312.06709), of one teacher.
    """

    needs_labels = False
    ends_with_tokens = True

    def __init__(self, config):
        self.config, self.options_of_teachers = config, options_of(config)
        if sources := [*filter(is_stored, config.teachers)]:
            raise ValueError(f"expected a model as teacher of features; got {sources[0]}")

    @staticmethod
    def applies(config):
        return has_teachers(config) and _method(config) == FEATURES

    def loaded(self, **options):
        return super().loaded(num_classes=0, representation_size=None, **options)

    def around(self, model, config, dataset):
        self.teachers = self.loaded()
        return DistillationModel(backbone(model), [backbone(teacher) for teacher in self.teachers], True)

    def loss(self, recipe, model):
        return DistillationLoss(distances.feature_distance)

    def metrics(self, model):
        return [
            TeacherMetric(lambda x, y: distances.cosine(x[:, 0], y[:, 0]), name="image_cosine"),
            TeacherMetric(
                lambda x, y: ops.mean(distances.cosine(x[:, 1:], y[:, 1:]), axis=1), name="patch_cosine"
            ),
        ]

    def test(self, model, finished, dataset, recipe):
        from keras_vit import evaluation  # needs TensorFlow

        train, test, scores = dataset.split("train"), dataset.split("test"), {}
        if dataset.class_names and recipe.task == "single_label":
            scores["knn_accuracy"] = evaluation.knn(finished, train, test)
        differences = self.differences(finished, self.loaded(), test, recipe.batch_size)
        scores |= {name: float(values.mean()) for name, values in differences.items()}
        return {**scores, "samples": len(test)}

    def differences(self, student, teachers, samples, batch_size):
        """The `neighbor_difference` of the student's and the teacher's representations, for each sample.

        Returns:
            dict from "neighbor_difference" to a float array (samples,); empty for a single sample.
        """
        from keras_vit import evaluation  # needs TensorFlow

        if len(samples) < 2:
            return {}
        features = [evaluation.representations(one, samples, batch_size)[0] for one in (student, *teachers)]
        k = max(1, min(NEIGHBORS, len(samples) // 10))  # All others would be the same for any features.
        return {"neighbor_difference": evaluation.neighbor_difference(*features, k)}


def without_labels(config):
    """The task of `keras-vit pretrain --objective distill`."""
    return FeatureDistillation(config) if _method(config) == FEATURES else LogitDistillation(config, False)


def has_teachers(config):
    """Whether a RunConfig has teachers, or a recipe for them."""
    return bool(config.teachers) or config.recipe.distillation is not None


def _check_stored(source, recipe):
    """Raise ValueError for a recipe that cannot use outputs that were computed before."""
    if recipe.task not in STORED_TASKS:
        raise ValueError(
            f"expected a model as teacher of task {recipe.task!r}; got {source}, which has a vector for each "
            "image"
        )
    if recipe.mixes:
        raise ValueError(
            f"{source} has no outputs of mixed images: expected mixup=0 and cutmix=0; got mixup="
            f"{recipe.mixup} and cutmix={recipe.cutmix}"
        )


def _batches_of_rows(rows, batch_size):
    """Yield rows as `computed` does outputs, without labels."""
    for first in range(0, len(rows), batch_size):
        yield rows[first : first + batch_size].astype("float32"), None


def _method(config):
    return (config.recipe.distillation or {}).get("method", SOFT)
