"""The text towers of `google-research/big_vision` and of LiT, and the layers between the towers.

A file has the towers in `img/` and `txt/`, with the temperature `t` and the bias `b`. The text tower is a
Transformer of their own or flaxformer's BERT.

Sources: `models/proj/image_text/` and `models/proj/flaxformer/bert.py` of google-research/big_vision;
`vit_jax/models_lit.py` of google-research/vision_transformer; `architectures/bert/bert.py` of
google/flaxformer.
"""

import re

import numpy as np

from keras_vit.weights.layouts.flax import block_names, stacked, unstacked
from keras_vit.weights.layouts.heads import merged_heads, usual_heads
from keras_vit.weights.layouts.table import Row, Table, flax_rows
from keras_vit.weights.layouts.text_tower import NOT_BERT, TwoTowersForm, unsupported_text

_BLOCK = "text/encoder_block_{i}/"
_ENCODER = "txt/Encoder_0/"
_BETWEEN = [
    *flax_rows({"text_projection": "txt/head", "image_projection": "img/head"}),
    Row("logit_factors/scale", "t"),
    Row("logit_factors/bias", "b"),
]
_TABLE = Table(
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
_BERT_PREFIX = "txt/BertEncoder_0/"
_POSITIONS, _SEGMENTS, _TOKENS = (
    f"{_BERT_PREFIX}embedder/embedders_{part}_ids/embedding" for part in ("position", "segment", "token")
)
_BERT_LENGTH = 16  # tokens of a text (`get_lit_b16b_config`)
_BERT_POSITIONS, _BERT_SEGMENTS = 512, 2  # rows of the tables
_BERT = Table(
    [
        Row("text/token_embedding/table", _TOKENS),
        Row("text/position_embedding/table", _POSITIONS, leading=1),
        *flax_rows({"text/embedding_norm": _BERT_PREFIX + "layer_norm"}),
        *flax_rows(
            {
                **{f"attention/{part}": f"attention_layer/{part}" for part in ("query", "key", "value")},
                "attention/out": "dense_layer",
                "attention_norm": "layer_norm",
            },
            _BLOCK,
            _BERT_PREFIX + "encoder_block/layer_sequence/layers_{i}/attention_block/",
        ),
        *flax_rows(
            {"mlp/dense_0": "mlp/dense_layer", "mlp/dense_1": "dense_layer", "mlp_norm": "layer_norm"},
            _BLOCK,
            _BERT_PREFIX + "encoder_block/layer_sequence/layers_{i}/mlp_block/",
        ),
        *_BETWEEN,
    ]
)
_KEYS = re.compile(r"(params/)?(txt/.*|t|b)")
# The options of the text towers, which no array shows.
_OPTIONS = {
    **{"activation": "gelu_tanh", "norm_epsilon": 1e-6, "causal": False, "pooling": "last"},
    **NOT_BERT,
}
_BERT_OPTIONS = {
    **{"activation": "gelu_tanh", "norm_epsilon": 1e-12, "causal": False, "pooling": "first"},
    **{"norm_after_residual": True, "pad_id": 0},
}


class FlaxTowers(TwoTowersForm):
    """How big_vision and LiT store an `ImageTextModel`.

    Args:
        prefix: What all keys begin with.
        tokenizer_family: As in `TwoTowersForm`.
    """

    text_keys = re.compile(r"(params/)?txt/.*")

    def __init__(self, prefix="", tokenizer_family=None):
        self.prefix, self.tokenizer_family = prefix, tokenizer_family

    def read(self, checkpoint, others, folder):
        keys = {key.removeprefix("params/"): key for key in others if _KEYS.fullmatch(key)}
        inside = {name: others[key] for name, key in keys.items()}
        parts, stored_in = unstacked(inside, f"{_ENCODER}encoderblock/")
        is_bert = any(key.startswith(_BERT_PREFIX) for key in parts)
        mapped = _read_bert(parts) if is_bert else _TABLE.read(parts)
        mapped = mapped.with_keys({part: keys[name] for part, name in stored_in.items()})
        return mapped, dict(_BERT_OPTIONS if is_bert else _OPTIONS)

    def unsupported(self, model, config):
        text, expected = model.text, _OPTIONS
        if text.norm_after_residual:
            expected = {**_BERT_OPTIONS, "length": _BERT_LENGTH, "num_heads": usual_heads(vars(text))}
        return unsupported_text(text, expected)

    def write(self, model, arrays, others, scan=False):
        is_bert = model.text.norm_after_residual
        written = _write_bert(merged_heads(others)) if is_bert else _TABLE.write(others)
        written = stacked(written, f"{_ENCODER}encoderblock_") if scan else written
        images = {f"img/{key.removeprefix(self.prefix)}": array for key, array in arrays.items()}
        return {self.prefix + key: array for key, array in {**written, **images}.items()}


def _read_bert(arrays):
    """Map the arrays of a file with a BERT, by the file's keys, to our names, as `MappedArrays`.

    All tokens belong to the first segment, so its embedding is added to the position embeddings. Positions
    beyond a text's length are dropped.

    Source: `BertModel` of `vit_jax/models_lit.py`.
    """
    keys = (_POSITIONS, _SEGMENTS)
    shapes = [np.shape(arrays.get(key)) for key in keys]
    if any(len(shape) != 2 or 0 in shape for shape in shapes) or len({width for _, width in shapes}) > 1:
        raise ValueError(f"expected tables of one width in {' and '.join(keys)}; got shapes {shapes}")
    positions, segments = (arrays[key].astype("float32") for key in keys)
    unsegmented = {key: array for key, array in arrays.items() if key != _SEGMENTS}
    return _BERT.read({**unsegmented, _POSITIONS: positions[:_BERT_LENGTH] + segments[0]})


def _write_bert(arrays):
    """The inverse of `_read_bert`: other positions and segments are zero."""
    written = _BERT.write(arrays)
    length, width = written[_POSITIONS].shape
    positions = np.pad(written[_POSITIONS], [(0, _BERT_POSITIONS - length), (0, 0)])
    return {**written, _POSITIONS: positions, _SEGMENTS: np.zeros((_BERT_SEGMENTS, width), "float32")}
