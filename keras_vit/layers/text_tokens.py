"""The layers of a text tower: embeddings of token ids, masks, and the choice of a token."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_vit.layers.attention import masking_bias
from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import FREE
from keras_vit.rules import integer, one_of
from keras_vit.types import Shape, Tensor

TOKENS = ("first", "last", "argmax", "eos")


@keras.saving.register_keras_serializable("keras_vit")
class TokenEmbedding(Configurable):
    """A learned vector for each token id.

    Args:
        vocabulary_size: Number of ids.
        channels: Size of a vector.

    Input shape: (batch, tokens), ids from 0 to `vocabulary_size` - 1.
    Output shape: (batch, tokens, channels).

    Example:
        >>> TokenEmbedding(100, 8)(np.zeros((2, 5), "int32")).shape
        TensorShape([2, 5, 8])

    Source: Vaswani et al. 2017, section 3.4, without its factor.
    """

    sharding = FREE

    def __init__(self, vocabulary_size: int, channels: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocabulary_size = integer(at_least=1).check("vocabulary_size", vocabulary_size)
        self.channels = integer(at_least=1).check("channels", channels)

    def build(self, input_shape: Shape) -> None:
        self.table = self.add_embeddings("table", (self.vocabulary_size, self.channels))

    def call(self, ids: Tensor) -> Tensor:
        return ops.take(self.table, ops.cast(ids, "int32"), axis=0)

    def compute_output_spec(self, ids: Tensor) -> Any:
        return keras.KerasTensor((*ids.shape, self.channels), self.compute_dtype)


@keras.saving.register_keras_serializable("keras_vit")
class TokenPaddingBias(Configurable):
    """A bias of the attention's scores, by which no token attends to padding.

    Args:
        pad_id: Id of the padding.

    Input shape: (batch, tokens), ids.
    Output shape: (batch, 1, 1, tokens), float32: 0, or a large negative number for padding.

    Example:
        >>> TokenPaddingBias(0)(np.array([[7, 0]]))[0, 0, 0].numpy().tolist()
        [0.0, -1000000000.0]

    Source: Devlin et al. 2019 (BERT, arXiv 1810.04805), and its code in google-research/bert.
    """

    def __init__(self, pad_id: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pad_id = integer(at_least=0).check("pad_id", pad_id)

    def call(self, ids: Tensor) -> Tensor:
        batch, length = ops.shape(ids)
        is_padding = ops.cast(ids, "int32") == self.pad_id
        return ops.reshape(masking_bias(is_padding), (batch, 1, 1, length))

    def compute_output_spec(self, ids: Tensor) -> Any:
        batch, length = ids.shape
        return keras.KerasTensor((batch, 1, 1, length), "float32")


@keras.saving.register_keras_serializable("keras_vit")
class TokenPooling(Configurable):
    """The vector of one token of each text.

    Args:
        token: "first"; "last", padding or not (SigLIP); "eos", the first with the id `eos_id`, or the first
            of all without one (CLIP); "argmax", the one with the highest id, which ends a text in CLIP's
            vocabulary.
        eos_id: Id of the token that ends a text, for "eos".

    Call arguments:
        tokens: (batch, tokens, channels).
        ids: (batch, tokens).

    Output shape: (batch, channels).

    Raises:
        ValueError: for an unknown token, or "eos" without its id.

    Example:
        >>> tokens = np.arange(4.0).reshape(1, 4, 1)
        >>> float(TokenPooling("eos", 7)(tokens, np.array([[3, 7, 7, 9]]))[0, 0])
        1.0

    Source: `CLIPTextTransformer` of transformers; `text_transformer.py` of big_vision.
    """

    def __init__(self, token: str = "last", eos_id: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.token = one_of(TOKENS).check("token", token)
        self.eos_id = eos_id
        if token == "eos":
            integer(at_least=0).check("eos_id", eos_id)

    def call(self, tokens: Tensor, ids: Tensor) -> Tensor:
        batch, length, channels = ops.shape(tokens)
        if self.token in ("first", "last"):
            chosen = tokens[:, :1] if self.token == "first" else tokens[:, length - 1 :]
        else:
            ids = ops.cast(ids, "int32")
            marks = ids if self.token == "argmax" else ops.cast(ids == self.eos_id, "int32")
            index = ops.reshape(ops.argmax(marks, axis=1), (batch, 1, 1))
            chosen = ops.take_along_axis(tokens, index, axis=1)
        return ops.reshape(chosen, (batch, channels))

    def compute_output_shape(self, tokens_shape: Shape, ids_shape: Shape | None = None) -> Shape:
        return (tokens_shape[0], tokens_shape[-1])
