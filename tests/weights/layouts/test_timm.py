import re

import numpy as np
import pytest
from reference.comparing import arrays
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


def test_query_key_and_value_are_concatenated(golden):
    file = stored(golden, "timm_token")
    read = timm.read(file).arrays
    for n, part in enumerate(("query", "key", "value")):
        weight, bias = (
            file[f"blocks.1.attn.qkv.{leaf}"][24 * n : 24 * (n + 1)] for leaf in ("weight", "bias")
        )
        np.testing.assert_array_equal(read[f"encoder_block_1/attention/{part}/kernel"], weight.T)
        np.testing.assert_array_equal(read[f"encoder_block_1/attention/{part}/bias"], bias)
    pooled = state_dict(small(pooling="map"))
    assert (pooled["attn_pool.kv.weight"].shape, pooled["attn_pool.q.weight"].shape) == ((24, 12), (12, 12))


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
    for name, array in arrays(model).items():
        np.testing.assert_array_equal(arrays(loaded)[name], array)


def test_a_stem_without_stages_has_other_names():
    model = small(**{**HYBRID, "resnet": (), "patch_size": 4, "resnet_form": "timm"})
    written = state_dict(model)
    names = {"conv.weight", "norm.weight", "norm.bias"}
    assert {key for key in written if "backbone" in key} == {f"patch_embed.backbone.{name}" for name in names}
    for file in (written, {key.replace("backbone.", "backbone.stem."): a for key, a in written.items()}):
        assert timm.read(file).arrays.keys() == arrays(model).keys()


FOREIGN = {
    "blocks.0.attn.q_norm.weight": "qk-norm",
    "blocks.0.mlp.w12.weight": "SwiGLU",
    "rope.freqs": "RoPE",
    "blocks.0.attn.rel_pos.relative_position_bias_table": "relative positions",
    "blocks.0.attns.0.qkv.weight": "parallel blocks",
    "blocks.0.attn.q_proj.weight": "another attention",
    "patch_embed.backbone.conv1.weight": "another stem",
}


@pytest.mark.parametrize("key", FOREIGN)
@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_family_that_cannot_be_expressed_is_refused_by_its_key(key, prefix):
    with pytest.raises(ValueError, match=rf"{re.escape(prefix + key)} is part of .*{FOREIGN[key]}"):
        timm.read({f"{prefix}patch_embed.proj.weight": np.zeros((1, 1, 1, 1)), prefix + key: np.zeros(3)})


def test_parts_that_only_missing_arrays_or_shapes_show_are_refused(golden, tmp_path):
    file = stored(golden, "timm_token")
    with pytest.raises(ValueError, match=r"blocks\.\d\.norm1\.weight has no bias: it is an RMSNorm"):
        timm.read({k: a for k, a in file.items() if not re.search(r"norm\d?.bias", k)})
    with pytest.raises(ValueError, match="the file holds attn_pool.latent and cls_token"):
        timm.read({**file, "attn_pool.latent": np.zeros((1, 1, 24))})
    for i in (0, 1):
        file[f"blocks.{i}.mlp.fc2.weight"] = file[f"blocks.{i}.mlp.fc2.weight"][:, :24].copy()
    save_file(file, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="encoder_block_0/mlp/dense_1/kernel has half .*SwiGLU"):
        from_pretrained(tmp_path / "model.safetensors", num_heads=3)
