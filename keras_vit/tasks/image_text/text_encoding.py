"""The vectors of texts, of a model with a text tower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from keras_vit.models.classifying import check_finite
from keras_vit.rules import integer
from keras_vit.types import Labels


class TextEncoding:
    """The methods of a model with a `text` tower, a `text_encoder` of vectors and a `text_preprocessing`."""

    def encode_text(self, texts: str | Sequence[str], batch_size: int = 256) -> np.ndarray:
        """The vectors of texts.

        Args:
            texts: A str or a list of them, for a model with `text_preprocessing`; or token ids, an int array
                (texts, length).
            batch_size: Number of texts that are computed at a time.

        Returns:
            float32 array (texts, size), each vector of length 1.

        Raises:
            ValueError: for strings without `text_preprocessing`, ids of another shape or type, or a batch
                size that is not positive.
        """
        integer(at_least=1).check("batch_size", batch_size)
        ids = self._ids(texts)
        vectors = [
            check_finite(np.asarray(self.text_encoder.predict_on_batch(ids[start : start + batch_size])))
            for start in range(0, len(ids), batch_size)
        ]
        return np.concatenate([*vectors, np.zeros((0, self.text_encoder.output.shape[-1]), "float32")])

    def class_vectors(self, labels: Labels, batch_size: int = 256) -> tuple[list[str], np.ndarray]:
        """The vector of each class, which is the mean over its texts.

        Args:
            labels: A text, a list of texts, or a dict from names of classes to their texts; a single text
                need not be in a list.
            batch_size: As for `encode_text`.

        Returns:
            (names, float32 array (classes, size) of vectors of length 1).

        Raises:
            ValueError: for no labels, equal texts in a list, or a class without texts.
        """
        if not isinstance(labels, Mapping):
            names = [labels] if isinstance(labels, str) else [*labels]
            labels = dict(zip(names, names))
            if len(labels) < len(names):
                twice = next(name for name in labels if names.count(name) > 1)
                raise ValueError(f"expected different labels; got {twice!r} twice: name classes by a dict")
        texts = [[text] if isinstance(text, str) else [*text] for text in labels.values()]
        if not texts or not all(texts):
            raise ValueError(f"expected at least one class, each with at least one text; got {labels!r}")
        vectors = self.encode_text([text for of_class in texts for text in of_class], batch_size)
        ends = np.cumsum([len(of_class) for of_class in texts])
        means = np.stack([part.mean(axis=0) for part in np.split(vectors, ends[:-1])])
        return [*labels], means / np.linalg.norm(means, axis=1, keepdims=True)

    def _ids(self, texts):
        texts = [texts] if isinstance(texts, str) else texts
        if len(texts) and all(isinstance(text, str) for text in texts):
            if self.text_preprocessing is None:
                raise ValueError(
                    "the model has no text_preprocessing for strings; give it one, or token ids instead"
                )
            texts = self.text_preprocessing(list(texts))
        ids, length = np.asarray(texts), self.text.length
        if not ids.size:
            return np.zeros((0, length), "int32")
        if ids.dtype.kind not in "iu" or ids.shape[1:] != (length,):
            raise ValueError(
                f"expected texts, or ids of the shape (texts, {length}) as ints; got {ids.dtype} of the "
                f"shape {ids.shape}"
            )
        most = self.text.vocabulary_size
        if not 0 <= ids.min() <= ids.max() < most:
            raise ValueError(
                f"expected token ids from 0 to {most - 1}, of the text tower's vocabulary; got ids from "
                f"{ids.min()} to {ids.max()}"
            )
        return ids.astype("int32")
