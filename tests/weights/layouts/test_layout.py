"""What every layout has: its own keys, prefixes, and reading that is the inverse of writing."""

import numpy as np
import pytest
from reference.comparing import arrays
from reference.goldens import GOLDENS, stored

from keras_vit import from_pretrained
from keras_vit.weights.checkpoint import merged_heads
from keras_vit.weights.layouts import LAYOUTS, detect_layout
from keras_vit.weights.layouts.table import MappedArrays

FLAX, TORCH = "Transformer/encoderblock_3", "blocks.3"
HF, STAGES = "vit.encoder.layer.3", "patch_embed.backbone.stages"
ANCHORS = {
    "vit_jax": "embedding/kernel",
    "big_vision": "params/embedding/kernel",
    "timm": "patch_embed.proj.weight",
    "huggingface": "vit.embeddings.patch_embeddings.projection.weight",
}
PREFIXES = {
    "vit_jax": ("opt/target/", "params/", "params/img/", "img/"),
    "big_vision": ("", "opt/target/", "img/", "params/img/"),
    "timm": ("module.",),
    "huggingface": ("", "deit."),
}
PUBLISHED = {
    "vit_jax": {
        "cls": "class_token/token",
        "embedding/bias": "patch_embedding/bias",
        "Transformer/posembed_input/pos_embedding": "position_embedding/table",
        f"{FLAX}/LayerNorm_0/scale": "encoder_block_3/attention_norm/gamma",
        f"{FLAX}/LayerNorm_2/bias": "encoder_block_3/mlp_norm/beta",
        f"{FLAX}/LayerNorm_1/bias": "encoder_block_3/mlp_norm/beta",
        f"{FLAX}/MultiHeadDotProductAttention_1/out/kernel": "encoder_block_3/attention/out/kernel",
        f"{FLAX}/MultiHeadDotProductAttention_0/query/bias": "encoder_block_3/attention/query/bias",
        f"{FLAX}/MlpBlock_3/Dense_1/kernel": "encoder_block_3/mlp/dense_1/kernel",
        f"{FLAX}/MlpBlock_0/Dense_0/bias": "encoder_block_3/mlp/dense_0/bias",
        "Transformer/encoder_norm/scale": "encoder_norm/gamma",
        "conv_root/kernel": "conv_root/kernel",
        "block3/unit9/conv2/kernel": "block3_unit9_conv2/kernel",
        "block1/unit1/gn_proj/scale": "block1_unit1_gn_proj/gamma",
        "gn_root/bias": "gn_root/beta",
        "pre_logits/bias": "pre_logits/bias",
        "head/kernel": "head/kernel",
    },
    "big_vision": {
        "params/cls": "class_token/token",
        "params/pos_embedding": "position_embedding/table",
        "params/Transformer/pos_embedding": "position_embedding/table",
        f"params/{FLAX}/LayerNorm_2/bias": "encoder_block_3/mlp_norm/beta",
        "params/MAPHead_0/probe": "attention_pooling/probe",
        "params/MAPHead_0/LayerNorm_0/scale": "attention_pooling/mlp_norm/gamma",
        "params/MAPHead_0/MlpBlock_0/Dense_1/kernel": "attention_pooling/mlp/dense_1/kernel",
        "params/MAPHead_0/MultiHeadDotProductAttention_0/key/bias": "attention_pooling/attention/key/bias",
        "params/probe": "attention_pooling/probe",
        "params/LayerNorm_0/scale": "attention_pooling/mlp_norm/gamma",
        "params/MlpBlock_0/Dense_1/kernel": "attention_pooling/mlp/dense_1/kernel",
        "params/MultiHeadDotProductAttention_0/key/bias": "attention_pooling/attention/key/bias",
        "params/head/bias": "head/bias",
    },
    "timm": {
        "cls_token": "class_token/token",
        "dist_token": "distillation_token/token",
        "reg_token": "register_tokens/token",
        "pos_embed": "position_embedding/table",
        "patch_embed.proj.bias": "patch_embedding/bias",
        "norm_pre.weight": "pre_norm/gamma",
        f"{TORCH}.norm1.bias": "encoder_block_3/attention_norm/beta",
        f"{TORCH}.norm2.weight": "encoder_block_3/mlp_norm/gamma",
        f"{TORCH}.attn.proj.bias": "encoder_block_3/attention/out/bias",
        f"{TORCH}.mlp.fc2.bias": "encoder_block_3/mlp/dense_1/bias",
        f"{TORCH}.ls1.gamma": "encoder_block_3/attention_scale/gamma",
        f"{TORCH}.gamma_2": "encoder_block_3/mlp_scale/gamma",
        "norm.weight": "encoder_norm/gamma",
        "fc_norm.bias": "pooled_norm/beta",
        "attn_pool.latent": "attention_pooling/probe",
        "attn_pool.q.bias": "attention_pooling/attention/query/bias",
        "attn_pool.proj.bias": "attention_pooling/attention/out/bias",
        "attn_pool.norm.weight": "attention_pooling/mlp_norm/gamma",
        "attn_pool.mlp.fc1.bias": "attention_pooling/mlp/dense_0/bias",
        "pre_logits.fc.bias": "pre_logits/bias",
        "head_dist.bias": "head_distillation/bias",
        "patch_embed.backbone.stem.norm.weight": "gn_root/gamma",
        "patch_embed.backbone.norm.weight": "gn_root/gamma",
        f"{STAGES}.2.blocks.8.norm1.bias": "block3_unit9_gn1/beta",
        f"{STAGES}.1.blocks.0.downsample.norm.weight": "block2_unit1_gn_proj/gamma",
    },
    "huggingface": {
        "vit.embeddings.cls_token": "class_token/token",
        "vit.embeddings.position_embeddings": "position_embedding/table",
        "vit.embeddings.patch_embeddings.projection.bias": "patch_embedding/bias",
        f"{HF}.layernorm_before.weight": "encoder_block_3/attention_norm/gamma",
        f"{HF}.attention.attention.query.bias": "encoder_block_3/attention/query/bias",
        f"{HF}.attention.output.dense.bias": "encoder_block_3/attention/out/bias",
        f"{HF}.layernorm_after.bias": "encoder_block_3/mlp_norm/beta",
        f"{HF}.intermediate.dense.bias": "encoder_block_3/mlp/dense_0/bias",
        f"{HF}.output.dense.bias": "encoder_block_3/mlp/dense_1/bias",
        "vit.layers.3.attention.q_proj.bias": "encoder_block_3/attention/query/bias",
        "vit.layers.3.attention.o_proj.bias": "encoder_block_3/attention/out/bias",
        "vit.layers.3.layernorm_after.bias": "encoder_block_3/mlp_norm/beta",
        "vit.layers.3.mlp.fc1.bias": "encoder_block_3/mlp/dense_0/bias",
        "vit.layers.3.mlp.fc2.bias": "encoder_block_3/mlp/dense_1/bias",
        "vit.layernorm.weight": "encoder_norm/gamma",
        "vit.pooler.dense.bias": "pre_logits/bias",
        "classifier.bias": "head/bias",
        "cls_classifier.bias": "head/bias",
        "distillation_classifier.bias": "head_distillation/bias",
    },
}
UNKNOWN = {
    "vit_jax": [
        "opt/count",
        "Transformer/encoderblock_x/LayerNorm_0/scale",
        "Transformer/encoderblock_01/LayerNorm_0/scale",
        f"{FLAX}/LayerNorm_3/scale",
        f"{FLAX}/MlpBlock_0/Dense_2/kernel",
        "xcls",
        "head/kernel/0",
        "block1/unit1/conv1/bias",
        "MAPHead_0/probe",
        "t",
    ],
    "big_vision": [
        "params/MAPHead_1/probe",
        "params/MAPHead_0/LayerNorm_1/scale",
        "params/Transformer/posembed_input/pos_embedding",
        "params/Transformer/encoderblock_0/probe",
        "params/LayerNorm_1/scale",
        "params/conv_root/kernel",
        "params/t",
        "head/bias",
    ],
    "timm": [
        "blocks.0.attn.qkv_bias",
        "blocks.01.norm1.bias",
        "blocks.0.ls1.weight",
        "blocks.0.gamma_3",
        "patch_embed.norm.weight",
        "head.fc.weight",
        "mask_token",
        "vit.cls_token",
        f"{STAGES}.0.blocks.0.conv1.bias",
        f"{STAGES}.0.blocks.0.conv4.weight",
    ],
    "huggingface": [
        "embeddings.cls_token",
        "vit.embeddings.mask_token",
        "vit.encoder.layer.03.layernorm_after.bias",
        "vit.layers.3.mlp.fc3.bias",
        "vit.classifier.bias",
        "layernorm.weight",
        "classifier.bias.0",
    ],
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_golden = pytest.mark.parametrize("name", GOLDENS)


def read_one(layout, key):
    """What a layout reads of one key, in a file that also has the patch kernel."""
    mapped = LAYOUTS[layout].read({ANCHORS[layout]: np.zeros((1, 1, 1, 1)), key: np.ones(3)})
    del mapped.arrays["patch_embedding/kernel"], mapped.keys["patch_embedding/kernel"]
    return mapped


@every_layout
def test_published_names_are_mapped_to_ours(layout):
    for key, ours in PUBLISHED[layout].items():
        mapped = read_one(layout, key)
        assert (mapped.keys, mapped.unknown, mapped.skipped) == ({ours: key}, [], [])
        np.testing.assert_array_equal(mapped.arrays[ours], np.ones(3))


@every_layout
def test_unknown_names_are_reported(layout):
    for key in UNKNOWN[layout]:
        assert read_one(layout, key) == MappedArrays({}, {}, [key], [])


@every_golden
def test_all_arrays_of_a_golden_file_are_read_and_written(golden, name):
    file, layout = stored(golden, name), LAYOUTS[GOLDENS[name][1]]
    mapped = layout.read(file)
    assert ({*mapped.keys.values()}, mapped.unknown, mapped.skipped) == ({*file}, [], [])
    model = from_pretrained(golden / GOLDENS[name][0], **GOLDENS[name][2])
    expected = arrays(model) if layout.split_heads else merged_heads(arrays(model))
    assert {ours: a.shape for ours, a in mapped.arrays.items()} == {n: a.shape for n, a in expected.items()}
    written = layout.write(mapped.arrays, model.get_config())
    if layout.name == "vit_jax":  # with Linen names and flat group norms
        assert {ours: a.tobytes() for ours, a in layout.read(written).arrays.items()} == {
            ours: np.ascontiguousarray(a).tobytes() for ours, a in mapped.arrays.items()
        }
    else:
        assert [*written] == [*file] if layout.name == "big_vision" else written.keys() == file.keys()
        for key, array in written.items():
            np.testing.assert_array_equal(array, file[key], strict=True)


@every_golden
def test_a_file_is_read_with_each_prefix(golden, name):
    file, layout = stored(golden, name), GOLDENS[name][1]
    own = {"big_vision": "params/", "huggingface": "vit."}.get(layout, "")
    for prefix in PREFIXES[layout]:
        changed = {
            key if key.startswith("classifier") else prefix + key.removeprefix(own): array
            for key, array in file.items()
        }
        mapped = LAYOUTS[layout].read(changed)
        assert detect_layout(changed) is LAYOUTS[layout]
        assert ({*mapped.keys.values()}, mapped.unknown) == ({*changed}, [])
        assert mapped.arrays.keys() == LAYOUTS[layout].read(file).arrays.keys()
        # A key outside the prefix is neither read as one inside nor dropped.
        if prefix:
            outside = next(key for key in changed if key.startswith(prefix) and "embed" not in key)
            changed[outside.removeprefix(prefix)] = changed.pop(outside)
            assert LAYOUTS[layout].read(changed).unknown == [outside.removeprefix(prefix)]


@every_golden
def test_only_its_own_layout_detects_a_file(golden, name):
    keys = stored(golden, name)
    assert [layout.name for layout in LAYOUTS.values() if layout.detect(keys)] == [GOLDENS[name][1]]


@pytest.mark.parametrize(
    "keys, expected",
    [
        (["conv_root/kernel", "embedding/kernel"], "vit_jax"),
        (["embedding/kernel", f"{FLAX}/LayerNorm_2/scale"], "vit_jax"),
        (["embedding/kernel", "Transformer/encoder_norm/scale"], "big_vision"),
        (["embedding/kernel", "pos_embedding"], "big_vision"),
        (["embedding/kernel", "head/kernel"], None),
        (["foo/embedding/kernel", "foo/Transformer/encoder_norm/scale"], None),
        (["vit.patch_embed.proj.weight", "cls_token"], None),
        (["dinov2.embeddings.patch_embeddings.projection.weight"], None),
        ([], None),
    ],
)
def test_a_layout_is_detected_by_its_keys(keys, expected):
    layout = detect_layout(keys)
    assert (layout and layout.name) == expected


@pytest.mark.parametrize(
    "layout, keys, expected",
    [
        ("vit_jax", (), ("gelu_tanh", 1e-6, {"prefix_positions": True, "position_embedding": "none"})),
        (
            "big_vision",
            (),
            ("gelu_tanh", 1e-6, {"prefix_positions": False, "position_embedding": "sincos2d"}),
        ),
        ("timm", ("head/kernel",), ("gelu_erf", 1e-6, {})),
        ("timm", ("pre_norm/gamma",), (None, 1e-5, {})),
        ("timm", ("attention_pooling/probe",), (None, 1e-6, {})),
        ("timm", ("conv_root/kernel",), ("gelu_erf", 1e-6, {"resnet_form": "timm"})),
        ("huggingface", (), ("gelu_erf", 1e-12, {"prefix_positions": True})),
    ],
)
def test_a_layout_implies_what_its_project_computes(layout, keys, expected):
    activation, epsilon, others = expected
    implied = LAYOUTS[layout].implied(dict.fromkeys(keys, "its key"), {})
    assert implied == {
        **({"activation": activation} if activation else {}),
        **{"norm_epsilon": epsilon, **others},
    }


@every_layout
def test_two_models_in_one_file_are_refused(layout):
    prefix = {"timm": "module.", "huggingface": "deit."}.get(layout, "opt/target/")
    anchor = ANCHORS[layout].removeprefix("vit.")
    with pytest.raises(ValueError, match="two models, or one array twice; select a subtree") as caught:
        detect_layout([ANCHORS[layout], prefix + anchor.removeprefix("params/")])
    assert "\n" not in str(caught.value)
