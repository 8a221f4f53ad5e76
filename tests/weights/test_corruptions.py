"""Damaged checkpoints: each is refused in one line that names the file and what is wrong."""

import functools
import struct
import zipfile

import numpy as np
import pytest
from made import refusals
from made.checkpoints import NAMES, base
from made.tables import by_table
from reference.comparing import arrays as arrays_of

from keras_vit import VisionTransformer, from_pretrained
from keras_vit.weights.array_files import read_arrays

TABLE = "Transformer/posembed_input/pos_embedding"


refused = functools.partial(refusals.refused, from_pretrained)


# Damaged arrays ------------------------------------------------------------------------------------


def dropped(key):
    return lambda arrays: {k: a for k, a in arrays.items() if k != key}


def renamed(key, new):
    return lambda arrays: {new if k == key else k: a for k, a in arrays.items()}


def added(key, source=None):
    return lambda arrays: {**arrays, key: arrays[source] if source else np.zeros(3, "float32")}


def changed(key, change):
    return lambda arrays: {k: change(a) if k == key else a for k, a in arrays.items()}


def with_value(key, value):
    return changed(key, lambda array: np.where(np.arange(array.size).reshape(array.shape) == 1, value, array))


def sizes(arrays):
    return sum(array.size for array in arrays.values())


LAYER, BLOCK = "vit.encoder.layer.0.attention", "Transformer/encoderblock_0"
SCAN, QKV = "params/Transformer/encoderblock", "blocks.1.attn.qkv.weight"
DAMAGE = [
    ("token", dropped("cls"), "17 grid positions are not a square"),
    ("token", dropped("head/kernel"), "only in file: head/bias;"),
    ("timm_token", dropped(QKV), r"in model: encoder_block_1/\S*/key/kernel, "),
    ("hf_deit", dropped("cls_classifier.weight"), r"config\.json says num_classes=7"),
    ("hf_vit", dropped("vit.embeddings.patch_embeddings.projection.weight"), "in no known layout"),
    ("bigvision_scan", dropped(f"{SCAN}/LayerNorm_0/bias"), "in model: encoder_block_0/attention_norm/beta"),
    ("timm_token", renamed("blocks.0.norm1.bias", "blocks.00.norm1.bias"), "in file: blocks.00.norm1.bias; "),
    ("hf_vit", renamed("vit.layernorm.bias", "layernorm.bias"), "in file: layernorm.bias; .*: encoder_norm/"),
    ("token", renamed("embedding/bias", "Embedding/bias"), "file: Embedding/bias; .*: patch_embedding/"),
    ("token", added("old/cls", "cls"), "only in file: old/cls;"),
    ("token", added("params/embedding/kernel", "embedding/kernel"), "two models, or one array twice"),
    ("token", added(f"{BLOCK}/LayerNorm_1/bias", f"{BLOCK}/LayerNorm_2/bias"), "1/bias .* both map to"),
    ("bigvision_map", added("params/probe", "params/MAPHead_0/probe"), "both map to attention_pooling/probe"),
    ("bigvision_scan", added(f"{SCAN}_0/LayerNorm_0/bias", "params/head/bias"), "both hold"),
    ("bigvision_scan", added(f"{SCAN}/gate"), f"only in file: {SCAN}/gate;"),
    ("timm_deit3", added("blocks.0.gamma_1", "blocks.0.ls1.gamma"), "both map to encoder_block_0/att"),
    ("hf_vit", added("cls_classifier.bias", "classifier.bias"), "both map to head/bias"),
    ("timm_token", added("head_dist.bias"), "only in file: head_dist.bias;"),
    ("token", changed("head/kernel", np.transpose), r"wrong shape: head/bias \(7,\) for head/bias \(24,\), "),
    ("timm_token", changed(QKV, lambda a: a[:-1]), "to hold 3 arrays of one size; got"),
    ("timm_token", changed(QKV, lambda a: a.reshape(72, 3, 8)), rf"expected 2 axes of {QKV}"),
    ("token", changed("cls", lambda a: a[..., 1:]), r"wrong shape: cls \(1, 1, 23\) for class_token/token"),
    ("token", changed("embedding/kernel", lambda a: a[:0]), "expected 4 axes of .*; got .0, 8, 3, 24"),
    ("bigvision_scan", changed(f"{SCAN}/LayerNorm_0/bias", lambda a: a[:1]), "in model: encoder_block_1/"),
    ("token", changed("embedding/bias", np.atleast_2d), r"embedding/bias \(1, 24\) for patch_"),
    ("token", changed("cls", lambda a: a.astype(">f4")), "cls holds '>f4'"),
    ("hf_vit", changed("classifier.bias", lambda a: a.astype("int32")), "classifier.bias holds .*i4'"),
    ("timm_token", with_value("cls_token", np.float32(np.nan)), "holds NaN or infinity in cls_token;"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name, damage, pattern", DAMAGE)
def test_damaged_arrays_are_refused(name, damage, pattern, tmp_path):
    refused(base(name).write(tmp_path, damage(base(name).arrays)), pattern, **base(name).options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_random_damage_is_refused_or_leaves_another_whole_checkpoint(seed, tmp_path):
    rng = np.random.default_rng(seed)
    original = base(NAMES[rng.integers(len(NAMES))])
    key, other = rng.choice([*original.arrays], 2, replace=False)
    damage = [
        dropped(key),
        renamed(key, f"params/{key}"),
        added(f"module.{key}", key),
        changed(key, lambda a: a.transpose(rng.permutation(a.ndim))),
        changed(key, lambda a: np.delete(a, 0, rng.integers(a.ndim))),
        changed(key, lambda a: original.arrays[other]),
    ][seed % 6]
    path = original.write(tmp_path, damage(original.arrays))
    try:
        model = from_pretrained(path, **original.options)
    except ValueError as error:
        message = str(error)
        assert type(error) is ValueError and message.isprintable() and path.name in message, message
    else:
        assert sizes(arrays_of(model)) == sizes(read_arrays(path))


@by_table(
    "name, key, new",
    [
        ("timm_token", "blocks.1.norm2.bias", "blocks.100000.norm2.bias"),
        ("bigvision_map", f"{SCAN}_1/LayerNorm_0/bias", f"{SCAN}_{10**30}/LayerNorm_0/bias"),
        ("hybrid", "block1/unit1/conv1/kernel", "block100000/unit1/conv1/kernel"),
        ("bigvision_scan", f"{SCAN}/MlpBlock_0/Dense_0/bias", None),  # transposed: 3072 blocks
    ],
)
def test_a_huge_index_is_refused_before_so_many_blocks_are_built(name, key, new, tmp_path, monkeypatch):
    from_config = VisionTransformer.from_config

    def build(arguments):
        assert arguments["num_layers"] <= 3 and sum(arguments.get("resnet") or ()) <= 9
        return from_config(arguments)

    monkeypatch.setattr("keras_vit.weights.load.VisionTransformer.from_config", build)
    damage = renamed(key, new) if new else changed(key, lambda a: np.zeros((3072, 2), "float32"))
    refused(base(name).write(tmp_path, damage(base(name).arrays)), "only in file", **base(name).options)


@by_table(
    "key, shape, options",
    [
        (TABLE, (2, 17, 24), {"image_size": 48}),
        (TABLE, (1, 17), {"pooling": "gap"}),
        ("embedding/kernel", (8, 8, 3, 25), {"patch_size": 4}),
        ("embedding/kernel", (8, 8, 3), {"in_channels": 5}),
    ],
)
def test_a_wrong_shape_is_refused_where_the_array_would_be_resized(key, shape, options, tmp_path):
    damage = changed(key, lambda array: np.zeros(shape, "float32"))
    path = base("token").write(tmp_path, damage(base("token").arrays))
    refused(path, "shape|axes|hidden_size|not a sq", **options)


# Damaged bytes -------------------------------------------------------------------------------------


HEADER = "{{'descr': {}, 'fortran_order': False, 'shape': {}, }}"
HEADERS = [
    HEADER.format("'<f4'", "(-1,)"),
    HEADER.format("'<f4'", "(9223372036854775807, 3)"),
    HEADER.format("[('a','<f4')]", "(3,)"),
    HEADER.format("'<f4'", "(" * 300),
    HEADER.format("'<f4'", "(3,)"),  # fewer bytes than the entry has
    *("{[]: 1}", "x" * 20000, ""),
]


@by_table("header", HEADERS, ids=lambda header: header[:60])
def test_an_impossible_array_header_is_refused(header, tmp_path):
    header = header.encode() + b"\n"
    raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(400)
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive:
        archive.writestr("embedding/kernel.npy", raw)
    refusals.refused(read_arrays, tmp_path / "odd.npz", "odd.npz is no checkpoint")


# Changes that leave another valid checkpoint -------------------------------------------------------
