"""Which devices a run uses: `tf.distribute` by name."""

import contextlib
import json
import os

import tensorflow as tf

from keras_vit.training.preemption import stop

# What is raised in the workers that are left.
LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)
STRATEGIES = ("auto", "single", "mirrored", "multi_worker", "tpu")


def make_strategy(name="auto"):
    """A `tf.distribute` strategy by name.

    Args:
        name: "single" (one device), "mirrored" (all GPUs of this machine; without any, all logical
            CPUs), "multi_worker" (all devices of the machines that the environment variable TF_CONFIG
            names), "tpu" (the TPU of this environment), or "auto": "multi_worker" if TF_CONFIG names
            several workers, "mirrored" if there are several GPUs, else "single".

    Returns:
        tf.distribute.Strategy; the default one for "single".

    Raises:
        ValueError: for an unknown name, a TF_CONFIG that is missing or names no workers, or no TPU.

    Example:
        >>> make_strategy("single").num_replicas_in_sync
        1
    """
    if name not in STRATEGIES:
        raise ValueError(f"strategy {name!r} is unknown; choose one of {STRATEGIES}")
    gpus = tf.config.list_physical_devices("GPU")  # logical ones would start TensorFlow before its workers
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


def _cluster():
    """The addresses of the workers that TF_CONFIG names, and this one's place among them."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text or "{}")
        workers = config.get("cluster", {}).get("worker", [])
    except (ValueError, AttributeError):
        raise ValueError(f"TF_CONFIG is not JSON of a cluster: {text[:80]!r}") from None
    index = config.get("task", {}).get("index", 0)
    if workers and not 0 <= index < len(workers):
        raise ValueError(f"TF_CONFIG says that this is worker {index} of {len(workers)}")
    return workers, index


def scope(strategy):
    """The scope to build a model in; nothing for the default strategy."""
    return strategy.scope() if tf.distribute.get_strategy() is not strategy else contextlib.nullcontext()


@contextlib.contextmanager
def any_dtype():
    """Within, workers can make variables of bfloat16, too.

    The first worker sends the others its first values, by an operation that does not know bfloat16
    (TensorFlow 2.21); here these travel as float32, which holds them exactly.
    """
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        yield
        return
    extended = strategy.extended
    made = extended._get_variable_creator_initial_value

    def make(replica_id, device, primary_var, *, initial_value, dtype=None, **options):
        if replica_id > 0 or dtype is None or tf.as_dtype(dtype) != tf.bfloat16:
            options |= {"initial_value": initial_value, "dtype": dtype}
            return made(replica_id, device, primary_var, **options)

        def as_float32():
            return tf.cast(initial_value() if callable(initial_value) else initial_value, tf.float32)

        value = made(replica_id, device, primary_var, initial_value=as_float32, dtype=tf.float32, **options)
        return lambda: tf.cast(value(), tf.bfloat16)

    extended._get_variable_creator_initial_value = make
    try:
        yield
    finally:
        del extended._get_variable_creator_initial_value


def is_chief(strategy):
    """Whether this process writes what all workers share: the first worker's, or the only one.

    Args:
        strategy: tf.distribute.Strategy, or the name that `make_strategy` makes it of.
    """
    if isinstance(strategy, str):
        several = strategy in ("auto", "multi_worker")  # "auto" is it where there are workers
    else:
        several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return not several or _cluster()[1] == 0


def distribute(strategy, batches, batch_size):
    """A dataset for `fit`, each worker reading its own part of each batch.

    Args:
        strategy: tf.distribute.Strategy.
        batches: A function (worker, workers) → tf.data.Dataset of that worker's part of each batch.
        batch_size: Of all workers together.
    """
    if strategy.num_replicas_in_sync == 1:
        return batches(0, 1)

    def of_worker(context):
        each = batches(context.input_pipeline_id, context.num_input_pipelines)
        return each.rebatch(batch_size // context.num_replicas_in_sync)

    return strategy.distribute_datasets_from_function(of_worker)


def smallest(strategy, value):
    """The smallest of the workers' values of an int."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return value

    @tf.function
    def gather():
        return strategy.run(of_replica)

    def of_replica():
        return tf.distribute.get_replica_context().all_gather(tf.constant([value], tf.int64), axis=0)

    return int(tf.reduce_min(strategy.experimental_local_results(gather())[0]))


@contextlib.contextmanager
def told_of_lost_workers(strategy, sigterm=()):
    """Within, say in one line that another worker does not answer any more.

    Args:
        strategy: tf.distribute.Strategy.
        sigterm: What `sigterm_noted` yields. After SIGTERM the first worker is expected to leave.

    Raises:
        ConnectionError: where TensorFlow does, in many lines and of many kinds; SystemExit after SIGTERM.
    """
    try:
        yield
    except LOST as error:
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            raise
        if sigterm:
            stop("another worker has stopped, so this one stops too")
        raise ConnectionError(
            "another worker has stopped, so this one stops too; start the same command on every worker to go "
            f"on from the last checkpoint ({str(error).strip().splitlines()[0][:200]})"
        ) from None
