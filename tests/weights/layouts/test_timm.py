import re

import numpy as np
import pytest
from reference.comparing import arrays
from reference.goldens import GOLDENS, stored
from reference.small import HYBRID, small
from safetensors.numpy import save_file

from keras_vit import from_pretrained
from keras_vit.weights.checkpoint import merged_heads
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.table import MappedArrays
from keras_vit.weights.metadata import sidecar_text

timm = LAYOUTS["timm"]
ANCHOR = "patch_embed.proj.weight"
STAGES = "patch_embed.backbone.stages"
KEYS = {"timm_token": 32, "timm_avg": 31}
SPLIT = {"timm_token": 40, "timm_avg": 39}  # query, key and value apart in two blocks


def read_beside_an_anchor(key, array):
    reading = timm.read({ANCHOR: np.zeros((1, 1, 1, 1)), key: array})
    reading.arrays.pop("patch_embedding/kernel")
    reading.keys.pop("patch_embedding/kernel")
    return reading


def state_dict(model):
    return timm.write(merged_heads(arrays(model)), model.get_config())


@pytest.mark.parametrize(
    "key, ours",
    [
        ("cls_token", "class_token/token"),
        ("dist_token", "distillation_token/token"),
        ("reg_token", "register_tokens/token"),
        ("pos_embed", "position_embedding/table"),
        ("patch_embed.proj.bias", "patch_embedding/bias"),
        ("norm_pre.weight", "pre_norm/gamma"),
        ("blocks.11.norm2.bias", "encoder_block_11/mlp_norm/beta"),
        ("blocks.0.norm2.weight", "encoder_block_0/mlp_norm/gamma"),
        ("blocks.0.attn.proj.bias", "encoder_block_0/attention/out/bias"),
        ("blocks.0.mlp.fc2.bias", "encoder_block_0/mlp/dense_1/bias"),
        ("blocks.3.ls1.gamma", "encoder_block_3/attention_scale/gamma"),
        ("blocks.3.ls2.gamma", "encoder_block_3/mlp_scale/gamma"),
        ("blocks.3.gamma_1", "encoder_block_3/attention_scale/gamma"),
        ("blocks.3.gamma_2", "encoder_block_3/mlp_scale/gamma"),
        ("norm.weight", "encoder_norm/gamma"),
        ("fc_norm.bias", "pooled_norm/beta"),
        ("attn_pool.latent", "attention_pooling/probe"),
        ("attn_pool.q.bias", "attention_pooling/attention/query/bias"),
        ("attn_pool.proj.bias", "attention_pooling/attention/out/bias"),
        ("attn_pool.norm.weight", "attention_pooling/mlp_norm/gamma"),
        ("attn_pool.mlp.fc1.bias", "attention_pooling/mlp/dense_0/bias"),
        ("pre_logits.fc.bias", "pre_logits/bias"),
        ("head.bias", "head/bias"),
        ("head_dist.bias", "head_distillation/bias"),
        ("patch_embed.backbone.stem.norm.weight", "gn_root/gamma"),
        ("patch_embed.backbone.norm.weight", "gn_root/gamma"),
        (f"{STAGES}.0.blocks.0.norm3.bias", "block1_unit1_gn3/beta"),
        (f"{STAGES}.2.blocks.8.norm1.bias", "block3_unit9_gn1/beta"),
        (f"{STAGES}.1.blocks.0.downsample.norm.weight", "block2_unit1_gn_proj/gamma"),
    ],
)
def test_a_published_name_is_read_as_ours(key, ours):
    array = np.ones(3)
    assert read_beside_an_anchor(key, array) == MappedArrays({ours: array}, {ours: key}, [], [])


@pytest.mark.parametrize(
    "key, ours, axes",
    [
        (ANCHOR, "patch_embedding/kernel", (2, 3, 1, 0)),
        ("patch_embed.backbone.stem.conv.weight", "conv_root/kernel", (2, 3, 1, 0)),
        ("patch_embed.backbone.conv.weight", "conv_root/kernel", (2, 3, 1, 0)),
        (f"{STAGES}.0.blocks.1.conv2.weight", "block1_unit2_conv2/kernel", (2, 3, 1, 0)),
        (f"{STAGES}.0.blocks.0.downsample.conv.weight", "block1_unit1_conv_proj/kernel", (2, 3, 1, 0)),
        ("head.weight", "head/kernel", (1, 0)),
        ("blocks.0.attn.proj.weight", "encoder_block_0/attention/out/kernel", (1, 0)),
        ("blocks.0.mlp.fc1.weight", "encoder_block_0/mlp/dense_0/kernel", (1, 0)),
        ("attn_pool.q.weight", "attention_pooling/attention/query/kernel", (1, 0)),
    ],
)
def test_axes_are_turned(key, ours, axes):
    array = np.random.default_rng(0).random((5, 4, 3, 2)[: len(axes)])
    np.testing.assert_array_equal(timm.read({ANCHOR: array, key: array}).arrays[ours], array.transpose(axes))


def test_query_key_and_value_stand_in_one_array(golden):
    file = stored(golden, "timm_token")
    read = timm.read(file).arrays
    for n, part in enumerate(("query", "key", "value")):
        weight, bias = (
            file[f"blocks.1.attn.qkv.{leaf}"][24 * n : 24 * (n + 1)] for leaf in ("weight", "bias")
        )
        np.testing.assert_array_equal(read[f"encoder_block_1/attention/{part}/kernel"], weight.T)
        np.testing.assert_array_equal(read[f"encoder_block_1/attention/{part}/bias"], bias)


def test_the_probe_has_its_query_apart_from_key_and_value():
    model = small(pooling="map")
    file = state_dict(model)
    assert file["attn_pool.kv.weight"].shape == (24, 12)
    assert file["attn_pool.q.weight"].shape == (12, 12)
    key = arrays(model)["attention_pooling/attention/key/kernel"].reshape(12, 12)
    np.testing.assert_array_equal(file["attn_pool.kv.weight"][:12], key.T)
    assert timm.read(file).unknown == []


@pytest.mark.parametrize(
    "key",
    [
        "blocks.0.attn.qkv_bias",
        "blocks.01.norm1.bias",
        "blocks.0.ls1.weight",
        "blocks.0.gamma_3",
        "backbone.norm.weight",
        "patch_embed.norm.weight",
        "pre_logits.bias",
        "head.fc.weight",
        "mask_token",
        "norm_post.weight",
        "vit.cls_token",
        f"{STAGES}.0.blocks.0.conv1.bias",
        f"{STAGES}.0.blocks.0.conv4.weight",
    ],
)
def test_an_unknown_name_is_handed_back(key):
    assert read_beside_an_anchor(key, np.zeros(3)) == MappedArrays({}, {}, [key], [])


@pytest.mark.parametrize("name", [*KEYS])
def test_every_key_of_a_golden_is_read(golden, name):
    file = stored(golden, name)
    assert len(file) == KEYS[name]
    reading = timm.read(file)
    assert (len(reading.arrays), reading.unknown, reading.skipped) == (SPLIT[name], [], [])
    assert {*reading.keys.values()} == {*file}
    written = timm.write(reading.arrays, {"resnet": None})
    assert written.keys() == file.keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, file[key], strict=True)
    model = from_pretrained(golden / GOLDENS[name][0], num_heads=3)
    assert {ours: a.shape for ours, a in reading.arrays.items()} == {
        n: a.shape for n, a in merged_heads(arrays(model)).items()
    }


@pytest.mark.parametrize("name", [*KEYS])
def test_the_prefix_of_parallel_training_is_taken_off(golden, name):
    file = stored(golden, name)
    plain = timm.read(file)
    wrapped = {f"module.{key}": array for key, array in file.items()}
    assert timm.detect(wrapped)
    reading = timm.read(wrapped)
    assert {ours: f"module.{key}" for ours, key in plain.keys.items()} == reading.keys
    assert reading.unknown == []
    for ours, array in plain.arrays.items():
        np.testing.assert_array_equal(reading.arrays[ours], array)


@pytest.mark.parametrize("key", ["head.bias", "cls_token"])
def test_a_name_outside_the_prefix_is_unknown(key):
    reading = timm.read({f"module.{ANCHOR}": np.zeros((1, 1, 1, 1)), key: np.zeros(3)})
    assert [*reading.arrays] == ["patch_embedding/kernel"]
    assert reading.unknown == [key]


# Kinds of model that the layout has ----------------------------------------------------------------

MODELS = {
    "distilled": {"distillation": True, "activation": "gelu_erf"},
    "registers": {"num_registers": 4, "prefix_positions": False, "activation": "gelu_erf"},
    "deit3": {"layer_scale": 1e-5, "prefix_positions": False, "activation": "gelu_erf"},
    "clip": {"pre_norm": True, "norm_epsilon": 1e-5, "activation": "gelu_erf"},
    "avg": {"pooling": "gap", "norm_after_pooling": True, "activation": "gelu_erf"},
    "siglip": {"pooling": "map", "activation": "gelu_tanh"},
    "no qkv bias": {"qkv_bias": False, "activation": "gelu_erf"},
    "hybrid": {**HYBRID, "resnet": (1, 2), "resnet_form": "timm", "activation": "gelu_erf"},
    "stem only": {**HYBRID, "resnet": (), "patch_size": 4, "resnet_form": "timm", "activation": "gelu_erf"},
}
TOLD = {"clip": {"activation": "gelu_erf"}, "siglip": {"activation": "gelu_tanh"}}


@pytest.mark.parametrize("kind", [*MODELS])
def test_a_state_dict_alone_tells_the_model(kind, tmp_path):
    """Without a configuration beside it; but for the number of heads and what is ambiguous."""
    model = small(**MODELS[kind])
    save_file(state_dict(model), tmp_path / "model.safetensors")
    loaded = from_pretrained(tmp_path / "model.safetensors", num_heads=3, **TOLD.get(kind, {}))
    assert loaded.get_config() | {"name": model.name} == model.get_config()
    for name, array in arrays(loaded).items():
        np.testing.assert_array_equal(array, arrays(model)[name])


@pytest.mark.parametrize("kind", [*TOLD])
def test_an_activation_that_nothing_tells_is_asked_for(kind, tmp_path):
    save_file(state_dict(small(**MODELS[kind])), tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError, match="such models exist with several activations.*; give activation="
    ) as caught:
        from_pretrained(tmp_path / "model.safetensors", num_heads=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_deits_own_names_of_layer_scale(tmp_path, prefix):
    """timm's models with rotary positions have the same names, so that something must tell."""
    model = small(**MODELS["deit3"])
    file = {prefix + key: array for key, array in state_dict(model).items()}
    renamed = {re.sub(r"ls(\d)\.gamma", r"gamma_\1", key): array for key, array in file.items()}
    assert len({*renamed} - {*file}) == 4
    save_file(renamed, tmp_path / "deit.safetensors")
    with pytest.raises(
        ValueError, match=rf": {prefix}blocks.0.gamma_1 occurs in DeiT III's .*'B/16'"
    ) as caught:
        from_pretrained(tmp_path / "deit.safetensors", num_heads=3)
    assert "\n" not in str(caught.value)
    (tmp_path / "deit.json").write_text(sidecar_text(model.get_config(), "timm"))
    loaded = from_pretrained(tmp_path / "deit.safetensors")
    for name, array in arrays(model).items():
        np.testing.assert_array_equal(arrays(loaded)[name], array)
    with pytest.raises(ValueError, match="both map to encoder_block_0/attention_scale/gamma"):
        timm.read(file | renamed)


def test_a_stem_without_stages_has_names_of_its_own():
    model = small(**MODELS["stem only"])
    written = state_dict(model)
    inside = {key for key in written if "backbone" in key}
    names = {"conv.weight", "norm.weight", "norm.bias"}
    assert inside == {f"patch_embed.backbone.{name}" for name in names}
    as_stem = {key.replace("backbone.", "backbone.stem."): array for key, array in written.items()}
    assert as_stem.keys() != written.keys()
    for file in (written, as_stem):
        assert timm.read(file).arrays.keys() == arrays(model).keys()


def test_a_stem_with_stages_is_written_as_one():
    written = state_dict(small(**MODELS["hybrid"]))
    assert {key for key in written if key.startswith("patch_embed.backbone.stem.")} == {
        f"patch_embed.backbone.stem.{name}" for name in ("conv.weight", "norm.weight", "norm.bias")
    }
    assert f"{STAGES}.1.blocks.1.conv3.weight" in written
    assert f"{STAGES}.1.blocks.1.downsample.conv.weight" not in written


@pytest.mark.parametrize(
    "key, what",
    [
        ("blocks.0.attn.q_norm.weight", "qk-norm"),
        ("blocks.11.attn.k_norm.bias", "qk-norm"),
        ("attn_pool.q_norm.weight", "qk-norm"),
        ("blocks.0.mlp.w12.weight", "SwiGLU"),
        ("blocks.0.mlp.w3.bias", "SwiGLU"),
        ("blocks.0.mlp.fc1_g.weight", "SwiGLU"),
        ("rope.freqs", "RoPE"),
        ("blocks.0.attn.rope.periods", "RoPE"),
        ("blocks.0.attn.rel_pos.relative_position_bias_table", "relative positions"),
        ("rel_pos_bias.relative_position_bias_table", "relative positions"),
        ("blocks.0.attn.relative_position_index", "relative positions"),
        ("blocks.0.attns.0.qkv.weight", "parallel blocks"),
        ("blocks.0.ffns.1.fc1.weight", "parallel blocks"),
        ("blocks.0.in_proj.weight", "parallel blocks"),
        ("blocks.0.mlp_out_proj.weight", "parallel blocks"),
        ("blocks.0.attn.q_proj.weight", "another attention"),
        ("blocks.0.attn.q_bias", "another attention"),
        ("blocks.0.attn.lambda_q1", "another attention"),
        ("patch_embed.backbone.conv1.weight", "another stem"),
        ("patch_embed.backbone.bn1.weight", "another stem"),
        ("patch_embed.backbone.0.weight", "another stem"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "module."])
def test_what_cannot_be_expressed_is_refused_by_name(key, what, prefix, golden):
    file = {prefix + k: array for k, array in stored(golden, "timm_token").items()}
    with pytest.raises(ValueError, match=re.escape(what)) as caught:
        timm.read({**file, prefix + key: np.zeros(3)})
    assert (prefix + key) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_norm_without_a_bias_is_refused_by_name(golden, prefix):
    file = {
        prefix + k: a for k, a in stored(golden, "timm_token").items() if not re.search(r"norm\d?.bias", k)
    }
    with pytest.raises(ValueError, match=rf"{prefix}blocks\.\d\.norm1\.weight .*RMSNorm"):
        timm.read(file)


def test_a_gated_mlp_that_only_shapes_show_is_refused(golden, tmp_path):
    file = stored(golden, "timm_token")
    for i in (0, 1):
        file[f"blocks.{i}.mlp.fc2.weight"] = file[f"blocks.{i}.mlp.fc2.weight"][:, :24].copy()
    save_file(file, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="encoder_block_0/mlp/dense_1/kernel has half .*SwiGLU"):
        from_pretrained(tmp_path / "model.safetensors", num_heads=3)


def test_only_its_own_files_are_taken():
    assert timm.detect([ANCHOR])
    assert timm.detect([f"module.{ANCHOR}"])
    assert not timm.detect([f"vit.{ANCHOR}"])
    assert not timm.detect(["cls_token", "embedding/kernel"])


@pytest.mark.parametrize(
    "name, expected",
    [
        ("head/kernel", {"norm_epsilon": 1e-6, "activation": "gelu_erf"}),
        ("pre_norm/gamma", {"norm_epsilon": 1e-5}),
        ("attention_pooling/probe", {"norm_epsilon": 1e-6}),
        ("conv_root/kernel", {"norm_epsilon": 1e-6, "activation": "gelu_erf", "resnet_form": "timm"}),
    ],
)
def test_it_implies_what_timm_computes(name, expected):
    assert timm.implied({name: "its key"}, {}) == expected
