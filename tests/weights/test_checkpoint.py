import dataclasses
import functools
import hashlib
import json
import re

import numpy as np
import pytest
from made import refusals
from made.checkpoints import MADE, NAMES, base, made_model, write
from made.sampling import some
from made.servers import asked_hub
from reference.small import NEWER, one_block, small

from keras_vit import from_pretrained, save_weights
from keras_vit.weights import catalogue, checkpoint
from keras_vit.weights.catalogue import CATALOGUE
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.layouts import LAYOUTS

SMALL = {"hidden_size": 24, "num_layers": 2, "num_heads": 3, "patch_size": (8, 8), "in_channels": 3}
EXPECTED = {  # options of the golden files besides SMALL, and what made ones have from elsewhere
    "token_rep": {"pooling": "token", "num_classes": 7, "representation_size": 20, "mlp_dim": 40},
    "gap": {"pooling": "gap", "class_token": False, "prefix_positions": True, "position_grid": (4, 4)},
    "hybrid": {"num_layers": 1, "resnet": (1, 2), "patch_size": (1, 1), "image_size": (64, 64)},
    "hybrid_root": {"resnet": (), "patch_size": (4, 4), "num_layers": 1, "image_size": (32, 32)},
    "bigvision_gap_sincos": {"pooling": "gap", "position_embedding": "sincos2d", "representation_size": 24},
    "bigvision_map": {"pooling": "map", "position_embedding": "learned", "prefix_positions": False},
    "timm_token": {"pooling": "token", "norm_after_pooling": False, "prefix_positions": True},
    "timm_avg": {"pooling": "gap", "norm_after_pooling": True, "class_token": False},
    "timm_metadata": {"layer_scale": 0.1},
}
refused = functools.partial(refusals.refused, read_checkpoint)


# Every layout --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", some(NAMES, 5))
def test_a_checkpoint_is_read_whole_in_its_layout(name, tmp_path):
    original = base(name)
    read = read_checkpoint(original.write(tmp_path), **original.stored_options)
    assert (read.layout, read.unknown, read.skipped) == (original.layout, [], [])
    assert read.path == tmp_path / original.file
    assert {*read.keys} == {*read.arrays}
    assert {*read.keys.values()} == {*original.arrays}
    assert {str(a.dtype) for a in read.arrays.values()} == {str(a.dtype) for a in original.arrays.values()}
    activation = "gelu_tanh" if original.layout in ("vit_jax", "big_vision") else "gelu_erf"
    expected = {**SMALL, "activation": activation}
    if name in MADE:
        config = made_model(name).get_config()
        expected = {option: config[option] for option in {*expected, *MADE[name].model} - {"layer_scale"}}
    expected |= EXPECTED.get(name, {})
    known = {**read.arguments, **original.options}
    assert {option: known.get(option) for option in expected} == expected


# Prefixes and sidecar keys -------------------------------------------------------------------------

OPTIMIZER = {
    "opt/state/step": np.int32(3),
    "opt/state/param_states/cls/grad_ema": np.zeros((1, 1, 24), "float32"),
    "opt/0/count": np.int32(3),
    "extra/loss": np.float32(1),
}


@pytest.mark.parametrize("prefix", ["opt/target/", "params/"])
def test_the_state_of_an_optimizer_is_skipped_whatever_its_types(prefix, tmp_path):
    stored = {prefix + key: array for key, array in base("token").arrays.items()}
    path = write({**stored, **OPTIMIZER}, tmp_path / "run.npz")
    read = read_checkpoint(path)
    assert ({*read.skipped}, read.unknown, {*read.keys.values()}) == ({*OPTIMIZER}, [], {*stored})
    assert from_pretrained(path).num_classes == 7


@pytest.mark.parametrize("one, other", [("", "params/"), ("params/", "opt/target/")])
def test_a_file_with_two_models_is_refused_and_a_subtree_of_it_is_read(one, other, tmp_path):
    stored = {prefix + key: array for prefix in (one, other) for key, array in base("token").arrays.items()}
    path = write(stored, tmp_path / "two.npz")
    refused(path, "two models", f"holds (.* and )?{one}embedding/kernel", f" {other}embedding/kernel( and|:)")
    assert read_checkpoint(f"{path}:{other.strip('/')}").layout == "vit_jax"


WRAPPED = {
    "parallel": lambda key: f"module.{key}",
    "compiled": lambda key: f"_orig_mod.{key}",
    "compiled in parallel": lambda key: f"module._orig_mod.{key}",
    "compiled blocks": lambda key: re.sub(r"\.(\d+)\.", r".\1._orig_mod.", key),
    "sharded": lambda key: f"_fsdp_wrapped_module.{key}",
    "recomputed blocks": lambda key: re.sub(r"\.(\d+)\.", r".\1._checkpoint_wrapped_module.", key),
    "compiled tower": lambda key: re.sub(r"^(\w+)\.", r"\1._orig_mod.", key),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
@pytest.mark.parametrize("name", ["timm_token", "hf_vit"])
def test_weights_of_a_wrapped_module_of_torch_are_those_of_the_module(name, wrapper, tmp_path):
    stored, options = base(name).arrays, base(name).options
    path = base(name).write(tmp_path, {WRAPPED[wrapper](key): array for key, array in stored.items()})
    read = read_checkpoint(path, **options)
    assert (read.unknown, {*read.keys.values()}) == ([], {*stored} - {*read.skipped})


def test_arrays_with_and_without_a_wrapper_are_two_models(tmp_path):
    stored = base("timm_token").arrays
    path = write(
        stored | {f"module.{key}": array for key, array in stored.items()}, tmp_path / "a.safetensors"
    )
    refused(path, "two models, or one array twice", r"holds (blocks\S+) and module\.\1:")


def test_a_file_of_no_layout_is_refused_with_some_of_its_keys(tmp_path):
    path = write({"conv1.weight": np.zeros(3), "fc.bias": np.zeros(2)}, tmp_path / "a.safetensors")
    refused(path, rf"in no known layout \({', '.join(LAYOUTS)}\); it holds 2 arrays: conv1.weight, fc.bias")


@pytest.mark.parametrize(
    "key, family",
    [
        ("vision_model.encoder.blocks.0.depthwise_conv.x", "ALIGN, whose image tower is an EfficientNet"),
        ("vision_model.encoder.stages.0.group_token", "GroupViT, which merges tokens into groups"),
        ("visual.layer1.0.conv1.weight", "a CLIP whose image tower is a ResNet"),
        ("base_model.model.vit.lora_A.weight", "an adapter of peft, which its `merge_and_unload` puts.*"),
    ],
)
def test_a_family_without_a_vision_transformer_is_named(key, family, tmp_path):
    """Even if the file has keys of a layout, and integer arrays of batch norms."""
    keys = (key, "visual.conv1.weight", "vision_model.embeddings.patch_embeddings.projection.weight")
    stored = dict.fromkeys(keys, np.zeros((4, 3, 2, 2), "float32"))
    stored["visual.bn1.num_batches_tracked"] = np.zeros((), "int64")
    refused(write(stored, tmp_path / "a.safetensors"), f"expected a Vision Transformer; got {family}$")


# What a file leaves open ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["timm_token", "hf_alone"])
def test_an_unknown_number_of_heads_must_be_given(name, tmp_path):
    path = base(name).write(tmp_path)
    sizes = r"hidden_size 24, num_layers 2, mlp_dim (40|48)"
    refused(path, rf"the number of attention heads is unknown, .* \({sizes}\); give num_heads")
    kernel = read_checkpoint(path, num_heads=4).arrays["encoder_block_1/attention/out/kernel"]
    assert kernel.shape == (4, 6, 24)
    for wrong in (5, -3, 0, 1000):
        refused(path, "num_heads", num_heads=wrong)


def test_heads_of_the_probe_must_divide_the_channels(tmp_path):
    path = save_weights(small(pooling="map"), tmp_path / "map.safetensors", "timm")
    path.with_suffix(".json").unlink()
    given = {"num_heads": 3, "activation": "gelu_erf"}
    assert read_checkpoint(path, **given, pooling_heads=2).arguments["pooling_heads"] == 2
    for wrong in (5, 1000):
        refused(path, "num_heads must be an int that divides", **given, pooling_heads=wrong)


def test_an_unknown_activation_must_be_given(tmp_path):
    path = base("timm_clip").write(tmp_path)
    refused(path, "several activations.*give activation=", num_heads=3)
    for file in (path, base("timm_token").write(tmp_path)):  # The latter's layout implies another one.
        assert from_pretrained(file, num_heads=3, activation="quick_gelu").activation == "quick_gelu"


# Variants and digests ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["token_mu", "timm_mu"])
def test_a_variant_must_agree(name, tmp_path):
    path = base(name).write(tmp_path, metadata={})
    assert read_checkpoint(path).arguments["num_heads"] == 2
    assert read_checkpoint(path, variant="mu/16").arguments["num_heads"] == 2
    for variant, option in (("mu/8", "patch_size"), ("Ti/16", "hidden_size|num_heads")):
        refused(path, rf"variant {variant} says ({option})=|num_heads", variant=variant)
    refused(path, "variant 'B' is unknown", variant="B")
    refusals.refused(from_pretrained, path, "says|does not fit", variant="R50+B/16")


def test_a_variant_leaves_open_what_copies_of_its_weights_change(tmp_path, monkeypatch):
    """How they are pooled, biases of zero, and initial values."""
    variant = {**NEWER["DINOv3-S"], "pooling": "gap", "layer_scale": 0.3}
    copied = {**variant, "pooling": "token", "qkv_bias": False, "key_bias": True, "num_classes": None}
    path = save_weights(small(**copied), tmp_path / "model", "huggingface")
    monkeypatch.setattr(checkpoint, "parse_variant", lambda name: variant)
    assert from_pretrained(path, variant="DINOv3-S/8").pooling == "token"
    monkeypatch.setattr(checkpoint, "parse_variant", lambda name: {**variant, "num_registers": 3})
    refused(path, "variant DINOv3-S/8 says num_registers=3", variant="DINOv3-S/8")


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("layout", ["vit_jax", "huggingface"])
def test_a_digest_covers_the_metadata_that_were_saved_with_the_weights(layout, tmp_path):
    model = one_block(class_names=[*"abcde"], activation="gelu_tanh")
    source = tmp_path / {"vit_jax": "m.npz"}.get(layout, "m")
    path = save_weights(model, source, layout)
    read = read_checkpoint(source, sha256=sha256_of(path)).arguments
    assert (read["class_names"], read["activation"]) == (tuple("abcde"), "gelu_tanh")
    sidecar = path.with_suffix(".json")
    found = json.loads(sidecar.read_text())
    found["arguments"]["class_names"].reverse()
    sidecar.write_text(json.dumps(found))
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
    read_checkpoint(path, sha256=sha256_of(path), num_heads=3)  # without a warning


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
    monkeypatch.setattr(catalogue, "_BY_SOURCE", {row.source: row})
    config = b'{"architecture": "vit_tiny_patch16_224", "label_names": ["changed"]}'
    files = {"model.safetensors": weights, "config.json": config}
    with asked_hub(tmp_path, monkeypatch) as server:
        moved = "b" * 40, {**files, "model.safetensors": b"moved"}
        server.repositories["org/vit"] = {"main": moved, "b" * 40: moved, "a" * 40: ("a" * 40, files)}
        if wrong:
            with pytest.raises(ValueError, match="has SHA-256|bytes; (wanted|expected) 7"):
                read_checkpoint("pinned")
            return
        for name in ("pinned", "org/vit", f"hf://org/vit@{'a' * 40}"):
            checkpoint = read_checkpoint(name)
            assert checkpoint.path.read_bytes() == weights
            assert checkpoint.arguments["activation"] == "gelu_tanh" and checkpoint.configuration is None
        with pytest.raises(ValueError, match="is no checkpoint that can be read"):
            read_checkpoint("hf://org/vit")  # the newest, to which the digest does not belong
