"""How well a model of images and texts finds the captions of images, and the images of captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.evaluation.representations import computed_features
from keras_vit.models import ImageTextModel
from keras_vit.models.backbones import check_class

if TYPE_CHECKING:
    import keras

    from keras_vit.data.samples import EncodedSamples

AT = (1, 5)
CHUNK = 1024  # images that are compared with all texts at a time
TOLERANCE = 1e-6  # Equal vectors may differ by the rounding of the batches that they were computed in.


def retrieval(
    model: keras.Model, samples: EncodedSamples, captions: Sequence[Sequence[str]], batch_size: int = 64
) -> dict[str, Any]:
    """Score an image-text model on all images and captions of a split.

    Args:
        model: An `ImageTextModel` with `text_preprocessing`.
        samples: A split of a `Dataset` of images and captions.
        captions: The captions of each image, as in `Texts.wordings` for the split.
        batch_size: Images and texts that are computed at a time.

    Returns:
        dict of `samples` (the images), `texts` (their captions), and the scores of `recall`.

    Raises:
        ValueError: for another model, if there are no samples, or if the model computes NaN.

    Example:
        >>> text = {"vocabulary_size": 9, "length": 4, "hidden_size": 24, "num_layers": 1}
        >>> image = keras_vit.VisionTransformer(16, 8, 24, 1, 48, 3)
        >>> model = keras_vit.ImageTextModel(image, {**text, "mlp_dim": 48, "num_heads": 3})
        >>> model.text_preprocessing = lambda texts: np.array([[len(text) % 9] * 4 for text in texts])
        >>> samples = load_dataset("digits").split("test").take([0, 1])
        >>> retrieval(model, samples, [(f"a {digit}", str(digit)) for digit in range(10)])["texts"]
        4
    """
    check_class(model, ImageTextModel, "an ImageTextModel")
    encode = model.image_encoder.predict_on_batch
    vectors, labels = computed_features(encode, samples, model.preprocessing, batch_size)
    captions = [captions[label] for label in labels]
    owners = np.repeat(np.arange(len(captions)), [len(of) for of in captions])
    texts = model.encode_text([text for of in captions for text in of], batch_size)
    return {"samples": len(vectors), "texts": len(texts), **recall(vectors, texts, owners)}


def recall(
    images: np.ndarray, texts: np.ndarray, owners: Sequence[int], at: Sequence[int] = AT
) -> dict[str, float]:
    """The recall at k of images by texts, and of texts by images.

    `image_to_text_recall_k` is the fraction of images of which one of the k most similar texts is their own,
    and `text_to_image_recall_k` the fraction of texts of which one of the k most similar images is theirs. Of
    similarities that differ by at most 1e-6 the own one comes last. An image without texts, or a vector with
    NaN, finds nothing.

    Args:
        images: (images, size), of length 1.
        texts: (texts, size), of length 1.
        owners: The index of each text's image, (texts,).
        at: The values of k.

    Returns:
        dict of the scores.

    Example:
        >>> vectors = np.eye(3)
        >>> recall(vectors, vectors[[1, 0, 2]], np.arange(3), at=[1])
        {'image_to_text_recall_1': 0.3333333333333333, 'text_to_image_recall_1': 0.3333333333333333}

    Source: Karpathy and Fei-Fei 2015 (arXiv 1412.2306), section 4.1;
    `big_vision/evaluators/proj/image_text/image_text_retrieval.py`.
    """
    images, texts = (np.asarray(vectors, "float64") for vectors in (images, texts))
    own_similarity = np.einsum("td,td->t", images[owners], texts) - TOLERANCE
    best = np.full(len(images), -np.inf)
    with np.errstate(invalid="ignore"):
        np.maximum.at(best, owners, own_similarity)
    # The number of texts of others that are as similar to an image as its own, and the same of each text.
    above_own = {"image_to_text": np.zeros(len(images)), "text_to_image": np.zeros(len(texts))}
    for start in range(0, len(images), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(images)))
        scores = images[rows] @ texts.T
        is_other = rows[:, np.newaxis] != owners
        # NaN is not below.
        above_own["image_to_text"][rows] = (is_other & ~(scores < best[rows, np.newaxis])).sum(axis=1)
        above_own["text_to_image"] += (is_other & ~(scores < own_similarity)).sum(axis=0)
    above_own["image_to_text"][~np.isfinite(best)] = np.inf
    above_own["text_to_image"][~np.isfinite(own_similarity)] = np.inf
    return {f"{name}_recall_{k}": float(np.mean(above < k)) for name, above in above_own.items() for k in at}
