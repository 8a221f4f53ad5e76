"""How a model represents images as vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from keras_vit.engine.distributed_model import DistributedModel
from keras_vit.models.backbones import backbone, image_model
from keras_vit.tasks.computing import computed

if TYPE_CHECKING:
    import keras

    from keras_vit.data.samples import EncodedSamples


def representations(
    model: keras.Model, samples: EncodedSamples, batch_size: int = 64
) -> tuple[np.ndarray, np.ndarray]:
    """The representation of every sample.

    Args:
        model: A `VisionTransformer`; without pooling the mean of its patch tokens is the representation.
        samples: A split of a `Dataset`.
        batch_size: Images per batch.

    Returns:
        (features float32 (samples, width), labels (samples,)).

    Example:
        >>> features, labels = representations(model, load_dataset("digits").split("test"))
        >>> features.shape
        (355, 24)
    """
    return representations_of_splits(model, [samples], batch_size)[0]


def representations_of_splits(model, splits, batch_size):
    """What `representations` returns for each split, by one function, which is traced once.

    Args:
        model, batch_size: As for `representations`.
        splits: Splits of a `Dataset`.
    """
    encode, _ = encoder_of(model)
    preprocessing = image_model(model).preprocessing
    return [computed_features(encode, samples, preprocessing, batch_size) for samples in splits]


def computed_features(compute, samples, preprocessing, batch_size):
    """What a function returns for every sample, and the labels.

    Args:
        compute, samples, preprocessing, batch_size: As for `computed`.

    Returns:
        (array (samples, …), labels (samples,)).
    """
    features, labels = zip(*computed(compute, samples, preprocessing, batch_size, "computing features"))
    return np.concatenate(features), np.concatenate(labels)


def encoder_of(model):
    """How a model represents images.

    Args:
        model: A `VisionTransformer`, by its representation, or without pooling the mean of its patch tokens;
            an `ImageTextModel`, by the vectors that it compares with texts; or another model with a
            `VisionTransformer`, by that one's.

    Returns:
        (function from a batch of preprocessed images to float32 (images, size), size).

    Example:
        >>> encode, size = encoder_of(model)
        >>> encode(images).shape, size
        ((4, 24), 24)
    """
    model, pair_encoder = backbone(model), model.image_encoder
    if pair_encoder is not None:
        encoder = pair_encoder
    elif model.num_classes is None and model.pooling is not None and _replicas(model) == 1:
        encoder = model  # An extractor would be traced again for each call.
    else:
        extractor = model.feature_extractor("representation", grid=model.pooling is None)
        encoder = DistributedModel(extractor.input, extractor.output["representation"])

    def encode(images):
        features = np.asarray(encoder.predict_on_batch(images), "float32")
        return features.mean(axis=(1, 2)) if features.ndim == 4 else features

    return encode, encoder.output.shape[-1]


def _replicas(model):
    """The number of replicas of a model, each of which would compute all images of a batch."""
    strategy = getattr(model, "distribute_strategy", None)  # on TensorFlow
    return 1 if strategy is None else strategy.num_replicas_in_sync
