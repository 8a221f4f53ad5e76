"""Muon: steps of orthogonal matrices for the kernels of Transformer blocks, AdamW for all other weights."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.engine.optimizers import AdamW
from keras_vit.rules import integer, number, one_of
from keras_vit.types import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration
RMS = 0.2  # of the entries of an AdamW step, about
_KERNEL = re.compile(r"(.*/)?encoder_block_\d+/.*kernel")
_NORM_FLOOR = 1e-7


@keras.saving.register_keras_serializable("keras_vit")
class Muon(AdamW):
    """Muon for the kernels of attention and MLP in the blocks of encoders, `AdamW` for other weights.

    The step of a kernel is its momentum as a matrix (inputs, outputs), whose singular values a Newton–Schulz
    iteration moves to about 1, times 0.2·√max(inputs, outputs). Its entries are then about as large as those
    of AdamW's steps, and the learning rate and weight decay of AdamW fit. Query, key and value kernels
    (channels, heads, size) are matrices (channels, heads · size), and the output kernel (heads, size,
    channels) is one of (heads · size, channels). `keras.optimizers.Muon` updates kernels of three axes by
    AdamW.

    Args:
        learning_rate, weight_decay, layer_decay, use_ema, …: As for `AdamW`.
        momentum: Of the kernels, with Nesterov's step, in [0, 1).
        newton_schulz_steps: Number of Newton–Schulz iterations.
        iteration_dtype: The dtype of these: "bfloat16" or "float32".

    Raises:
        ValueError: for an argument outside its range.

    Example:
        >>> optimizer = Muon(1e-3, weight_decay=0.1, global_clipnorm=1.0)

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; Liu et al. 2025
    (arXiv 2502.16982), section 2.2, for the factor.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        weight_decay: float = 0.004,
        momentum: float = 0.95,
        newton_schulz_steps: int = 5,
        iteration_dtype: str = "bfloat16",
        name: str = "muon",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, name=name, **kwargs)
        self.momentum = number(0, below=1).check("momentum", momentum)
        self.newton_schulz_steps = integer(at_least=1).check("newton_schulz_steps", newton_schulz_steps)
        self.iteration_dtype = one_of(("bfloat16", "float32")).check("iteration_dtype", iteration_dtype)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if not self.built:
            self._matrices = [matrix_shape(variable) for variable in variables]
        super().build(variables)

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        index = self._get_variable_index(variable)
        shape = self._matrices[index]
        if shape is None:
            super().update_step(gradient, variable, learning_rate)
            return
        rate, buffer = self._rate(variable, learning_rate), self._momentums[index]
        gradient = ops.cast(gradient, variable.dtype)
        average = self.momentum * buffer + (1 - self.momentum) * gradient
        self.assign(buffer, average)
        step = self.momentum * average + (1 - self.momentum) * gradient
        matrix = ops.cast(ops.reshape(step, shape), self.iteration_dtype)
        matrix = ops.cast(orthogonalized(matrix, self.newton_schulz_steps), variable.dtype)
        self.assign_sub(variable, ops.reshape(matrix, variable.shape) * (rate * RMS * math.sqrt(max(shape))))

    def get_config(self) -> dict[str, Any]:
        names = ("momentum", "newton_schulz_steps", "iteration_dtype")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def matrix_shape(variable: keras.Variable) -> tuple[int, int] | None:
    """The (inputs, outputs) of a kernel of a Transformer block; None of other variables.

    >>> matrix_shape(keras.Variable(np.zeros((24, 3, 8)), name="kernel"))
    """
    if not _KERNEL.fullmatch(variable.path) or len(variable.shape) not in (2, 3):
        return None
    inputs = len(variable.shape) - 1 if variable.path.endswith("/out/kernel") else 1
    return math.prod(variable.shape[:inputs]), math.prod(variable.shape[inputs:])


def orthogonalized(matrix: Tensor, steps: int) -> Tensor:
    """A matrix whose singular values the Newton–Schulz iteration has moved to about 1.

    >>> values = np.linalg.svd(orthogonalized(np.diag([3.0, 2.0, 1.0]).astype("float32"), 5))[1]
    >>> bool((np.abs(values - 1) < 0.35).all())
    True
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = ops.transpose(matrix) if is_tall else matrix
    x = x / ops.maximum(ops.sqrt(ops.sum(ops.square(x))), _NORM_FLOOR)
    for _ in range(steps):
        gram = ops.matmul(x, ops.transpose(x))
        x = a * x + ops.matmul(b * gram + c * ops.matmul(gram, gram), x)
    return ops.transpose(x) if is_tall else x
