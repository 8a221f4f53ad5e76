"""Which patches are alike to the model."""

import numpy as np
from keras import ops

from keras_vit.inspection.blocks import as_read, check_images, patch_grid, tokens_at


def patch_similarity(model, images, stage="tokens"):
    """How alike the patches of an image are to the model: the cosine between their features.

    Args:
        model: A `VisionTransformer`.
        images: Model input (batch, height, width, channels).
        stage: Where the features are taken: "patch_embedding", "encoder_block_3", "tokens" or
            another stage of `model.feature_extractor` that has a vector for each patch.

    Returns:
        Array (batch, rows, columns, rows, columns) in [-1, 1]: `similarity[i, row, column]` is the
        map of what is like this patch in image i. Features that are all zero are like nothing: 0.

    Raises:
        ValueError: for an unknown stage or one without a vector for each patch, or if the images do
            not fit the model.

    Example:
        >>> similarity = patch_similarity(model, images)
        >>> similarity.shape, similarity[0, 1, 2, 1, 2].round(3).item()
        ((4, 4, 4, 4, 4), 1.0)

    Source: Amir et al. 2021, "Deep ViT Features as Dense Visual Descriptors" (arXiv 2112.05814).
    """
    check_images(model, images)
    grid = patch_grid(model, images)
    features = ops.convert_to_numpy(ops.cast(_features(model, images, stage), "float32"))
    return cosines(features).reshape(len(features), *grid, *grid)


def _features(model, images, stage):
    """What the stage holds of each patch: (batch, patches, channels)."""
    blocks = [f"encoder_block_{i}" for i in range(model.num_layers or 0)]
    last = ["tokens"] if model.norm_after_pooling else ["tokens", "encoder_norm"]
    # Through the blocks with a bound on the memory, which a feature extractor has not.
    if stage in blocks:
        return tokens_at(model, images, blocks.index(stage) + 1)[:, model.num_prefix_tokens :]
    if blocks and stage in last:
        return as_read(model, tokens_at(model, images, len(blocks)))[:, model.num_prefix_tokens :]
    features = model.feature_extractor([stage], grid=True)(images)[stage]
    batch, rows, columns, channels = features.shape
    if (rows, columns) != patch_grid(model, images):
        raise ValueError(f"stage {stage!r} has {rows}×{columns} vectors, and not one for each patch")
    return ops.reshape(features, (batch, rows * columns, channels))


def cosines(vectors):
    """The cosine between every two vectors; 0 where one is zero.

    Args:
        vectors: Array (…, count, channels).

    Returns:
        Array (…, count, count), float32, in [-1, 1].

    Example:
        >>> cosines(np.array([[3, 0], [0, 0], [-2, 0]])).tolist()
        [[1.0, 0.0, -1.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 1.0]]
    """
    vectors = np.asarray(vectors, "float64")  # in which squares of float32 neither vanish nor overflow
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    units = (vectors / np.where(length > 0, length, 1)).astype("float32")
    return np.clip(units @ np.swapaxes(units, -1, -2), -1, 1)
