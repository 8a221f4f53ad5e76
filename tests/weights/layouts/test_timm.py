import json
import re

import numpy as np
import pytest
from made.sampling import some
from made.tables import by_table
from reference.comparing import arrays, assert_same_arrays
from reference.goldens import stored
from reference.small import small
from safetensors.numpy import load_file, save_file

from keras_vit import VisionTransformer, from_pretrained, save_weights, variants
from keras_vit.weights import checkpoint
from keras_vit.weights.array_files import write_arrays
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.heads import merged_heads
from keras_vit.weights.metadata import sidecar_text

timm = LAYOUTS["timm"]


def state_dict(model):
    return timm.write(merged_heads(arrays(model)), model.get_config())


@pytest.mark.parametrize("prefix", ["", "module."])
def test_deits_names_of_layer_scale_need_a_variant_or_metadata(tmp_path, prefix):
    """timm's models with rotary positions have the same names."""
    sizes = dict(zip(variants.SIZES, variants.VARIANTS["mu"]))
    model = small(layer_scale=1e-5, prefix_positions=False, activation="gelu_erf", **sizes)
    file = {prefix + key: array for key, array in state_dict(model).items()}
    renamed = {re.sub(r"ls(\d)\.gamma", r"gamma_\1", key): array for key, array in file.items()}
    write_arrays(renamed, tmp_path / "deit.safetensors")
    with pytest.raises(ValueError, match=r"'B/16' .*blocks.0.gamma_1 also occurs in"):
        from_pretrained(tmp_path / "deit.safetensors", num_heads=2)
    loaded = from_pretrained(tmp_path / "deit.safetensors", variant="mu/8")
    assert_same_arrays(arrays(loaded), arrays(model))
    (tmp_path / "deit.json").write_text(sidecar_text(model.get_config(), "timm"))
    loaded = from_pretrained(tmp_path / "deit.safetensors")
    assert_same_arrays(arrays(loaded), arrays(model))


OTHER_KINDS = {  # names of further arrays → the message
    "SwiGLU": (["blocks.0.mlp.w1.weight"], "only in file: blocks.0.mlp.w1.weight"),
    "differential attention": (["blocks.0.attn.lambda_q1"], "only in file: blocks.0.attn.lambda_q1"),
    "attention pooling": (["attn_pool.latent"], "whether attn_pool.latent also attends to cls_token, and no"),
    "no gate": (["blocks.0.mlp.fc1_g.weight"], "also occurs in models with rotary positions"),
}


@by_table("kind", OTHER_KINDS)
def test_another_kind_of_model_is_refused_by_its_keys(kind, golden, tmp_path):
    added, message = OTHER_KINDS[kind]
    file = stored(golden, "timm_token") | {key: np.ones((1, 1, 24), "float32") for key in added}
    save_file(file, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path / "model.safetensors", num_heads=3)


def test_another_kind_of_mlp_is_refused(golden, tmp_path):
    file = {key.replace("mlp.fc1", "mlp.w1"): a for key, a in stored(golden, "timm_token").items()}
    save_file(file, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"got no such array \(unknown keys: blocks\.0\.mlp\.w1\."):
        from_pretrained(tmp_path / "model.safetensors", num_heads=3)


# The authors' files of DINOv2 and MAE ------------------------------------------------------------


@pytest.mark.parametrize(
    "options, interpolation",
    [
        ({"num_registers": 0}, "bicubic_offset"),
        ({"num_registers": 3, "prefix_positions": False}, "bicubic_antialias"),
        ({"num_registers": 0, "gated_mlp": True, "activation": "silu"}, "bicubic_offset"),
    ],
    ids=["plain", "registers", "gated"],
)
def test_a_file_of_dinov2s_authors_is_read(options, interpolation, tmp_path):
    """Registers have no positions there, and the class token has."""
    model = small(layer_scale=1e-5, num_classes=None, **options)
    state = state_dict(model)
    for key in [key for key in state if "mlp.fc1_g" in key]:  # gate and up in one array
        rest = [state.pop(key), state.pop(key.replace("fc1_g", "fc1_x"))]
        state[key.replace("fc1_g", "w12")] = np.concatenate(rest)
        state[key.replace("fc1_g", "w3")] = state.pop(key.replace("fc1_g", "fc2"))
    renamed = {"reg_token": "register_tokens", "gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
    file = {re.sub("|".join(renamed), lambda m: renamed[m[0]], key): array for key, array in state.items()}
    file["mask_token"] = np.ones_like(state["cls_token"][0])
    if options["num_registers"]:
        file["pos_embed"] = np.concatenate([file["cls_token"], file["pos_embed"]], axis=1)
        file["cls_token"] = np.zeros_like(file["cls_token"])
    write_arrays(file, tmp_path / "dinov2.safetensors")
    again = from_pretrained(tmp_path / "dinov2.safetensors", num_heads=3)
    assert again.position_interpolation == interpolation
    assert_same_arrays(arrays(again), arrays(model))


def test_what_beits_authors_store_of_their_positions_is_left_out():
    key = "blocks.1.attn.relative_position_index"
    assert LAYOUTS["timm"].skipped_keys(["patch_embed.proj.weight", key]) == [key]


# Families by their structure ----------------------------------------------------------------------

DINOV3 = {
    **{"rotary": "dinov3", "position_embedding": "none", "num_registers": 2, "layer_scale": 1e-5},
    **{"qkv_bias": False, "norm_epsilon": 1e-5, "hidden_size": 32, "num_heads": 4, "activation": "gelu_erf"},
}
EVA02 = {
    **{"rotary": {"kind": "axial", "reference_grid": 3}, "gated_mlp": True, "activation": "silu"},
    **{"key_bias": False, "hidden_size": 32, "num_heads": 4, "pooling": "gap", "class_token": True},
    **{"norm_after_pooling": True},
}
FAMILIES = {  # options, and one key of each structure that only timm's Eva has
    "DINOv3": (DINOV3, "blocks.1.gamma_2"),
    "EVA-02": ({**EVA02, "mlp_sub_norm": True}, "blocks.0.mlp.fc1_g.weight"),
    "BEiT-3": (
        {"attention_sub_norm": True, "mlp_sub_norm": True, "norm_epsilon": 1e-5},
        "blocks.0.mlp.norm.weight",
    ),
    "RADIO": ({"final_norm": False, "num_registers": 3, "prefix_positions": False}, "reg_token"),
}


@pytest.mark.parametrize("family", some(FAMILIES, 2))
def test_a_family_is_written_and_read_with_timms_config_json(family, tmp_path):
    """And refused without metadata if only these show its positions."""
    options, key = FAMILIES[family]
    model = small(**options)
    file = save_weights(model, tmp_path / "model.safetensors", "timm")
    config = model.get_config()
    assert key in load_file(file) and not timm.unsupported_in_config(config)
    (tmp_path / "model.json").unlink()
    if model.rotary:
        with pytest.raises(ValueError, match="rotary"):
            from_pretrained(file, num_heads=4)
    (tmp_path / "config.json").write_text(json.dumps(*timm.write_config(config)))
    loaded = from_pretrained(tmp_path)
    assert_same_arrays(arrays(loaded), arrays(model))
    found = loaded.get_config() | {"layer_scale": config["layer_scale"], "name": model.name}
    timms = "bicubic_antialias" if model.position_embedding == "learned" else "bilinear"
    expected = {"pooling_heads": found["pooling_heads"], "position_interpolation": timms}
    expected["pretraining"] = "supervised"  # since the file has classes
    assert found == config | expected


@pytest.mark.slow
@by_table(
    "options, reason",
    [
        ({"relative_positions": True, "position_embedding": "none"}, "relative_positions=True"),
        ({**EVA02, "activation": "gelu_erf"}, "activation='gelu_erf' with gated_mlp=True"),
        ({**EVA02, "linear_bias": False}, "linear_bias=False with options of timm's Eva"),
        ({**EVA02, "pooling": "map"}, "gated_mlp=True with pooling='map'"),
        ({**EVA02, "post_norm": True, "qk_norm": True, "rotary": None}, "qk_norm=True with post_norm=True"),
        ({**DINOV3, "rotary": {"kind": "axial", "rotate_registers": True}, "num_registers": 4}, "rotate_reg"),
        ({"patch_norm": True}, "patch_norm=True"),
    ],
)
def test_a_model_that_timm_does_not_have_is_refused(options, reason, tmp_path):
    with pytest.raises(ValueError, match=reason):
        save_weights(small(**{"activation": "gelu_erf", **options}), tmp_path / "model.safetensors", "timm")


@pytest.mark.parametrize(
    "name, layout, size, pooling",
    [
        ("vit_small_patch16_dinov3.lvd1689m", "timm", 256, "gap"),
        ("facebook/dinov3-vits16-pretrain-lvd1689m", "huggingface", 224, "token"),
    ],
)
def test_dinov3_is_read_by_its_published_name(name, layout, size, pooling, tmp_path, monkeypatch):
    """Of a small variant, which says what no array shows if there is no config.json; the license is said."""
    sizes = {"hidden_size": 24, "num_layers": 2, "mlp_dim": 48, "num_heads": 6}
    monkeypatch.setitem(variants._ARGUMENTS, "DINOv3-S", {**variants._ARGUMENTS["DINOv3-S"], **sizes})
    options = {**variants.parse_variant("DINOv3-S/16"), "image_size": size, "num_classes": None}
    model = VisionTransformer(**options, pooling=pooling)
    file = save_weights(model, tmp_path / ("model.safetensors" if layout == "timm" else "folder"), layout)
    file.with_name("model.json").unlink()
    said = []
    monkeypatch.setattr(checkpoint, "fetch", lambda *_, **__: file)
    monkeypatch.setattr(checkpoint.logging, "log_first_n", lambda _, note, __: said.append(note))
    loaded = from_pretrained(name)
    assert_same_arrays(arrays(loaded), arrays(model))
    assert loaded.rotary == model.rotary and loaded.image_size == (size, size)
    assert loaded.preprocessing.mean[0] == 0.485
    assert "Meta's DINOv3 license" in said[0]
