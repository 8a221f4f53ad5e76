"""Arguments that layers refuse, some of them only when the layer is built for tokens of 8 channels."""

import numpy as np
import pytest
from made.tables import by_table

from keras_vit import layers
from keras_vit.layers import box_head, depth_head
from keras_vit.layers.attention import Projection

BLOCK = {"num_heads": 2, "mlp_dim": 20}
CASES = [
    (layers.AddPositionEmbs, {"kind": "rope"}, "kind must be one of 'learned', .*; got 'rope'"),
    (layers.ClassToken, {"num_tokens": 0}, "num_tokens must be a positive int; got 0"),
    (layers.ClassToken, {"num_tokens": 1.5}, "num_tokens must be a positive int; got 1.5"),
    (layers.standard_block, {**BLOCK, "post_norm": True, "norm_after_residual": True}, "one of .*; got both"),
    (layers.MlpBlock, {"mlp_dim": 9, "activation": "gelu"}, "one of 'gelu_tanh', .*; got 'gelu'"),
    *(
        (layers.MultiHeadSelfAttention, {"num_heads": heads}, f"divides hidden_size 8; got {heads}")
        for heads in (3, 0, -1, 2.0)
    ),
    (layers.PaletteEmbedding, {"hidden_size": 0, "colors": 4}, "hidden_size must be a positive int; got 0"),
    (layers.PaletteEmbedding, {"hidden_size": 4, "colors": 2.5}, "colors must be a positive int; got 2.5"),
    *(
        (layers.PatchEmbedding, {"hidden_size": 8, "patch_size": patch}, "patch_size must be a positive int")
        for patch in (0, -2, (4,), (4, 4, 4), 2.0, (2, 0))
    ),
    (Projection, {"equation": "btc,cd->btd", "output_shape": (None, 8)}, "must be 'btc.*; got 'btc,cd->btd'"),
    (layers.RotaryPositions, {"kind": "golden", "head_size": 8}, "kind must be one of .*; got 'golden'"),
    (layers.RotaryPositions, {"kind": "axial", "head_size": 6}, "of a size that 4 divides; got 6"),
    (layers.RotaryPositions, {"kind": "axial", "head_size": 8, "num_registers": 3}, "square number; got 3"),
    (layers.RotaryPositions, {"kind": "dinov3", "head_size": 8, "offset": 1}, "belong to kind='axial'"),
    (layers.RotaryPositions, {"kind": "axial", "head_size": 8, "order": "yz"}, "'yx', 'xy'; got 'yz'"),
    (
        layers.MultiHeadSelfAttention,
        {"num_heads": 2, "relative_grid": (2, 2)},
        "needs the positions of the tok",
    ),
    (box_head.BoxHead, {"activation": "none"}, "^activation must be one of "),
    (depth_head.Readout, {"kind": "mean"}, "kind must be one of 'ignore', 'add', 'project'"),
    (depth_head.Reassemble, {"factor": 3}, "factor must be one of"),
    (depth_head.ResidualUnit, {"norm": "layer"}, "norm must be"),
    (depth_head.FusionBlock, {}, "with residual=True adds a map to x; got addend=None"),
    (depth_head.PixelValues, {"activation": "tanh"}, "activation must be one of"),
    (depth_head.DepthBins, {"min_depth": 5.0, "max_depth": 1.0}, "max_depth must be a number above 5.0"),
    (layers.StochasticDepth, {"rate": 1}, r"rate must be a number in \[0, 1\); got 1"),
    (layers.PatchDropout, {"rate": 1}, r"rate must be a number in \[0, 1\); got 1"),
    (layers.StochasticDepth, {"rate": -0.1}, r"rate must be a number in \[0, 1\); got -0.1"),
]


@by_table("cls, arguments, message", CASES)
def test_wrong_arguments_are_refused(cls, arguments, message):
    with pytest.raises(ValueError, match=message):
        cls(**arguments)(np.zeros((1, 5, 8)))
