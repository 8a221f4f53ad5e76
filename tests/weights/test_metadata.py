"""NAME.json, and which metadata files are read."""

import functools
import hashlib
import json
import math
import shutil

import numpy as np
import pytest
from made import refusals
from made.checkpoints import base
from made.tables import by_table
from reference.small import small

from keras_vit import VisionTransformer, from_pretrained, save_weights
from keras_vit.models.vit.schema import ViTConfig, options_of
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.metadata import FORMAT, read_metadata, sidecar_text

NAMES = ("tabby", "tiger", "lynx", "lion", "ocelot")


refused = functools.partial(refusals.refused, read_checkpoint)


def test_it_holds_every_option_of_the_model():
    model = small(class_names=NAMES, name="mine", dtype="mixed_bfloat16", dropout_rate=np.float32(0.5))
    model.get_layer("head").trainable = False
    found = json.loads(sidecar_text(model.get_config(), "timm"))
    assert [*found] == ["format", "layout", "arguments"]
    assert (found["format"], found["layout"]) == ("keras_vit checkpoint 1", "timm")
    assert {*found["arguments"]} == {*options_of(ViTConfig)}
    again = VisionTransformer(**found["arguments"])
    expected = small(class_names=NAMES, dropout_rate=0.5).get_config()
    assert again.get_config() == expected | {"name": again.name}


DISAGREEING = [
    {"hidden_size": 32},
    {"num_heads": 4},
    {"num_classes": None},
    {"pooling": "map"},
    {"qkv_bias": False},
    {"position_embedding": "sincos2d"},
    {"image_size": [64, 64]},
]


def with_sidecar(folder, arguments):
    """A file with a NAME.json, of which some arguments are changed."""
    path = base("token_metadata").write(folder)
    sidecar = path.with_suffix(".json")
    found = json.loads(sidecar.read_text())
    sidecar.write_text(json.dumps({**found, "arguments": {**found["arguments"], **arguments}}))
    return path


@by_table("arguments", DISAGREEING, ids=str)
def test_it_must_agree_with_the_arrays(arguments, tmp_path):
    path = with_sidecar(tmp_path, arguments)
    refused(path, r"model\.json says .*, the arrays hold|does not fit the checkpoint's|grid positions")


def test_it_must_agree_with_a_variant(tmp_path):
    path = with_sidecar(tmp_path, {"hidden_size": 48})
    refused(path, r"variant mu/16 says .*, model\.json says", variant="mu/16")


NOT_JSON = ["{", "[1, 2]", "[" * 100_000, " " * (1 << 24) + "{}"]
FILES = [("model.json", content) for content in NOT_JSON]
FILES += [("config.json", "null"), ("preprocessor_config.json", "\x00")]


@by_table("file, content", FILES, ids=lambda value: repr(value[:20]))
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
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "config.json").write_text(json.dumps(config, ensure_ascii=False), encoding=encoding)
        assert read_checkpoint(path).arguments["class_names"][:2] == ("кошка", "犬")
    (tmp_path / "config.json").write_bytes(b'{"model_type": "vit", "id2label": {"0": "\xff"}}')
    refused(path, "config.json")


DAMAGED = [
    {"no_such_argument": 1},
    {"image_size": [32]},
    {"preprocessing": {"mean": "a"}},
    {"class_names": ["a"]},
    {"activation": []},
    {"num_heads": True},
    {"layer_scale": 0.1},  # without its arrays
    *({"norm_epsilon": value} for value in (math.nan, 1e-320, 10**400)),
]


@by_table("arguments", DAMAGED, ids=lambda arguments: str(arguments)[:40])
def test_a_wrong_argument_is_refused(arguments, tmp_path):
    path = with_sidecar(tmp_path, arguments)
    refusals.refused(from_pretrained, path, rf"{[*arguments][0]}|only in model")


def test_a_file_without_arguments_is_refused(tmp_path):
    path = base("token").write(tmp_path)
    path.with_suffix(".json").write_text(json.dumps({"format": FORMAT, "arguments": [1]}))
    refused(path, f"{path.stem}.json: arguments must be an object")


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


def test_it_may_be_edited_or_removed_or_come_from_an_earlier_version(tmp_path):
    path = save_weights(small(), tmp_path / "model.safetensors", "timm")
    sidecar = path.with_suffix(".json")
    written = json.loads(sidecar.read_text())
    written["arguments"]["activation"] = "quick_gelu"
    for found in (written, {name: value for name, value in written.items() if name != "digest"}):
        sidecar.write_text(json.dumps(found))
        assert read_checkpoint(path).arguments["activation"] == "quick_gelu"
    sidecar.unlink()
    assert read_checkpoint(path, num_heads=3).arguments["activation"] != "quick_gelu"


def edited(folder, name="config.json", **values):
    """A copy of a folder whose configuration file has other values."""
    copy = folder.with_name("edited")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    stored = json.loads((folder / name).read_text())
    (copy / name).write_text(json.dumps(stored | values))
    return copy


def test_a_configuration_that_was_edited_replaces_what_was_saved_beside_it(tmp_path):
    model = small(dropout_rate=0.1, stochastic_depth_rate=0.2)
    folder = save_weights(model, tmp_path / "model", "huggingface").parent
    labels = {str(i): name for i, name in enumerate(NAMES)}
    again = from_pretrained(edited(folder, id2label=labels, layer_norm_eps=1e-3, num_attention_heads=2))
    assert (again.class_names, again.norm_epsilon, again.num_heads) == (NAMES, 1e-3, 2)
    assert again.stochastic_depth_rate == 0.2  # which config.json does not state
    again = from_pretrained(edited(folder, "preprocessor_config.json", image_mean=[0.1, 0.2, 0.3]))
    assert again.preprocessing.mean == (0.1, 0.2, 0.3)
    refused(edited(folder, hidden_size=24), "hidden_size")


def test_a_configuration_in_another_format_is_as_it_was_saved(tmp_path):
    folder = save_weights(small(), tmp_path / "model", "huggingface").parent
    assert read_checkpoint(edited(folder)).configuration == "model.json"


def test_a_digest_does_not_cover_an_edited_configuration(tmp_path):
    file = save_weights(small(), tmp_path / "model", "huggingface")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.warns(UserWarning, match="config.json is not read because sha256 does not cover it"):
        model = from_pretrained(edited(file.parent, num_attention_heads=2) / file.name, sha256=digest)
    assert model.num_heads == 3
