"""Optimizers that sum the gradients over all replicas before they clip them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from keras_vit.engine.schedules import WarmupDecay
from keras_vit.rules import number, optional
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.training.recipes import Recipe

LAYER_DECAY = optional(number(above=0, high=1))
_Base: Any = keras.optimizers.Optimizer if TYPE_CHECKING else object


class _GlobalOptimizer(_Base):
    """The order of reduction, the variables that decay, and layer-wise rates, for both optimizers.

    A variable of a stack has its rate by `layers_above`, which the models number (`layers.encoder_block`).

    Keras clips each replica's gradient before it sums over the replicas, so that two replicas train another
    model than one. Here `_clip_gradients`, which Keras calls first, sums, and the later sum does nothing.
    """

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        decay = self.layer_decay or 1.0
        self._rate_factors = [decay ** getattr(variable, "layers_above", 0) for variable in variables]
        self._frozen_steps = [getattr(variable, "frozen_steps", 0) for variable in variables]
        self._decays = [variable.path.endswith("/kernel") for variable in variables]
        super().build(variables)

    def _rate(self, variable: keras.Variable, learning_rate: Tensor) -> Tensor:
        """Decay a variable at its own learning rate, which is 0 while it is frozen, and return that rate."""
        index = self._get_variable_index(variable)
        rate = ops.cast(learning_rate, variable.dtype) * self._rate_factors[index]
        if frozen_steps := self._frozen_steps[index]:
            rate = rate * ops.cast(self.iterations >= frozen_steps, rate.dtype)
        if self.weight_decay and self._decays[index]:
            self.assign_sub(variable, variable * (rate * self.weight_decay))
        return rate

    def _apply_weight_decay(self, variables: Sequence[keras.Variable]) -> None:
        pass  # `_rate` does it.

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        # Before the first step all averages are 0.
        if self.use_ema and int(ops.convert_to_numpy(self.iterations)):
            super().finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "layer_decay": self.layer_decay}

    if keras.backend.backend() == "tensorflow":

        def _clip_gradients(self, grads: Sequence[Tensor]) -> list[Tensor]:
            pairs = super()._all_reduce_sum_gradients([(gradient, None) for gradient in grads])
            return super()._clip_gradients([gradient for gradient, _ in pairs])

        def _all_reduce_sum_gradients(
            self, grads_and_vars: list[tuple[Tensor, Any]]
        ) -> list[tuple[Tensor, Any]]:
            return grads_and_vars


@keras.saving.register_keras_serializable("keras_vit")
class SGD(_GlobalOptimizer, keras.optimizers.Optimizer):
    """SGD with momentum as in optax: buffer = gradient + momentum × buffer, step = rate × buffer.

    `keras.optimizers.SGD` multiplies by the rate before it accumulates, which differs as soon as the rate
    changes.

    Args:
        learning_rate: Float or schedule.
        momentum: In [0, 1).
        weight_decay: Decoupled and on kernels only, as in `AdamW`; None for none.
        accumulator_dtype: The dtype of the momentum buffer, such as "bfloat16"; None: the variable's.
        layer_decay: Factor of the rate from each block to the one before it, in (0, 1], or None.
        global_clipnorm, use_ema, …: As for every Keras optimizer; the norm is that of the global
            batch's gradient on any number of replicas.

    Raises:
        ValueError: for a momentum or layer decay outside its range.

    Example:
        >>> optimizer = SGD(WarmupDecay(0.03, total_steps=100), global_clipnorm=1.0)

    Source: `vit_jax/train.py` (`optax.sgd` with a bfloat16 accumulator); layer-wise decay: Bao et al. 2022
    (BEiT), section 3.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.01,
        momentum: float = 0.9,
        accumulator_dtype: str | None = None,
        layer_decay: float | None = None,
        name: str = "sgd",
        **kwargs: Any,
    ) -> None:
        number(0, below=1).check("momentum", momentum)
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.layer_decay = LAYER_DECAY.check("layer_decay", layer_decay)
        self.momentum = momentum
        self.accumulator_dtype = accumulator_dtype

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        bfloat16_initial_values: Callable[[], contextlib.AbstractContextManager[None]]
        if keras.backend.backend() == "tensorflow":
            from keras_vit.engine.strategy import bfloat16_initial_values
        else:
            bfloat16_initial_values = contextlib.nullcontext
        with bfloat16_initial_values():
            # As in Keras, float8 statistics have no buffer: their gradients are their new values.
            self.momentums = [
                None if getattr(variable, "overwrite_with_gradient", False) else self._buffer(variable, i)
                for i, variable in enumerate(variables)
            ]

    def _buffer(self, variable: keras.Variable, index: int) -> keras.Variable:
        layout = getattr(variable, "_layout", None)  # On JAX the buffer is sharded like its variable.
        dtype = self.accumulator_dtype or variable.dtype
        return self.add_variable(variable.shape, dtype=dtype, layout=layout, name=f"momentum_{index}")

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        rate = self._rate(variable, learning_rate)
        buffer = self.momentums[self._get_variable_index(variable)]
        # Only the stored buffer is rounded to its dtype, not the step.
        new = ops.cast(gradient, variable.dtype) + self.momentum * ops.cast(buffer, variable.dtype)
        self.assign(buffer, ops.cast(new, buffer.dtype))
        self.assign_sub(variable, rate * new)

    def get_config(self) -> dict[str, Any]:
        options = {"momentum": self.momentum, "accumulator_dtype": self.accumulator_dtype}
        return {**super().get_config(), **options}


@keras.saving.register_keras_serializable("keras_vit")
class AdamW(_GlobalOptimizer, keras.optimizers.AdamW):
    """AdamW with weight decay on kernels only, as in `big_vision` (`.*/kernel$`).

    Biases, norms, tokens and positions do not decay.

    Args:
        learning_rate, weight_decay, use_ema, …: As `keras.optimizers.AdamW`.
        layer_decay: Factor of the rate from each block to the one before it, in (0, 1], or None.
        global_clipnorm: The norm is that of the global batch's gradient on any number of replicas.

    Raises:
        ValueError: for a layer decay outside its range.

    Example:
        >>> optimizer = AdamW(1e-3, weight_decay=0.1, global_clipnorm=1.0)

    Source: Loshchilov and Hutter 2019; `big_vision/optax.py`.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        weight_decay: float = 0.004,
        layer_decay: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **kwargs)
        self.layer_decay = LAYER_DECAY.check("layer_decay", layer_decay)

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        rate = self._rate(variable, learning_rate)
        if frozen_steps := self._frozen_steps[self._get_variable_index(variable)]:
            # Keras corrects the bias of the moments by all steps, but these moments are younger.
            step = ops.cast(self.iterations + 1, rate.dtype)
            own_step = ops.maximum(step - frozen_steps, 1.0)
            rate = rate * self._bias_correction(own_step) / self._bias_correction(step)
        super().update_step(gradient, variable, rate)

    def _bias_correction(self, step: Tensor) -> Tensor:
        return ops.sqrt(1 - ops.power(self.beta_2, step)) / (1 - ops.power(self.beta_1, step))


def make_optimizer(recipe: Recipe) -> SGD | AdamW:
    """The recipe's optimizer, with its schedule, clipping, decays and moving average."""
    schedule = WarmupDecay(recipe.base_lr, recipe.total_steps, recipe.warmup_steps, recipe.decay)
    options: dict[str, Any] = {"global_clipnorm": recipe.clip_norm, "layer_decay": recipe.layer_decay}
    if recipe.ema is not None:
        options |= {"use_ema": True, "ema_momentum": recipe.ema}
    if recipe.optimizer == "sgd":
        return SGD(schedule, recipe.momentum, recipe.accumulator_dtype, **options)
    optimizer_class: type[AdamW]
    if recipe.optimizer == "muon":
        from keras_vit.engine.muon import Muon as optimizer_class  # which is an AdamW
    else:
        optimizer_class = AdamW
    return optimizer_class(schedule, recipe.weight_decay, beta_2=recipe.beta_2, epsilon=1e-8, **options)
