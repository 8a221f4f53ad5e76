"""The devices of a run: `tf.distribute` strategies by name, or the strategies of `sharding` on JAX."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.engine import sharding
from keras_vit.engine.preemption import stop
from keras_vit.rules import one_of
from keras_vit.types import Tensor

# What the remaining workers raise when one has stopped.
LOST_WORKER = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)
STRATEGIES = {
    "tensorflow": ("auto", "single", "mirrored", "multi_worker", "tpu"),
    "jax": sharding.STRATEGIES,
}


def make_strategy(name: str = "auto") -> Any:
    """The devices of a run by the name of a strategy.

    Args:
        name: "single" (one device), "mirrored" (all GPUs of this machine, or without any all logical CPUs),
            "multi_worker" (all devices of the machines in the environment variable TF_CONFIG), "tpu" (the
            TPU of this environment), or "auto": "multi_worker" if TF_CONFIG has several workers, "mirrored"
            if there are several GPUs, else "single". On JAX, where TensorFlow only reads the data, one of
            `sharding.parse_strategy`: "single", "data_parallel", "fsdp", "model_parallel=AxB" or "auto".

    Returns:
        tf.distribute.Strategy, the default one for "single"; on JAX `sharding.Devices`.

    Raises:
        ValueError: for an unknown name, a TF_CONFIG that is missing or has no workers, or no TPU; on JAX as
            `sharding.Devices`.

    Example:
        >>> make_strategy("single").num_replicas_in_sync
        1
    """
    if keras.backend.backend() == "jax":
        if tf.config.get_visible_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")  # It would take their memory.
        return sharding.Devices(name)
    if name.partition("=")[0] in {*STRATEGIES["jax"]} - {*STRATEGIES["tensorflow"]}:
        sharding.make_distribution(name)  # It says that this needs JAX.
    one_of(STRATEGIES["tensorflow"]).check("strategy", name)
    gpus = tf.config.list_physical_devices("GPU")  # Listing logical devices would initialize TensorFlow.
    if name == "auto":
        name = "multi_worker" if len(_cluster()[0]) > 1 else "mirrored" if len(gpus) > 1 else "single"
    if name == "multi_worker":
        if not _cluster()[0]:
            raise ValueError(
                '--strategy multi_worker needs TF_CONFIG, such as {"cluster": {"worker": '
                '["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
            )
        return _of_process(tf.distribute.MultiWorkerMirroredStrategy)
    if name == "mirrored":
        device_type = "GPU" if gpus else "CPU"
        names = tuple(device.name for device in tf.config.list_logical_devices(device_type))
        return _of_process(tf.distribute.MirroredStrategy, names)
    if name == "tpu":
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
        except (ValueError, tf.errors.OpError) as error:
            raise ValueError(f"no TPU can be reached: {str(error).splitlines()[0]}") from None
        return tf.distribute.TPUStrategy(resolver)
    return tf.distribute.get_strategy()


@functools.cache
def _of_process(strategy: Callable[..., Any], *arguments: Sequence[str]) -> Any:
    """One strategy for all runs of a process, since the collectives of two would interfere."""
    return strategy(*arguments)


def make_devices(name: str = "auto") -> TensorFlowDevices | sharding.Devices:
    """The devices of a run by the name of a strategy, as for `make_strategy`.

    Returns:
        `TensorFlowDevices`, or on JAX `sharding.Devices`, which have the same methods.
    """
    strategy = make_strategy(name)
    return TensorFlowDevices(strategy) if isinstance(strategy, tf.distribute.Strategy) else strategy


def is_chief(name: str) -> bool:
    """Whether this process writes the files that all workers share: the first worker, or the only one.

    Args:
        name: As for `make_strategy`. On TensorFlow the strategy is not made, since its workers would connect
            again.
    """
    if keras.backend.backend() == "jax":
        return make_strategy(name).is_chief
    return name not in ("auto", "multi_worker") or _cluster()[1] == 0  # 0 if "auto" is another


class TensorFlowDevices:
    """The devices of a run on TensorFlow, with the methods of `sharding.Devices`.

    Args:
        strategy: tf.distribute.Strategy.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.num_replicas_in_sync = strategy.num_replicas_in_sync
        self.equal_parts = self.num_replicas_in_sync  # of a batch
        self.is_one_device = self.num_replicas_in_sync == 1
        self.several_workers = _is_multi_worker(strategy)
        self.is_chief = not self.several_workers or _cluster()[1] == 0

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which models are built on these devices."""
        return self.strategy.scope()

    @contextlib.contextmanager
    def training_scope(self) -> Iterator[None]:
        """A context for `fit`, which enters the strategy's scope itself."""
        with warnings.catch_warnings():
            # Keras cannot know the length of a distributed data set, and warns at the end of each evaluation.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            yield

    def one_device(self) -> contextlib.AbstractContextManager[None]:
        """A context within `fit` in which models are on one device: none, since callbacks are in no scope."""
        return contextlib.nullcontext()

    def check_batch_size(self, batch_size: int) -> None:
        """Raise ValueError if the replicas do not divide the batch size."""
        sharding.check_batch_size(batch_size, self.num_replicas_in_sync)

    def check_model(self, model: keras.Model) -> None:
        """Accept every model, since each replica has all of it."""

    def distribute(
        self,
        batches: Callable[[int, int], tf.data.Dataset],
        batch_size: int,
        accumulation_steps: int | None = None,
        compiled: bool = False,
    ) -> tf.data.Dataset | tf.distribute.DistributedDataset:
        """A dataset for `fit` of which each worker reads its part of each batch.

        Samples of weight 0 fill up evaluation batches: several convolutions of an empty batch fail.

        Args:
            batches: A function (worker, workers) → tf.data.Dataset of that worker's part of each batch.
            batch_size: The global batch size.
            accumulation_steps: As for `sharding.Devices`; the steps divide batches of any size.
            compiled: Whether XLA compiles the step, so that one device, too, needs batches of one size.
        """
        from keras_vit.data.batches import filled_up

        if self.num_replicas_in_sync == 1:
            part = batches(0, 1)
            return filled_up(part, batch_size) if compiled and accumulation_steps is None else part

        def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
            part = batches(context.input_pipeline_id, context.num_input_pipelines)
            if accumulation_steps is None:
                part = filled_up(part, batch_size // context.num_input_pipelines)
            return part.rebatch(batch_size // context.num_replicas_in_sync)

        return self.strategy.distribute_datasets_from_function(of_worker)

    def is_stopping(self, sigterm: Sequence[float]) -> bool:
        """Whether a run ends after this step: on SIGTERM in this process.

        Args:
            sigterm: The list of `note_sigterm`.
        """
        return bool(sigterm)

    def smallest(self, value: int) -> int:
        """The minimum of an int over all workers, which all of them wait for."""
        return int(self._of_workers(np.int64(value)).min()) if self.several_workers else value

    def of_first_worker(self, value: np.ndarray) -> np.ndarray:
        """The first worker's value of a NumPy array, which all workers wait for."""
        return self._of_workers(value)[0] if self.several_workers else value

    def _of_workers(self, value: np.ndarray | np.int64) -> np.ndarray:
        @tf.function
        def gather() -> Tensor:
            return self.strategy.run(of_replica)

        def of_replica() -> Tensor:
            return tf.distribute.get_replica_context().all_gather(tf.constant(value)[tf.newaxis], axis=0)

        return self.strategy.experimental_local_results(gather())[0].numpy()

    @contextlib.contextmanager
    def raise_on_lost_worker(self, sigterm: Sequence[float] = ()) -> Iterator[None]:
        """Turn TensorFlow's errors after the loss of a worker into one of a single line.

        Args:
            sigterm: The list of `note_sigterm`. After SIGTERM the first worker is expected to exit.

        Raises:
            ConnectionError: if another worker has stopped; SystemExit after SIGTERM.
        """
        try:
            yield
        except LOST_WORKER as error:
            if not self.several_workers:
                raise
            if sigterm:
                stop("another worker has stopped, so this one stops too")
            raise ConnectionError(
                "another worker has stopped, so this one stops too; start the same command on every worker "
                f"to resume from the last checkpoint ({str(error).strip().splitlines()[0][:200]})"
            ) from None


def make_deterministic() -> None:
    """Make GPUs compute the same bits each time."""
    if keras.backend.backend() == "jax":
        flags = os.environ.get("XLA_FLAGS", ""), "--xla_gpu_deterministic_ops=true"
        os.environ["XLA_FLAGS"] = " ".join(flags).strip()
    else:
        tf.config.experimental.enable_op_determinism()


def _cluster() -> tuple[list[str], int]:
    """(host:port of all workers, the chief first, and index of this one) from TF_CONFIG."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text or "{}")
        jobs, task = config.get("cluster", {}), config.get("task", {})
        chief, index = [*jobs.get("chief", ())], int(task.get("index", 0))
        workers = [*chief, *jobs.get("worker", ())]
        first = 0 if task.get("type") == "chief" else len(chief)
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"expected JSON of a cluster in TF_CONFIG; got {text[:80]!r}") from None
    if workers and not 0 <= index < len(workers) - first:
        raise ValueError(f"expected a worker index below {len(workers) - first} in TF_CONFIG; got {index}")
    return workers, first + index


def _is_multi_worker(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


@contextlib.contextmanager
def bfloat16_initial_values() -> Iterator[None]:
    """Let workers create variables of bfloat16.

    The first worker broadcasts its initial values by an operation that does not support bfloat16
    (TensorFlow 2.21), so these are sent as float32, which is exact.
    """
    strategy = tf.distribute.get_strategy()
    if not _is_multi_worker(strategy):
        yield
        return
    extended = strategy.extended
    create = extended._get_variable_creator_initial_value

    def create_as_float32(
        replica_id: int,
        device: str,
        primary_var: tf.Variable | None,
        *,
        initial_value: Any,
        dtype: Any = None,
        **options: Any,
    ) -> Callable[[], Tensor]:
        if replica_id > 0 or dtype is None or tf.as_dtype(dtype) != tf.bfloat16:
            options |= {"initial_value": initial_value, "dtype": dtype}
            return create(replica_id, device, primary_var, **options)

        def as_float32() -> Tensor:
            return tf.cast(initial_value() if callable(initial_value) else initial_value, tf.float32)

        options |= {"initial_value": as_float32, "dtype": tf.float32}
        value = create(replica_id, device, primary_var, **options)
        return lambda: tf.cast(value(), tf.bfloat16)

    extended._get_variable_creator_initial_value = create_as_float32
    try:
        yield
    finally:
        del extended._get_variable_creator_initial_value
