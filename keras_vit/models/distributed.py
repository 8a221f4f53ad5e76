"""Models that `fit` trains alike on one device, several, and several machines."""

import gc
import random
import warnings

import keras

from keras_vit.layers.dense import adaptable_layers
from keras_vit.models.adapting import enable_lora, merge_lora
from keras_vit.models.fit_checks import ScheduleLength, check_callbacks, warn_of_probabilities

MODES = ("int8", "int4", "float8")
_ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


@keras.saving.register_keras_serializable("keras_vit")
class DistributedModel(keras.Model):
    """A functional model for which the same global batch gives the same step on any number of devices.

    `fit` works without a strategy and under MirroredStrategy, MultiWorkerMirroredStrategy and
    TPUStrategy. Each step's loss is the mean over the global batch (with a loss that divides by the
    weights, as this package's do: the weighted sum over the global batch divided by the global
    weight), however unevenly the batch falls on the replicas. Every random number that a layer draws
    while training is a function of (seed, step, micro-batch, replica), not of a stored state: a run
    that goes on from a step draws what an uninterrupted one would have drawn. On another backend than
    TensorFlow it is a plain `keras.Model`.

    Gradients are clipped globally only by an optimizer that sums them over the replicas first:
    `keras_vit.training.SGD` and `AdamW`.

    Args:
        inputs, outputs: As for a functional `keras.Model`.

    Example:
        >>> images = keras.Input((4,))
        >>> model = DistributedModel(images, keras.layers.Dense(2)(images))
        >>> model.compile("sgd", "mse", accumulation_steps=2)
        >>> history = model.fit(np.ones((8, 4)), np.ones((8, 2)), batch_size=4, verbose=0)

    Source: the accumulation and reduction of `vit_jax/train.py`; what Keras does instead: Keras 3.15
    clips before the reduction, and its `fit` refuses MultiWorkerMirroredStrategy.
    """

    total_steps = None

    def compile(self, *args, accumulation_steps=1, seed=None, total_steps=None, **kwargs):
        """As `keras.Model.compile`, with three arguments more.

        Args:
            accumulation_steps: Micro-batches that each replica splits its part of a batch into, one
                after the other in memory. The step is that of the whole batch.
            seed: What dropout and stochastic depth draw from, an int; by default
                `keras.utils.set_random_seed` decides.
            total_steps: Steps of the learning rate's schedule; `fit` warns if it ends far from them.

        A classifier whose loss takes logits for probabilities, such as "categorical_crossentropy", is
        compiled with a warning.

        Raises:
            ValueError: for fewer than one micro-batch, or `steps_per_execution` above 1 on several
                replicas, which Keras cannot do.
        """
        if not isinstance(accumulation_steps, int) or accumulation_steps < 1:
            raise ValueError(f"accumulation_steps must be a positive int; got {accumulation_steps!r}")
        if _ON_TENSORFLOW:
            replicas = self.distribute_strategy.num_replicas_in_sync
            if kwargs.get("steps_per_execution", 1) != 1 and replicas > 1:
                raise ValueError(
                    f"steps_per_execution must be 1 on several replicas; got "
                    f"{kwargs['steps_per_execution']} on {replicas}"
                )
        elif accumulation_steps > 1:
            raise ValueError("accumulation_steps above 1 needs KERAS_BACKEND=tensorflow")
        if accumulation_steps > 1 and kwargs.get("jit_compile", "auto") == "auto":
            kwargs["jit_compile"] = False  # XLA does not cut a batch into parts of uneven sizes
        super().compile(*args, **kwargs)
        self.accumulation_steps = accumulation_steps
        self.random_seed = random.randrange(2**31) if seed is None else seed
        self.total_steps = total_steps
        if getattr(self, "num_classes", None) is not None:
            warn_of_probabilities(self.loss)

    def fit(self, x=None, y=None, batch_size=None, epochs=1, verbose="auto", callbacks=None, *args, **kwargs):
        """As `keras.Model.fit`, with two checks.

        It warns if it ends far from the compiled `total_steps`.

        Raises:
            ValueError: for a callback that sets a learning rate that follows a schedule.
        """
        if self.compiled and not isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks = keras.tree.flatten(callbacks) if callbacks else []
            check_callbacks(self.optimizer, callbacks)
            if self.total_steps is not None:
                callbacks = [*callbacks, ScheduleLength(self.total_steps)]
        return super().fit(x, y, batch_size, epochs, verbose, callbacks, *args, **kwargs)

    def make_train_function(self, force=False):
        if not self.trainable_variables:
            raise ValueError(
                f"there is nothing to train: every weight of the model {self.name!r} is frozen; set "
                "trainable = True for it or some of its layers, and compile it again"
            )
        return super().make_train_function(force)

    enable_lora = enable_lora
    merge_lora = merge_lora

    def quantize(self, mode=None, config=None, filters=None, **kwargs):
        """As `keras.Model.quantize`: store and multiply the kernels of dense layers in few bits.

        "int8" and "int4" make them a quarter and an eighth of the size, for inference and for LoRA;
        "float8" is for training. `.keras` files keep the quantization. Exports and
        `keras_vit.weights.save_weights` write float32 kernels, of the rounded values. Compile the model
        afterwards.

        Args:
            mode: "int8", "int4" or "float8"; None: that of `config`.
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
        if mode not in MODES:  # Keras has put a configuration's mode there
            raise ValueError(f"mode must be one of {MODES}; got {mode!r}")
        if mode == "float8" and any(layer.lora_enabled for layer in adaptable_layers(self)):
            raise ValueError(
                "Keras does not support LoRA in float8; merge_lora() first, or take int8 or int4"
            )
        frozen = gc.get_freeze_count()
        gc.freeze()  # Keras collects garbage after each layer, which took nine tenths of the time
        try:
            with warnings.catch_warnings():  # one for each layer without a kernel
                warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method implemented")
                super().quantize(mode, config=config, filters=filters, **kwargs)
        finally:
            if not frozen:
                gc.unfreeze()

    def get_compile_config(self):
        config = super().get_compile_config()
        if config:
            config["accumulation_steps"] = self.accumulation_steps
            config["seed"] = self.random_seed
            config["total_steps"] = self.total_steps
        return config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    if _ON_TENSORFLOW:

        def train_step(self, data):
            from keras_vit.models import distributed_step

            return distributed_step.train_step(self, data)

        def test_step(self, data):
            from keras_vit.models import distributed_step

            return distributed_step.test_step(self, data)

        def _maybe_symbolic_build(self, iterator=None, data_batch=None):
            # Keras would average the replicas' batches, which fails across workers and where the
            # batch falls unevenly. The first replica's has the shapes, too.
            if self._distribute_strategy is not None and iterator is not None:
                first = self.distribute_strategy.experimental_local_results
                for _, _, batches in iterator:
                    data_batch = keras.tree.map_structure(lambda values: first(values)[0], next(batches))
                    break
                iterator = None
            super()._maybe_symbolic_build(iterator, data_batch)
