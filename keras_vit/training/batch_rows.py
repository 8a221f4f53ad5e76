"""The rows of arrays that belong to the samples of each batch of a run. Needs TensorFlow."""

import tensorflow as tf

from keras_vit.data.samples import not_converted, positions, shuffled, worker_slots


def batch_indices(count, batch_size, seed=0, steps=0, first_step=None, worker=0, workers=1):
    """The indices of the samples in each batch, of samples that are accessed by index.

    Args:
        count: The number of samples.
        batch_size, seed, steps, first_step, worker, workers: As for `training_batches`; without a first step,
            as for `evaluation_batches`.

    Returns:
        tf.data.Dataset of int64 (batch,).

    Example:
        >>> [batch.tolist() for batch in batch_indices(5, 4, worker=1, workers=2).as_numpy_iterator()]
        [[2, 3], []]
    """
    slots = worker_slots(batch_size, worker, workers)
    if first_step is not None:
        places = positions(first_step, steps, batch_size, slots)
        indices = places.map(not_converted(lambda position: shuffled(position, count, seed)))
        return indices.batch(len(slots), drop_remainder=True)

    @not_converted
    def of_batch(start):
        return tf.range(tf.minimum(start + slots.start, count), tf.minimum(start + slots.stop, count))

    return tf.data.Dataset.range(0, count, batch_size).map(of_batch)


def rows_at(indices, arrays):
    """The rows of arrays at some indices, a tensor; the arrays are no part of the graph.

    Args:
        indices: int64 (batch,).
        arrays: A list of NumPy arrays (samples, …).

    Returns:
        A list of tensors (batch, …).
    """
    taken = tf.numpy_function(
        lambda indices: [array[indices] for array in arrays],
        [indices],
        [array.dtype for array in arrays],
        stateful=False,
    )
    return [tf.ensure_shape(rows, (*indices.shape, *array.shape[1:])) for rows, array in zip(taken, arrays)]


def with_inputs(batches, indices, arrays):
    """Batches with rows of arrays as further inputs.

    Args:
        batches: tf.data.Dataset of (images or a dict of inputs, …).
        indices: Those of `batch_indices`.
        arrays: dict from the names of inputs to NumPy arrays (samples, …) of floats.

    Returns:
        tf.data.Dataset of (dict of inputs, …); `images` is the name of a single one.
    """

    @not_converted
    def joined(batch, indices):
        inputs, *rest = batch
        inputs = inputs if isinstance(inputs, dict) else {"images": inputs}
        rows = [tf.cast(part, tf.float32) for part in rows_at(indices, [*arrays.values()])]
        return inputs | dict(zip(arrays, rows)), *rest

    return tf.data.Dataset.zip(batches, indices).map(joined, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
