"""Damaged checkpoints: each is refused in one line that names the file and what is wrong."""

import dataclasses
import json
import re
import struct
import zipfile

import numpy as np
import pytest
from made.checkpoints import HEADS, NAMES, base, write
from made.sampling import some
from reference.comparing import arrays as arrays_of

from keras_vit import VisionTransformer, from_pretrained
from keras_vit.weights import catalogue
from keras_vit.weights.archive import read_arrays
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.metadata import sidecar_text

TABLE = "Transformer/posembed_input/pos_embedding"


class Trap:
    """An object that writes a file when it is unpickled."""

    path = None  # set by the fixture

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture(autouse=True)
def trap(tmp_path):
    Trap.path = tmp_path / "trap"
    yield
    assert not Trap.path.exists(), "reading the file ran code in it"


def refused(path, pattern="", load=from_pretrained, **options):
    with pytest.raises(ValueError) as caught:
        load(path, **options)
    message = str(caught.value)
    assert type(caught.value) is ValueError and message.isprintable() and path.name in message, message
    assert re.search(pattern, message), message


# Damaged arrays ------------------------------------------------------------------------------------


def dropped(key):
    return lambda arrays: {k: a for k, a in arrays.items() if k != key}


def renamed(key, new):
    return lambda arrays: {new if k == key else k: a for k, a in arrays.items()}


def added(key, source=None):
    return lambda arrays: {**arrays, key: arrays[source] if source else np.zeros(3, "float32")}


def changed(key, change):
    return lambda arrays: {k: change(a) if k == key else a for k, a in arrays.items()}


def reshaped(key, *shape):
    return changed(key, lambda array: array.reshape(shape))


def as_type(key, dtype):
    return changed(key, lambda array: np.zeros(array.shape, dtype))


def number(value):
    def put(array):
        array = array.copy()
        array.flat[1] = value
        return array

    return put


def sizes(arrays):
    return sum(array.size for array in arrays.values())


HF_LAYER = "vit.encoder.layer.0.attention"
SCAN = "params/Transformer/encoderblock"
BLOCK = "Transformer/encoderblock_0"
DAMAGE = [
    ("token", dropped("Transformer/encoder_norm/bias"), "only in model: encoder_norm/beta;"),
    ("token", dropped("cls"), "17 grid positions are not a square"),
    ("token", dropped("head/kernel"), "only in file: head/bias;"),
    ("timm_token", dropped("blocks.1.attn.qkv.weight"), r"in model: encoder_block_1/\S*/key/kernel, "),
    ("hf_deit", dropped("cls_classifier.weight"), r"config\.json says num_classes=7"),
    ("hf_vit", dropped("vit.embeddings.patch_embeddings.projection.weight"), "in no known layout"),
    (
        "bigvision_scan",
        dropped(f"{SCAN}/LayerNorm_0/bias"),
        "in model: encoder_block_0/attention_norm/beta",
    ),
    ("timm_token", renamed("blocks.0.norm1.bias", "blocks.00.norm1.bias"), "norm1.weight has no bias"),
    (
        "hf_vit",
        renamed("vit.layernorm.bias", "layernorm.bias"),
        "in file: layernorm.bias; .*: encoder_norm/",
    ),
    ("hf_vit", renamed("classifier.bias", "vit.classifier.bias"), "only in file: vit.classifier.bias;"),
    (
        "bigvision_map",
        renamed("params/head/bias", "head/bias"),
        "in file: head/bias; .*model: head/bias;",
    ),
    (
        "token",
        renamed("embedding/bias", "Embedding/bias"),
        "in file: Embedding/bias; .*: patch_embedding/",
    ),
    ("token", added("old/cls", "cls"), "only in file: old/cls;"),
    ("token", added("params/embedding/kernel", "embedding/kernel"), "two models, or one array twice"),
    (
        "token",
        added(f"{BLOCK}/LayerNorm_1/bias", f"{BLOCK}/LayerNorm_2/bias"),
        "LayerNorm_1/bias .* both map to",
    ),
    ("bigvision_map", added("params/probe", "params/MAPHead_0/probe"), "both map to attention_pooling/probe"),
    ("bigvision_scan", added(f"{SCAN}_0/LayerNorm_0/bias", "params/head/bias"), "both hold"),
    ("bigvision_scan", added(f"{SCAN}/gate"), f"only in file: {SCAN}/gate;"),
    (
        "timm_deit3",
        added("blocks.0.gamma_1", "blocks.0.ls1.gamma"),
        "both map to encoder_block_0/attention_scale",
    ),
    ("hf_vit", added("cls_classifier.bias", "classifier.bias"), "both map to head/bias"),
    ("timm_token", added("head_dist.bias"), "only in file: head_dist.bias;"),
    ("token", changed("head/kernel", np.transpose), r"wrong shape: head/bias \(7,\) for head/bias \(24,\), "),
    (
        "timm_token",
        changed("blocks.0.mlp.fc2.weight", np.transpose),
        r"wrong shape: blocks.0.mlp.fc2.weight \(",
    ),
    (
        "timm_token",
        changed("blocks.0.attn.qkv.weight", lambda a: a[:-1]),
        "to hold 3 arrays of one size; got",
    ),
    ("token", changed("cls", lambda a: a[..., 1:]), r"wrong shape: cls \(1, 1, 23\) for class_token/token"),
    ("token", changed("embedding/kernel", lambda a: a[:0]), "expected 4 axes of .*; got .0, 8, 3, 24"),
    (
        "bigvision_scan",
        changed(f"{SCAN}/LayerNorm_0/bias", lambda a: a[:1]),
        "in model: encoder_block_1/",
    ),
    (
        "token",
        reshaped("embedding/bias", 1, 24),
        r"wrong shape: embedding/bias \(1, 24\) for patch_",
    ),
    (
        "timm_token",
        reshaped("blocks.1.attn.qkv.weight", 72, 3, 8),
        r"expected 2 axes of blocks.1.attn.qkv.weight",
    ),
    (
        "hf_alone",
        reshaped(f"{HF_LAYER}.output.dense.weight", 3, 8, 24),
        f"expected 2 axes of {HF_LAYER}.output",
    ),
    ("token", changed("cls", lambda a: a.astype(">f4")), "cls holds '>f4'"),
    ("hf_vit", as_type("classifier.bias", "int32"), "classifier.bias holds .*i4'"),
    ("token", as_type("head/bias", "U3"), "head/bias holds '<U3'"),
    ("token", changed("cls", lambda a: np.full(a.shape, Trap(), object)), "it holds pickled objects"),
    ("timm_token", changed("cls_token", number(np.nan)), "holds NaN or infinity in cls_token;"),
    (
        "bigvision_bfloat16",
        changed("params/head/bias", number(np.inf)),
        "holds NaN or infinity in params/head/bias",
    ),
]


@pytest.mark.parametrize("name, damage, pattern", DAMAGE)
def test_damaged_arrays_are_refused(name, damage, pattern, tmp_path):
    refused(base(name).write(tmp_path, damage(base(name).arrays)), pattern, **base(name).options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_random_damage_is_refused_or_leaves_another_whole_checkpoint(seed, tmp_path):
    rng = np.random.default_rng(seed)
    original = base(NAMES[rng.integers(len(NAMES))])
    key, other = rng.choice([*original.arrays], 2, replace=False)
    array = original.arrays[key]
    axis = rng.integers(array.ndim)
    damage = [
        dropped(key),
        renamed(key, f"{key}_old"),
        renamed(key, f"params/{key}"),
        added(f"module.{key}", key),
        changed(key, lambda a: a.transpose(rng.permutation(a.ndim))),
        changed(key, lambda a: np.delete(a, 0, axis)),
        changed(key, lambda a: np.concatenate([a, a], axis)),
        changed(key, lambda a: a[np.newaxis]),
        changed(key, lambda a: a.reshape(-1)),
        changed(key, lambda a: original.arrays[other]),
        as_type(key, ["int8", "bool", "complex64"][rng.integers(3)]),
    ][seed % 11]
    path = original.write(tmp_path, damage(original.arrays))
    try:
        model = from_pretrained(path, **original.options)
    except ValueError as error:
        message = str(error)
        assert type(error) is ValueError and message.isprintable() and path.name in message, message
    else:
        assert sizes(arrays_of(model)) == sizes(read_arrays(path))


@pytest.mark.parametrize(
    "name, key, new",
    [
        ("timm_token", "blocks.1.norm2.bias", "blocks.100000.norm2.bias"),
        ("bigvision_map", f"{SCAN}_1/LayerNorm_0/bias", f"{SCAN}_{10**30}/LayerNorm_0/bias"),
        ("hybrid", "block1/unit1/conv1/kernel", "block1/unit100000/conv1/kernel"),
        ("hybrid", "block1/unit1/conv1/kernel", "block100000/unit1/conv1/kernel"),
        ("bigvision_scan", f"{SCAN}/MlpBlock_0/Dense_0/bias", None),  # transposed: 3072 blocks
    ],
)
def test_a_huge_index_is_refused_before_so_many_blocks_are_built(name, key, new, tmp_path, monkeypatch):
    def build(**arguments):
        assert arguments["num_layers"] <= 3 and sum(arguments.get("resnet") or ()) <= 9
        return VisionTransformer(**arguments)

    monkeypatch.setattr("keras_vit.weights.load.VisionTransformer", build)
    damage = renamed(key, new) if new else changed(key, lambda a: np.zeros((3072, 2), "float32"))
    refused(base(name).write(tmp_path, damage(base(name).arrays)), "only in file", **base(name).options)


@pytest.mark.parametrize(
    "key, shape, options",
    [
        (TABLE, (2, 17, 24), {"image_size": 48}),
        (TABLE, (1, 17, 25), {"image_size": (None, None)}),
        (TABLE, (1, 17), {"pooling": "gap"}),
        ("embedding/kernel", (8, 8, 3, 25), {"patch_size": 4}),
        ("embedding/kernel", (8, 8, 0, 24), {"in_channels": 1}),
        ("embedding/kernel", (8, 8, 3), {"in_channels": 5}),
    ],
)
def test_a_wrong_shape_is_refused_where_the_array_would_be_resized(key, shape, options, tmp_path):
    damage = changed(key, lambda array: np.zeros(shape, "float32"))
    refused(
        base("token").write(tmp_path, damage(base("token").arrays)),
        "shape|axes|hidden_size|not a sq",
        **options,
    )


# Damaged bytes -------------------------------------------------------------------------------------


def refused_bytes(path, content):
    path.write_bytes(content)
    refused(path, "is no checkpoint that can be read: ", read_arrays)


@pytest.mark.parametrize("name", ["token", "timm_token", "timm_bfloat16"])
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.999])
def test_a_truncated_file_is_refused(name, fraction, tmp_path):
    path = base(name).write(tmp_path)
    refused_bytes(path, path.read_bytes()[: int(fraction * path.stat().st_size)])


@pytest.mark.parametrize("place", [30, 200, 3000])
def test_damaged_bytes_of_a_zip_entry_are_refused(place, tmp_path):
    path = base("token").write(tmp_path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("embedding/kernel.npy").header_offset
    content[start + place] ^= 1
    refused_bytes(path, content)


HEADER = "{{'descr': {}, 'fortran_order': False, 'shape': {}, }}"
HEADERS = [
    HEADER.format("'<f4'", "(-1,)"),
    HEADER.format("'<f4'", "(9223372036854775807, 3)"),
    HEADER.format("'<f4'", "(1000000000000,)"),
    HEADER.format("'<f4'", "'abc'"),
    HEADER.format("[('a','<f4')]", "(3,)"),
    HEADER.format("'<f4'", "(" * 300),
    HEADER.format("'<f4'", "(3,)"),  # fewer bytes than the entry has
    HEADER.format("'|V0'", "(3,)"),
    *("{[]: 1}", "{}", "x" * 20000, ""),
]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: header[:60])
def test_an_impossible_array_header_is_refused(header, tmp_path):
    header = header.encode() + b"\n"
    raw = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(400)
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive:
        archive.writestr("embedding/kernel.npy", raw)
    refused(tmp_path / "odd.npz", "odd.npz is no checkpoint", read_arrays)


def entry(header):
    return header["cls_token"]


SAFETENSORS = {
    "offsets past the end": lambda h: entry(h).update(data_offsets=[0, 10**6]),
    "negative length": lambda h: entry(h).update(data_offsets=[96, 0]),
    "another shape": lambda h: entry(h).update(shape=[1, 1, 24, 2]),
    "a huge shape": lambda h: entry(h).update(shape=[2**40, 24]),
    "no shape": lambda h: entry(h).pop("shape"),
    "no type": lambda h: entry(h).pop("dtype"),
    "an unknown type": lambda h: entry(h).update(dtype="F33"),
    "metadata that are no text": lambda h: h.update(__metadata__={"format": 3}),
    **{
        kind: lambda h, kind=kind: entry(h).update(dtype=kind)
        for kind in ("F8_E4M3", "F4", "U64", "BOOL", "C64")
    },
}


@pytest.mark.parametrize("change", SAFETENSORS.values(), ids=SAFETENSORS)
def test_a_damaged_safetensors_header_is_refused(change, tmp_path):
    path = base("timm_token").write(tmp_path)
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    refused(path, "is no checkpoint", read_arrays)


@pytest.mark.parametrize("size", [0, 1, 2**40, 2**64 - 1])
def test_a_safetensors_header_of_another_length_is_refused(size, tmp_path):
    path = base("timm_token").write(tmp_path)
    refused_bytes(path, struct.pack("<Q", size) + path.read_bytes()[8:])


# Changes that leave another valid checkpoint -------------------------------------------------------

OTHERS = {  # description → (base, changed arrays, options needed to load it)
    "no head": ("timm_token", lambda b: b.without("head/.*"), {}),
    "no pooler": ("hf_bare", lambda b: b.without("pre_logits/.*"), HEADS),
    "one block less": ("token", lambda b: b.without("encoder_block_1/.*"), {}),
    "one unit less": ("hybrid", lambda b: b.without("block2_unit2_.*"), {}),
    "no class token": ("timm_deit3", lambda b: b.without("class_token/token"), {}),
    "fixed positions": ("bigvision_token", lambda b: b.without("position_.*"), {"image_size": 32}),
    "no qkv biases": ("timm_mu", lambda b: b.without(r".*/attention/(query|key|value)/bias"), {}),
    "no LayerScale": ("timm_deit3", lambda b: b.without(".*_scale/gamma"), {}),
    "another pooling": ("timm_map", lambda b: b.without("attention_pooling/.*"), {}),
    "one head less": ("hf_deit", lambda b: b.without("head_distillation/.*"), HEADS),
    "other patches": ("timm_mu", lambda b: b.changed("patch_embedding/kernel", lambda a: a[:, :, :8]), {}),
    "other channels": ("token", lambda b: b.changed("patch_embedding/kernel", lambda a: a[:, :, :2]), {}),
    "another grid": ("timm_token", lambda b: b.changed("position_embedding/table", lambda a: a[:, :10]), {}),
    "no class position": (
        "timm_token",
        lambda b: b.changed("position_embedding/table", lambda a: a[:, 1:]),
        {},
    ),
}


@pytest.mark.parametrize("name", some(OTHERS, 3))
def test_another_valid_checkpoint_loads_unless_metadata_describe_this_one(name, tmp_path):
    source, change, options = OTHERS[name]
    original, options = base(source), {**base(source).options, **options}
    path = original.write(tmp_path, metadata={})
    metadata = sidecar_text(from_pretrained(path, **options).get_config(), original.layout)
    write(change(original), path)
    assert sizes(arrays_of(from_pretrained(path, **options))) == sizes(read_arrays(path))
    path.with_suffix(".json").write_text(metadata)
    refused(path, r"\.json says|does not fit the|no position table", **options)


@pytest.mark.parametrize("told_by", ["config.json", "variant mu/16", "the catalogue's ours"])
def test_other_metadata_than_ours_are_compared_too(told_by, tmp_path, monkeypatch):
    original = base("timm_mu")
    path, options = original.write(tmp_path, metadata={}), {}
    path = path.rename(tmp_path / "model.safetensors")
    model = from_pretrained(path)
    if told_by == "config.json":
        text = LAYOUTS["timm"].write_config(model.get_config())[0]
        (tmp_path / "config.json").write_text(text.replace('"num_classes": 5', '"num_classes": 6'))
    elif told_by == "variant mu/16":
        options = {"variant": "mu/16"}
    else:
        row = next(iter(catalogue.CATALOGUE.values()))
        facts = {"source": str(path), "variant": "mu/16", "num_classes": 6, "class_names": None}
        row = dataclasses.replace(row, name="ours", image_size=(32, 32), **facts)
        monkeypatch.setattr(catalogue, "CATALOGUE", {"ours": row})
        monkeypatch.setattr(catalogue, "_by_source", lambda: {str(path): row})
    if told_by == "variant mu/16":
        from_pretrained(path, **options)  # it agrees
        write(original.changed("patch_embedding/kernel", lambda a: a[:, :, :8]), path)
    refused(path, f"{told_by} says (num_classes=6|patch_size=)", **options)
