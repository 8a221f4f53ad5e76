"""NAME.json, and which metadata files are read."""

import json
import math

import numpy as np
import pytest
from made.checkpoints import base
from made.sampling import some
from reference.small import HYBRID, small

from keras_vit import Preprocessing, VisionTransformer, from_pretrained, save_weights
from keras_vit.models.config import OPTIONS
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.metadata import FORMAT, read_metadata, sidecar_text

NAMES = ("tabby", "tiger", "lynx", "lion", "ocelot")
CROP = Preprocessing(16, resize="crop", crop_fraction=0.5, antialias=True)
NOT_IN_ARRAYS = [
    {"activation": "quick_gelu"},
    {"norm_epsilon": 3e-4},
    {"class_names": NAMES, "task": "single_label", "split_seed": 3},
    {"preprocessing": CROP},
    {"dropout_rate": 0.1, "attention_dropout_rate": 0.2, "stochastic_depth_rate": 0.3},
    {"image_size": (8, 32)},
    {"pooling": None, "class_token": True},
    {**HYBRID, "resnet": (1,), "resnet_form": "timm"},
]


def refused(path, pattern=".", load=read_checkpoint, **options):
    with pytest.raises(ValueError, match=pattern) as caught:
        load(path, **options)
    assert (
        type(caught.value) is ValueError and "\n" not in str(caught.value) and path.name in str(caught.value)
    )


def test_it_holds_every_option_of_the_model():
    model = small(class_names=NAMES, name="mine", dtype="mixed_bfloat16")
    model.get_layer("head").trainable = False
    found = json.loads(sidecar_text(model.get_config(), "timm"))
    assert [*found] == ["format", "layout", "arguments"]
    assert (found["format"], found["layout"]) == ("keras_vit checkpoint 1", "timm")
    assert {*found["arguments"]} == {*OPTIONS}
    again = VisionTransformer(**found["arguments"])
    assert again.get_config() == small(class_names=NAMES).get_config() | {"name": again.name}


@pytest.mark.parametrize("options", NOT_IN_ARRAYS, ids=str)
def test_options_that_the_arrays_do_not_determine_are_read_from_it(options, tmp_path):
    model = small(**options)
    path = save_weights(model, tmp_path / "model.npz", "vit_jax")
    expected = json.loads(json.dumps({name: getattr(model, name) for name in {*options} - {"preprocessing"}}))
    read = json.loads(json.dumps(read_checkpoint(path).arguments))
    assert {name: read[name] for name in expected} == expected
    assert Preprocessing(**read["preprocessing"]) == model.preprocessing


DISAGREEING = [
    {"hidden_size": 32},
    {"num_layers": 3},
    {"mlp_dim": 56},
    {"num_heads": 4},
    {"patch_size": [16, 16]},
    {"num_classes": 8},
    {"num_classes": None},
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
    {"image_size": [64, 64]},
]


def with_sidecar(folder, arguments):
    """A file with a NAME.json, of which some arguments are changed."""
    path = base("token_metadata").write(folder)
    sidecar = path.with_suffix(".json")
    found = json.loads(sidecar.read_text())
    sidecar.write_text(json.dumps({**found, "arguments": {**found["arguments"], **arguments}}))
    return path


@pytest.mark.parametrize("arguments", DISAGREEING, ids=str)
def test_it_must_agree_with_the_arrays(arguments, tmp_path):
    path = with_sidecar(tmp_path, arguments)
    refused(path, r"model\.json says .*, the arrays hold|does not fit the checkpoint's|grid positions")


@pytest.mark.parametrize("arguments", [{"layer_scale": 0.1}, {"resnet": [1]}], ids=str)
def test_a_part_without_arrays_is_refused(arguments, tmp_path):
    refused(with_sidecar(tmp_path, arguments), load=from_pretrained)


def test_it_must_agree_with_a_variant(tmp_path):
    refused(
        with_sidecar(tmp_path, {"hidden_size": 48}),
        r"variant mu/16 says .*, model\.json says",
        variant="mu/16",
    )


NOT_JSON = ["{", "", "[1, 2]", "null", "\x00", "{'a': 1}", "[" * 100_000, " " * (1 << 24) + "{}"]


@pytest.mark.parametrize("content", NOT_JSON, ids=lambda content: repr(content[:9]))
@pytest.mark.parametrize("file", ["model.json", "config.json", "preprocessor_config.json"])
def test_a_file_that_is_no_configuration_is_refused_by_its_name(file, content, tmp_path):
    path = base("hf_bare").write(tmp_path)
    (tmp_path / file).write_text(content)
    refused(path, file)


def test_a_file_in_another_encoding_is_refused_and_utf_8_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("locale.getpreferredencoding", lambda *a: "cp1252")
    monkeypatch.setattr("locale.getencoding", lambda: "cp1252", raising=False)
    path = base("hf_vit").write(tmp_path)
    config = json.loads(base("hf_vit").metadata["config.json"])
    config["id2label"] = dict(zip("0123456", ["кошка", "犬", *"cdefg"]))
    (tmp_path / "config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    assert read_checkpoint(path).arguments["class_names"][:2] == ("кошка", "犬")
    (tmp_path / "config.json").write_bytes(b'{"model_type": "vit", "id2label": {"0": "\xff"}}')
    refused(path, "config.json")


DAMAGED = [
    {"no_such_argument": 1},
    {"image_size": "large"},
    {"image_size": [32]},
    {"position_grid": ["a", "b"]},
    {"preprocessing": 3},
    {"preprocessing": {"mean": "a"}},
    {"preprocessing": {"no": 1}},
    {"class_names": "ab"},
    {"class_names": ["a"]},
    {"activation": []},
    {"activation": "relu"},
    {"num_heads": {}},
    {"num_heads": True},
    {"pooling": {}},
    {"qkv_bias": 1},
    {"norm_epsilon": "a"},
    *({"norm_epsilon": value} for value in (math.nan, math.inf, 1e-320, 10**400)),
    *({"dropout_rate": value} for value in (math.nan, 1, 10**400)),
]


@pytest.mark.parametrize("arguments", DAMAGED, ids=lambda arguments: str(arguments)[:40])
def test_an_argument_of_the_wrong_type_or_value_is_refused(arguments, tmp_path):
    refused(with_sidecar(tmp_path, arguments), rf"{[*arguments][0]}", load=from_pretrained)


@pytest.mark.parametrize("found", [{}, {"arguments": None}, {"arguments": [1]}], ids=str)
def test_a_file_without_arguments_is_refused(found, tmp_path):
    path = base("token").write(tmp_path)
    path.with_suffix(".json").write_text(json.dumps({"format": FORMAT, **found}))
    refused(path, f"{path.stem}.json")


def test_a_json_file_of_another_format_is_ignored(tmp_path):
    path = base("token").write(tmp_path)
    path.with_suffix(".json").write_text('{"name": "something else", "hidden_size": 3}')
    assert read_metadata(path, LAYOUTS["vit_jax"]) == ({}, None)
    assert read_checkpoint(path).arguments["hidden_size"] == 24


def test_configurations_are_read_only_next_to_the_file_names_of_repositories(tmp_path):
    path = base("hf_vit").write(tmp_path)
    for source in (path, tmp_path):
        assert read_checkpoint(source).configuration == "config.json"
    other = path.rename(tmp_path / "other.safetensors")
    assert read_checkpoint(other, num_heads=3).configuration is None


@pytest.mark.parametrize("layout", ["vit_jax", "timm"])
def test_it_may_be_edited_or_removed_or_come_from_an_earlier_version(layout, tmp_path):
    path = save_weights(small(), tmp_path / f"model{LAYOUTS[layout].suffix}", layout)
    sidecar = path.with_suffix(".json")
    written = json.loads(sidecar.read_text())
    written["arguments"]["activation"] = "quick_gelu"
    for found in (written, {name: value for name, value in written.items() if name != "digest"}):
        sidecar.write_text(json.dumps(found))
        assert read_checkpoint(path).arguments["activation"] == "quick_gelu"
    sidecar.unlink()
    assert read_checkpoint(path, num_heads=3).arguments["activation"] != "quick_gelu"


@pytest.mark.parametrize("value", some([1e-5, 0.1, 1.0], 2))
def test_the_initial_layer_scale_is_read_from_it(value, tmp_path):
    model = small(layer_scale=value)
    again = from_pretrained(save_weights(model, tmp_path / "model.safetensors", "timm"))
    assert again.layer_scale == value
    for one, other in zip(again.get_weights(), model.get_weights()):
        np.testing.assert_array_equal(one, other)
