"""The text towers of files with two towers, and the layers between the towers.

A file of `google-research/big_vision` or of LiT has the towers in `img/` and `txt/`, with the temperature `t`
and the bias `b`; transformers has `text_model` beside `vision_model`. The text tower of LiT and big_vision
is a Transformer of their own or flaxformer's BERT.

Sources: `models/proj/image_text/` and `models/proj/flaxformer/bert.py` of google-research/big_vision;
`vit_jax/models_lit.py` of google-research/vision_transformer; `architectures/bert/bert.py` of
google/flaxformer; the modules `siglip`, `siglip2` and `clip` of transformers 5.23.
"""

from typing import NamedTuple

import numpy as np

from keras_vit.weights.layouts.huggingface_types import PACKED, TOWER_BLOCK
from keras_vit.weights.layouts.table import LINEAR, Row, Table, flax_rows, torch_rows
from keras_vit.weights.layouts.vit_jax import block_names

_BLOCK = "text/encoder_block_{i}/"
_ENCODER = "txt/Encoder_0/"
_BETWEEN = [
    *flax_rows({"text_projection": "txt/head", "image_projection": "img/head"}),
    Row("logit_factors/scale", "t"),
    Row("logit_factors/bias", "b"),
]
FLAX = Table(
    [
        Row("text/token_embedding/table", "txt/Embed_0/embedding"),
        Row("text/position_embedding/table", "txt/pos_embedding"),
        *flax_rows(
            {"attention_norm": "LayerNorm_0", **block_names()}, _BLOCK, _ENCODER + "encoderblock_{i}/"
        ),
        *flax_rows({"text/encoder_norm": _ENCODER + "encoder_norm"}),
        *_BETWEEN,
    ]
)
BERT_PREFIX = "txt/BertEncoder_0/"
_POSITIONS, _SEGMENTS, _TOKENS = (
    f"{BERT_PREFIX}embedder/embedders_{part}_ids/embedding" for part in ("position", "segment", "token")
)
BERT_LENGTH = 16  # tokens of a text (`get_lit_b16b_config`)
_BERT_POSITIONS, _BERT_SEGMENTS = 512, 2  # rows of the tables
_BERT = Table(
    [
        Row("text/token_embedding/table", _TOKENS),
        Row("text/position_embedding/table", _POSITIONS, leading=1),
        *flax_rows({"text/embedding_norm": BERT_PREFIX + "layer_norm"}),
        *flax_rows(
            {
                **{f"attention/{part}": f"attention_layer/{part}" for part in ("query", "key", "value")},
                "attention/out": "dense_layer",
                "attention_norm": "layer_norm",
            },
            _BLOCK,
            BERT_PREFIX + "encoder_block/layer_sequence/layers_{i}/attention_block/",
        ),
        *flax_rows(
            {"mlp/dense_0": "mlp/dense_layer", "mlp/dense_1": "dense_layer", "mlp_norm": "layer_norm"},
            _BLOCK,
            BERT_PREFIX + "encoder_block/layer_sequence/layers_{i}/mlp_block/",
        ),
        *_BETWEEN,
    ]
)


def read_bert(arrays):
    """Map the arrays of a file with a BERT, by the file's keys, to our names.

    All tokens belong to the first segment, so its embedding is added to the position embeddings. Positions
    beyond a text's length are dropped.

    Args:
        arrays: dict of arrays.

    Returns:
        `MappedArrays`.

    Raises:
        ValueError: if an embedding is missing or has a wrong shape.

    Source: `BertModel` of `vit_jax/models_lit.py`.
    """
    keys = (_POSITIONS, _SEGMENTS)
    shapes = [np.shape(arrays.get(key)) for key in keys]
    if any(len(shape) != 2 or 0 in shape for shape in shapes) or len({width for _, width in shapes}) > 1:
        raise ValueError(f"expected tables of one width in {' and '.join(keys)}; got shapes {shapes}")
    positions, segments = (arrays[key].astype("float32") for key in keys)
    others = {key: array for key, array in arrays.items() if key != _SEGMENTS}
    return _BERT.read({**others, _POSITIONS: positions[:BERT_LENGTH] + segments[0]})


def written_bert(arrays):
    """The inverse of `read_bert`: other positions and segments are zero."""
    written = _BERT.write(arrays)
    length, width = written[_POSITIONS].shape
    positions = np.pad(written[_POSITIONS], [(0, _BERT_POSITIONS - length), (0, 0)])
    return {**written, _POSITIONS: positions, _SEGMENTS: np.zeros((_BERT_SEGMENTS, width), "float32")}


_TEXT = [
    Row("text/token_embedding/table", "text_model.embeddings.token_embedding.weight"),
    Row("text/position_embedding/table", "text_model.embeddings.position_embedding.weight", leading=1),
    *torch_rows(TOWER_BLOCK, _BLOCK, "text_model.encoder.layers.{i}."),
    *torch_rows({"text/encoder_norm": "text_model.final_layer_norm"}),
    Row("logit_factors/scale", "logit_scale"),
    Row("logit_factors/bias", "logit_bias"),
]


class TextType(NamedTuple):
    """A model of transformers with two towers.

    Attributes:
        model: Name of its class.
        image: `model_type` of its image tower.
        table: `Table` of the arrays that are not the image tower's.
        defaults: The values of options that the arrays do not show, if config.json has none.
        objective: That of `ImageTextModel`.
        causal: Whether its text tower has a causal mask.
        poolings: Those that it can express.
        projections: Whether there are linear layers after the towers: (image, text).
        projection_bias: Whether these have biases.
    """

    model: str
    image: str
    table: Table
    defaults: dict
    objective: str
    causal: bool
    poolings: tuple
    projections: tuple
    projection_bias: bool


_SIGLIP = TextType(
    "SiglipModel",
    "siglip_vision_model",
    Table([*_TEXT, *torch_rows({"text_projection": "text_model.head"})]),
    {"num_attention_heads": 12, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"},
    "sigmoid",
    False,
    ("last",),
    (False, True),
    True,
)
TYPES = {
    "siglip": _SIGLIP,
    "siglip2": _SIGLIP._replace(model="Siglip2Model", image=PACKED),  # of one size it is the type before
    "clip": TextType(
        "CLIPModel",
        "clip_vision_model",
        Table(
            [
                *_TEXT,
                Row("text_projection/kernel", "text_projection.weight", LINEAR),
                Row("image_projection/kernel", "visual_projection.weight", LINEAR),
            ]
        ),
        {
            **{"num_attention_heads": 8, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"},
            "eos_token_id": 49407,
        },
        "softmax",
        True,
        ("eos", "argmax"),
        (True, True),
        False,
    ),
}
LEGACY_EOS = 2  # of configurations whose models read the token with the highest id
OPTIONS = {  # of config.json to `TextTransformer`'s
    "vocab_size": "vocabulary_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "mlp_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "length",
    "layer_norm_eps": "norm_epsilon",
}
