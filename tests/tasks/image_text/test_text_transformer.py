"""Text towers: padding has no effect."""

import numpy as np
import pytest
from made.sampling import some
from reference.comparing import arrays, assert_close, numpy, randomize

from keras_vit import TextTransformer

SIZES = {"vocabulary_size": 11, "hidden_size": 12, "num_layers": 2, "mlp_dim": 16, "num_heads": 3}
BERT = {"pooling": "first", "norm_after_residual": True, "pad_id": 0}
IDS = np.array([[2, 5, 7, 0, 0, 0], [2, 0, 0, 0, 0, 0]], "int32")


@pytest.mark.parametrize(
    "options", some([BERT, {"pad_id": 0, "causal": True, "pooling": "eos", "eos_id": 7}], 2)
)
def test_padding_has_no_effect(options):
    long, short = (randomize(TextTransformer(length=length, **SIZES, **options)) for length in (6, 3))
    for weight in short.weights:
        value = arrays(long)[weight.path]
        weight.assign(value[:, :3] if weight.path == "text/position_embedding/table" else value)
    assert_close(long(IDS), numpy(short(IDS[:, :3])))
    attending = TextTransformer.from_config({**long.get_config(), "pad_id": None})
    attending.set_weights(long.get_weights())
    is_same = np.abs(numpy(attending(IDS)) - numpy(long(IDS))).max(axis=1) < 1e-5
    assert is_same.all() == options.get("causal", False), "a causal tower has no padding before its end"
