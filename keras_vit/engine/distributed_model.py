"""Models that `fit` trains in the same way on one device, several devices and several machines."""

from __future__ import annotations

import gc
import inspect
import random
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit.engine.adapting import enable_lora, merge_lora
from keras_vit.engine.fit_checks import (
    ScheduleLength,
    WarnOfNaN,
    check_array,
    check_callbacks,
    check_class_indices,
    check_class_weight,
    warn_of_probabilities,
)
from keras_vit.engine.step import BACKENDS, of_backend, total_loss
from keras_vit.layers.dense import adaptable_layers
from keras_vit.rules import integer, one_of
from keras_vit.types import Tensor

MODES = ("int8", "int4", "float8")
_BACKEND = keras.backend.backend()


@keras.saving.register_keras_serializable("keras_vit")
class CompileArguments:
    """The arguments of `DistributedModel.compile`, of which other models read those of `keras.Model`.

    `keras.models.clone_model` makes a plain functional model, and compiles it with them.

    Args:
        config: dict of the serialized arguments.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def get_config(self) -> dict[str, Any]:
        return self.config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        known = inspect.signature(keras.Model.compile).parameters
        return keras.saving.deserialize_keras_object({name: config[name] for name in known if name in config})


@keras.saving.register_keras_serializable("keras_vit")
class DistributedModel(keras.Model):
    """A functional model whose training step depends on the global batch, not on the number of devices.

    On TensorFlow `fit` works without a strategy and under MirroredStrategy, MultiWorkerMirroredStrategy and
    TPUStrategy, on JAX without a distribution and under one of `keras.distribution`. The loss of a step is
    the mean over the global batch (with a loss that divides by the sample weights, as this package's do: the
    weighted sum over the global batch divided by the sum of the weights), however unevenly the batch is
    divided among the replicas. Random numbers in training are functions of (seed, step, micro-batch,
    replica), not of a stored state: a resumed run uses the same as one without interruption. On PyTorch this
    is a plain `keras.Model`.

    Gradients are clipped by their global norm only by optimizers that first sum them over the replicas:
    `keras_vit.training.SGD` and `AdamW`.

    Args:
        inputs, outputs: As for a functional `keras.Model`.

    Example:
        >>> images = keras.Input((4,))
        >>> model = DistributedModel(images, keras.layers.Dense(2)(images))
        >>> model.compile("sgd", "mse", accumulation_steps=2)
        >>> history = model.fit(np.ones((8, 4)), np.ones((8, 2)), batch_size=4, verbose=0)

    Source: the accumulation and reduction of `vit_jax/train.py`. Keras 3.15 clips before the reduction,
    and its `fit` does not support MultiWorkerMirroredStrategy.
    """

    predict_function: Callable[..., Any] | None  # Keras's
    _jax_state: dict[str, Any] | None  # Keras's, on JAX
    total_steps: int | None = None
    matches = False  # whether its loss matches predictions with labels, which XLA takes minutes to compile
    _compiled_size = 0  # images in the largest batch that XLA has compiled a prediction for
    is_segment = False  # whether a call of `fit` is a part of the training, of which it does not warn
    # Of a model with a loss of its own: a method (x, y_pred, sample_weight) → scalar, its weighted mean.
    own_loss: Callable[[Any, Any, Tensor | None], Tensor] | None = None

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        *args: Any,
        accumulation_steps: int = 1,
        seed: int | None = None,
        total_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Configure the model for training, as `keras.Model.compile`, with three more arguments.

        On TensorFlow, `jit_compile="auto"` means XLA on one GPU or TPU, for a model whose inputs have fixed
        sizes and whose loss matches nothing, without micro-batches.

        Args:
            accumulation_steps: Number of micro-batches (on TensorFlow: per replica), which are computed one
                after the other to save memory. The step is that of the whole batch.
            seed: Seed of dropout and stochastic depth, an int; by default a random one, which
                `keras.utils.set_random_seed` determines.
            total_steps: Steps of the learning rate's schedule; `fit` warns if it ends far from them.

        A warning is issued for a classifier with a loss that expects probabilities, such as
        "categorical_crossentropy".

        Raises:
            ValueError: for fewer than one micro-batch, micro-batches with a loss of reduction "sum",
                `steps_per_execution` above 1 on several replicas, which Keras does not support, or a loss for
                a model that has its own.
        """
        if loss is not None and self.own_loss is not None:
            raise ValueError(
                f"expected loss=None, since {type(self).__name__} has a loss of its own; got {loss!r}"
            )
        integer(at_least=1).check("accumulation_steps", accumulation_steps)
        if accumulation_steps > 1 and getattr(loss, "reduction", None) == "sum":
            raise ValueError(
                "expected a loss that is a mean, to which each micro-batch adds its part; got reduction='sum'"
            )
        if _BACKEND == "tensorflow":
            replicas = self.distribute_strategy.num_replicas_in_sync
            if kwargs.get("steps_per_execution", 1) != 1 and replicas > 1:
                raise ValueError(
                    f"steps_per_execution must be 1 on several replicas; got "
                    f"{kwargs['steps_per_execution']} on {replicas}"
                )
            # Nor can XLA split a batch into parts of different sizes.
            if kwargs.get("jit_compile", "auto") == "auto" and (accumulation_steps > 1 or self.matches):
                kwargs["jit_compile"] = False
        elif accumulation_steps > 1 and _BACKEND not in BACKENDS:
            raise ValueError("accumulation_steps above 1 needs KERAS_BACKEND=tensorflow or jax")
        super().compile(optimizer, loss, *args, **kwargs)
        self.accumulation_steps = accumulation_steps
        self.random_seed = random.randrange(2**31) if seed is None else seed
        self.total_steps = total_steps
        if getattr(self, "num_classes", None) is not None:
            warn_of_probabilities(self.loss)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """Train the model, as `keras.Model.fit`, but warn if it ends far from the compiled `total_steps`.

        It also warns of a loss that is NaN.

        Raises:
            ValueError: for a callback that sets a learning rate for which there is a schedule, an array of
                class indices that the model does not have, or an array that is no input of the model.
        """
        check_array(self, x)
        sample_weight = kwargs.get("sample_weight")
        if y is None and sample_weight is not None and self.own_loss is not None:
            y = np.zeros(len(sample_weight), "float32")  # Without labels Keras leaves out the weights.
        if self.compiled and not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = keras.tree.flatten(callbacks) if callbacks else []
            check_callbacks(self.optimizer, callbacks)
            if getattr(self, "num_classes", None) is not None:
                check_class_indices(self.loss, y, self.num_classes)
                check_class_weight(self.loss, kwargs.get("class_weight"), self.num_classes)
            if not self.is_segment:
                callbacks = [*callbacks, WarnOfNaN()]
            if self.total_steps is not None and not self.is_segment:
                callbacks = [*callbacks, ScheduleLength(self.total_steps)]
        try:
            return super().fit(x, y, batch_size, epochs, verbose, callbacks, *args, **kwargs)
        finally:
            self._separate_averages()

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.evaluate`, but an array of another shape than the model's input is refused."""
        check_array(self, x)
        try:
            return super().evaluate(x, *args, **kwargs)
        finally:
            self._put_back()

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.predict`, but an array of another shape than the model's input is refused."""
        check_array(self, x)
        try:
            return super().predict(x, *args, **kwargs)
        finally:
            self._put_back()

    def _separate_averages(self) -> None:
        """On JAX, copy weights that share memory with their averages: an evaluation would reuse it."""
        optimizer = getattr(self, "optimizer", None)
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of mixed_float16
        if _BACKEND == "jax" and getattr(optimizer, "use_ema", False):
            for weight in self.trainable_variables:
                weight.assign(keras.ops.copy(weight))

    def _put_back(self) -> None:
        """On JAX, give variables the values that Keras took out of them before an error."""
        if _BACKEND == "jax":
            self.jax_state_sync()
            self._jax_state = None

    def make_train_function(self, force: bool = False) -> Any:
        if not self.trainable_variables:
            raise ValueError(
                f"expected trainable weights in the model {self.name!r}; got none: set trainable = True for "
                "some of its layers, and compile it again"
            )
        return super().make_train_function(force)

    def train_on_features(self, head: Callable[..., Tensor]) -> None:
        """From now on take features of images in place of images, for `fit`.

        Args:
            head: A function (features, training) → outputs, of layers of this model.
        """
        self.input_spec = None
        self.__dict__["_head_on_features"] = head  # Keras would track the layers again.

    def call(
        self, inputs: Any, training: bool | None = None, mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        if head := vars(self).get("_head_on_features"):
            return head(inputs, training=training)
        return super().call(inputs, training=training, mask=mask, **kwargs)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Tensor | None = None,
        training: bool = True,
    ) -> Tensor:
        if self.own_loss is None:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        return total_loss(self, self.own_loss(x, y_pred, sample_weight))

    def after_step(
        self, step: Tensor, predicted: Any, sample_weight: Tensor | None, total: Callable[[Tensor], Tensor]
    ) -> list[tuple[keras.Variable, Tensor]]:
        """The new values of weights that no gradient trains, after the optimizer's step.

        On several replicas each calls it with its part of the batch.

        Args:
            step: The number of steps before this one.
            predicted: The outputs of the batch.
            sample_weight: The weights of its samples, or None.
            total: A function from a tensor to its sum over the replicas.

        Returns:
            A list of (variable, value), equal in all replicas; by default empty.
        """
        return []

    enable_lora = enable_lora
    merge_lora = merge_lora

    def quantize(
        self, mode: str | None = None, config: Any = None, filters: Any = None, **kwargs: Any
    ) -> None:
        """Quantize the kernels of dense layers, as `keras.Model.quantize`.

        "int8" and "int4" reduce their size to a quarter and an eighth, for inference and for LoRA; "float8"
        is for training. `.keras` files keep the quantization. Exports and
        `keras_vit.weights.save_weights` write float32 kernels with the rounded values. Compile the model
        afterwards.

        Args:
            mode: "int8", "int4" or "float8"; None for that of `config`.
            config, filters, **kwargs: As for `keras.Model.quantize`.

        Raises:
            ValueError: for another mode, a layer that is quantized already, or float8 of a model with
                LoRA factors.

        Example:
            >>> images = keras.Input((4,))
            >>> model = DistributedModel(images, keras.layers.Dense(2)(images))
            >>> model.quantize("int8")
            >>> [weight.dtype for weight in model.weights]
            ['float32', 'int8', 'float32']

        Source: Keras, "Quantization in Keras"; float8: Micikevicius et al. 2022 (arXiv 2209.05433).
        """
        one_of(MODES).check("mode", mode)  # Keras has set it to that of the configuration
        if mode == "float8" and any(layer.lora_enabled for layer in adaptable_layers(self)):
            raise ValueError(
                "Keras does not support LoRA in float8; call merge_lora() first, or use int8 or int4"
            )
        frozen = gc.get_freeze_count()
        gc.freeze()  # Keras collects garbage after each layer, which took 90 % of the time
        try:
            with warnings.catch_warnings():  # one for each layer without a kernel
                warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method implemented")
                super().quantize(mode, config=config, filters=filters, **kwargs)
        finally:
            if not frozen:
                gc.unfreeze()

    def get_compile_config(self) -> Any:
        config = super().get_compile_config()
        if not config:
            return config
        config["accumulation_steps"] = self.accumulation_steps
        config["seed"] = self.random_seed
        config["total_steps"] = self.total_steps
        config["optimizer_built"] = self.optimizer.built
        return keras.saving.serialize_keras_object(CompileArguments(config))

    def compile_from_config(self, config: dict[str, Any]) -> None:
        config = keras.saving.deserialize_keras_object(config.get("config", config))
        # Keras would warn that an optimizer which was saved before the first step has fewer variables.
        optimizer_built = config.pop("optimizer_built", True)
        self.compile(**config)
        if self.built and optimizer_built:
            self.optimizer.build(self.trainable_variables)

    if _BACKEND in BACKENDS:

        def train_step(self, *args: Any) -> Any:
            return of_backend().train_step(self, *args)

        def test_step(self, *args: Any) -> Any:
            return of_backend().test_step(self, *args)

    if _BACKEND == "jax":

        def _get_jax_state(self, *, purge_model_variables: bool = False, **chosen: bool) -> Any:
            state = super()._get_jax_state(purge_model_variables=purge_model_variables, **chosen)
            if purge_model_variables:  # An error before the end of the first step would lose the values.
                self._jax_state = dict(zip(chosen, state))
            return state

    if _BACKEND == "tensorflow":

        def _resolve_auto_jit_compile(self) -> bool:
            # XLA would compile the model again for each size of an image.
            is_static = all(None not in x.shape[1:] for x in keras.tree.flatten(self.input))
            return is_static and super()._resolve_auto_jit_compile()

        def predict_on_batch(self, x: Any) -> Any:
            """As `keras.Model.predict_on_batch`; XLA computes smaller batches at the size of the largest."""
            if not self.jit_compile or self.run_eagerly:
                return super().predict_on_batch(x)
            size = len(keras.tree.flatten(x)[0])
            self._compiled_size = max(size, self._compiled_size)
            outputs = super().predict_on_batch(filled(x, self._compiled_size))
            return keras.tree.map_structure(lambda rows: rows[:size], outputs)

        def make_predict_function(self, force: bool = False) -> Any:
            if self.predict_function is None or force:
                super().make_predict_function(force)
                if not self.run_eagerly:
                    self.predict_function = of_backend().counted_alone(self.predict_function)
            return self.predict_function

        def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
            # Keras would average the replicas' batches, which fails across workers and if the parts have
            # different sizes. The batch of the first replica has the right shapes.
            if self._distribute_strategy is not None and iterator is not None:
                first = self.distribute_strategy.experimental_local_results
                for _, _, batches in iterator:
                    data_batch = keras.tree.map_structure(lambda values: first(values)[0], next(batches))
                    break
                iterator = None
            super()._maybe_symbolic_build(iterator, data_batch)


def filled(inputs: Any, batch_size: int) -> Any:
    """Model input with as many further rows of 0 as a batch has.

    >>> filled(np.ones((2, 3)), 5).shape
    (5, 3)
    """

    def fill(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, np.zeros((batch_size - len(x), *x.shape[1:]), x.dtype)])

    is_full = len(keras.tree.flatten(inputs)[0]) == batch_size
    return inputs if is_full else keras.tree.map_structure(fill, inputs)
