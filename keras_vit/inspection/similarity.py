"""The similarity of patches in a model's features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from keras import ops

from keras_vit.inspection.blocks import input_of_block, model_input, patch_grid, pooling_input
from keras_vit.types import Images

if TYPE_CHECKING:
    import keras


def patch_similarity(model: keras.Model, images: Images, stage: str = "tokens") -> np.ndarray:
    """Compute the cosine similarity of every two patches of an image in a model's features.

    Args:
        model: A `VisionTransformer`.
        images: What `model.preprocessing` takes, or what it returns: (batch, height, width, channels).
        stage: The features: "patch_embedding", "encoder_block_3", "tokens" or another stage of
            `model.feature_extractor` that has one vector per patch.

    Returns:
        Array (batch, rows, columns, rows, columns) in [-1, 1]: `similarity[i, row, column]` is the
        map of similarities to this patch in image i. The similarity of zero vectors is 0.

    Raises:
        ValueError: for an unknown stage or one without a vector per patch, or if the images do not
            fit the model.

    Example:
        >>> similarity = patch_similarity(model, images)
        >>> similarity.shape, similarity[0, 1, 2, 1, 2].round(3).item()
        ((4, 4, 4, 4, 4), 1.0)

    Source: Amir et al. 2021, "Deep ViT Features as Dense Visual Descriptors" (arXiv 2112.05814).
    """
    features = patch_features(model, images, stage)
    batch, rows, columns, channels = features.shape
    cosines = cosine_similarity(features.reshape(batch, rows * columns, channels))
    return cosines.reshape(batch, rows, columns, rows, columns)


def patch_features(model, images, stage="tokens"):
    """Compute the features of the patches.

    Args:
        model, images, stage: As for `patch_similarity`.

    Returns:
        float32 array (batch, rows, columns, channels).
    """
    images = model_input(model, images)
    features = ops.convert_to_numpy(ops.cast(_features(model, images, stage), "float32"))
    return features.reshape(len(features), *patch_grid(model, images), features.shape[-1])


def _features(model, images, stage):
    """Return the patches' features: (batch, patches, channels)."""
    blocks = [f"encoder_block_{i}" for i in range(model.num_layers or 0)]
    has_norm = model.final_norm and not model.norm_after_pooling
    last = ["tokens", "encoder_norm"] if has_norm else ["tokens"]
    # One block at a time bounds the memory, which a feature extractor does not.
    if stage in blocks:
        return input_of_block(model, images, blocks.index(stage) + 1)[:, model.num_prefix_tokens :]
    if blocks and stage in last:
        tokens = pooling_input(model, input_of_block(model, images, len(blocks)))
        return tokens[:, model.num_prefix_tokens :]
    features = model.feature_extractor([stage], grid=True)(images)[stage]
    batch, rows, columns, channels = features.shape
    if (rows, columns) != patch_grid(model, images):
        raise ValueError(f"expected a stage with one vector per patch; {stage!r} has {rows}×{columns}")
    return ops.reshape(features, (batch, rows * columns, channels))


def cosine_similarity(vectors):
    """Compute the cosine of every two vectors; 0 where one is zero.

    Args:
        vectors: Array (…, count, channels).

    Returns:
        Array (…, count, count), float32, in [-1, 1].

    Example:
        >>> cosine_similarity(np.array([[3, 0], [0, 0], [-2, 0]])).tolist()
        [[1.0, 0.0, -1.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 1.0]]
    """
    vectors = np.asarray(vectors, "float64")  # in which squares of float32 neither underflow nor overflow
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    units = (vectors / np.where(norms > 0, norms, 1)).astype("float32")
    return np.clip(units @ np.swapaxes(units, -1, -2), -1, 1)
