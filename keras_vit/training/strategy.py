"""The devices of a run: `tf.distribute` strategies by name, or the strategies of `sharding` on JAX."""

import contextlib
import json
import os

import keras
import tensorflow as tf

from keras_vit.data.batches import filled_up
from keras_vit.rules import one_of
from keras_vit.training import sharding
from keras_vit.training.preemption import stop

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


def make_strategy(name="auto"):
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
    if _on_jax():
        if tf.config.get_visible_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")  # It would take their memory.
        return sharding.Devices(name)
    if name.partition("=")[0] in {*STRATEGIES["jax"]} - {*STRATEGIES["tensorflow"]}:
        sharding.make_distribution(name)  # It says that this needs JAX.
    one_of(STRATEGIES["tensorflow"]).check("strategy", name)
    gpus = tf.config.list_physical_devices("GPU")  # Listing logical devices would initialise TensorFlow.
    if name == "auto":
        name = "multi_worker" if len(_cluster()[0]) > 1 else "mirrored" if len(gpus) > 1 else "single"
    if name == "multi_worker":
        if not _cluster()[0]:
            raise ValueError(
                '--strategy multi_worker needs TF_CONFIG, such as {"cluster": {"worker": '
                '["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
            )
        return tf.distribute.MultiWorkerMirroredStrategy()
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(
            [device.name for device in tf.config.list_logical_devices("GPU" if gpus else "CPU")]
        )
    if name == "tpu":
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
        except (ValueError, tf.errors.OpError) as error:
            raise ValueError(f"no TPU can be reached: {str(error).splitlines()[0]}") from None
        return tf.distribute.TPUStrategy(resolver)
    return tf.distribute.get_strategy()


def make_deterministic():
    """Make GPUs compute the same bits each time."""
    if _on_jax():
        flags = os.environ.get("XLA_FLAGS", ""), "--xla_gpu_deterministic_ops=true"
        os.environ["XLA_FLAGS"] = " ".join(flags).strip()
    else:
        tf.config.experimental.enable_op_determinism()


def _on_jax():
    return keras.backend.backend() == "jax"


def _cluster():
    """(host:port of all workers, index of this one) from TF_CONFIG."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text or "{}")
        workers = config.get("cluster", {}).get("worker", [])
    except (ValueError, AttributeError):
        raise ValueError(f"expected JSON of a cluster in TF_CONFIG; got {text[:80]!r}") from None
    index = config.get("task", {}).get("index", 0)
    if workers and not 0 <= index < len(workers):
        raise ValueError(f"expected a worker index below {len(workers)} in TF_CONFIG; got {index}")
    return workers, index


def _is_multi_worker(strategy):
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


@contextlib.contextmanager
def bfloat16_initial_values():
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

    def create_as_float32(replica_id, device, primary_var, *, initial_value, dtype=None, **options):
        if replica_id > 0 or dtype is None or tf.as_dtype(dtype) != tf.bfloat16:
            options |= {"initial_value": initial_value, "dtype": dtype}
            return create(replica_id, device, primary_var, **options)

        def as_float32():
            return tf.cast(initial_value() if callable(initial_value) else initial_value, tf.float32)

        options |= {"initial_value": as_float32, "dtype": tf.float32}
        value = create(replica_id, device, primary_var, **options)
        return lambda: tf.cast(value(), tf.bfloat16)

    extended._get_variable_creator_initial_value = create_as_float32
    try:
        yield
    finally:
        del extended._get_variable_creator_initial_value


def is_chief(strategy):
    """Whether this process writes the files that all workers share: the first worker, or the only one.

    Args:
        strategy: What `make_strategy` returns, or its name for it.
    """
    if _on_jax():
        return (make_strategy(strategy) if isinstance(strategy, str) else strategy).is_chief
    if isinstance(strategy, str):
        several = strategy in ("auto", "multi_worker")  # _cluster() is empty if "auto" is another.
    else:
        several = _is_multi_worker(strategy)
    return not several or _cluster()[1] == 0


def distribute(strategy, batches, batch_size):
    """A dataset for `fit` of which each worker reads its part of each batch.

    Args:
        strategy: tf.distribute.Strategy.
        batches: A function (worker, workers) → tf.data.Dataset of that worker's part of each batch.
        batch_size: The global batch size.
    """
    if _on_jax():
        return batches(strategy.worker, strategy.workers)
    if strategy.num_replicas_in_sync == 1:
        return batches(0, 1)

    def of_worker(context):
        part = batches(context.input_pipeline_id, context.num_input_pipelines)
        return part.rebatch(batch_size // context.num_replicas_in_sync)

    return strategy.distribute_datasets_from_function(of_worker)


def fill_up(strategy, batches, batch_size, accumulation_steps=None):
    """Batches of a size that the devices and micro-batches divide, on JAX; others as they are.

    Samples of weight 0 fill them up. Evaluation batches, which have no micro-batches, are also of one size,
    so that one compiled step fits all.

    Args:
        strategy: What `make_strategy` returns.
        batches: tf.data.Dataset of a worker's parts of the batches.
        batch_size: The global batch size.
        accumulation_steps: The number of micro-batches; None for evaluation batches.
    """
    if not _on_jax():
        return batches
    size = batch_size // strategy.workers
    filled = size + -size % (strategy.num_replicas_in_sync // strategy.workers * (accumulation_steps or 1))
    return batches if accumulation_steps and filled == size else filled_up(batches, filled)


def check_batch_size(strategy, batch_size):
    """Raise ValueError if the devices do not divide the batch size; on JAX the workers have to."""
    parts = strategy.workers if _on_jax() else strategy.num_replicas_in_sync
    if batch_size % parts:
        raise ValueError(f"batch_size must be a multiple of {parts}, the devices; got {batch_size}")


def check_model(strategy, model):
    """Raise ValueError if the devices cannot divide the model."""
    if _on_jax():
        strategy.check(model)


def training_scope(strategy):
    """A context for `fit` on the devices; Keras enters a `tf.distribute` scope itself."""
    return strategy.scope() if _on_jax() else contextlib.nullcontext()


def is_stopping(strategy, sigterm):
    """Whether a run ends after this step: on SIGTERM, in any process on JAX, whose processes all ask.

    Args:
        strategy: What `make_strategy` returns.
        sigterm: The list of `note_sigterm`.
    """
    return strategy.smallest(-bool(sigterm)) < 0 if _on_jax() else bool(sigterm)


def smallest(strategy, value):
    """The minimum of an int over all workers, which all of them wait for."""
    if _on_jax():
        return strategy.smallest(value)
    if not _is_multi_worker(strategy):
        return value

    @tf.function
    def gather():
        return strategy.run(of_replica)

    def of_replica():
        return tf.distribute.get_replica_context().all_gather(tf.constant([value], tf.int64), axis=0)

    return int(tf.reduce_min(strategy.experimental_local_results(gather())[0]))


@contextlib.contextmanager
def raise_on_lost_worker(strategy, sigterm=()):
    """Turn TensorFlow's errors after the loss of a worker into one of a single line.

    Args:
        strategy: tf.distribute.Strategy.
        sigterm: The list of `note_sigterm`. After SIGTERM the first worker is expected to exit.

    Raises:
        ConnectionError: if another worker has stopped; SystemExit after SIGTERM.
    """
    if _on_jax():
        with strategy.raise_on_lost_worker():
            yield
        return
    try:
        yield
    except LOST_WORKER as error:
        if not _is_multi_worker(strategy):
            raise
        if sigterm:
            stop("another worker has stopped, so this one stops too")
        raise ConnectionError(
            "another worker has stopped, so this one stops too; start the same command on every worker to "
            f"resume from the last checkpoint ({str(error).strip().splitlines()[0][:200]})"
        ) from None
