"""Optimizers of the recipes."""

import keras

from keras_vit.training.schedules import WarmupDecay


@keras.saving.register_keras_serializable("keras_vit")
class AdamW(keras.optimizers.AdamW):
    """Adam whose decoupled weight decay acts on kernels only, as in `big_vision` (`.*/kernel$`).

    Biases, norms, tokens and positions are not decayed. That holds after loading a `.keras` file
    too, where Keras forgets `exclude_from_weight_decay`.

    Args:
        learning_rate, weight_decay, …: As `keras.optimizers.AdamW`.

    Example:
        >>> optimizer = AdamW(1e-3, weight_decay=0.1)

    Source: Loshchilov and Hutter 2019; `big_vision/optax.py`.
    """

    def build(self, variables):
        if not self.built:
            self.exclude_from_weight_decay([v for v in variables if not v.path.endswith("/kernel")])
        super().build(variables)


def make_optimizer(recipe):
    """The recipe's optimizer, with its schedule and clipping."""
    schedule = WarmupDecay(recipe.base_lr, recipe.total_steps, recipe.warmup_steps, recipe.decay)
    if recipe.optimizer == "sgd":
        return keras.optimizers.SGD(schedule, recipe.momentum, global_clipnorm=recipe.clip_norm)
    return AdamW(schedule, recipe.weight_decay, global_clipnorm=recipe.clip_norm)
