"""What every layout has: its own keys, prefixes, and reading that is the inverse of writing."""

import numpy as np
import pytest
from made.tables import by_table
from reference.goldens import GOLDENS, stored

from keras_vit.weights.layouts import LAYOUTS, detect_layout
from keras_vit.weights.layouts.table import MappedArrays

ANCHORS = {
    "vit_jax": "embedding/kernel",
    "big_vision": "params/embedding/kernel",
    "timm": "patch_embed.proj.weight",
    "huggingface": "vit.embeddings.patch_embeddings.projection.weight",
}
PREFIXES = {
    "vit_jax": ("opt/target/", "params/", "params/img/", "img/"),
    "big_vision": ("", "opt/target/", "img/", "params/img/"),
    "huggingface": ("", "deit."),
    "timm": ("", "timm_model."),
}
BLOCK, POOLING = "Transformer/encoderblock_3/", "params/MAPHead_0/"
PUBLISHED = {  # names of published files, which no golden file and no test of peers has
    "vit_jax": {
        f"{BLOCK}LayerNorm_2/bias": "encoder_block_3/mlp_norm/beta",
        f"{BLOCK}LayerNorm_1/bias": "encoder_block_3/mlp_norm/beta",
        f"{BLOCK}MultiHeadDotProductAttention_1/out/kernel": "encoder_block_3/attention/out/kernel",
        f"{BLOCK}MultiHeadDotProductAttention_0/query/bias": "encoder_block_3/attention/query/bias",
        f"{BLOCK}MlpBlock_3/Dense_1/kernel": "encoder_block_3/mlp/dense_1/kernel",
        f"{BLOCK}MlpBlock_0/Dense_0/bias": "encoder_block_3/mlp/dense_0/bias",
        "block3/unit9/conv2/kernel": "block3_unit9_conv2/kernel",
    },
    "big_vision": {
        "params/Transformer/pos_embedding": "position_embedding/table",
        "params/probe": "attention_pooling/probe",
        "params/LayerNorm_0/scale": "attention_pooling/mlp_norm/gamma",
        "params/MlpBlock_0/Dense_1/kernel": "attention_pooling/mlp/dense_1/kernel",
        "params/MultiHeadDotProductAttention_0/key/bias": "attention_pooling/attention/key/bias",
        "params/head/bias": "head/bias",
    },
    "timm": {"pre_logits.fc.bias": "pre_logits/bias"},
}
UNKNOWN = {
    "vit_jax": ["opt/count", "Transformer/encoderblock_01/LayerNorm_0/scale", "head/kernel/0", "t"],
    "big_vision": [f"{POOLING}LayerNorm_1/scale", "params/conv_root/kernel", "params/t", "head/bias"],
    "timm": [
        "blocks.0.attn.qkv_bias",
        "blocks.01.norm1.bias",
        "mask_token",
        "patch_embed.backbone.stages.0.blocks.0.conv4.bias",
    ],
    "huggingface": ["embeddings.cls_token", "vit.embeddings.mask_token", "vit.classifier.bias"],
}


def read_one(layout, key):
    """What a layout reads of one key, in a file that also has the patch kernel."""
    mapped = LAYOUTS[layout].read({ANCHORS[layout]: np.zeros((1, 1, 1, 1)), key: np.ones(3)})
    del mapped.arrays["patch_embedding/kernel"], mapped.keys["patch_embedding/kernel"]
    return mapped


@pytest.mark.parametrize("layout", PUBLISHED)
def test_published_names_are_mapped_to_ours(layout):
    for key, ours in PUBLISHED[layout].items():
        mapped = read_one(layout, key)
        assert (mapped.keys, mapped.unknown, mapped.skipped) == ({ours: key}, [], [])
        np.testing.assert_array_equal(mapped.arrays[ours], np.ones(3))


@by_table("layout", UNKNOWN)
def test_unknown_names_are_reported(layout):
    for key in UNKNOWN[layout]:
        assert read_one(layout, key) == MappedArrays({}, {}, [key], [])


@pytest.mark.parametrize("name", ["token", "bigvision_map", "hf_vit", "timm_token"])
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


@by_table("name", GOLDENS)
def test_only_its_own_layout_detects_a_file(golden, name):
    keys = stored(golden, name)
    assert [layout.name for layout in LAYOUTS.values() if layout.detect(keys)] == [GOLDENS[name][1]]


@by_table(
    "keys, expected",
    [
        (["conv_root/kernel", "embedding/kernel"], "vit_jax"),
        (["embedding/kernel", f"{BLOCK}LayerNorm_2/scale"], "vit_jax"),
        (["embedding/kernel", "Transformer/encoder_norm/scale"], "big_vision"),
        (["embedding/kernel", "pos_embedding"], "big_vision"),
        (["embedding/kernel", "head/kernel"], None),
        (["foo/embedding/kernel", "foo/Transformer/encoder_norm/scale"], None),
        (["vit.patch_embed.proj.weight", "cls_token"], None),
        (["yolos.embeddings.patch_embeddings.projection.weight"], None),
        ([], None),
    ],
)
def test_a_layout_is_detected_by_its_keys(keys, expected):
    layout = detect_layout(keys)
    assert (layout and layout.name) == expected
