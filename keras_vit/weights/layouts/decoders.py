"""The decoder of a masked autoencoder (MAE) beside its encoder, in two layouts.

Sources: `ViTMAEForPreTraining` of transformers 5.23, whose encoder is a `vit` of `huggingface_types.py`;
`models_mae.py` of facebookresearch/mae, whose encoder has timm's names.
"""

from keras_vit.weights.layouts.huggingface_types import VIT_BLOCK, VIT_BLOCK_IN_MEMORY
from keras_vit.weights.layouts.table import Row, Table, fused_rows, torch_rows
from keras_vit.weights.layouts.timm import BLOCK, QKV

POSITIONS = "decoder_position_embedding/table"  # stored, though fixed
_BLOCK = "decoder_block_{i}/"
_LAYERS = {"decoder_embedding": "decoder_embed", "decoder_norm": "decoder_norm", "prediction": "decoder_pred"}
_TOKENS = (Row("mask_token/token", "mask_token"), Row(POSITIONS, "decoder_pos_embed"))
_ONLY_IN_MEMORY = dict(VIT_BLOCK_IN_MEMORY.items() - VIT_BLOCK.items())


def _inside(rows, prefix):
    return [row._replace(theirs=prefix + row.theirs) for row in rows]


DECODERS = {
    "huggingface": Table(
        _inside(
            [
                *torch_rows(_LAYERS),
                *_TOKENS,
                *torch_rows(VIT_BLOCK, _BLOCK, "decoder_layers.{i}."),
                *torch_rows(VIT_BLOCK, _BLOCK, "decoder_encoder.layer.{i}."),  # of transformers 5
                *torch_rows(_ONLY_IN_MEMORY, _BLOCK, "decoder_layers.{i}."),
            ],
            "decoder.",
        )
    ),
    "timm": Table(
        [
            *torch_rows(_LAYERS),
            *_TOKENS,
            *torch_rows(BLOCK, _BLOCK, "decoder_blocks.{i}."),
            *fused_rows(f"{_BLOCK}attention/", QKV, "decoder_blocks.{i}.attn.qkv"),
        ]
    ),
}
# transformers' names of options that arrays do not show, and ours; its defaults, and what the authors train.
OPTIONS = {
    "decoder_num_attention_heads": "decoder_num_heads",
    "mask_ratio": "mask_fraction",
    "norm_pix_loss": "normalize_targets",
}
DEFAULTS = {
    "huggingface": {"decoder_num_heads": 16, "mask_fraction": 0.75, "normalize_targets": False},
    "timm": {"decoder_num_heads": 16, "mask_fraction": 0.75, "normalize_targets": True},
}
