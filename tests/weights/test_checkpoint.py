import dataclasses
import hashlib
import json
import re

import numpy as np
import pytest
from made.checkpoints import MADE, NAMES, base, made_model
from made.checkpoints import write as write_file
from made.servers import asked_hub
from reference.comparing import arrays
from reference.small import small

from keras_vit import from_pretrained, save_weights
from keras_vit.weights import catalogue
from keras_vit.weights.catalogue import CATALOGUE
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.metadata import FORMAT, read_metadata, sidecar_text

TABLE = "Transformer/posembed_input/pos_embedding"
SMALL = {"hidden_size": 24, "num_layers": 2, "num_heads": 3, "patch_size": (8, 8), "in_channels": 3}
# What each checkpoint holds, besides SMALL.
HOLDS = {
    "token": {"pooling": "token", "num_classes": 7, "representation_size": None, "mlp_dim": 40},
    "token_rep": {"pooling": "token", "num_classes": 7, "representation_size": 20},
    "gap": {"pooling": "gap", "class_token": False, "prefix_positions": True, "position_grid": (4, 4)},
    "hybrid": {
        "resnet": (1, 2),
        "resnet_width": 32,
        "patch_size": (1, 1),
        "num_layers": 1,
        "image_size": (64, 64),
    },
    "hybrid_root": {"resnet": (), "patch_size": (4, 4), "num_layers": 1, "image_size": (32, 32)},
    "bigvision_gap_sincos": {"pooling": "gap", "position_embedding": "sincos2d", "representation_size": 24},
    "bigvision_map": {"pooling": "map", "position_embedding": "learned", "prefix_positions": False},
    "timm_token": {"pooling": "token", "norm_after_pooling": False, "prefix_positions": True},
    "timm_avg": {"pooling": "gap", "norm_after_pooling": True, "class_token": False},
    "hf_vit": {"pooling": "token", "norm_epsilon": 1e-12, "num_classes": 7},
    "timm_registers": {"num_registers": 4, "prefix_positions": True, "position_grid": (4, 4)},
    "timm_registers_apart": {"num_registers": 4, "prefix_positions": False, "position_grid": (4, 4)},
    "timm_deit3": {"layer_scale": 1e-5, "prefix_positions": False, "class_token": True},
    "timm_distilled": {"distillation": True, "num_registers": 0},
    "timm_map": {"pooling": "map", "class_token": False},
    "timm_clip": {"pre_norm": True, "norm_epsilon": 1e-5},
    "timm_hybrid": {"resnet": (1, 2), "resnet_form": "timm", "patch_size": (1, 1), "image_size": (32, 32)},
    "timm_hybrid_root": {"resnet": (), "resnet_form": "timm", "patch_size": (4, 4)},
    "timm_told": {"image_size": (32, 32), "num_heads": 3},
    "timm_bfloat16": {"pooling": "token"},
    "timm_mu": {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "patch_size": (16, 16), "num_classes": 5},
    "bigvision_token": {"pooling": "token", "class_token": True, "prefix_positions": False},
    "bigvision_scan": {"pooling": "map", "position_grid": (4, 4)},
    "bigvision_bfloat16": {"pooling": "gap"},
    "token_float16": {"pooling": "token"},
    "token_told": {"pooling": "token", "image_size": (32, 32)},
    "token_mu": {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "patch_size": (16, 16)},
    "hf_deit": {"distillation": True, "num_classes": 7},
    "hf_bare": {"num_classes": None, "representation_size": 24},
    "hf_alone": {"num_classes": 7, "norm_epsilon": 1e-12},
    "hf_mu": {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "patch_size": (16, 16)},
}
ACTIVATIONS = {
    "vit_jax": "gelu_tanh",
    "big_vision": "gelu_tanh",
    "timm": "gelu_erf",
    "huggingface": "gelu_erf",
}


def of_the_file(options):
    return {name: value for name, value in options.items() if name != "image_size"}


def refused(source, *patterns, read=read_checkpoint, **options):
    """Hold reading to one line that names the file and has all the patterns."""
    with pytest.raises(ValueError) as caught:
        read(source, **options)
    message = str(caught.value)
    assert type(caught.value) is ValueError and "\n" not in message, message
    assert re.search(r"\w+\.(npz|safetensors)", str(source))[0] in message, message
    for pattern in patterns:
        assert re.search(pattern, message), message


# Every layout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_is_read_whole_in_its_layout(name, tmp_path):
    original = base(name)
    read = read_checkpoint(original.write(tmp_path), **of_the_file(original.options))
    assert (read.layout, read.unknown, read.skipped) == (original.layout, [], [])
    assert read.path == tmp_path / original.file
    assert {*read.keys} == {*read.arrays}
    assert {*read.keys.values()} == {*original.arrays}
    assert {str(a.dtype) for a in read.arrays.values()} == {str(a.dtype) for a in original.arrays.values()}
    known = {**read.arguments, **original.options}
    assert {k: known.get(k) for k in SMALL | HOLDS[name]} == SMALL | HOLDS[name]
    assert known["activation"] == ACTIVATIONS[original.layout]


@pytest.mark.parametrize("name", MADE)
def test_a_checkpoint_is_read_as_the_model_that_was_written(name, tmp_path):
    original = base(name)
    read = read_checkpoint(original.write(tmp_path), **of_the_file(original.options)).arrays
    expected = arrays(made_model(name))
    assert {n: a.shape for n, a in read.items()} == {n: a.shape for n, a in expected.items()}
    for key, array in expected.items():
        np.testing.assert_array_equal(
            read[key].astype("float32"), array.astype(read[key].dtype).astype("float32")
        )


def test_the_keys_are_those_of_the_file(tmp_path):
    for name, ours, key in (
        ("timm_token", "encoder_block_1/attention/value/bias", "blocks.1.attn.qkv.bias"),
        (
            "bigvision_scan",
            "encoder_block_1/mlp/dense_0/kernel",
            "params/Transformer/encoderblock/MlpBlock_0/Dense_0/kernel",
        ),
        ("bigvision_map", "position_embedding/table", "params/pos_embedding"),
        ("hf_vit", "head/kernel", "classifier.weight"),
        ("hf_deit", "head_distillation/bias", "distillation_classifier.bias"),
    ):
        (tmp_path / name).mkdir()
        path = base(name).write(tmp_path / name)
        assert read_checkpoint(path, **base(name).options).keys[ours] == key


def test_torchs_arrays_are_turned_and_taken_apart_as_torch_means_them(tmp_path):
    stored = base("timm_token").arrays
    read = read_checkpoint(base("timm_token").write(tmp_path), num_heads=3).arrays
    block, weight = "encoder_block_1/attention", stored["blocks.1.attn.qkv.weight"]
    for i, part in enumerate(("query", "key", "value")):
        ours = read[f"{block}/{part}/kernel"].reshape(24, 24)
        np.testing.assert_array_equal(ours, weight[24 * i : 24 * (i + 1)].T)
        ours = read[f"{block}/{part}/bias"].reshape(24)
        np.testing.assert_array_equal(ours, stored["blocks.1.attn.qkv.bias"][24 * i : 24 * (i + 1)])
    out = read[f"{block}/out/kernel"]
    np.testing.assert_array_equal(out[2, 5], stored["blocks.1.attn.proj.weight"][:, 2 * 8 + 5])
    kernel = read["patch_embedding/kernel"]
    np.testing.assert_array_equal(kernel[3, 5], stored["patch_embed.proj.weight"][:, :, 3, 5].T)
    stored = base("timm_map").arrays
    read = read_checkpoint(base("timm_map").write(tmp_path), num_heads=3, activation="gelu_erf").arrays
    for i, part in enumerate(("key", "value")):
        ours = read[f"attention_pooling/attention/{part}/kernel"].reshape(24, 24)
        np.testing.assert_array_equal(ours, stored["attn_pool.kv.weight"][24 * i : 24 * (i + 1)].T)


# Prefixes, and what stands beside a model ---------------------------------------------------------

BESIDE = {
    "opt/state/step": np.int32(3),
    "opt/state/param_states/cls/grad_ema": np.zeros((1, 1, 24), "float32"),
    "opt/0/count": np.int32(3),
    "extra/loss": np.float32(1),
}


@pytest.mark.parametrize("prefix", ["", "opt/target/", "params/", "params/img/", "img/"])
def test_a_prefix_is_part_of_the_keys(prefix, tmp_path):
    for name in ("token", "gap", "hybrid_root"):
        stored = {prefix + key: array for key, array in base(name).arrays.items()}
        read = read_checkpoint(write_file(stored, tmp_path / "a.npz"))
        assert (read.layout, read.unknown, read.skipped) == ("vit_jax", [], [])
        assert {*read.keys.values()} == {*stored}
    stored = {prefix + k.removeprefix("params/"): a for k, a in base("bigvision_map").arrays.items()}
    read = read_checkpoint(write_file(stored, tmp_path / "b.npz"))
    assert (read.layout, read.unknown, {*read.keys.values()}) == ("big_vision", [], {*stored})


@pytest.mark.parametrize("prefix", ["opt/target/", "params/"])
def test_an_optimizers_state_is_left_out_whatever_it_holds(prefix, tmp_path):
    stored = {prefix + key: array for key, array in base("token").arrays.items()}
    path = write_file({**stored, **BESIDE}, tmp_path / "run.npz")
    read = read_checkpoint(path)
    assert ({*read.skipped}, read.unknown, {*read.keys.values()}) == ({*BESIDE}, [], {*stored})
    assert from_pretrained(path).num_classes == 7


@pytest.mark.parametrize("prefix", ["opt/target/", "params/"])
def test_an_optimizers_state_of_floats_is_left_out(prefix, tmp_path):
    stored = {prefix + key: array for key, array in base("token").arrays.items()}
    beside = {"opt/state/param_states/cls/grad_ema": np.zeros((1, 1, 24), "float32")}
    read = read_checkpoint(write_file({**stored, **beside}, tmp_path / "run.npz"))
    assert ([*read.skipped], read.unknown) == ([*beside], [])


def test_the_optimizers_target_beside_params_is_not_left_out(tmp_path):
    stored = {f"params/{key}": array for key, array in base("token").arrays.items()}
    path = write_file({**stored, "opt/target/cls": stored["params/cls"]}, tmp_path / "run.npz")
    assert read_checkpoint(path).unknown == ["opt/target/cls"]
    refused(path, "only in the file: opt/target/cls;", read=from_pretrained)


@pytest.mark.parametrize(
    "whole, part", [("params/img/", None), ("img/", None), ("img/", "img"), ("a/b/", "a/b")]
)
def test_the_image_tower_of_a_pair_is_read(whole, part, tmp_path):
    image = {k.removeprefix("params/"): a for k, a in base("bigvision_map").arrays.items()}
    top = "params/" if whole.startswith("params/") else ""
    text = {f"{top}txt/{k}": a for k, a in image.items()} | {f"{top}{k}": np.ones(1, "float32") for k in "tb"}
    path = write_file({**{whole + k: a for k, a in image.items()}, **text}, tmp_path / "pair.npz")
    read = read_checkpoint(f"{path}:{part}" if part else path)
    assert (read.layout, read.unknown, {*read.skipped}) == ("big_vision", [], set() if part else {*text})
    assert read.path == path
    assert from_pretrained(f"{path}:{part}" if part else path).pooling == "map"


def test_a_part_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    path = base("bigvision_map").write(tmp_path)
    refused(f"{path}:txt", "has nothing under 'txt'; it has params")


def test_a_part_keeps_the_rules_of_the_whole(tmp_path):
    path = base("bigvision_map").write(tmp_path)
    assert read_checkpoint(f"{path}:params").layout == "big_vision"
    refused(f"{path}:params/Transformer", "in no known layout")


@pytest.mark.parametrize(
    "one, other", [("", "params/"), ("", "opt/target/"), ("params/", "opt/target/"), ("img/", "params/img/")]
)
def test_a_model_that_is_there_twice_is_refused_and_a_part_of_it_is_read(one, other, tmp_path):
    stored = {prefix + key: array for prefix in (one, other) for key, array in base("token").arrays.items()}
    path = write_file(stored, tmp_path / "twice.npz")
    refused(path, "two models", f"holds (.* and )?{one}embedding/kernel", f" {other}embedding/kernel( and|:)")
    assert read_checkpoint(f"{path}:{other.strip('/')}").layout == "vit_jax"


def test_a_torch_model_that_is_there_twice_is_refused(tmp_path):
    for name, prefix in (("timm_token", "module."), ("hf_bare", "vit."), ("hf_bare", "deit.")):
        stored = base(name).arrays | {prefix + key: array for key, array in base(name).arrays.items()}
        refused(write_file(stored, tmp_path / "twice.safetensors"), "two models", num_heads=3)


def test_every_array_of_timm_may_stand_behind_module(tmp_path):
    stored = {f"module.{key}": array for key, array in base("timm_token").arrays.items()}
    read = read_checkpoint(write_file(stored, tmp_path / "a.safetensors"), num_heads=3)
    assert (read.layout, read.unknown, {*read.keys.values()}) == ("timm", [], {*stored})


# Older names --------------------------------------------------------------------------------------


def test_older_names_of_big_vision_are_read(tmp_path):
    now = read_checkpoint(base("bigvision_map").write(tmp_path))
    stored = {
        re.sub("params/(MAPHead_0/)?", "params/", k).replace("params/pos_", "params/Transformer/pos_"): a
        for k, a in base("bigvision_map").arrays.items()
    }
    assert {"params/probe", "params/LayerNorm_0/scale", "params/Transformer/pos_embedding"} < {*stored}
    read = read_checkpoint(write_file(stored, tmp_path / "old.npz"))
    assert (read.layout, read.unknown, read.arguments) == ("big_vision", [], now.arguments)
    for name, array in now.arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)
    assert {*read.keys.values()} == {*stored}


def test_a_stack_of_blocks_is_read_as_the_blocks(tmp_path):
    stored = base("bigvision_map").arrays
    stacked = {k: a for k, a in stored.items() if "encoderblock_" not in k}
    for key in [k for k in stored if "encoderblock_0" in k]:
        both = [stored[key.replace("block_0", f"block_{i}")] for i in (0, 1)]
        stacked[key.replace("block_0", "block")] = np.stack(both)
    apart = read_checkpoint(base("bigvision_map").write(tmp_path))
    read = read_checkpoint(write_file(stacked, tmp_path / "stacked.npz"))
    assert (read.layout, read.unknown, read.arguments) == ("big_vision", [], apart.arguments)
    for name, array in apart.arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)


def test_names_of_transformers_in_memory_are_read(tmp_path):
    renamed = {
        "attention.attention.query": "attention.q_proj",
        "attention.attention.key": "attention.k_proj",
        "attention.attention.value": "attention.v_proj",
        "attention.output.dense": "attention.o_proj",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
        "encoder.layer": "layers",
    }
    stored = {}
    for key, array in base("hf_alone").arrays.items():
        for old, new in renamed.items():
            key = key.replace(old, new)
        stored[key] = array
    now = read_checkpoint(base("hf_alone").write(tmp_path), num_heads=3)
    read = read_checkpoint(write_file(stored, tmp_path / "memory.safetensors"), num_heads=3)
    assert (read.layout, read.unknown, read.arguments) == ("huggingface", [], now.arguments)
    for name, array in now.arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)


def test_deit_iiis_own_names_of_layer_scale_are_read_where_something_tells_that_it_is(tmp_path):
    stored = {re.sub(r"\.ls(\d)\.gamma", r".gamma_\1", k): a for k, a in base("timm_deit3").arrays.items()}
    path = write_file(stored, tmp_path / "deit.safetensors")
    refused(path, "gamma_1 occurs in DeiT III's own files and in timm's models with rotary positions")


FOREIGN = [
    ("blocks.0.attn.q_norm.weight", "qk-norm"),
    ("blocks.1.mlp.w12.weight", "SwiGLU"),
    ("rope.freqs", "RoPE"),
    ("blocks.0.attn.rel_pos.relative_position_bias_table", "relative positions"),
    ("blocks.0.attns.0.qkv.weight", "parallel blocks"),
    ("patch_embed.backbone.bn1.weight", "another stem"),
]


@pytest.mark.parametrize("key, what", FOREIGN)
def test_families_that_cannot_be_expressed_are_refused_by_their_key(key, what, tmp_path):
    path = base("timm_token").write(tmp_path, {**base("timm_token").arrays, key: np.zeros(3, "float32")})
    refused(path, f"{re.escape(key)} is part of .*{what}", num_heads=3)


def test_a_file_of_no_layout_is_refused_with_some_of_its_keys(tmp_path):
    path = write_file({"conv1.weight": np.zeros(3), "fc.bias": np.zeros(2)}, tmp_path / "a.safetensors")
    refused(path, rf"in no known layout \({', '.join(LAYOUTS)}\); it holds 2 arrays: conv1.weight, fc.bias")


# What is told -------------------------------------------------------------------------------------


def sidecar(path, **changes):
    """Write NAME.json of the model in a file, with other arguments."""
    model = from_pretrained(path, **({"num_heads": 3} if path.suffix == ".safetensors" else {}))
    config = json.loads(sidecar_text(model.get_config(), "vit_jax"))
    config["arguments"] |= changes
    path.with_suffix(".json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 32},
        {"num_layers": 3},
        {"mlp_dim": 56},
        {"patch_size": [16, 16]},
        {"num_classes": 8},
        {"num_classes": None},
        {"pooling": "gap", "class_token": False},
        {"pooling": "map"},
        {"representation_size": 24},
        {"qkv_bias": False},
        {"num_registers": 2},
        {"distillation": True},
        {"pre_norm": True},
        {"norm_after_pooling": True},
        {"prefix_positions": False},
        {"position_embedding": "sincos2d"},
        {"in_channels": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["token", "timm_token"])
def test_a_sidecar_that_says_what_is_not_so_is_refused(name, changes, tmp_path):
    path = sidecar(base(name).write(tmp_path), **changes)
    said = rf"{path.stem}\.json says|does not fit the checkpoint's|grid positions|does not fit the model"
    refused(path, said, read=from_pretrained)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_heads": 4},
        {"layer_scale": 0.1},
        {"resnet": [1]},
        {"image_size": [64, 64]},
        {"image_size": [32, 48]},
    ],
    ids=str,
)
def test_a_sidecar_of_another_model_is_refused(changes, tmp_path):
    refused(sidecar(base("token").write(tmp_path), **changes), read=from_pretrained)


def test_a_sidecar_tells_what_the_arrays_do_not(tmp_path):
    p = {
        "image_size": [32, 32],
        "resize": "crop",
        "crop_fraction": 0.9,
        "mean": [0.1, 0.2, 0.3],
        "std": [1, 1, 1],
    }
    told = {
        "activation": "quick_gelu",
        "norm_epsilon": 1e-5,
        "class_names": list("abcdefg"),
        "preprocessing": p,
    }
    model = from_pretrained(sidecar(base("token").write(tmp_path), **told))
    assert (model.activation, model.norm_epsilon, model.class_names) == ("quick_gelu", 1e-5, tuple("abcdefg"))
    assert (model.preprocessing.crop_fraction, model.preprocessing.mean) == (0.9, (0.1, 0.2, 0.3))


def test_a_json_beside_a_file_that_is_not_ours_is_left_alone(tmp_path):
    path = base("token").write(tmp_path)
    path.with_suffix(".json").write_text('{"name": "something else", "hidden_size": 3}')
    assert read_metadata(path, LAYOUTS["vit_jax"]) == ({}, None)
    assert read_checkpoint(path).arguments["hidden_size"] == 24


BROKEN = ["{", "", "[1, 2]", "3", "null", "\x00", "{'a': 1}", "[" * 100_000, '"' + "a" * 100]


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text[:9])
@pytest.mark.parametrize("beside", ["model.json", "config.json", "preprocessor_config.json"])
def test_a_configuration_that_is_none_is_refused_by_its_name(beside, text, tmp_path):
    path = base("hf_bare").write(tmp_path)
    (tmp_path / beside).write_text(text)
    refused(path, re.escape(beside))


@pytest.mark.parametrize("beside", ["model.json", "config.json"])
def test_a_configuration_in_another_encoding_is_refused_by_its_name(beside, tmp_path):
    path = base("hf_vit").write(tmp_path)
    (tmp_path / beside).write_bytes(b'{"model_type": "vit", "id2label": {"0": "\xff"}}')
    refused(path, re.escape(beside))


def test_class_names_in_any_script_are_read_as_utf_8(tmp_path, monkeypatch):
    path = base("hf_vit").write(tmp_path)
    config = json.loads(base("hf_vit").beside["config.json"])
    config["id2label"] = dict(zip("0123456", ["кошка", "犬", *"cdefg"]))
    (tmp_path / "config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    monkeypatch.setattr("locale.getpreferredencoding", lambda *a: "cp1252")
    monkeypatch.setattr("locale.getencoding", lambda: "cp1252", raising=False)
    assert from_pretrained(path).class_names[:2] == ("кошка", "犬")


@pytest.mark.parametrize(
    "found",
    [
        {"format": FORMAT},
        {"format": FORMAT, "arguments": None},
        {"format": FORMAT, "arguments": [1]},
        {"format": FORMAT, "arguments": {"no_such_argument": 1}},
        {"format": FORMAT, "arguments": {"image_size": "large"}},
        {"format": FORMAT, "arguments": {"image_size": 32}},
        {"format": FORMAT, "arguments": {"image_size": [32]}},
        {"format": FORMAT, "arguments": {"position_grid": 4}},
        {"format": FORMAT, "arguments": {"position_grid": ["a", "b"]}},
        {"format": FORMAT, "arguments": {"preprocessing": 3}},
        {"format": FORMAT, "arguments": {"preprocessing": {"mean": "a"}}},
        {"format": FORMAT, "arguments": {"preprocessing": {"no": 1}}},
        {"format": FORMAT, "arguments": {"class_names": "ab"}},
        {"format": FORMAT, "arguments": {"class_names": ["a"]}},
        {"format": FORMAT, "arguments": {"activation": []}},
        {"format": FORMAT, "arguments": {"activation": "relu"}},
        {"format": FORMAT, "arguments": {"num_heads": {}}},
        {"format": FORMAT, "arguments": {"pooling": {}}},
        {"format": FORMAT, "arguments": {"norm_epsilon": "a"}},
    ],
    ids=lambda found: str(found.get("arguments")),
)
@pytest.mark.parametrize("name", ["token", "timm_token"])
def test_a_damaged_sidecar_is_refused_in_one_line(name, found, tmp_path):
    path = base(name).write(tmp_path)
    path.with_suffix(".json").write_text(json.dumps(found))
    refused(path, read=from_pretrained, **base(name).options)


@pytest.mark.parametrize("name", ["token_mu", "timm_mu", "hf_mu"])
def test_a_variant_has_to_agree(name, tmp_path):
    path = base(name).write(tmp_path, beside={})
    assert read_checkpoint(path, variant="mu/16").arguments["num_heads"] == 2
    for variant, field in (
        ("mu/8", "patch_size"),
        ("Ti/16", "hidden_size|num_heads"),
        ("S/16", "hidden_size|num_heads"),
    ):
        refused(path, rf"variant {variant} says ({field})=|num_heads", variant=variant)
    refused(path, "variant 'B' is unknown", variant="B")
    refused(path, "says|does not fit", variant="R50+B/16", read=from_pretrained)


def test_a_variant_and_a_sidecar_have_to_agree(tmp_path):
    path = sidecar(base("token_mu").write(tmp_path), hidden_size=48)
    refused(path, r"hidden_size=", variant="mu/16")


def test_a_digest_has_to_agree(tmp_path):
    for name in ("token", "timm_token"):
        path = base(name).write(tmp_path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        options = of_the_file(base(name).options)
        for right in (digest, digest.upper()):
            assert read_checkpoint(path, sha256=right, **options).layout == base(name).layout
        refused(path, digest, sha256=digest[::-1], **options)
    with pytest.raises(ValueError, match="sha256 must be 64 hexadecimal digits; got 'abc'"):
        read_checkpoint(path, sha256="abc")


# What a file leaves open --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["timm_token", "hf_alone"])
def test_heads_that_nothing_tells_have_to_be_given(name, tmp_path):
    path = base(name).write(tmp_path)
    sizes = r"hidden_size 24, num_layers 2, mlp_dim (40|48)"
    refused(path, rf"the number of attention heads is unknown, .* \({sizes}\); give num_heads")
    assert read_checkpoint(path, num_heads=3).arguments["num_heads"] == 3
    assert read_checkpoint(path, num_heads=4).arrays["encoder_block_1/attention/out/kernel"].shape == (
        4,
        6,
        24,
    )
    refused(path, "hidden_size 24 is not divisible by num_heads 5", num_heads=5, read=from_pretrained)
    refused(path, "num_heads", num_heads=-3, read=from_pretrained)
    refused(path, "num_heads", num_heads=0, read=from_pretrained)


def test_heads_are_told_by_a_named_size_a_sidecar_or_a_configuration(tmp_path):
    path = base("timm_mu").write(tmp_path)
    assert read_checkpoint(path).arguments["num_heads"] == 2
    assert read_checkpoint(path, variant="mu/16").arguments["num_heads"] == 2
    assert from_pretrained(sidecar(base("timm_token").write(tmp_path))).num_heads == 3
    path = timm_folder(tmp_path, {"architecture": "vit_tiny_patch8_32", "model_args": {"num_heads": 3}})
    assert read_checkpoint(path).arguments["num_heads"] == 3


@pytest.mark.parametrize("name", ["timm_clip", "timm_map"])
def test_an_activation_that_nothing_tells_has_to_be_given(name, tmp_path):
    path = base(name).write(tmp_path)
    refused(path, "such models exist with several activations.*give activation=", num_heads=3)
    assert from_pretrained(path, num_heads=3, activation="quick_gelu").activation == "quick_gelu"
    (tmp_path / "config.json").write_text(
        json.dumps({"architecture": "vit_base_patch16_siglip_224", "model_args": {"act_layer": "gelu_tanh"}})
    )
    assert read_checkpoint(path, num_heads=3).arguments["activation"] == "gelu_tanh"


@pytest.mark.parametrize("name", ["token", "timm_token", "bigvision_map", "hf_alone"])
def test_an_activation_that_the_layout_tells_is_another_where_it_is_told_so(name, tmp_path):
    path = base(name).write(tmp_path)
    assert from_pretrained(path, **base(name).options, activation="quick_gelu").activation == "quick_gelu"


def test_positions_that_may_be_read_in_two_ways_have_to_be_told(tmp_path):
    """Nine positions are 3×3 cells, or a class token, four registers and 2×2 cells."""
    stored = {**base("timm_registers").arrays, "pos_embed": np.zeros((1, 9, 24), "float32")}
    path = base("timm_registers").write(tmp_path, stored)
    refused(
        path,
        "9 positions may be 3×3, or 5 prefix tokens and 2×2; give prefix_positions=",
        num_heads=3,
    )
    for way, grid, size in ((True, (2, 2), (16, 16)), (False, (3, 3), (24, 24))):
        read = read_checkpoint(path, num_heads=3, prefix_positions=way).arguments
        assert (read["prefix_positions"], read["position_grid"], read["image_size"]) == (way, grid, size)
        model = from_pretrained(path, num_heads=3, prefix_positions=way)
        assert (model.prefix_positions, model.image_size) == (way, size)
    assert read_checkpoint(path, num_heads=3, position_grid=(2, 2)).arguments["prefix_positions"]
    config = {"architecture": "vit_x", "input_size": [3, 24, 24], "model_args": {"num_heads": 3}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not read_checkpoint(path).arguments["prefix_positions"]


def test_a_grid_that_is_no_square_has_to_be_told(tmp_path):
    for name, key, rows in (
        ("timm_token", "pos_embed", 13),
        ("token", TABLE, 13),
        ("gap", TABLE, 12),
        ("hf_alone", None, 13),
    ):
        key = key or "vit.embeddings.position_embeddings"
        options = base(name).options
        path = base(name).write(tmp_path, {**base(name).arrays, key: base(name).arrays[key][:, :rows]})
        refused(path, "12 grid positions are not a square; give position_grid=", **options)
        for grid in ((3, 4), (2, 6), (12, 1)):
            read = read_checkpoint(path, position_grid=grid, **options).arguments
            assert (read["position_grid"], read["image_size"]) == (grid, (8 * grid[0], 8 * grid[1]))
        refused(
            path,
            "position_grid 3×3 does not fit the checkpoint's 12 positions",
            position_grid=(3, 3),
            **options,
        )


def test_a_grid_is_told_by_the_image_size_of_a_configuration(tmp_path):
    original = base("hf_vit")
    key = "vit.embeddings.position_embeddings"
    config = json.loads(original.beside["config.json"])
    for side, grid in (([24, 32], (3, 4)), ([16, 48], (2, 6))):
        beside = {"config.json": json.dumps({**config, "image_size": side})}
        path = original.write(tmp_path, {**original.arrays, key: original.arrays[key][:, :13]}, beside)
        read = read_checkpoint(path).arguments
        assert (read["position_grid"], read["image_size"]) == (grid, tuple(side))
    original.write(
        tmp_path, {**original.arrays, key: original.arrays[key][:, :13]}, {"config.json": json.dumps(config)}
    )
    refused(path, "an image of 32×32, a grid of 4×4 does not fit the checkpoint's 12 positions")
    path = timm_folder(tmp_path, {"architecture": "vit_x", "input_size": [3, 16, 48]}, positions=13)
    assert read_checkpoint(path, num_heads=3).arguments["position_grid"] == (2, 6)


@pytest.mark.parametrize("name", ["timm_token", "timm_avg", "hf_alone"])
def test_a_file_without_positions_says_so_or_is_refused(name, tmp_path):
    original = base(name)
    table = [key for key, ours in original.ours.items() if ours[0] == "position_embedding/table"]
    path = original.write(tmp_path, {k: a for k, a in original.arrays.items() if k not in table})
    refused(path, "positions", **original.options, image_size=32, read=from_pretrained)
    model = from_pretrained(path, **original.options, image_size=32, position_embedding="none")
    assert model.position_embedding == "none"


# timm's configurations ----------------------------------------------------------------------------


def timm_folder(folder, config, positions=None):
    """A folder as timm's repositories are, with a golden file as the weights."""
    stored = dict(base("timm_token").arrays)
    if positions:
        stored["pos_embed"] = stored["pos_embed"][:, :positions]
    (folder / "config.json").write_text(json.dumps(config))
    return write_file(stored, folder / "model.safetensors")


def test_a_configuration_of_timm_is_read(tmp_path):
    labels = list("abcdefg")
    config = {
        "architecture": "vit_tiny_patch8_32",
        "num_classes": 7,
        "num_features": 24,
        "global_pool": "token",
        "model_args": {"num_heads": 3, "act_layer": "quick_gelu"},
        "pretrained_cfg": {
            "input_size": [3, 32, 32],
            "mean": [0.1, 0.2, 0.3],
            "std": [0.4, 0.5, 0.6],
            "crop_pct": 0.9,
            "crop_mode": "center",
            "interpolation": "bicubic",
            "label_names": labels,
        },
    }
    model = from_pretrained(timm_folder(tmp_path, config))
    assert (model.activation, model.num_heads, model.image_size) == ("quick_gelu", 3, (32, 32))
    assert model.class_names == tuple(labels)
    p = model.preprocessing
    assert (p.resize, p.crop_fraction, p.interpolation, p.antialias) == ("crop", 0.9, "bicubic", True)
    assert (p.mean, p.std, p.image_size) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), (32, 32))


@pytest.mark.parametrize(
    "pretrained, wanted",
    [
        ({"crop_mode": "squash", "crop_pct": 0.9}, ("squash", "bicubic")),
        ({"crop_pct": 1.0, "interpolation": "bilinear"}, ("crop", "bilinear")),
        ({"crop_pct": None}, ("crop", "bicubic")),
        ({}, ("crop", "bicubic")),
    ],
    ids=str,
)
def test_how_timm_prepares_images_is_read(pretrained, wanted, tmp_path):
    pretrained = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3, **pretrained}
    path = timm_folder(tmp_path, {"architecture": "vit_x", "pretrained_cfg": pretrained})
    p = from_pretrained(path, num_heads=3).preprocessing
    assert (p.resize, p.interpolation) == wanted
    # The same in a configuration from before `pretrained_cfg` stood apart.
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_x", **pretrained}))
    assert from_pretrained(path, num_heads=3).preprocessing == p


@pytest.mark.parametrize("name", ["class_names from descriptions", "other class_names"])
def test_descriptions_of_labels_are_their_names(name, tmp_path):
    labels = [f"n{i}" for i in range(7)]
    described = {label: f"name of {label}" for label in labels[:6]} if "descriptions" in name else None
    config = {"architecture": "vit_x", "label_names": labels, "label_descriptions": described}
    names = from_pretrained(timm_folder(tmp_path, config), num_heads=3).class_names
    assert names == (*(f"name of {label}" for label in labels[:6]), "n6") if described else tuple(labels)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"input_size": [3, 64, 64]}, "does not fit the checkpoint's 1[67] positions"),
        ({"num_classes": 8}, "config.json says num_classes=8, the arrays hold 7"),
        ({"num_classes": 0}, "config.json says num_classes=None, the arrays hold 7"),
        ({"global_pool": "map"}, "config.json says pooling='map', the arrays hold 'token'"),
        ({"model_args": {"num_heads": 4}, "architecture": "vit_x"}, None),
        (
            {"model_args": {"act_layer": "relu"}},
            "config.json names the activation 'relu'; expected one of gelu",
        ),
        ({"label_names": ["a"]}, "class_names"),
    ],
    ids=str,
)
def test_a_configuration_of_timm_has_to_agree(config, message, tmp_path):
    path = timm_folder(tmp_path, {"architecture": "vit_x", **config})
    if message is None:
        assert from_pretrained(path).num_heads == 4
    else:
        refused(path, message, num_heads=3, read=from_pretrained)


REFUSED = ["vit_base_patch16_rope_reg1_gap_256", "vit_relpos_base_patch16_224", "vit_base_patch16_xp_224"]
REFUSED += [
    "vit_base_patch16_18x2_224",
    "eva02_base_patch14_224",
    "beit_base_patch16_224",
    "resnet50",
    "swin_tiny",
]
REFUSED += ["vit_base_patch16_dinov3", "vit_pe_core_base", "beitv2_x", "levit_128"]


@pytest.mark.parametrize("architecture", REFUSED)
def test_architectures_that_look_like_a_vision_transformer_and_are_none_are_refused(architecture, tmp_path):
    refused(
        timm_folder(tmp_path, {"architecture": architecture}),
        f"config.json describes timm's '{architecture}', which VisionTransformer cannot express",
        num_heads=3,
    )


@pytest.mark.parametrize(
    "architecture",
    ["vit_base_patch16_224", "deit_tiny_distilled_patch16_224", "deit3_small", "flexivit_large"],
)
def test_plain_architectures_are_read(architecture, tmp_path):
    assert (
        read_checkpoint(timm_folder(tmp_path, {"architecture": architecture}), num_heads=3).layout == "timm"
    )


@pytest.mark.parametrize(
    "config",
    [
        {"architecture": 3},
        {"architecture": None},
        {"architecture": "vit_x", "pretrained_cfg": None},
        {"architecture": "vit_x", "pretrained_cfg": [1]},
        {"architecture": "vit_x", "input_size": 224},
        {"architecture": "vit_x", "input_size": None},
        {"architecture": "vit_x", "input_size": [3, "a", "b"]},
        {"architecture": "vit_x", "input_size": [3, 0, 0]},
        {"architecture": "vit_x", "global_pool": ["token"]},
        {"architecture": "vit_x", "mean": 0.5, "std": 0.5},
        {"architecture": "vit_x", "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": "all"},
        {"architecture": "vit_x", "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": [1]},
        {"architecture": "vit_x", "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "lanczos"},
        {"architecture": "vit_x", "mean": [0.5] * 3, "std": [0] * 3},
        {"architecture": "vit_x", "mean": [0.5], "std": [0.5]},
        {"architecture": "vit_x", "model_args": [1]},
        {"architecture": "vit_x", "model_args": {"num_heads": "three"}},
        {"architecture": "vit_x", "model_args": {"num_heads": 0}},
        {"architecture": "vit_x", "model_args": {"num_heads": -3}},
        {"architecture": "vit_x", "model_args": {"act_layer": ["gelu"]}},
        {"architecture": "vit_x", "label_names": 3},
        {"architecture": "vit_x", "label_names": ["a"] * 7, "label_descriptions": "x"},
        {"architecture": "vit_x", "num_classes": "seven"},
    ],
    ids=str,
)
def test_a_damaged_configuration_of_timm_is_refused_or_left_alone_in_one_line(config, tmp_path):
    path = timm_folder(tmp_path, config)
    try:
        from_pretrained(path, **({} if "num_heads" in str(config) else {"num_heads": 3}))
    except ValueError as error:
        assert type(error) is ValueError and "\n" not in str(error)
        assert tmp_path.name in str(error), error


# transformers' configurations ---------------------------------------------------------------------


def hf_folder(folder, config=None, preprocessor=None, name="hf_vit"):
    """A folder as transformers' repositories are, with other settings."""
    original = base(name)
    beside = {"config.json": json.dumps({**json.loads(original.beside["config.json"]), **(config or {})})}
    if preprocessor is not None:
        beside["preprocessor_config.json"] = json.dumps(preprocessor)
    return original.write(folder, beside=beside)


@pytest.mark.parametrize(
    "field, value, ours",
    [
        ("hidden_size", 32, "hidden_size=32"),
        ("num_hidden_layers", 3, "num_layers=3"),
        ("intermediate_size", 40, "mlp_dim=40"),
        ("num_channels", 1, "in_channels=1"),
        ("qkv_bias", False, "qkv_bias=False"),
        ("patch_size", 16, None),
        ("image_size", 64, None),
        ("image_size", [32, 64], None),
        ("hidden_act", "relu", "names the activation 'relu'"),
        ("model_type", "bert", "describes a 'bert' model; expected transformers' 'vit' or 'deit'"),
        ("model_type", None, "describes a None model"),
        ("id2label", {"0": "a", "1": "b"}, "num_classes=2"),
    ],
)
def test_a_configuration_of_transformers_has_to_agree(field, value, ours, tmp_path):
    patterns = (
        [rf"config\.json (says )?{ours}"] if ours else [r"config\.json says|does not fit the checkpoint's"]
    )
    refused(hf_folder(tmp_path, {field: value}), *patterns)


def test_a_configuration_of_transformers_tells_what_the_arrays_do_not(tmp_path):
    told = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "num_attention_heads": 4}
    told["id2label"] = {str(i): f"class {i}" for i in reversed(range(7))}
    model = from_pretrained(hf_folder(tmp_path, told))
    assert (model.activation, model.norm_epsilon, model.num_heads) == ("gelu_tanh", 1e-3, 4)
    assert model.class_names == tuple(f"class {i}" for i in range(7))
    assert from_pretrained(hf_folder(tmp_path)).class_names is None  # LABEL_0 and so on are no names


def test_what_transformers_configurations_leave_out_is_its_default(tmp_path):
    path = hf_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    model = from_pretrained(path, num_heads=3)
    assert (model.activation, model.norm_epsilon, model.qkv_bias) == ("gelu_erf", 1e-12, True)


NORMS = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}


@pytest.mark.parametrize(
    "settings, wanted",
    [
        ({"size": 32}, ("squash", 1.0, "bilinear")),
        ({"size": {"height": 32, "width": 32}, "resample": 3}, ("squash", 1.0, "bicubic")),
        ({"size": {"height": 32, "width": 32}, "resample": 0}, ("squash", 1.0, "nearest")),
        (
            {"size": {"height": 32, "width": 32}, "do_center_crop": False, "crop_size": 24},
            ("squash", 1.0, "bilinear"),
        ),
        ({"size": 40, "do_center_crop": True, "crop_size": 32}, ("crop", 0.8, "bilinear")),
        (
            {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}},
            ("crop", 0.8, "bilinear"),
        ),
        (
            {
                "size": {"height": 40, "width": 40},
                "do_center_crop": True,
                "crop_size": {"height": 32, "width": 32},
                "resample": 3,
            },
            ("crop", 0.8, "bicubic"),
        ),
    ],
    ids=str,
)
def test_how_transformers_prepares_images_is_read(settings, wanted, tmp_path):
    p = from_pretrained(hf_folder(tmp_path, {}, {**NORMS, **settings})).preprocessing
    assert (p.resize, p.crop_fraction, p.interpolation, p.antialias) == (*wanted, True)
    assert (p.mean, p.std, p.image_size) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), (32, 32))


def test_images_that_transformers_does_not_normalise_stay_as_they_are(tmp_path):
    p = from_pretrained(hf_folder(tmp_path, {}, {**NORMS, "do_normalize": False, "size": 32})).preprocessing
    assert (p.mean, p.std) == ((0.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize(
    "config, preprocessor",
    [
        ({"id2label": [1]}, None),
        ({"id2label": {"zero": "a"}}, None),
        ({"architectures": 3}, None),
        ({"architectures": [3]}, None),
        ({"hidden_act": ["gelu"]}, None),
        ({"hidden_act": None}, None),
        ({"image_size": None}, None),
        ({"image_size": "32"}, None),
        ({"image_size": {}}, None),
        ({"image_size": [32]}, None),
        ({"image_size": 0}, None),
        ({"patch_size": "8"}, None),
        ({"patch_size": {}}, None),
        ({"num_attention_heads": "3"}, None),
        ({"num_attention_heads": 0}, None),
        ({"num_attention_heads": -3}, None),
        ({"num_attention_heads": 5}, None),
        ({"layer_norm_eps": "small"}, None),
        ({"layer_norm_eps": None}, None),
        ({}, {}),
        ({}, {"image_mean": 0.5, "image_std": 0.5}),
        ({}, {"image_mean": [0.5], "image_std": [0.5]}),
        ({}, {"image_mean": [0.5] * 3}),
        ({}, {**NORMS, "resample": [2]}),
        ({}, {**NORMS, "do_center_crop": True, "size": {}, "crop_size": 32}),
        ({}, {**NORMS, "do_center_crop": True, "size": {"longest_edge": 9}, "crop_size": 32}),
        ({}, {**NORMS, "do_center_crop": True, "size": "a", "crop_size": 32}),
        ({}, {**NORMS, "do_center_crop": True, "size": 0, "crop_size": 32}),
        ({}, {**NORMS, "do_center_crop": True, "size": 24, "crop_size": 32}),
        ({}, {**NORMS, "do_center_crop": True, "size": 24, "crop_size": {"height": 3}}),
    ],
    ids=str,
)
def test_a_damaged_configuration_of_transformers_is_refused_or_left_alone_in_one_line(
    config, preprocessor, tmp_path
):
    try:
        from_pretrained(hf_folder(tmp_path, config, preprocessor))
    except ValueError as error:
        assert type(error) is ValueError and "\n" not in str(error)
        assert tmp_path.name in str(error), error


def test_configurations_are_read_beside_the_file_names_of_repositories_alone(tmp_path):
    path = hf_folder(tmp_path, {"num_attention_heads": 4})
    assert read_checkpoint(path).arguments["num_heads"] == 4
    assert read_checkpoint(tmp_path).arguments["num_heads"] == 4
    other = path.rename(tmp_path / "other.safetensors")
    assert read_checkpoint(other, num_heads=3).arguments["num_heads"] == 3


# With a digest ------------------------------------------------------------------------------------


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("layout", ["vit_jax", "timm", "huggingface"])
def test_a_digest_covers_the_configuration_that_was_saved_with_the_weights(layout, tmp_path):
    model = small(class_names=[*"abcde"], activation="gelu_tanh")
    source = tmp_path / {"vit_jax": "m.npz", "timm": "m.safetensors"}.get(layout, "m")
    path = save_weights(model, source, layout)
    read = from_pretrained(source, sha256=sha256_of(path))
    assert (read.class_names, read.activation) == (tuple("abcde"), "gelu_tanh")
    sidecar = path.with_suffix(".json")
    found = json.loads(sidecar.read_text())
    found["arguments"]["class_names"].reverse()
    found["arguments"]["preprocessing"]["mean"] = [9.0, 9.0, 9.0]
    for changed in (found, {name: value for name, value in found.items() if name != "digest"}):
        sidecar.write_text(json.dumps(changed))
        with pytest.warns(UserWarning, match=r"m\w*.json is not read because sha256 does not cover it"):
            checkpoint = read_checkpoint(source, sha256=sha256_of(path), num_heads=3)
        assert checkpoint.configuration is None
        assert not {"class_names", "preprocessing"} & checkpoint.arguments.keys()
        assert read_checkpoint(source).arguments["class_names"] == tuple("edcba")


def test_a_digest_does_not_cover_the_configuration_of_a_repository(tmp_path):
    path = base("hf_vit").write(tmp_path)
    assert read_checkpoint(path).configuration == "config.json"
    with pytest.warns(UserWarning, match="config.json is not read"):
        checkpoint = read_checkpoint(path, sha256=sha256_of(path), num_heads=3)
    assert checkpoint.configuration is None and "class_names" not in checkpoint.arguments
    (tmp_path / "config.json").unlink()
    read_checkpoint(path, sha256=sha256_of(path), num_heads=3)  # nothing to warn of


@pytest.mark.parametrize("wrong", [None, "sha256", "bytes"])
def test_a_pinned_row_is_fetched_at_its_revision_and_checked(wrong, tmp_path, monkeypatch, golden):
    weights = (golden / "timm_avg.safetensors").read_bytes()
    facts = {"sha256": hashlib.sha256(weights).hexdigest(), "bytes": len(weights)}
    facts |= {wrong: {"sha256": "0" * 64, "bytes": 7}[wrong]} if wrong else {}
    row = dataclasses.replace(
        CATALOGUE["test_vit_r160_in1k_160"],
        **{"name": "pinned", "source": "hf://org/vit", "revision": "a" * 40, **facts},
        **{"variant": None, "num_classes": 7, "class_names": None, "image_size": (32, 32)},
        options={"activation": "gelu_tanh", "num_heads": 3},
    )
    monkeypatch.setitem(CATALOGUE, "pinned", row)
    monkeypatch.setattr(catalogue, "_by_source", lambda: {row.source: row})
    config = b'{"architecture": "vit_tiny_patch16_224", "label_names": ["changed"]}'
    files = {"model.safetensors": weights, "config.json": config}
    with asked_hub(tmp_path, monkeypatch) as server:
        moved = "b" * 40, {**files, "model.safetensors": b"moved"}
        server.repositories["org/vit"] = {"main": moved, "b" * 40: moved, "a" * 40: ("a" * 40, files)}
        if wrong:
            with pytest.raises(ValueError, match="has SHA-256|bytes; expected 7"):
                read_checkpoint("pinned")
            return
        for name in ("pinned", "org/vit", f"hf://org/vit@{'a' * 40}"):
            checkpoint = read_checkpoint(name)
            assert checkpoint.path.read_bytes() == weights
            assert checkpoint.arguments["activation"] == "gelu_tanh" and checkpoint.configuration is None
        with pytest.raises(ValueError, match="is no checkpoint that can be read"):
            read_checkpoint("hf://org/vit")  # the newest, to which the digest does not belong
