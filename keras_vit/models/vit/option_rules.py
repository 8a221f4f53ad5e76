"""The rules across a model's options; the rule of each alone is in its field of `config.py`."""

from keras_vit.models.vit.geometry import DYNAMIC_SIZE, prefix_tokens
from keras_vit.models.vit.resnet_stem import GROUPS

RULES = (  # a function of the config that must be true, and the message otherwise
    (
        lambda c: c.num_layers is not None or (c.mlp_dim, c.num_heads) == (None, None),
        "num_layers=None builds no Transformer, so mlp_dim and num_heads must be None; got {mlp_dim} and "
        "{num_heads}",
    ),
    (
        lambda c: c.num_layers is not None or c.pooling in ("gap", None) and not prefix_tokens(vars(c)),
        "without a Transformer pooling must be 'gap' or None, and there can be no class, distillation or "
        "register tokens; got pooling={pooling!r}",
    ),
    (
        lambda c: c.num_layers is None or None not in (c.mlp_dim, c.num_heads),
        "mlp_dim and num_heads must be positive ints with num_layers={num_layers}; got {mlp_dim} and "
        "{num_heads}",
    ),
    (
        lambda c: (
            c.num_layers is None
            or c.position_embedding != "sincos2d"
            or (c.hidden_size % 4 == 0 and c.hidden_size >= 8)
        ),
        "sincos2d needs a hidden_size that is a multiple of 4, at least 8; got {hidden_size}",
    ),
    (
        lambda c: c.class_token or c.pooling not in ("token", "token_gap"),
        "pooling={pooling!r} reads the class token; got class_token=False",
    ),
    (
        lambda c: (
            not c.distillation
            or (c.pooling == "token" and c.representation_size is None and not c.norm_after_pooling)
        ),
        "distillation needs pooling='token', no representation_size and no norm_after_pooling; got "
        "{pooling!r}, {representation_size} and {norm_after_pooling}",
    ),
    (
        lambda c: c.num_layers is not None or not (c.rotary or c.relative_positions),
        "without a Transformer there can be no rotary or relative positions; got num_layers=None",
    ),
    (
        lambda c: not (c.rotary and c.relative_positions),
        "rotary and relative positions exclude each other; got rotary={rotary!r} and relative_positions=True",
    ),
    (
        lambda c: not c.relative_positions or c.image_size != DYNAMIC_SIZE,
        "relative positions are of one grid; got image_size={image_size}",
    ),
    (
        lambda c: not c.relative_positions or not (c.num_registers or c.distillation),
        "relative positions have no rows for distillation or register tokens; got num_registers="
        "{num_registers} and distillation={distillation}",
    ),
    (
        lambda c: c.final_norm or not c.norm_after_pooling,
        "norm_after_pooling=True moves the last norm; got final_norm=False",
    ),
    (
        lambda c: not isinstance(c.num_kv_heads, tuple) or len(c.num_kv_heads) == c.num_layers,
        "num_kv_heads must have num_layers={num_layers} items; got {num_kv_heads}",
    ),
    (
        lambda c: not (c.num_kv_heads and c.rotary and c.rotary["kind"] == "mixed"),
        "mixed rotary positions differ between heads, which num_kv_heads groups; got {num_kv_heads}",
    ),
    (
        lambda c: c.resnet is None or c.resnet_width % GROUPS == 0,
        f"resnet_width must be a multiple of {GROUPS}, the groups of its norms; got {{resnet_width}}",
    ),
)
