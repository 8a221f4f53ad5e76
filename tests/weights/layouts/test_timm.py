import re

import numpy as np
import pytest
from reference.comparing import arrays, assert_same_arrays
from reference.goldens import stored
from reference.small import HYBRID, small
from safetensors.numpy import save_file

from keras_vit import from_pretrained
from keras_vit.weights.checkpoint import merged_heads
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.metadata import sidecar_text

timm = LAYOUTS["timm"]
STAGES = "patch_embed.backbone.stages"


def state_dict(model):
    return timm.write(merged_heads(arrays(model)), model.get_config())


@pytest.mark.parametrize(
    "key, ours, axes",
    [
        ("patch_embed.backbone.stem.conv.weight", "conv_root/kernel", (2, 3, 1, 0)),
        (f"{STAGES}.0.blocks.1.conv2.weight", "block1_unit2_conv2/kernel", (2, 3, 1, 0)),
        ("attn_pool.q.weight", "attention_pooling/attention/query/kernel", (1, 0)),
    ],
)
def test_axes_are_transposed(key, ours, axes):
    array = np.random.default_rng(0).random((5, 4, 3, 2)[: len(axes)])
    mapped = timm.read({"patch_embed.proj.weight": array, key: array})
    np.testing.assert_array_equal(mapped.arrays[ours], array.transpose(axes))


def test_key_and_value_of_attention_pooling_are_concatenated():
    model = small(pooling="map")
    written, ours = state_dict(model)["attn_pool.kv.weight"], merged_heads(arrays(model))
    for part, kernel in zip(("key", "value"), np.split(written, 2)):
        np.testing.assert_array_equal(kernel.T, ours[f"attention_pooling/attention/{part}/kernel"])


@pytest.mark.parametrize("prefix", ["", "module."])
def test_deits_names_of_layer_scale_need_metadata(tmp_path, prefix):
    """timm's models with rotary positions have the same names."""
    model = small(layer_scale=1e-5, prefix_positions=False)
    file = {prefix + key: array for key, array in state_dict(model).items()}
    renamed = {re.sub(r"ls(\d)\.gamma", r"gamma_\1", key): array for key, array in file.items()}
    save_file(renamed, tmp_path / "deit.safetensors")
    with pytest.raises(ValueError, match=rf": {prefix}blocks.0.gamma_1 occurs in DeiT III's .*'B/16'"):
        from_pretrained(tmp_path / "deit.safetensors", num_heads=3)
    (tmp_path / "deit.json").write_text(sidecar_text(model.get_config(), "timm"))
    loaded = from_pretrained(tmp_path / "deit.safetensors")
    assert_same_arrays(arrays(loaded), arrays(model))


def test_a_stem_without_stages_has_other_names():
    model = small(**{**HYBRID, "resnet": (), "patch_size": 4, "resnet_form": "timm"})
    written = state_dict(model)
    names = {"conv.weight", "norm.weight", "norm.bias"}
    assert {key for key in written if "backbone" in key} == {f"patch_embed.backbone.{name}" for name in names}
    for file in (written, {key.replace("backbone.", "backbone.stem."): a for key, a in written.items()}):
        assert timm.read(file).arrays.keys() == arrays(model).keys()


OTHER_KINDS = {  # names of further arrays → the message
    "query and key norms": (["blocks.0.attn.q_norm.weight"], "only in file: blocks.0.attn.q_norm.weight"),
    "rotary positions": (["rope.freqs"], "only in file: rope.freqs"),
    "SwiGLU": (["blocks.0.mlp.w12.weight"], "only in file: blocks.0.mlp.w12.weight"),
    "attention pooling that ignores the class token": (
        ["attn_pool.latent"],
        "attn_pool.latent and cls_token",
    ),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_another_kind_of_model_is_refused_by_its_keys(kind, golden, tmp_path):
    added, message = OTHER_KINDS[kind]
    file = stored(golden, "timm_token") | {key: np.ones((1, 1, 24), "float32") for key in added}
    save_file(file, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        from_pretrained(tmp_path / "model.safetensors", num_heads=3)


def test_another_kind_of_mlp_or_norm_is_refused(golden, tmp_path):
    file = stored(golden, "timm_token")
    renamed = {key.replace("mlp.fc1", "mlp.w12"): array for key, array in file.items()}
    without = {key: array for key, array in file.items() if not re.search(r"norm\d?.bias", key)}
    for changed, message in (
        (renamed, r"got no such array \(unknown keys: blocks\.0\.mlp\.w12\."),
        (without, "only in model: encoder_block_0/attention_norm/beta"),
    ):
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=message):
            from_pretrained(tmp_path / "model.safetensors", num_heads=3)
