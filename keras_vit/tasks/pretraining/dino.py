"""DINO: a student predicts what its teacher, an average of its earlier weights, computes for other views."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.engine.step import weighted_mean
from keras_vit.layers.configurable import HoldsModel
from keras_vit.layers.dense import Dense
from keras_vit.layers.hints import COLUMNS, FREE, ROWS, sharded
from keras_vit.layers.weight_norm import WeightNormDense
from keras_vit.models.encoder_model import Pretrainer, as_encoder
from keras_vit.models.vit.geometry import DYNAMIC_SIZE, patch_pixels
from keras_vit.models.vit.vision_transformer import VisionTransformer
from keras_vit.rules import area, integer, number
from keras_vit.types import Tensor

GLOBAL_VIEWS = 2


@keras.saving.register_keras_serializable("keras_vit")
class DINO(Pretrainer):
    """Self-distillation without labels: a student and its teacher, which see other views of the same images.

    Both are an encoder and a head with their own weights. The student computes two global views and several
    smaller local ones of each image, the teacher the global ones. The student learns the teacher's
    distribution for each global view from every other view. After each step the teacher becomes
    momentum · teacher + (1 - momentum) · student, where the momentum rises to 1 along a cosine over the
    `total_steps` of `compile` (without them it stays), and the center becomes an average of the teacher's
    logits over the global batches.

    Args:
        encoder: A VisionTransformer of a fixed size, that of the global views, without layers after its
            tokens: no `num_classes`, `representation_size`, "map" pooling or `norm_after_pooling`. Or its
            constructor arguments. It is the teacher's encoder, whose weights `fit` averages; the student's,
            `student`, starts as a copy that reads any size, with bicubic positions.
        num_local: Number of local views of an image.
        local_size: Their height and width in pixels, a multiple of the patch size, at most that of the global
            views.
        local_area: Smallest and largest fraction of an image that a local view covers, for the run's crops.
        out_dim: Number of logits.
        hidden_dim, bottleneck_dim: Sizes of the two hidden layers of the head's MLP, and of its output.
        momentum: Of the teacher at the first step.
        center_momentum: Of the center.
        student_temperature, teacher_temperature: Divisors of the logits.
        first_teacher_temperature: Of the first step; it then changes linearly.
        temperature_steps: Number of steps until `teacher_temperature`.
        freeze_steps: Number of first steps in which the head's last layer is not trained.
        dtype: A dtype policy for an encoder that is given by its arguments. The logits are float32.
        name: It is in the paths of the model's own weights, which checkpoints and files contain.
        trainable: As of any Keras model.

    Input: a dict of `global_views`, float32 (batch, 2, height, width, channels), and unless `num_local` is 0
    `local_views`, float32 (batch, num_local, local_size, local_size, channels).
    Output: float32 (batch, views + 2, out_dim): the student's logits of the views, the global ones first, and
    the teacher's of the global views.

    Raises:
        ValueError: for an argument out of its range, an encoder for any size, with relative positions,
            without pooling or with layers after its tokens, or a `local_size` that the patches do not divide
            or that is too large.

    Example:
        >>> encoder = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3)
        >>> model = DINO(encoder, num_local=3, local_size=16, out_dim=64, hidden_dim=48, bottleneck_dim=16)
        >>> views = {"global_views": np.zeros((1, 2, 32, 32, 3)), "local_views": np.zeros((1, 3, 16, 16, 3))}
        >>> model(views).shape
        TensorShape([1, 7, 64])

    Source: Caron et al. 2021 (DINO, arXiv 2104.14294), section 3, and the code `facebookresearch/dino`.
    """

    rules = {
        **dict.fromkeys(("num_local", "temperature_steps", "freeze_steps"), integer(at_least=0)),
        **dict.fromkeys(("local_size", "out_dim", "hidden_dim", "bottleneck_dim"), integer(at_least=1)),
        "local_area": area,
        **dict.fromkeys(("momentum", "center_momentum"), number(0, 1)),
        **dict.fromkeys(("student_temperature", "teacher_temperature"), number(above=0)),
        "first_teacher_temperature": number(above=0),
    }

    def __init__(
        self,
        encoder: VisionTransformer | Mapping[str, Any],
        num_local: int = 8,
        local_size: int = 96,
        local_area: tuple[float, float] = (0.05, 0.4),
        out_dim: int = 65_536,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        momentum: float = 0.996,
        center_momentum: float = 0.9,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.04,
        first_teacher_temperature: float = 0.04,
        temperature_steps: int = 0,
        freeze_steps: int = 0,
        dtype: str | keras.DTypePolicy | None = None,
        name: str = "dino",
        trainable: bool = True,
    ) -> None:
        self.store_arguments(locals())
        encoder = as_encoder(encoder, dtype)
        _check(encoder, num_local, local_size)
        policy = encoder.dtype_policy
        sizes = encoder.output.shape[-1], hidden_dim, bottleneck_dim, out_dim
        with keras.name_scope("student"):
            student = VisionTransformer.from_config(
                {
                    **encoder._config(),
                    "image_size": DYNAMIC_SIZE,
                    "position_grid": encoder.get_layer("position_embedding").grid_size,
                    "position_interpolation": "bicubic_offset",
                    "preprocessing": None,
                    "dtype": policy,
                    "name": "student",
                }
            )
            student_head = _head("student_head", *sizes, policy)
        teacher = _Teacher(encoder, _head("teacher_head", *sizes, policy), name="teacher")

        channels = encoder.in_channels
        shape = (GLOBAL_VIEWS, *encoder.image_size, channels)
        views = {"global_views": keras.Input(shape, name="global_views")}  # (b, 2, H, W, c)
        if num_local:
            shape = (num_local, local_size, local_size, channels)
            views["local_views"] = keras.Input(shape, name="local_views")  # (b, l, h, w, c)
        x = [_each(student, part) for part in views.values()]
        x = student_head(ops.concatenate(x, axis=1))  # (b, 2 + l, k)
        y = teacher(views["global_views"])  # (b, 2, k)

        super().__init__(views, ops.concatenate([x, y], axis=1), name=name, trainable=trainable)
        self.dtype_policy = policy
        self.local_area = tuple(local_area)
        # Keras would take them for layers of this model, which has theirs already.
        vars(self).update(encoder=encoder, student=student, student_head=student_head)
        averages = [*encoder.weights, *teacher.head.weights]
        weights = [*student.weights, *student_head.weights]
        for weight, average in zip(weights, averages, strict=True):
            weight.assign(ops.copy(average))  # JAX would reuse the memory of an array that both share.
        vars(self)["_averages"] = [pair for pair in zip(averages, weights) if pair[1].trainable]
        self.center = self.add_weight(shape=(out_dim,), initializer="zeros", trainable=False, name="center")
        self.temperature = self.add_weight(
            shape=(),
            initializer=keras.initializers.Constant(float(self._temperature(0))),
            trainable=False,
            name="temperature",
        )
        last_layer = student_head.get_layer("last_layer")
        last_layer.gradient_scale.assign(float(freeze_steps == 0))
        for weight in last_layer.trainable_weights:
            weight.frozen_steps = freeze_steps  # for the optimizer, which would decay it or use its momentum

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Configure the model for training, as `DistributedModel.compile`.

        Raises:
            ValueError: as there, or on another backend than TensorFlow and JAX, where no step would change
                the teacher.
        """
        if keras.backend.backend() not in ("tensorflow", "jax"):
            raise ValueError(f"DINO needs KERAS_BACKEND=tensorflow or jax; got {keras.backend.backend()!r}")
        super().compile(*args, **kwargs)

    def own_loss(self, x: Any, y_pred: Any, sample_weight: Tensor) -> Tensor:
        student, teacher = y_pred[:, :-GLOBAL_VIEWS], y_pred[:, -GLOBAL_VIEWS:]
        losses = dino_loss(student, teacher, self.center, self.student_temperature, self.temperature)
        return weighted_mean(losses, sample_weight)

    def after_step(
        self, step: Tensor, predicted: Tensor, sample_weight: Tensor, total: Tensor
    ) -> list[tuple[keras.Variable, Tensor]]:
        step = ops.cast(step, "float32")
        momentum = self._momentum(step)
        averages = [
            (average, momentum * average + (1 - momentum) * ops.convert_to_tensor(weight))
            for average, weight in self._averages
        ]
        means = ops.mean(predicted[:, -GLOBAL_VIEWS:], axis=1)  # (b, k)
        weights = ops.ones_like(means[:, :1])
        if sample_weight is not None:
            weights = ops.reshape(ops.cast(sample_weight, means.dtype), (-1, 1))
        mean = total(ops.sum(means * weights, axis=0)) / total(ops.sum(weights))
        before = ops.convert_to_tensor(self.center)
        center = self.center_momentum * before + (1 - self.center_momentum) * mean
        # In float16 a batch may overflow, whose step the optimizer then leaves out.
        center = ops.where(ops.isfinite(mean), center, before)
        is_trained = ops.cast(step + 1 >= self.freeze_steps, "float32")
        return [
            *averages,
            (self.center, center),
            (self.temperature, self._temperature(step + 1)),
            (self.student_head.get_layer("last_layer").gradient_scale, is_trained),
        ]

    @staticmethod
    def min_own_parameters(config: dict[str, Any]) -> int:
        hidden, bottleneck = config["hidden_dim"], config["bottleneck_dim"]
        return hidden**2 + bottleneck * (hidden + config["out_dim"])

    def own_layers(self) -> Any:
        return [self.student, self.student_head]  # The teacher has no state of its own besides its weights.

    def _momentum(self, step):
        """The teacher's momentum after step number `step`, counted from 0."""
        if self.total_steps is None:
            return self.momentum
        done = ops.minimum(step / self.total_steps, 1.0)
        return 1 - (1 - self.momentum) * (1 + ops.cos(math.pi * done)) / 2

    def _temperature(self, step):
        """The teacher's temperature at step number `step`, counted from 0."""
        if not self.temperature_steps:
            return ops.convert_to_tensor(self.teacher_temperature, "float32")
        done = ops.minimum(ops.cast(step, "float32") / max(self.temperature_steps - 1, 1), 1.0)
        first = self.first_teacher_temperature
        return first + (self.teacher_temperature - first) * done


def dino_loss(student, teacher, center, student_temperature, teacher_temperature):
    """The cross-entropy of the student's views with the teacher's distributions of the other global views.

    Args:
        student: Logits (batch, views, out_dim), the global views first.
        teacher: Logits (batch, global views, out_dim), which get no gradient.
        center: (out_dim,), which is subtracted from the teacher's logits.
        student_temperature, teacher_temperature: Divisors of the logits.

    Returns:
        Tensor (batch,): the mean over all pairs of different views.

    Example:
        >>> logits = np.zeros((1, 3, 8), "float32")
        >>> dino_loss(logits, logits[:, :2], np.zeros(8, "float32"), 0.1, 0.04).numpy().round(3)
        array([2.079], dtype=float32)

    Source: Caron et al. 2021, equation 3 and algorithm 1; `DINOLoss` of `facebookresearch/dino`.
    """
    targets = ops.stop_gradient(ops.softmax((teacher - center) / teacher_temperature, axis=-1))
    logs = ops.log_softmax(student / student_temperature, axis=-1)
    losses = -ops.einsum("bik,bvk->biv", targets, logs)
    views, teacher_views = student.shape[1], teacher.shape[1]
    pairs = 1 - np.eye(teacher_views, views, dtype="float32")
    return ops.sum(losses * pairs, axis=(1, 2)) / pairs.sum()


class _Teacher(HoldsModel, keras.layers.Layer):
    """The teacher's logits of views, without a gradient and without dropout, which training would have.

    Args:
        encoder, head: Models.
    """

    def __init__(self, encoder, head, **kwargs):
        super().__init__(dtype=encoder.dtype_policy, **kwargs)
        self.encoder, self.head = encoder, head
        self.trainable = False

    def call(self, views):
        return ops.stop_gradient(self.head(_each(self.encoder, views, training=False), training=False))

    def compute_output_shape(self, views_shape):
        return (*views_shape[:2], self.head.output_shape[-1])


def _each(encoder, views, **kwargs):
    """The representations (batch, views, size) of views (batch, views, height, width, channels)."""
    x = encoder(ops.reshape(views, (-1, *views.shape[2:])), **kwargs)
    return ops.reshape(x, (-1, views.shape[1], x.shape[-1]))


def _head(name, size, hidden_dim, bottleneck_dim, out_dim, dtype):
    """The head, a model of vectors (…, size)."""
    x = inputs = keras.Input((None, size))
    projections = (
        (hidden_dim, "gelu", dataclasses.replace(COLUMNS, output=None)),
        (hidden_dim, "gelu", dataclasses.replace(ROWS, output=None)),
        (bottleneck_dim, None, FREE),
    )
    for index, (units, activation, sharding) in enumerate(projections):
        projection = Dense(
            units,
            activation and keras.activations.get(activation),
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            dtype=dtype,
            name=f"projection_{index}",
        )
        x = sharded(projection, sharding)(x)
    float32 = dtype.variable_dtype
    x = keras.layers.UnitNormalization(dtype=float32, name="unit")(x)
    x = WeightNormDense(out_dim, dtype=float32, name="last_layer")(x)
    return keras.Model(inputs, x, name=name)


def _check(encoder, num_local, local_size):
    if encoder.image_size == DYNAMIC_SIZE:
        raise ValueError(
            "expected an encoder of a fixed size, that of the global views; got one for any size"
        )
    if encoder.relative_positions:
        raise ValueError(
            "expected an encoder without relative positions, which are of one grid; got "
            "relative_positions=True"
        )
    if encoder.pooling is None:
        raise ValueError("expected an encoder with pooling, such as 'token'; got pooling=None")
    if num_local and any(local_size % side for side in patch_pixels(encoder)):
        raise ValueError(
            f"expected a local_size divisible by a token's region of {patch_pixels(encoder)}; "
            f"got {local_size}"
        )
    if num_local and local_size > min(encoder.image_size):
        raise ValueError(
            f"expected a local_size of at most {min(encoder.image_size)}, that of the global views; got "
            f"{local_size}"
        )
