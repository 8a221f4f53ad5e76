"""Learning rate schedules."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.rules import one_of
from keras_vit.types import Tensor

DECAYS = ("cosine", "linear")


@keras.saving.register_keras_serializable("keras_vit")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0, then cosine decay to 0 or linear decay to 1e-5, or to a lower `base_lr`.

    Args:
        base_lr: The rate at the end of the warm-up.
        total_steps: The step at which the decay ends.
        warmup_steps: Steps of the warm-up; if there are any, step 0 has rate 0.
        decay: "cosine" or "linear".

    Raises:
        ValueError: for an unknown decay, or a warm-up that is longer than the run.

    Example:
        >>> schedule = WarmupDecay(0.03, total_steps=100, warmup_steps=10)
        >>> [round(float(schedule(step)), 4) for step in (0, 5, 10, 55, 100)]
        [0.0, 0.015, 0.03, 0.015, 0.0]

    Source: `vit_jax/utils.py`, `create_learning_rate_schedule`.
    """

    def __init__(
        self, base_lr: float, total_steps: int, warmup_steps: int = 0, decay: str = "cosine"
    ) -> None:
        one_of(DECAYS).check("decay", decay)
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                f"warmup_steps must be at least 0 and below total_steps; got {warmup_steps} and {total_steps}"
            )
        self.base_lr = base_lr
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.decay = decay

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "float32")
        progress = ops.clip((step - self.warmup_steps) / (self.total_steps - self.warmup_steps), 0.0, 1.0)
        if self.decay == "cosine":
            rate = self.base_lr * 0.5 * (1.0 + ops.cos(np.pi * progress))
        else:
            last = min(1e-5, self.base_lr)
            rate = last + (self.base_lr - last) * (1.0 - progress)
        return rate * ops.minimum(1.0, step / self.warmup_steps) if self.warmup_steps else rate

    def get_config(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("base_lr", "total_steps", "warmup_steps", "decay")}
