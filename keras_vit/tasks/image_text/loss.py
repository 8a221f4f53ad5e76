"""The contrastive losses of image-text pairs, over all pairs of a global batch.

Each replica computes the logits of its images with all texts, and of its texts with all images, in chunks.
The gradient is computed in chunks, too, from the embeddings: memory holds the embeddings of the global batch,
and the logits of the local batch with one chunk. A replica then has the whole gradient of its own embeddings,
so that only embeddings, and for "softmax" the norms of rows and columns, are sent between replicas.
"""

import keras
from keras import ops

from keras_vit.engine.step import BACKENDS, of_backend
from keras_vit.layers.attention import MASKED
from keras_vit.layers.control_dependencies import after

CHUNK = 1024  # the most images or texts with which the local batch is compared at a time


def pair_loss(pairs, objective, chunk=None, weights=None):
    """The mean loss of pairs, each compared with all pairs of the global batch.

    Args:
        pairs: (batch, 2, size), as of `LogitFactors`: of a replica, or on JAX of the global batch.
        objective: "sigmoid": the sum over the texts of the binary cross-entropy of an image's logits; or
            "softmax": the mean of the cross-entropies of an image with all texts and a text with all images.
        chunk: The most images or texts that are compared at a time; None for `CHUNK`.
        weights: (batch,), the weights of the pairs in the mean, which are not negative. Those of weight 0,
            which fill a batch up, are compared with nothing. None: all are 1.

    Returns:
        A scalar. The mean over the replicas, weighted by the sums of their weights, is the loss of the
        global batch.

    Example:
        >>> pairs = np.stack([np.eye(2), np.eye(2)], axis=1)
        >>> round(float(pair_loss(pairs, "softmax")), 4)
        0.3133

    Source: Zhai et al. 2023 (SigLIP, arXiv 2303.15343), algorithm 1 and section 3.3; Radford et al. 2021
    (CLIP, arXiv 2103.00020), figure 3.
    """
    chunk = CHUNK if chunk is None else chunk
    pairs = ops.convert_to_tensor(pairs)
    pair_weights = ops.ones_like(pairs[:, 0, 0])
    if weights is not None:
        pair_weights = ops.reshape(ops.cast(weights, pairs.dtype), (-1,))
    kept = None if weights is None else gathered(pair_weights)

    @ops.custom_gradient
    def mean_loss(pairs):
        everyone = gathered(pairs)
        total = ops.sum(pair_weights)
        total = ops.where(total == 0, 1.0, total)
        # (queries, keys): own images with all texts, own texts with all images.
        sides = [(pairs[:, side], everyone[:, 1 - side]) for side in (0, 1)]
        norms = every_norm = None
        if objective == "softmax":
            norms = ops.stack([_norms(*side, chunk, kept) for side in sides], axis=1)  # (b, 2)
            every_norm = gathered(norms)
            losses = ops.mean(norms, axis=1)
        else:
            losses = _sums_of_softplus(*sides[0], chunk, kept)
        value = ops.sum(pair_weights * (losses - ops.sum(pairs[:, 0] * pairs[:, 1], axis=1))) / total

        def gradient(upstream, **_):
            gradients = []
            for side, (queries, keys) in enumerate(sides):
                if objective == "softmax":
                    probability = _mean_of_softmaxes(
                        norms[:, side], every_norm[:, 1 - side], pair_weights, kept
                    )
                else:
                    probability = _sigmoid(side, pair_weights, kept)

                def add(sums, logits, part, index, probability=probability):
                    return sums + ops.matmul(probability(logits, index), part)

                sums = _fold(add, ops.zeros_like(queries), queries, keys, chunk, kept)
                gradients.append(sums - ops.expand_dims(pair_weights, 1) * pairs[:, 1 - side])
            is_counted = ops.reshape(ops.cast(pair_weights != 0, pair_weights.dtype), (-1, 1, 1))
            return ops.stack(gradients, axis=1) * is_counted * (upstream / total)

        return value, gradient

    return mean_loss(pairs)


def gathered(x):
    """The rows of all replicas, in each of them."""
    return of_backend().gathered(x) if keras.backend.backend() in BACKENDS else x


def _norms(queries, keys, chunk, kept):
    """The logarithm of the sum of exponentials of each query's logits."""

    def add(sums, logits, *_):
        return ops.logaddexp(sums, ops.logsumexp(logits, axis=1))

    return _fold(add, ops.full_like(queries[:, 0], MASKED), queries, keys, chunk, kept)


def _sums_of_softplus(queries, keys, chunk, kept):
    """The sum of the softplus of each query's logits."""

    def add(sums, logits, *_):
        return sums + ops.sum(ops.softplus(logits), axis=1)

    return _fold(add, ops.zeros_like(queries[:, 0]), queries, keys, chunk, kept)


def _sigmoid(side, own, kept):
    """The sigmoid of logits as a function of them, weighted by the pair of the image."""

    def weighted(logits, index):
        return ops.sigmoid(logits) * _weights(own, kept, index)[side]

    return weighted


def _mean_of_softmaxes(norms, every_norm, own, kept):
    """The function of logits, over the keys and over the queries, that is half the sum of their softmaxes.

    The softmax over the keys has the weight of the query's pair, and the other that of the key's.
    """
    rows = ops.expand_dims(norms, 1)

    def mean(logits, index):
        columns = ops.expand_dims(ops.take(every_norm, index), 0)
        query_weights, key_weights = _weights(own, kept, index)
        return (query_weights * ops.exp(logits - rows) + key_weights * ops.exp(logits - columns)) / 2

    return mean


def _weights(own, kept, index):
    """The weights of the pairs of queries (b, 1) and of keys (1, n)."""
    if kept is None:
        return 1.0, 1.0
    return ops.expand_dims(own, 1), ops.expand_dims(ops.take(kept, index), 0)


def _fold(step, start, queries, keys, chunk, kept=None):
    """Reduce the logits of queries with keys, chunk by chunk.

    Args:
        step: Function (carry, logits, keys of the chunk, their indices) → new carry. The logits of what fills
            up the last chunk, and of keys that are not kept, are `MASKED`.
        start: The first carry, a tensor.
        queries, keys: (batch, size) and (global batch, size).
        chunk: Number of keys of a chunk.
        kept: float (global batch,), 1 for the keys that are kept; None: all.
    """
    count = ops.shape(keys)[0]
    is_one = isinstance(count, int) and count <= chunk
    chunk = count if is_one else chunk

    def body(number, carry):
        with after([carry]):  # or memory would hold the logits of several chunks
            index = number * chunk + ops.arange(chunk)
            inside = index < count
            index = ops.minimum(index, count - 1)
            if kept is not None:
                inside = ops.logical_and(inside, ops.take(kept, index) != 0)
            part = ops.take(keys, index, axis=0)
            logits = ops.where(inside, ops.matmul(queries, ops.transpose(part)), MASKED)
            return number + 1, step(carry, logits, part, index)

    if is_one:
        return body(0, start)[1]
    return ops.while_loop(lambda number, _: number * chunk < count, body, (0, start))[1]
