import re

import numpy as np
import pytest
from reference.comparing import arrays

from keras_vit import from_pretrained
from keras_vit.weights.layouts import vit_jax

BLOCK = "Transformer/encoderblock_0"


@pytest.fixture
def stored(golden):
    with np.load(golden / "hybrid.npz") as file:
        return dict(file)


@pytest.mark.parametrize(
    "key, ours",
    [
        ("cls", "class_token/token"),
        ("embedding/kernel", "patch_embedding/kernel"),
        ("Transformer/posembed_input/pos_embedding", "position_embedding/table"),
        ("Transformer/encoderblock_11/LayerNorm_0/scale", "encoder_block_11/attention_norm/gamma"),
        (f"{BLOCK}/LayerNorm_2/bias", "encoder_block_0/mlp_norm/beta"),
        (f"{BLOCK}/LayerNorm_1/bias", "encoder_block_0/mlp_norm/beta"),
        (f"{BLOCK}/MultiHeadDotProductAttention_1/out/kernel", "encoder_block_0/attention/out/kernel"),
        (f"{BLOCK}/MultiHeadDotProductAttention_0/query/bias", "encoder_block_0/attention/query/bias"),
        (f"{BLOCK}/MlpBlock_3/Dense_1/kernel", "encoder_block_0/mlp/dense_1/kernel"),
        (f"{BLOCK}/MlpBlock_0/Dense_0/bias", "encoder_block_0/mlp/dense_0/bias"),
        ("Transformer/encoder_norm/scale", "encoder_norm/gamma"),
        ("block3/unit9/conv2/kernel", "block3_unit9_conv2/kernel"),
        ("block1/unit1/gn_proj/scale", "block1_unit1_gn_proj/gamma"),
        ("gn_root/bias", "gn_root/beta"),
        ("pre_logits/bias", "pre_logits/bias"),
        ("head/kernel", "head/kernel"),
    ],
)
def test_a_published_name_is_read_as_ours(key, ours):
    array = np.zeros(3)
    assert vit_jax.read({key: array}) == ({ours: array}, {ours: key}, [])


@pytest.mark.parametrize(
    "key",
    [
        "opt/count",
        "Transformer/encoderblock_x/LayerNorm_0/scale",
        "xcls",
        "head/kernel/0",
        "block1/conv1/kernel",
    ],
)
def test_an_unknown_name_is_handed_back(key):
    assert vit_jax.read({key: np.zeros(3)}) == ({}, {}, [key])


def to_linen(key):
    for old, new in (("LayerNorm_2", "LayerNorm_1"), ("Attention_1", "Attention_0"), ("Block_3", "Block_0")):
        key = key.replace(old, new)
    return key


def assert_load_the_same(*paths):
    one, other = (arrays(from_pretrained(path)) for path in paths)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])


def test_names_as_published_and_linen_names_load_the_same(golden, tmp_path, stored):
    linen = {to_linen(key): array for key, array in stored.items()}
    assert linen.keys() != stored.keys()
    np.savez(tmp_path / "linen.npz", **linen)
    assert_load_the_same(golden / "hybrid.npz", tmp_path / "linen.npz")


def test_group_norms_load_from_either_shape(golden, tmp_path, stored):
    flat = {key: a.reshape(-1) if re.search(r"\bgn", key) else a for key, a in stored.items()}
    assert stored["gn_root/scale"].shape == (1, 1, 1, 32)
    assert flat["gn_root/scale"].shape == (32,)
    np.savez(tmp_path / "flat.npz", **flat)
    assert_load_the_same(golden / "hybrid.npz", tmp_path / "flat.npz")


def test_only_official_files_are_taken_for_it(golden):
    for name in ("token", "gap", "hybrid", "hybrid_root"):
        with np.load(golden / f"{name}.npz") as file:
            assert vit_jax.detect(file.files)
    assert vit_jax.detect(["conv_root/kernel", "embedding/kernel"])
    assert not vit_jax.detect(["embedding/kernel", "head/kernel"])
    assert not vit_jax.detect(["params/embedding/kernel", "params/Transformer/encoder_norm/scale"])
    assert not vit_jax.detect(["patch_embed.proj.weight", "cls_token"])


def test_our_names_are_distinct_and_so_are_theirs():
    assert len({*vit_jax.NAMES.values()}) == len(vit_jax.NAMES)
