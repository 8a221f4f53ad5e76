"""A function of some rows at a time, where the number of rows is known only in TensorFlow's graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras_vit.types import Tensor


def in_slices(
    function: Callable[[Tensor, list[Tensor], list[Tensor]], Tensor],
    by_row: Sequence[tuple[Tensor, int]],
    shared: list[Tensor],
    size: Tensor,
) -> Tensor:
    """`function` of all rows, computed for at most `size` rows at a time.

    Memory holds the intermediate results of one slice, also for the gradient, which computes them again.

    Args:
        function: A function (rows, parts, shared) → (batch, rows, …), in the type of the first of `by_row`.
            It gets the numbers of some rows, int32 (rows,), and these rows of the tensors of `by_row`.
        by_row: A list of (tensor, axis of its rows). All have the same number of rows.
        shared: A list of the tensors that each slice needs whole.
        size: The most rows of a slice, an int32 scalar tensor.

    Example:
        >>> x = tf.range(5.0)[None]
        >>> in_slices(lambda rows, parts, _: parts[0] ** 2, [(x, 1)], [], tf.constant(2)).numpy().tolist()
        [[0.0, 1.0, 4.0, 9.0, 16.0]]

    Source: Rabe and Staats 2021, "Self-attention does not need O(n²) memory", sections 2 and 3 (arXiv
    2112.05682).
    """
    import tensorflow as tf

    tensors, axes = zip(*by_row)
    count = tf.shape(tensors[0])[axes[0]]
    # Divided upwards without negative numbers, which ONNX rounds to zero.
    slices = tf.maximum((count + size - 1) // size, 1)
    length = (count + slices - 1) // slices
    options = {"parallel_iterations": 1}  # The slices of several iterations would be in memory.

    def rows_of(number: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of a slice's rows; the last row fills up the last slice, as XLA needs equal lengths."""
        rows = number * length + tf.range(length)
        return tf.minimum(rows, count - 1), rows < count

    def parts_of(tensors: list[Tensor], rows: Tensor) -> list[Tensor]:
        return [tf.gather(x, rows, axis=axis) for x, axis in zip(tensors, axes)]

    def joined(stacked: Tensor, axis: int) -> Tensor:
        """Slices (slices, …) as one tensor, without the rows that fill up the last one."""
        x = tf.experimental.numpy.moveaxis(stacked, 0, axis)
        shape = tf.shape(x)
        x = tf.reshape(x, tf.concat([shape[:axis], [-1], shape[axis + 2 :]], 0))
        return tf.gather(x, tf.range(count), axis=axis)

    @tf.custom_gradient
    def sliced(tensors: list[Tensor], shared: list[Tensor]) -> tuple[Tensor, Callable[..., Any]]:
        def one_by_one() -> Tensor:
            def add(number: Tensor, outputs: tf.TensorArray) -> tuple[Tensor, tf.TensorArray]:
                rows, _ = rows_of(number)
                return number + 1, outputs.write(number, function(rows, parts_of(tensors, rows), shared))

            outputs = tf.TensorArray(tensors[0].dtype, slices)
            _, outputs = tf.while_loop(lambda number, _: number < slices, add, (0, outputs), **options)
            return joined(outputs.stack(), 1)

        def at_once() -> Tensor:
            return function(tf.range(count), tensors, shared)

        def gradient(upstream: Tensor, variables: Sequence[tf.Variable] = ()) -> tuple[Any, list[Tensor]]:
            def add(
                number: Tensor, arrays: list[tf.TensorArray], sums: list[Tensor]
            ) -> tuple[Tensor, list[tf.TensorArray], list[Tensor]]:
                rows, is_counted = rows_of(number)
                parts = parts_of(tensors, rows)
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch([parts, shared, variables])
                    output = function(rows, parts, shared)
                shape = [1, -1] + [1] * (output.shape.rank - 2)
                part = tf.gather(upstream, rows, axis=1) * tf.cast(
                    tf.reshape(is_counted, shape), upstream.dtype
                )
                grads = tape.gradient(output, [parts, shared, variables], part, unconnected_gradients="zero")
                arrays = [array.write(number, x) for array, x in zip(arrays, grads[0])]
                sums = [total + x for total, x in zip(sums, [*grads[1], *grads[2]])]
                return number + 1, arrays, sums

            arrays = [tf.TensorArray(x.dtype, slices) for x in tensors]
            sums = [tf.zeros_like(x) for x in [*shared, *variables]]
            _, arrays, sums = tf.while_loop(
                lambda number, *_: number < slices, add, (0, arrays, sums), **options
            )
            row_gradients = [joined(array.stack(), axis) for array, axis in zip(arrays, axes)]
            gradients = (row_gradients, sums[: len(shared)])
            return (gradients, sums[len(shared) :]) if variables else gradients

        return tf.cond(slices <= 1, at_once, one_by_one), gradient

    return sliced([*tensors], shared)
