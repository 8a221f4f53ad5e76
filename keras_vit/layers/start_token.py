"""The learned token before the first one of a sequence that predicts the next token."""

from __future__ import annotations

import keras
from keras import ops

from keras_vit.layers.configurable import Configurable
from keras_vit.layers.hints import TOKEN
from keras_vit.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_vit")
class StartToken(Configurable):
    """Move the tokens by one: a learned token comes first, and the last one is left out.

    With causal attention each output then depends on the tokens before its own position.

    Input and output shape: (batch, tokens, channels).

    Example:
        >>> layer = StartToken()
        >>> layer(np.array([[[1.0], [2.0], [3.0]]])).numpy().ravel()[1:].tolist()
        [1.0, 2.0]

    Source: Chen et al. 2020 (iGPT); `sos` in `model.py` of openai/image-gpt.
    """

    sharding = TOKEN

    def build(self, input_shape: Shape) -> None:
        self.token = self.add_embeddings("token", (1, 1, input_shape[-1]))

    def call(self, tokens: Tensor) -> Tensor:
        batch, count, channels = ops.shape(tokens)
        start = ops.broadcast_to(self.token, (batch, 1, channels))
        return ops.concatenate([start, tokens[:, : count - 1]], axis=1)
