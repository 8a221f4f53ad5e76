"""What goes wrong silently in `compile` and `fit`, reported before the first step where possible."""

import warnings

import keras

# Keras's losses that take the model's output for probabilities by default, as functions and as classes.
CROSSENTROPIES = {
    keras.losses.binary_crossentropy: keras.losses.BinaryCrossentropy,
    keras.losses.binary_focal_crossentropy: keras.losses.BinaryFocalCrossentropy,
    keras.losses.categorical_crossentropy: keras.losses.CategoricalCrossentropy,
    keras.losses.categorical_focal_crossentropy: keras.losses.CategoricalFocalCrossentropy,
    keras.losses.sparse_categorical_crossentropy: keras.losses.SparseCategoricalCrossentropy,
}
RATE_CALLBACKS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
TOLERANCE = 0.1  # of the schedule's length, by which `fit` may be longer or shorter


def warn_of_probabilities(loss):
    """Warn of losses that read probabilities, for a model that puts out logits.

    >>> warn_of_probabilities(keras.losses.BinaryCrossentropy(from_logits=True))
    """
    for one in map(keras.losses.get, keras.tree.flatten(loss)):
        for function, cls in CROSSENTROPIES.items():
            if one is function or isinstance(one, cls) and not one.get_config()["from_logits"]:
                warnings.warn(
                    f"the model's outputs are logits, but this loss reads probabilities, so that training "
                    f"fails silently; use keras.losses.{cls.__name__}(from_logits=True)",
                    stacklevel=3,
                )


def check_callbacks(optimizer, callbacks):
    """Refuse callbacks that set a learning rate that follows a schedule.

    Args:
        optimizer: The compiled model's.
        callbacks: A list of Keras callbacks.

    Raises:
        ValueError: if there is one.

    >>> check_callbacks(keras.optimizers.SGD(0.1), [keras.callbacks.ReduceLROnPlateau()])
    """
    scaled = getattr(optimizer, "inner_optimizer", optimizer)  # of mixed_float16
    rate = getattr(scaled, "_learning_rate", None)
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return
    for callback in callbacks:
        if isinstance(callback, RATE_CALLBACKS):
            raise ValueError(
                f"{type(callback).__name__} sets the learning rate, which the schedule {type(rate).__name__} "
                "sets already; leave the callback out, or compile with a number as learning_rate"
            )


class ScheduleLength(keras.callbacks.Callback):
    """Warns if `fit` ends far from the step at which the learning rate's schedule ends.

    It does so before the first step, or at the end where Keras does not know the steps of an epoch.

    Args:
        total_steps: Steps of the schedule.
    """

    def __init__(self, total_steps):
        super().__init__()
        self.total_steps = total_steps
        self.checked = False

    def on_epoch_begin(self, epoch, logs=None):
        if not self.checked and self.params["steps"]:
            self._check(self._step() + (self.params["epochs"] - epoch) * self.params["steps"])

    def on_train_end(self, logs=None):
        if not self.checked and not self.model.stop_training:
            self._check(self._step())

    def _step(self):
        return int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))

    def _check(self, end):
        self.checked = True
        if abs(end - self.total_steps) > TOLERANCE * self.total_steps:
            effect = (
                "the learning rate is about 0 from there on"
                if end > self.total_steps
                else "the learning rate has not fallen by then, which is right only if another `fit` follows"
            )
            warnings.warn(
                f"the learning rate's schedule is made for total_steps={self.total_steps}, but `fit` ends at "
                f"step {end}: {effect}; compile with total_steps={end}",
                stacklevel=2,
            )
