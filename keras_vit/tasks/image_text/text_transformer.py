"""The text tower of an image-text model: token ids → tokens → encoder → one vector."""

from __future__ import annotations

from typing import Any

import keras

from keras_vit.layers import AddPositionEmbs, standard_block
from keras_vit.layers.encoder_block import number_stack
from keras_vit.layers.layer_norm import LayerNormalization
from keras_vit.layers.mlp import ACTIVATIONS
from keras_vit.layers.text_tokens import TOKENS, TokenEmbedding, TokenPaddingBias, TokenPooling
from keras_vit.models.configured import ConfiguredModel
from keras_vit.rules import boolean, integer, number, one_of, optional

_POSITIVE = integer(at_least=1)
TEXT_INFERENCE = {"dtype": "float32", "dropout_rate": 0.0}
SCOPE = "text"  # begins the paths of the weights, unlike an image tower's


def min_text_parameters(options):
    """A lower bound of a text tower's number of parameters, by its configuration: kernels and tables.

    >>> sizes = {"hidden_size": 24, "num_layers": 2, "mlp_dim": 48, "num_heads": 3}
    >>> min_text_parameters({"vocabulary_size": 100, "length": 8, **sizes})
    11808
    """
    c = options
    blocks = c["num_layers"] * (4 * c["hidden_size"] + 2 * c["mlp_dim"])
    return c["hidden_size"] * (c["vocabulary_size"] + c["length"] + blocks)


@keras.saving.register_keras_serializable("keras_vit")
class TextTransformer(ConfiguredModel):
    """The text tower of SigLIP, CLIP and LiT: a Transformer on token ids, of the image tower's blocks.

    A BERT has `norm_after_residual=True`, `pad_id=0`, `pooling="first"` and `norm_epsilon=1e-12`. The others
    need no `pad_id`: SigLIP attends to padding, and with a causal mask no token before it does.

    Args:
        vocabulary_size: Number of token ids.
        length: Number of tokens of a text, with padding.
        hidden_size, num_layers, mlp_dim, num_heads: As for `VisionTransformer`.
        causal: Whether each token attends only to itself and those before it (CLIP).
        pooling: The token that is the output, as in `TokenPooling`: "last" (SigLIP), "eos" or "argmax" (CLIP)
            or "first".
        eos_id: Id of the token that ends a text, for pooling "eos".
        activation, norm_epsilon, dropout_rate: As for `VisionTransformer`.
        norm_after_residual: As for `EncoderBlock`. The embeddings then have a norm, and the last norm is that
            of the last block.
        pad_id: Id of the padding, to which no token attends; None if all tokens are attended to.
        dtype: A dtype policy, such as "mixed_bfloat16".
        name, trainable: As of any Keras model.

    Input: `ids`, int32 (batch, length).
    Output: (batch, hidden_size).

    Raises:
        ValueError: for a wrong value, or heads that do not divide the hidden size.

    Example:
        >>> text = TextTransformer(100, 8, hidden_size=24, num_layers=2, mlp_dim=48, num_heads=3)
        >>> text(np.zeros((2, 8), "int32")).shape
        TensorShape([2, 24])

    Source: `text_transformer.py` of big_vision; Radford et al. 2021 (CLIP, arXiv 2103.00020), section 2.4;
    Devlin et al. 2019 (BERT, arXiv 1810.04805), of whose inputs there is only the first segment.
    """

    rules = {
        **dict.fromkeys(("vocabulary_size", "length", "hidden_size"), _POSITIVE),
        **dict.fromkeys(("num_layers", "mlp_dim", "num_heads"), _POSITIVE),
        "causal": boolean,
        "pooling": one_of(TOKENS),
        "eos_id": optional(integer(at_least=0)),
        "activation": one_of(ACTIVATIONS),
        "norm_epsilon": number(above=0),
        "dropout_rate": number(0, below=1),
        "norm_after_residual": boolean,
        "pad_id": optional(integer(at_least=0)),
    }

    def __init__(
        self,
        vocabulary_size: int,
        length: int,
        hidden_size: int,
        num_layers: int,
        mlp_dim: int,
        num_heads: int,
        causal: bool = False,
        pooling: str = "last",
        eos_id: int | None = None,
        activation: str = "gelu_tanh",
        norm_epsilon: float = 1e-6,
        dropout_rate: float = 0.0,
        norm_after_residual: bool = False,
        pad_id: int | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        name: str | None = None,
        trainable: bool = True,
    ) -> None:
        self.store_arguments(locals())
        dtype = keras.dtype_policies.get(dtype)
        with keras.name_scope(SCOPE):
            ids = keras.Input((length,), dtype="int32", name="ids")  # (b, n)
            x = TokenEmbedding(vocabulary_size, hidden_size, dtype=dtype, name="token_embedding")(ids)
            x = AddPositionEmbs("learned", (1, length), dtype=dtype, name="position_embedding")(
                x
            )  # (b, n, d)
            bias = None
            if pad_id is not None:
                bias = TokenPaddingBias(pad_id, dtype=dtype, name="padding_bias")(ids)  # (b, 1, 1, n)
            if norm_after_residual:
                x = LayerNormalization(norm_epsilon, dtype=dtype, name="embedding_norm")(x)
            for i in range(num_layers):
                x = standard_block(
                    num_heads,
                    mlp_dim,
                    activation,
                    norm_epsilon,
                    dropout_rate=dropout_rate,
                    causal=causal,
                    norm_after_residual=norm_after_residual,
                    dtype=dtype,
                    name=f"encoder_block_{i}",
                )(x, bias=bias)
            if not norm_after_residual:
                x = LayerNormalization(norm_epsilon, dtype=dtype, name="encoder_norm")(x)
            x = TokenPooling(pooling, eos_id, dtype=dtype, name="pooled")(x, ids)  # (b, d)
        super().__init__(ids, x, name=name, trainable=trainable)
        number_stack(self.layers)
        self.dtype_policy = dtype
        self.input_spec = keras.InputSpec(shape=ids.shape)

    def get_config(self) -> dict[str, Any]:
        return {
            **self._config(),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            **super().get_config(),
        }
