"""A student and its teachers in one model, whose output has the outputs of all."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.interpolation import interpolation_weights
from keras_vit.layers.configurable import HoldsModel
from keras_vit.layers.dense import Dense
from keras_vit.layers.hints import as_head, never_trained
from keras_vit.models.backbones import backbone
from keras_vit.models.configured import ConfiguredModel
from keras_vit.models.features import patch_grid
from keras_vit.models.vit.geometry import DYNAMIC_SIZE
from keras_vit.models.vit.pooling import token
from keras_vit.tasks.distillation.stored_outputs import StoredOutputs


class DistillationModel(ConfiguredModel):
    """A student that is trained to compute what its teachers do.

    The teachers have no gradient, no dropout and their own dtypes. A run's checkpoints do not contain their
    weights. `trained()` is the student; a `DistillationModel` itself is not saved.

    Args:
        student: A model of images of one size: a `VisionTransformer` with or without a head, or one with a
            head of its own such as an `ImageSegmenter`.
        teachers: A list of one model or several; without `features` of the student's kind and classes, or
            a `keras_vit.tasks.distillation.stored_outputs.StoredOutputs` of these classes.
        features: Whether the outputs are the encoders' features: a vector of the image (the class token, the
            output of pooling "map", or the mean of the patches) and those of its patches. Two dense layers
            project the student's to the size of the teacher's, whose patches are resized to the student's
            grid.
        name, trainable: As of any Keras model.

    Input: the student's images; or, if a teacher reads images of another size or another way to resize them,
    a dict of `images` and of `teacher_1_images` and so on: the same pictures, prepared for this teacher; or
    `teacher_1_outputs`, (batch, classes), of a `StoredOutputs`.
    Output: float32 (batch, students + teachers, …): the student's outputs, of which a model with a
    distillation token has one for each of its two heads; then those of the teachers. Maps of another size
    than the student's are resized to it.

    Raises:
        ValueError: for no teachers, several or `StoredOutputs` with `features`, outputs that cannot be
            compared, or a student that packs patches, reads any image size or has queries.

    Example:
        >>> teacher = keras_vit.VisionTransformer(32, 8, 48, 3, 96, 3, num_classes=5)
        >>> student = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3, num_classes=5)
        >>> distillation = DistillationModel(student, [teacher])
        >>> distillation(np.zeros((1, 32, 32, 3))).shape
        TensorShape([1, 2, 5])
        >>> distillation.compile("adam", keras_vit.training.DistillationLoss())
        >>> history = distillation.fit(np.zeros((4, 32, 32, 3)), np.zeros(4), verbose=0)

    Source: Beyer et al. 2022 ("A good teacher is patient and consistent", arXiv 2106.05237).
    """

    backbone_argument = "student"
    takes_images = False
    is_classifier = False
    without_head = "this model is only trained; use its student, `model.trained()`"

    def __init__(
        self,
        student: keras.Model,
        teachers: Sequence[keras.Model | StoredOutputs],
        features: bool = False,
        name: str = "distillation",
        trainable: bool = True,
    ) -> None:
        _check(student, teachers, features)
        images, reads = student.input, student.preprocessing
        inputs, preprocessing, targets = {"images": images}, {"images": reads}, []
        student_output = _features(student).output if features else student.output
        size = (student_output["grid"] if features else student_output).shape[1:3]
        for number, teacher in enumerate(teachers, 1):
            if isinstance(teacher, StoredOutputs):
                key = f"teacher_{number}_outputs"
                inputs[key] = keras.Input((teacher.num_classes,), name=key, dtype="float32")
                targets.append(inputs[key])
                continue
            key, wants = f"teacher_{number}_images", teacher.preprocessing
            if _shows_the_same(reads, wants):
                x, (scale, offset) = images, _conversion(reads, wants)
            else:
                x, scale, offset = keras.Input((*wants.image_size, wants.channels), name=key), 1.0, 0.0
                inputs[key], preprocessing[key] = x, wants
            network = _features(teacher) if features else teacher
            targets.append(Teacher(network, scale, offset, size, name=f"teacher_{number}")(x))
        rows = [_projected(student_output, targets[0], student.dtype_policy)] if features else _heads(student)
        num_students = len(rows)
        rows += [_in_rows(**target) for target in targets] if features else targets
        outputs = ops.stack([ops.cast(row, "float32") for row in rows], axis=1)
        super().__init__(inputs if len(inputs) > 1 else images, outputs, name=name, trainable=trainable)
        self.dtype_policy = student.dtype_policy
        self.students = num_students
        # Keras would take them for layers of this model, which has theirs already.
        vars(self).update(student=student, text_preprocessing=student.text_preprocessing)
        # Nothing is computed once for all steps if some of it comes with each batch.
        is_stored = any(isinstance(teacher, StoredOutputs) for teacher in teachers)
        vars(self).update(head_inputs=[] if is_stored else [images, *keras.tree.flatten(targets)])
        vars(self).update(preprocessing=preprocessing if len(preprocessing) > 1 else reads)

    def trained(self) -> keras.Model:
        return self.student

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raise ValueError: the student is what is saved."""
        raise ValueError("a DistillationModel is not saved; save its student, `model.trained()`")

    def get_config(self) -> dict[str, Any]:
        self.save()


class Teacher(HoldsModel, keras.layers.Layer):
    """The outputs of a model for the student's images, without a gradient and without dropout.

    Args:
        network: The model.
        scale, offset: Numbers, or arrays with one for each channel, that convert the student's images to the
            network's.
        size: (height, width) that maps among the outputs, (batch, height, width, channels), are resized to.

    Example:
        >>> Teacher(model, 1.0, 0.0, (4, 4))(np.zeros((1, 32, 32, 3))).shape
        TensorShape([1, 10])
    """

    def __init__(self, network, scale, offset, size, **kwargs):
        super().__init__(dtype=network.dtype_policy, autocast=False, **kwargs)
        self.network = network
        self.scale, self.offset, self.size = scale, offset, size
        never_trained(self)
        for weight in self.weights:
            weight.in_checkpoints = False

    def call(self, images):
        outputs = self.network(images * self.scale + self.offset, training=False)
        return keras.tree.map_structure(
            lambda x: resized_maps(ops.cast(ops.stop_gradient(x), "float32"), self.size), outputs
        )


def resized_maps(outputs, size):
    """Maps (batch, height, width, channels), resized to (height, width); other outputs are not changed.

    >>> resized_maps(np.zeros((1, 4, 4, 3)), (2, 2)).shape, resized_maps(np.zeros((1, 3)), (2, 2)).shape
    (TensorShape([1, 2, 2, 3]), (1, 3))
    """
    if len(outputs.shape) < 4 or outputs.shape[1:3] == size:
        return outputs
    # Products, since TensorFlow resizes with antialiasing on the CPU alone, and not under XLA.
    by_row, by_column = (
        interpolation_weights(np.arange(new), new, old, "bilinear_antialias").astype("float32")
        for new, old in zip(size, outputs.shape[1:3])
    )
    return ops.einsum("ij,bjkc,lk->bilc", by_row, outputs, by_column)


def _check(student, teachers, features):
    """Raise ValueError for models that cannot be the student and the teachers of a `DistillationModel`."""
    if not teachers or features and len(teachers) > 1:
        raise ValueError(f"expected {'one teacher' if features else 'teachers'}; got {len(teachers)}")
    models = [teacher for teacher in teachers if not isinstance(teacher, StoredOutputs)]
    if features and not models:
        raise ValueError("expected a teacher with features; got stored outputs")
    for model in (student, *models):
        backbone(model).check_one_size("distillation")
        if backbone(model).image_size == DYNAMIC_SIZE:
            raise ValueError(f"expected models for one image size; {model.name} reads any")
    if getattr(student, "head", None) == "mask":
        raise ValueError("expected a student whose head has no queries; got head='mask'")
    if features:
        if student is not backbone(student) or student.num_classes is not None:
            raise ValueError("expected a student without a head, whose features are trained")
        return
    shape = student.output_shape[1:]
    for teacher in teachers:
        is_map = len(shape) == len(teacher.output_shape[1:]) == 3
        expected, got = (of[-1:] if is_map else of for of in (shape, teacher.output_shape[1:]))
        if got != expected:
            raise ValueError(
                f"expected teachers with outputs of the shape {expected}, as the student's; got {got}"
            )


def _shows_the_same(reads, wants):
    """Whether two preprocessings differ at most in the mean and the standard deviation."""
    same = dataclasses.replace(wants, mean=reads.mean, std=reads.std)
    return reads.channels == wants.channels and same == reads


def _conversion(reads, wants):
    """(scale, offset) from what one preprocessing makes of an image to what another one does."""
    mean, std, other_mean, other_std = (
        np.array(values, "float32") for values in (reads.mean, reads.std, wants.mean, wants.std)
    )
    return std / other_std, (mean - other_mean) / other_std


def _heads(student):
    """The outputs that are trained: those of both heads of a model with a distillation token."""
    if getattr(student, "distillation", False):
        return [student.get_layer(name).output for name in ("head", "head_distillation")]
    return [student.output]


def _features(model):
    """The model from images to a dict of `vector` (batch, channels) and `grid` (batch, h, w, channels)."""
    encoder = backbone(model)
    tokens = encoder._stages["tokens"]
    grid = patch_grid(encoder, tokens)
    if encoder.class_token:
        vector = token(encoder, tokens, 0)
    elif encoder.pooling == "map":
        vector = encoder._stages["pooled"]
    else:
        vector = ops.mean(grid, axis=(1, 2))
    return keras.Model(encoder.input, {"vector": vector, "grid": grid}, name=f"{model.name}_features")


def _projected(features, target, dtype):
    """Features (batch, 1 + patches, channels), of as many channels as the teacher's."""
    size = target["vector"].shape[-1]
    layers = {name: as_head(Dense(size, dtype=dtype, name=f"{name}_projection")) for name in features}
    return _in_rows(**{name: layer(features[name]) for name, layer in layers.items()})


def _in_rows(vector, grid):
    """A vector and a grid of vectors as (batch, 1 + patches, channels)."""
    patches = ops.reshape(grid, (-1, math.prod(grid.shape[1:3]), grid.shape[-1]))
    return ops.concatenate([ops.expand_dims(vector, 1), patches], axis=1)
