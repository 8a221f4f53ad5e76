import re

import numpy as np
import pytest
from reference.comparing import arrays
from reference.goldens import GOLDENS, stored
from reference.small import small
from safetensors.numpy import save_file

from keras_vit import from_pretrained
from keras_vit.weights.checkpoint import merged_heads
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.table import MappedArrays

huggingface = LAYOUTS["huggingface"]
ANCHOR = "embeddings.patch_embeddings.projection.weight"
LAYER = "encoder.layer.3"


def read_beside_an_anchor(key, array, prefix="vit."):
    reading = huggingface.read({prefix + ANCHOR: np.zeros((1, 1, 1, 1)), key: array})
    reading.arrays.pop("patch_embedding/kernel")
    reading.keys.pop("patch_embedding/kernel")
    return reading


def state_dict(model):
    return huggingface.write(merged_heads(arrays(model)), model.get_config())


PUBLISHED = [
    ("embeddings.cls_token", "class_token/token"),
    ("embeddings.position_embeddings", "position_embedding/table"),
    ("embeddings.patch_embeddings.projection.bias", "patch_embedding/bias"),
    (f"{LAYER}.layernorm_before.weight", "encoder_block_3/attention_norm/gamma"),
    (f"{LAYER}.attention.attention.query.bias", "encoder_block_3/attention/query/bias"),
    (f"{LAYER}.attention.attention.key.bias", "encoder_block_3/attention/key/bias"),
    (f"{LAYER}.attention.attention.value.bias", "encoder_block_3/attention/value/bias"),
    (f"{LAYER}.attention.output.dense.bias", "encoder_block_3/attention/out/bias"),
    (f"{LAYER}.layernorm_after.bias", "encoder_block_3/mlp_norm/beta"),
    (f"{LAYER}.intermediate.dense.bias", "encoder_block_3/mlp/dense_0/bias"),
    (f"{LAYER}.output.dense.bias", "encoder_block_3/mlp/dense_1/bias"),
    ("layernorm.weight", "encoder_norm/gamma"),
    ("pooler.dense.bias", "pre_logits/bias"),
]
IN_MEMORY = [
    ("layers.3.layernorm_before.weight", "encoder_block_3/attention_norm/gamma"),
    ("layers.3.attention.q_proj.bias", "encoder_block_3/attention/query/bias"),
    ("layers.3.attention.k_proj.bias", "encoder_block_3/attention/key/bias"),
    ("layers.3.attention.v_proj.bias", "encoder_block_3/attention/value/bias"),
    ("layers.3.attention.o_proj.bias", "encoder_block_3/attention/out/bias"),
    ("layers.3.layernorm_after.bias", "encoder_block_3/mlp_norm/beta"),
    ("layers.3.mlp.fc1.bias", "encoder_block_3/mlp/dense_0/bias"),
    ("layers.3.mlp.fc2.bias", "encoder_block_3/mlp/dense_1/bias"),
]


@pytest.mark.parametrize("prefix", ["", "vit.", "deit."])
@pytest.mark.parametrize("key, ours", [*PUBLISHED, *IN_MEMORY])
def test_a_published_name_is_read_as_ours(key, ours, prefix):
    array = np.ones(3)
    expected = MappedArrays({ours: array}, {ours: prefix + key}, [], [])
    assert read_beside_an_anchor(prefix + key, array, prefix) == expected


@pytest.mark.parametrize("prefix", ["", "vit.", "deit."])
@pytest.mark.parametrize(
    "key, ours",
    [
        ("classifier.bias", "head/bias"),
        ("cls_classifier.bias", "head/bias"),
        ("distillation_classifier.bias", "head_distillation/bias"),
    ],
)
def test_classifiers_stand_outside_the_prefix(key, ours, prefix):
    assert read_beside_an_anchor(key, np.ones(3), prefix).keys == {ours: key}
    if prefix:
        assert read_beside_an_anchor(prefix + key, np.ones(3), prefix).unknown == [prefix + key]


@pytest.mark.parametrize(
    "key",
    [
        "embeddings.cls_token",
        "vit.embeddings.mask_token",
        "deit.embeddings.distillation_token",
        f"vit.{LAYER}.attention.attention.query",
        "vit.encoder.layer.03.layernorm_after.bias",
        "vit.layers.03.layernorm_after.bias",
        "layers.3.mlp.fc1.bias",
        "vit.layers.3.mlp.fc3.bias",
        "layernorm.weight",
        "decoder.0.weight",
        "classifier.bias.0",
    ],
)
def test_an_unknown_name_is_handed_back(key):
    assert read_beside_an_anchor(key, np.zeros(3)) == MappedArrays({}, {}, [key], [])


@pytest.mark.parametrize(
    "key, ours",
    [
        ("vit.pooler.dense.weight", "pre_logits/kernel"),
        ("classifier.weight", "head/kernel"),
        (f"vit.{LAYER}.attention.attention.value.weight", "encoder_block_3/attention/value/kernel"),
        ("vit.layers.3.attention.o_proj.weight", "encoder_block_3/attention/out/kernel"),
    ],
)
def test_axes_are_turned(key, ours):
    array = np.random.default_rng(0).random((3, 2))
    np.testing.assert_array_equal(read_beside_an_anchor(key, array).arrays[ours], array.T)
    patches = np.random.default_rng(0).random((5, 4, 3, 2))
    read = huggingface.read({ANCHOR: patches}).arrays
    np.testing.assert_array_equal(read["patch_embedding/kernel"], patches.transpose(2, 3, 1, 0))


def test_every_key_of_the_golden_is_read(golden):
    file = stored(golden, "hf_vit")
    assert len(file) == 40
    reading = huggingface.read(file)
    assert (len(reading.arrays), reading.unknown, reading.skipped) == (40, [], [])
    assert {*reading.keys.values()} == {*file}
    written = huggingface.write(reading.arrays, {"num_classes": 7, "distillation": False})
    assert written.keys() == file.keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, file[key], strict=True)
    model = from_pretrained(golden / GOLDENS["hf_vit"][0])
    assert {ours: a.shape for ours, a in reading.arrays.items()} == {
        n: a.shape for n, a in merged_heads(arrays(model)).items()
    }


def in_memory(key):
    """The name of a key in the state dict of a transformers 5 model."""
    key = key.replace(".encoder.layer.", ".layers.")
    for ours, theirs in (
        (r"attention\.attention\.(q|k|v)\w+", r"attention.\1_proj"),
        (r"attention\.output\.dense", "attention.o_proj"),
        (r"intermediate\.dense", "mlp.fc1"),
        (r"output\.dense", "mlp.fc2"),
    ):
        key = re.sub(ours, theirs, key)
    return key


def test_names_in_memory_load_the_same(golden, tmp_path):
    file = stored(golden, "hf_vit")
    renamed = {in_memory(key): array for key, array in file.items()}
    assert len({*renamed} - {*file}) == 32
    save_file(renamed, tmp_path / "other.safetensors")
    save_file(file, tmp_path / "same.safetensors")
    one, other = (
        arrays(from_pretrained(tmp_path / f"{n}.safetensors", num_heads=3)) for n in ("other", "same")
    )
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])
    with pytest.raises(ValueError, match="both map to encoder_block_0/"):
        huggingface.read(file | renamed)


def test_a_model_without_a_classifier_has_no_prefix(golden, tmp_path):
    inside = {k.removeprefix("vit."): a for k, a in stored(golden, "hf_vit").items() if k.startswith("vit.")}
    assert huggingface.detect(inside)
    save_file(inside, tmp_path / "bare.safetensors")
    model = from_pretrained(tmp_path / "bare.safetensors", num_heads=3)
    assert (model.num_classes, model.representation_size) == (None, None)
    assert huggingface.write(merged_heads(arrays(model)), model.get_config()).keys() == inside.keys()


def test_a_pooler_beside_a_classifier_is_left_out(golden, tmp_path):
    """ViTForImageClassification does not read it; some files of it have one all the same."""
    file = stored(golden, "hf_vit")
    poolers = {
        f"vit.pooler.dense.{leaf}": np.ones(shape, "float32")
        for leaf, shape in (("weight", (24, 24)), ("bias", 24))
    }
    reading = huggingface.read(file | poolers)
    assert (reading.unknown, {*reading.skipped}) == ([], {*poolers})
    assert reading.arrays.keys() == reading.keys.keys() == huggingface.read(file).arrays.keys()
    alone = {key: array for key, array in (file | poolers).items() if not key.startswith("classifier")}
    assert {*huggingface.read(alone).arrays} >= {"pre_logits/kernel", "pre_logits/bias"}
    save_file(file | poolers, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((golden / "hf_vit" / "config.json").read_text())
    model, original = from_pretrained(tmp_path), from_pretrained(golden / "hf_vit")
    assert model.representation_size is None
    for name, array in arrays(original).items():
        np.testing.assert_array_equal(arrays(model)[name], array)


# DeiT ----------------------------------------------------------------------------------------------


def test_a_deit_with_a_teacher_has_two_classifiers(tmp_path):
    model = small(distillation=True, activation="gelu_erf", norm_epsilon=1e-12)
    file = state_dict(model)
    assert {key for key in file if not key.startswith("deit.")} == {
        f"{name}_classifier.{leaf}" for name in ("cls", "distillation") for leaf in ("weight", "bias")
    }
    assert file["deit.embeddings.position_embeddings"].shape == (1, 2 + 4, 12)
    save_file(file, tmp_path / "deit.safetensors")
    loaded = from_pretrained(tmp_path / "deit.safetensors", num_heads=3)
    assert loaded.get_config() | {"name": model.name} == model.get_config()
    for name, array in arrays(loaded).items():
        np.testing.assert_array_equal(array, arrays(model)[name])


def test_a_distillation_token_that_no_classifier_reads_is_a_register(tmp_path):
    """DeiTForImageClassification keeps the token but has one classifier."""
    model = small(num_registers=1, activation="gelu_erf", norm_epsilon=1e-12)
    file = state_dict(model)
    assert file["deit.embeddings.distillation_token"].shape == (1, 1, 12)
    assert {key for key in file if not key.startswith("deit.")} == {"classifier.weight", "classifier.bias"}
    reading = huggingface.read(file)
    assert reading.keys["register_tokens/token"] == "deit.embeddings.distillation_token"
    assert "distillation_token/token" not in {*reading.arrays, *reading.keys}
    save_file(file, tmp_path / "deit.safetensors")
    loaded = from_pretrained(tmp_path / "deit.safetensors", num_heads=3)
    assert loaded.get_config() | {"name": model.name} == model.get_config()
    for name, array in arrays(loaded).items():
        np.testing.assert_array_equal(array, arrays(model)[name])


def test_a_plain_model_is_a_vit():
    assert {key.split(".")[0] for key in state_dict(small())} == {"vit", "classifier"}


def test_both_names_of_one_classifier_are_refused(golden):
    file = stored(golden, "hf_vit")
    with pytest.raises(ValueError, match="cls_classifier.bias and classifier.bias both map to head/bias"):
        huggingface.read({**file, "cls_classifier.bias": file["classifier.bias"]})


def test_two_models_in_one_file_are_refused(golden):
    file = stored(golden, "hf_vit")
    both = file | {key.replace("vit.", "deit."): array for key, array in file.items()}
    with pytest.raises(ValueError, match="vit.embeddings.* and deit.embeddings.*: two models"):
        huggingface.detect(both)


def test_only_its_own_files_are_taken():
    for prefix in ("", "vit.", "deit."):
        assert huggingface.detect([prefix + ANCHOR])
    for prefix in ("dinov2.", "beit.", "vit_mae."):
        assert not huggingface.detect([prefix + ANCHOR])
    assert not huggingface.detect(["vit.embeddings.cls_token", "patch_embed.proj.weight"])


def test_it_implies_the_defaults_of_transformers():
    assert huggingface.implied({}, {}) == {
        "activation": "gelu_erf",
        "norm_epsilon": 1e-12,
        "prefix_positions": True,
    }
