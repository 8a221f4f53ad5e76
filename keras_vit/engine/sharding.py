"""The devices of a run on JAX, and how batches, weights and optimizer state are divided among them."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras.src.backend.common import global_state

from keras_vit.layers.hints import FREE, Sharding
from keras_vit.rules import one_of

if TYPE_CHECKING:
    import tensorflow as tf

STRATEGIES = ("auto", "single", "data_parallel", "fsdp", "model_parallel")
BATCH, MODEL = "batch", "model"  # the axes of a mesh


def variable_axes(
    shape: Sequence[int], strategy: str, mesh: Mapping[str, int], model_axis: int | None = None
) -> tuple[str | None, ...]:
    """The mesh axis that each axis of a variable is sharded over.

    Args:
        shape: Of the variable.
        strategy: "data_parallel" (each device has the whole variable), "fsdp" (each has a part of the largest
            axis that the devices divide) or "model_parallel" (heads, the MLP's hidden units, channels of the
            embeddings and classes).
        mesh: The sizes of the mesh's axes, `{"batch": …}` or `{"batch": …, "model": …}`.
        model_axis: The axis that model_parallel shards, counted from the end, as in the `axes` of the layer's
            `Sharding`; None for none.

    Returns:
        A tuple of an axis name or None for each axis. An axis that the mesh does not divide is not sharded.

    Example:
        >>> variable_axes((768, 3072), "fsdp", {"batch": 8})
        (None, 'batch')
        >>> variable_axes((768, 12, 64), "model_parallel", {"batch": 2, "model": 4}, model_axis=-2)
        (None, 'model', None)

    Source: FSDP: Rajbhandari et al. 2020, "ZeRO" (arXiv 1910.02054), stage 3; model parallelism: Shoeybi et
    al. 2019, "Megatron-LM" (arXiv 1909.08053), section 3.
    """
    name, candidates = MODEL, []
    if strategy == "fsdp":
        name, candidates = BATCH, sorted(range(len(shape)), key=lambda axis: -shape[axis])
    elif strategy == "model_parallel" and model_axis is not None:
        candidates = [len(shape) + model_axis]
    axes: list[str | None] = [None] * len(shape)
    for axis in candidates:
        if shape[axis] and shape[axis] % mesh[name] == 0:
            axes[axis] = name
            break
    return tuple(axes)


def parse_strategy(text: str, devices: int) -> tuple[str, dict[str, int]]:
    """The strategy and the mesh of a `--strategy`.

    Args:
        text: "single", "data_parallel", "fsdp", "model_parallel" (all devices along the model axis),
            "model_parallel=AxB" (A parts of a batch, B parts of the model), or "auto": "data_parallel" if
            there are several devices, else "single".
        devices: The number of devices, of all processes.

    Returns:
        (strategy, mesh) as for `variable_axes`; a mesh of one device for "single".

    Raises:
        ValueError: for another strategy, a mesh that is not of all devices, or one device for a strategy that
            needs several.

    Example:
        >>> parse_strategy("model_parallel=2x4", devices=8)
        ('model_parallel', {'batch': 2, 'model': 4})
    """
    strategy, _, sizes = text.partition("=")
    if not sizes or strategy != "model_parallel":
        one_of(STRATEGIES).check("strategy", text)
    if strategy == "auto":
        strategy = "data_parallel" if devices > 1 else "single"
    if strategy == "single":
        return strategy, {BATCH: 1}
    if strategy != "data_parallel" and devices < 2:
        raise ValueError(f"--strategy {text} needs at least 2 devices; got {devices}")
    if strategy != "model_parallel":
        return strategy, {BATCH: devices}
    if not sizes:
        return strategy, {BATCH: 1, MODEL: devices}
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", sizes)
    if match is None:
        raise ValueError(f"expected --strategy model_parallel=AxB, such as 2x4; got {text!r}")
    batch, model = map(int, match.groups())
    if batch * model != devices:
        raise ValueError(f"expected a mesh of all {devices} devices; got {sizes}, which is {batch * model}")
    return strategy, {BATCH: batch, MODEL: model}


def check_heads(model: keras.Model, mesh: Mapping[str, int]) -> None:
    """Raise ValueError unless the mesh's model axis divides the attention heads.

    Args:
        model: A Keras model.
        mesh: As for `variable_axes`.
    """
    parts = mesh.get(MODEL, 1)
    for layer in model._flatten_layers():
        sharding = _sharding(layer)
        for variable in layer.weights:
            axis = sharding.axes.get(variable.name) if sharding.by_heads else None
            if axis is not None and variable.shape[axis] % parts:
                raise ValueError(
                    f"expected a model axis that divides the attention heads; got {parts} for the "
                    f"{variable.shape[axis]} heads of {variable.path}"
                )


class Sharded(keras.distribution.ModelParallel):
    """A `keras.distribution` of trainable variables by `variable_axes`, and of batches by the batch axis.

    Layers say in their attribute `sharding`, a `Sharding`, what model_parallel divides and which outputs are
    kept divided by the batch alone.

    Optimizer slots get the layouts of their variables from Keras. Other variables, such as the metrics', are
    on every device.

    Args:
        strategy, mesh: As for `variable_axes`.
        devices: Names of as many devices as the mesh has, such as "tpu:0".

    Example:
        >>> sharded = Sharded("fsdp", {"batch": 2}, ["cpu:0", "cpu:1"])
        >>> sharded.get_variable_layout(keras.Variable(np.zeros((3, 4)), name="kernel")).axes
        (None, 'batch')
    """

    def __init__(self, strategy: str, mesh: Mapping[str, int], devices: Sequence[str]) -> None:
        device_mesh = keras.distribution.DeviceMesh(tuple(mesh.values()), tuple(mesh), devices)
        # Each process reads its own part of a batch.
        super().__init__(
            layout_map=keras.distribution.LayoutMap(device_mesh),
            batch_dim_name=BATCH,
            auto_shard_dataset=False,
        )
        self.strategy = strategy
        self.mesh = mesh

    def get_variable_layout(self, variable: keras.Variable) -> keras.distribution.TensorLayout:
        layout = getattr(variable, "_layout", None)
        if layout is not None:
            return layout
        return keras.distribution.TensorLayout(self.axes(variable, _current_layer()), self.device_mesh)

    def axes(self, variable: keras.Variable, layer: object) -> tuple[str | None, ...]:
        """The mesh axis of each axis of a layer's variable."""
        if not variable.trainable:
            return (None,) * len(variable.shape)
        model_axis = _sharding(layer).axes.get(variable.name)
        return variable_axes(variable.shape, self.strategy, self.mesh, model_axis)

    def get_tensor_layout(self, path: str) -> keras.distribution.TensorLayout | None:
        kept = {"fsdp": ("whole", "parts"), "model_parallel": ("whole",)}.get(self.strategy, ())
        if _sharding(_current_layer()).output in kept:
            return keras.distribution.TensorLayout((BATCH,), self.device_mesh)
        return None


def _current_layer() -> object:
    """The layer that creates a variable or has computed an output: Keras says no more than its path."""
    scopes = global_state.get_global_attribute("name_scope_stack")
    return scopes[-1].caller if scopes else None


def _sharding(layer: object) -> Sharding:
    return getattr(layer, "sharding", FREE)


def make_distribution(strategy: str = "auto", devices: Sequence[str] | None = None) -> Any:
    """The `keras.distribution` of a strategy on JAX, for `keras.distribution.set_distribution`.

    Args:
        strategy: As for `parse_strategy`.
        devices: Names of devices; None: all, of all processes.

    Returns:
        `Sharded`, or None for "single".

    Raises:
        ValueError: for another strategy than "single" on another backend than JAX, and as `parse_strategy`.

    Example:
        >>> print(make_distribution("single"))
        None
    """
    if strategy == "single":
        return None
    if keras.backend.backend() != "jax":
        raise ValueError(
            f"--strategy {strategy} needs KERAS_BACKEND=jax; got {keras.backend.backend()!r}, whose "
            "strategies are auto, single, mirrored, multi_worker and tpu"
        )
    if devices is None:
        devices = keras.distribution.list_devices()
    strategy, mesh = parse_strategy(strategy, len(devices))
    if math.prod(mesh.values()) == 1:
        return None
    return Sharded(strategy, mesh, devices)


def check_batch_size(batch_size: int, parts: int) -> None:
    """Raise ValueError if a batch cannot be divided into so many parts."""
    if batch_size % parts:
        raise ValueError(f"batch_size must be a multiple of {parts}, the devices; got {batch_size}")


class Devices:
    """The devices of a run on JAX, of one process or several.

    Several processes are connected by `keras.distribution.initialize`, from the environment variables
    KERAS_DISTRIBUTION_JOB_ADDRESSES, KERAS_DISTRIBUTION_NUM_PROCESSES and KERAS_DISTRIBUTION_PROCESS_ID. Each
    reads the part of a batch that its devices compute. Where several processes compute the same part, each
    reads all of it.

    Args:
        strategy: As for `parse_strategy`.

    Raises:
        ValueError: as `parse_strategy`, or if the processes cannot be connected or the mesh divides a batch
            at other places than they do.

    Example:
        >>> Devices("single").num_replicas_in_sync  # on TensorFlow, as here, there is no other
        1
    """

    def __init__(self, strategy: str = "auto") -> None:
        self.worker, self.workers, self.processes = 0, 1, 1
        self.is_chief = True
        if keras.backend.backend() == "jax":
            self.processes = _initialize()
        self.distribution: Sharded | None = make_distribution(strategy)
        self.num_replicas_in_sync = self.distribution.mesh[BATCH] if self.distribution else 1
        self.is_one_device = self.distribution is None
        if self.processes == 1:
            return
        if self.distribution is None:
            raise ValueError(f"--strategy {strategy} is for one process; got {self.processes}")
        parts, processes = self.num_replicas_in_sync, self.processes
        if max(parts, processes) % min(parts, processes):
            raise ValueError(
                f"expected a batch axis that divides the {processes} processes, or the reverse; got {parts} "
                f"by --strategy {strategy}"
            )
        self.worker, self.workers = self.distribution.data_shard_id, min(parts, processes)
        import jax

        self.is_chief = jax.process_index() == 0

    @property
    def equal_parts(self) -> int:
        """The number of equal parts of a batch that `distribute` expects."""
        return self.workers

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """A context in which models are built and trained on these devices."""
        return self.distribution.scope() if self.distribution else contextlib.nullcontext()

    training_scope = scope

    @contextlib.contextmanager
    def one_device(self) -> Iterator[None]:
        """A context within `scope` in which models are on one device of this process."""
        keras.distribution.set_distribution(None)
        try:
            yield
        finally:
            keras.distribution.set_distribution(self.distribution)

    def check_batch_size(self, batch_size: int) -> None:
        """Raise ValueError if the workers do not divide the batch size; `distribute` fills their parts up."""
        check_batch_size(batch_size, self.workers)

    def check_model(self, model: keras.Model) -> None:
        """Raise ValueError if the mesh does not divide the model's heads."""
        if self.distribution:
            check_heads(model, self.distribution.mesh)

    def distribute(
        self,
        batches: Callable[[int, int], tf.data.Dataset],
        batch_size: int,
        accumulation_steps: int | None = None,
        compiled: bool = True,
    ) -> tf.data.Dataset:
        """A dataset for `fit` of this worker's part of each batch.

        Samples of weight 0 fill it up to a size that its devices and micro-batches divide. Evaluation batches
        are also of one size, so that one compiled step fits all.

        Args:
            batches: A function (worker, workers) → tf.data.Dataset of that worker's part of each batch.
            batch_size: The global batch size.
            accumulation_steps: The number of micro-batches; None for evaluation batches.
            compiled: For `TensorFlowDevices`; JAX compiles every step.
        """
        from keras_vit.data.batches import filled_up  # needs TensorFlow

        size = batch_size // self.workers
        filled = size + -size % (self.num_replicas_in_sync // self.workers * (accumulation_steps or 1))
        part = batches(self.worker, self.workers)
        return part if accumulation_steps and filled == size else filled_up(part, filled)

    def is_stopping(self, sigterm: Sequence[float]) -> bool:
        """Whether a run ends after this step: on SIGTERM in any process, all of which have to ask.

        Args:
            sigterm: The list of `note_sigterm`.
        """
        return self.smallest(-bool(sigterm)) < 0

    def smallest(self, value: int) -> int:
        """The minimum of an int over all processes, which all of them wait for."""
        return int(self._of_processes(np.array(value, "int32")).min()) if self.processes > 1 else value

    def of_first_worker(self, value: np.ndarray) -> np.ndarray:
        """The first process's value of a NumPy array, which all processes wait for."""
        return self._of_processes(value)[0] if self.processes > 1 else value

    def _of_processes(self, value: np.ndarray) -> np.ndarray:
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(value)

    @contextlib.contextmanager
    def raise_on_lost_worker(self, sigterm: Sequence[float] = ()) -> Iterator[None]:
        """Turn JAX's error after the loss of a process into a ConnectionError of a single line.

        Args:
            sigterm: For `TensorFlowDevices`; here all processes stop together.
        """
        if self.processes == 1:
            yield
            return
        import jax

        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            raise ConnectionError(
                "another process has stopped, so this one stops too; start the same command in every process "
                f"to resume from the last checkpoint ({str(error).strip().splitlines()[0][:200]})"
            ) from None


def _initialize() -> int:
    """Connect the processes that the environment lists, and return their number."""
    import jax

    if (
        any(name.startswith("KERAS_DISTRIBUTION_") for name in os.environ)
        and not jax.distributed.is_initialized()
    ):
        try:
            keras.distribution.initialize()
        except RuntimeError as error:
            raise ValueError(f"the processes cannot be connected: {str(error).splitlines()[0]}") from None
    return jax.process_count()


def whole(variable: keras.Variable) -> np.ndarray:
    """The value of a variable as a NumPy array.

    If other processes have parts of it, all have to call this.

    Args:
        variable: A Keras variable.

    Example:
        >>> whole(keras.Variable([1.0, 2.0])).tolist()
        [1.0, 2.0]
    """
    value = variable.value
    if getattr(value, "is_fully_addressable", True) or value.is_fully_replicated:
        return np.asarray(variable.numpy())
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(value, tiled=True)
