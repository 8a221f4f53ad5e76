"""Linear assignment: match rows with columns at the least sum of costs."""

import keras
import numpy as np
from keras import ops

from keras_vit.layers.control_dependencies import is_compiled_by_xla

NO_MATCH, NOT_FINITE = 1e4, 1e9  # costs


def assign(costs, counts):
    """Match each of the first rows with a column of its own, at the least sum of costs.

    SciPy computes the images one after the other on the host, unless XLA compiles the graph, as JAX always
    does: then they are computed together by loops. Costs that are NaN or infinite are matched only if there
    is no other way.

    Args:
        costs: float (batch, rows, columns).
        counts: int (batch,): how many rows of each image are matched.

    Returns:
        int32 (batch, rows): the column of each row; -1 for a row that is not matched. Of more rows than
        columns, as many as there are columns are matched.

    Example:
        >>> assign(np.array([[[1.0, 2.0], [1.0, 5.0]]]), [2]).numpy().tolist()
        [[1, 0]]
        >>> assign(np.array([[[1.0, 2.0], [1.0, 5.0]]]), [1]).numpy().tolist()
        [[0, -1]]

    Source: Jonker and Volgenant 1987, "A shortest augmenting path algorithm for dense and sparse linear
    assignment problems"; Crouse 2016, "On implementing 2D rectangular assignment algorithms", for SciPy.
    """
    costs, counts = ops.cast(costs, "float32"), ops.cast(counts, "int32")
    backend = keras.backend.backend()
    if backend == "tensorflow" and not is_compiled_by_xla():
        import tensorflow as tf

        columns = tf.numpy_function(_by_scipy, [costs, counts], tf.int32, stateful=False)
        columns.set_shape(costs.shape[:2])
        return columns
    if backend == "torch":
        return ops.convert_to_tensor(_by_scipy(*map(ops.convert_to_numpy, (costs, counts))))
    return _by_loops(costs, counts)


def _by_scipy(costs, counts):
    """`assign` for NumPy arrays."""
    from scipy.optimize import linear_sum_assignment  # Its import takes long.

    _, rows, own_columns = costs.shape
    costs = np.where(np.isfinite(costs), costs, NOT_FINITE)
    missing = max(rows - own_columns, 0)
    costs = np.pad(costs, ((0, 0), (0, 0), (0, missing)), constant_values=NO_MATCH)
    columns = np.full(costs.shape[:2], -1, "int32")
    for cost, count, row in zip(costs, counts, columns):
        row[:count] = linear_sum_assignment(cost[:count])[1]
    return np.where(columns < own_columns, columns, np.int32(-1))


def _by_loops(costs, counts):
    """`assign` for tensors."""
    costs = ops.where(ops.isfinite(costs), costs, NOT_FINITE)
    batch, rows, own_columns = ops.shape(costs)
    # Columns that stand for no match, which cost more than all others.
    missing = rows - own_columns
    missing = max(missing, 0) if isinstance(missing, int) else ops.maximum(missing, 0)
    costs = ops.concatenate([costs, ops.full((batch, rows, missing), NO_MATCH)], axis=2)
    columns = own_columns + missing
    # A row enters at column 0, which is no column of the problem.
    costs = ops.pad(costs, ((0, 0), (0, 0), (1, 0)))
    index = ops.arange(columns + 1, dtype="int32")
    zeros = ops.zeros((batch, columns + 1), "float32")
    nowhere = ops.zeros((batch,), "int32")

    def insert(row, matched, row_potential, column_potential):
        """Add one row by a shortest augmenting path. `row_potential` is that of the row at a column."""
        is_entry = index == 0
        matched = ops.where(is_entry, row, matched)
        row_potential = ops.where(is_entry, 0.0, row_potential)

        def search(searching, column, used, least, previous, row_potential, column_potential):
            active = ops.expand_dims(searching, 1)
            used = used | ((index == ops.expand_dims(column, 1)) & active)
            at_column = ops.expand_dims(ops.expand_dims(_pick(matched, column), 1), 1)
            reduced = ops.take_along_axis(costs, at_column, axis=1)[:, 0] - column_potential
            reduced = reduced - ops.expand_dims(_pick(row_potential, column), 1)
            better = ~used & (reduced < least) & active
            least = ops.where(better, reduced, least)
            previous = ops.where(better, ops.expand_dims(column, 1), previous)
            reachable = ops.where(used, float("inf"), least)
            step = ops.where(active, ops.min(reachable, axis=1, keepdims=True), 0.0)
            row_potential = row_potential + ops.where(used, step, 0.0)
            column_potential = column_potential - ops.where(used, step, 0.0)
            least = ops.where(used, least, least - step)
            nearest = ops.cast(ops.argmin(reachable, axis=1), "int32")
            column = ops.where(searching, nearest, column)
            searching = searching & (_pick(matched, column) >= 0)
            return searching, column, used, least, previous, row_potential, column_potential

        searching = row < counts
        start = (zeros > 1, zeros + float("inf"), ops.cast(zeros, "int32"), row_potential, column_potential)
        _, column, _, _, previous, row_potential, column_potential = ops.while_loop(
            lambda searching, *_: ops.any(searching), search, (searching, nowhere, *start)
        )

        def augment(column, matched, row_potential):
            before = _pick(previous, column)
            moved = (index == ops.expand_dims(column, 1)) & (ops.expand_dims(column, 1) != 0)
            matched = ops.where(moved, ops.expand_dims(_pick(matched, before), 1), matched)
            row_potential = ops.where(moved, ops.expand_dims(_pick(row_potential, before), 1), row_potential)
            return ops.where(column != 0, before, column), matched, row_potential

        _, matched, row_potential = ops.while_loop(
            lambda column, *_: ops.any(column != 0), augment, (column, matched, row_potential)
        )
        return row + 1, matched, row_potential, column_potential

    most = ops.max(counts, initial=0)
    _, matched, _, _ = ops.while_loop(
        lambda row, *_: row < most,
        insert,
        (ops.convert_to_tensor(0, "int32"), ops.cast(zeros, "int32") - 1, zeros, zeros),
    )
    is_matched = ops.expand_dims(matched[:, 1:], 1) == ops.reshape(
        ops.arange(rows, dtype="int32"), (1, rows, 1)
    )
    column = ops.sum(ops.where(is_matched, ops.reshape(index[1:], (1, 1, columns)), 0), axis=2)
    column = ops.cast(column, "int32") - 1
    return ops.where(column < own_columns, column, -1)


def _pick(values, index):
    """values[i, index[i]] for each i."""
    return ops.take_along_axis(values, ops.expand_dims(index, 1), axis=1)[:, 0]
