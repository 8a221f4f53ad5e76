import re

import numpy as np
import pytest
from reference.comparing import arrays
from reference.goldens import GOLDENS, stored

from keras_vit import from_pretrained
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.table import MappedArrays

vit_jax = LAYOUTS["vit_jax"]
BLOCK = "Transformer/encoderblock_0"
ANCHOR = "embedding/kernel"
PREFIXES = ("", "opt/target/", "params/", "params/img/", "img/")
OFFICIAL = [name for name, (_, layout, _) in GOLDENS.items() if layout == "vit_jax"]
COUNTS = {"token": 40, "token_rep": 42, "gap": 39, "hybrid": 60, "hybrid_root": 27}


@pytest.fixture
def hybrid(golden):
    return stored(golden, "hybrid")


def read_beside_an_anchor(key, array=np.zeros(3)):  # noqa: B008 (it is not changed)
    """What the layout makes of one key, in a file that has the one by which the prefix is found."""
    reading = vit_jax.read({ANCHOR: np.zeros((1, 1, 1, 1)), key: array})
    reading.arrays.pop("patch_embedding/kernel")
    reading.keys.pop("patch_embedding/kernel")
    return reading


@pytest.mark.parametrize(
    "key, ours",
    [
        ("cls", "class_token/token"),
        ("embedding/bias", "patch_embedding/bias"),
        ("Transformer/posembed_input/pos_embedding", "position_embedding/table"),
        ("Transformer/encoderblock_11/LayerNorm_0/scale", "encoder_block_11/attention_norm/gamma"),
        (f"{BLOCK}/LayerNorm_2/bias", "encoder_block_0/mlp_norm/beta"),
        (f"{BLOCK}/LayerNorm_1/bias", "encoder_block_0/mlp_norm/beta"),
        (f"{BLOCK}/MultiHeadDotProductAttention_1/out/kernel", "encoder_block_0/attention/out/kernel"),
        (f"{BLOCK}/MultiHeadDotProductAttention_0/query/bias", "encoder_block_0/attention/query/bias"),
        (f"{BLOCK}/MlpBlock_3/Dense_1/kernel", "encoder_block_0/mlp/dense_1/kernel"),
        (f"{BLOCK}/MlpBlock_0/Dense_0/bias", "encoder_block_0/mlp/dense_0/bias"),
        ("Transformer/encoder_norm/scale", "encoder_norm/gamma"),
        ("conv_root/kernel", "conv_root/kernel"),
        ("block3/unit9/conv2/kernel", "block3_unit9_conv2/kernel"),
        ("block1/unit1/gn_proj/scale", "block1_unit1_gn_proj/gamma"),
        ("block1/unit1/conv_proj/kernel", "block1_unit1_conv_proj/kernel"),
        ("gn_root/bias", "gn_root/beta"),
        ("pre_logits/bias", "pre_logits/bias"),
        ("head/kernel", "head/kernel"),
    ],
)
def test_a_published_name_is_read_as_ours(key, ours):
    array = np.ones(3)
    assert read_beside_an_anchor(key, array) == MappedArrays({ours: array}, {ours: key}, [], [])


@pytest.mark.parametrize(
    "key",
    [
        "opt/count",
        "Transformer/encoderblock_x/LayerNorm_0/scale",
        "Transformer/encoderblock_01/LayerNorm_0/scale",
        f"{BLOCK}/LayerNorm_3/scale",
        f"{BLOCK}/MlpBlock_0/Dense_2/kernel",
        "xcls",
        "head/kernel/0",
        "block1/conv1/kernel",
        "block1/unit1/conv1/bias",
        "pos_embedding",
        "MAPHead_0/probe",
        "t",
    ],
)
def test_an_unknown_name_is_handed_back(key):
    assert read_beside_an_anchor(key) == MappedArrays({}, {}, [key], [])


@pytest.mark.parametrize("name", OFFICIAL)
def test_every_key_of_a_golden_is_read(golden, name):
    file = stored(golden, name)
    assert len(file) == COUNTS[name]
    reading = vit_jax.read(file)
    assert (len(reading.arrays), reading.unknown, reading.skipped) == (COUNTS[name], [], [])
    assert {*reading.keys.values()} == {*file}
    for ours, key in reading.keys.items():
        np.testing.assert_array_equal(reading.arrays[ours].ravel(), file[key].ravel())
    model = from_pretrained(golden / GOLDENS[name][0])
    assert {ours: a.shape for ours, a in reading.arrays.items()} == {
        n: a.shape for n, a in arrays(model).items()
    }


# What stands before the names and beside the model ------------------------------------------------


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", ["token", "hybrid"])
def test_a_prefix_is_taken_off(golden, name, prefix):
    file = stored(golden, name)
    plain = vit_jax.read(file)
    reading = vit_jax.read({prefix + key: array for key, array in file.items()})
    assert {**reading.keys} == {ours: prefix + key for ours, key in plain.keys.items()}
    assert (reading.unknown, reading.skipped) == ([], [])
    for ours, array in plain.arrays.items():
        np.testing.assert_array_equal(reading.arrays[ours], array)


@pytest.mark.parametrize(
    "prefix, beside",
    [
        (
            "opt/target/",
            ["opt/state/step", "opt/state/param_states/head/kernel/mu", "extra/accum_train_time"],
        ),
        ("params/", ["opt/0/count", "opt/1/mu/head/kernel", "extra/step"]),
        ("params/img/", ["params/txt/Embed_0/embedding", "params/t", "params/b", "opt/0/count"]),
        ("img/", ["txt/pos_embedding", "t", "b"]),
    ],
)
def test_what_stands_beside_a_model_is_left_out(prefix, beside):
    inside = [prefix + ANCHOR, f"{prefix}head/bias"]
    assert vit_jax.sidecar_keys([*inside, *beside]) == beside


@pytest.mark.parametrize("prefix", PREFIXES[1:])
@pytest.mark.parametrize("key", ["head/bias", "cls", "other/thing", "Transformer/encoder_norm/scale"])
def test_a_name_outside_the_prefix_is_unknown(prefix, key):
    """Not taken for one inside it, and not forgotten."""
    reading = vit_jax.read({prefix + ANCHOR: np.zeros((1, 1, 1, 1)), key: np.zeros(3)})
    assert [*reading.arrays] == ["patch_embedding/kernel"]
    assert (reading.unknown, reading.skipped) == ([key], [])


@pytest.mark.parametrize("prefix", PREFIXES[1:])
def test_an_unknown_name_inside_the_prefix_is_handed_back_with_it(prefix):
    reading = vit_jax.read({prefix + ANCHOR: np.zeros((1, 1, 1, 1)), f"{prefix}odd": np.zeros(3)})
    assert (reading.unknown, reading.skipped) == ([f"{prefix}odd"], [])


def test_two_models_in_one_file_are_refused(golden):
    file = stored(golden, "token")
    both = file | {f"opt/target/{key}": array for key, array in file.items()}
    with pytest.raises(ValueError, match="embedding/kernel and opt/target/embedding/kernel: two models"):
        vit_jax.detect(both)
    with pytest.raises(ValueError, match="two models"):
        vit_jax.read(both)


# Names and shapes of before ------------------------------------------------------------------------


def to_linen(key):
    for old, new in (("LayerNorm_2", "LayerNorm_1"), ("Attention_1", "Attention_0"), ("Block_3", "Block_0")):
        key = key.replace(old, new)
    return key


def assert_load_the_same(*paths):
    one, other = (arrays(from_pretrained(path)) for path in paths)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])


def test_names_as_published_and_linen_names_load_the_same(golden, tmp_path, hybrid):
    linen = {to_linen(key): array for key, array in hybrid.items()}
    assert linen.keys() != hybrid.keys()
    np.savez(tmp_path / "linen.npz", **linen)
    assert_load_the_same(golden / "hybrid.npz", tmp_path / "linen.npz")


def test_names_as_published_and_linen_names_do_not_mix(hybrid):
    for key in hybrid:
        if to_linen(key) != key:
            with pytest.raises(ValueError, match="both map to encoder_block_0/"):
                vit_jax.read({**hybrid, to_linen(key): hybrid[key]})


def test_group_norms_load_from_either_shape(golden, tmp_path, hybrid):
    flat = {key: a.reshape(-1) if re.search(r"\bgn", key) else a for key, a in hybrid.items()}
    assert hybrid["gn_root/scale"].shape == (1, 1, 1, 32)
    assert flat["gn_root/scale"].shape == (32,)
    np.savez(tmp_path / "flat.npz", **flat)
    assert_load_the_same(golden / "hybrid.npz", tmp_path / "flat.npz")


@pytest.mark.parametrize(
    "key, shape", [("cls", (1, 1, 1, 32)), ("gn_root/scale", (1, 1, 2, 16)), ("gn_root/bias", (1, 32))]
)
def test_other_shapes_are_left_as_they_are(key, shape):
    (array,) = read_beside_an_anchor(key, np.zeros(shape)).arrays.values()
    assert array.shape == shape


def test_names_are_written_as_linen_has_them(golden, hybrid):
    for name in OFFICIAL:
        file = stored(golden, name)
        written = vit_jax.write(vit_jax.read(file).arrays, {})
        assert [*written] == [to_linen(key) for key in file]


# Whose files these are -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [*LAYOUTS])
@pytest.mark.parametrize("name", [*GOLDENS])
def test_each_layout_takes_its_own_files_and_no_others(golden, layout, name):
    keys = stored(golden, name)
    assert LAYOUTS[layout].detect(keys) == (GOLDENS[name][1] == layout)


@pytest.mark.parametrize("name", [*GOLDENS])
def test_the_first_layout_that_takes_a_file_is_its_own(golden, name):
    keys = stored(golden, name)
    assert next(n for n, module in LAYOUTS.items() if module.detect(keys)) == GOLDENS[name][1]


def test_only_official_files_are_taken_for_it():
    assert vit_jax.detect(["conv_root/kernel", "embedding/kernel"])
    official = ["embedding/kernel", "Transformer/encoderblock_0/LayerNorm_2/scale"]
    assert vit_jax.detect([f"opt/target/{key}" for key in official])
    assert not vit_jax.detect(["embedding/kernel", "head/kernel"])
    assert not vit_jax.detect(["params/embedding/kernel", "Transformer/encoder_norm/scale"])
    assert not vit_jax.detect(["foo/embedding/kernel", "foo/Transformer/encoder_norm/scale"])
    assert not vit_jax.detect(["patch_embed.proj.weight", "cls_token"])
    assert not vit_jax.detect([])


def test_it_implies_what_the_official_code_computes():
    assert vit_jax.implied({}, {}) == {
        "activation": "gelu_tanh",
        "norm_epsilon": 1e-6,
        "prefix_positions": True,
        "position_embedding": "none",
    }
