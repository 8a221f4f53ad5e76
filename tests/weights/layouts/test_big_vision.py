import ml_dtypes
import numpy as np
import pytest
from reference.comparing import arrays
from reference.goldens import GOLDENS, stored
from reference.small import small

from keras_vit import from_pretrained
from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.table import MappedArrays

big_vision = LAYOUTS["big_vision"]
ANCHOR = "params/embedding/kernel"
STACK = "params/Transformer/encoderblock/"
COUNTS = {"bigvision_gap_sincos": 40, "bigvision_map": 54}


def read_beside_an_anchor(key, array):
    reading = big_vision.read({ANCHOR: np.zeros((1, 1, 1, 1)), key: array})
    reading.arrays.pop("patch_embedding/kernel")
    reading.keys.pop("patch_embedding/kernel")
    return reading


def stacked(file):
    """The file as big_vision stores a model that it scanned over its blocks."""
    apart, blocks = {}, {}
    for key, array in file.items():
        start, found, rest = key.partition("Transformer/encoderblock_")
        if found:
            number, _, leaf = rest.partition("/")
            blocks.setdefault(f"{start}Transformer/encoderblock/{leaf}", {})[int(number)] = array
        else:
            apart[key] = array
    return apart | {key: np.stack([by[i] for i in range(len(by))]) for key, by in blocks.items()}


@pytest.mark.parametrize(
    "key, ours",
    [
        ("params/cls", "class_token/token"),
        ("params/pos_embedding", "position_embedding/table"),
        ("params/Transformer/pos_embedding", "position_embedding/table"),
        ("params/Transformer/encoderblock_1/LayerNorm_1/bias", "encoder_block_1/mlp_norm/beta"),
        ("params/Transformer/encoderblock_1/LayerNorm_2/bias", "encoder_block_1/mlp_norm/beta"),
        ("params/MAPHead_0/probe", "attention_pooling/probe"),
        ("params/MAPHead_0/LayerNorm_0/scale", "attention_pooling/mlp_norm/gamma"),
        ("params/MAPHead_0/MlpBlock_0/Dense_1/kernel", "attention_pooling/mlp/dense_1/kernel"),
        (
            "params/MAPHead_0/MultiHeadDotProductAttention_0/key/bias",
            "attention_pooling/attention/key/bias",
        ),
        ("params/probe", "attention_pooling/probe"),
        ("params/LayerNorm_0/scale", "attention_pooling/mlp_norm/gamma"),
        ("params/MlpBlock_0/Dense_1/kernel", "attention_pooling/mlp/dense_1/kernel"),
        ("params/MultiHeadDotProductAttention_0/key/bias", "attention_pooling/attention/key/bias"),
        ("params/pre_logits/kernel", "pre_logits/kernel"),
        ("params/head/bias", "head/bias"),
    ],
)
def test_a_published_name_is_read_as_ours(key, ours):
    array = np.ones(3)
    assert read_beside_an_anchor(key, array) == MappedArrays({ours: array}, {ours: key}, [], [])


@pytest.mark.parametrize(
    "key",
    [
        "params/MAPHead_1/probe",
        "params/MAPHead_0/LayerNorm_1/scale",
        "params/Transformer/posembed_input/pos_embedding",
        "params/Transformer/encoderblock_0/probe",
        "params/LayerNorm_1/scale",
        "params/conv_root/kernel",
        "params/t",
        "head/bias",
    ],
)
def test_an_unknown_name_is_handed_back(key):
    assert read_beside_an_anchor(key, np.zeros(3)) == MappedArrays({}, {}, [key], [])


@pytest.mark.parametrize("name", [*COUNTS])
def test_every_key_of_a_golden_is_read(golden, name):
    file = stored(golden, name)
    assert len(file) == COUNTS[name]
    reading = big_vision.read(file)
    assert (len(reading.arrays), reading.unknown, reading.skipped) == (COUNTS[name], [], [])
    for ours, key in reading.keys.items():
        np.testing.assert_array_equal(reading.arrays[ours], file[key], strict=True)
    model = from_pretrained(golden / GOLDENS[name][0], image_size=32)
    assert {ours: a.shape for ours, a in reading.arrays.items()} == {
        n: a.shape for n, a in arrays(model).items()
    }
    written = big_vision.write(reading.arrays, {})
    assert [*written] == [*file]


@pytest.mark.parametrize("prefix", ["", "opt/target/", "img/", "params/img/"])
@pytest.mark.parametrize("name", [*COUNTS])
def test_a_prefix_is_taken_off(golden, name, prefix):
    file = {prefix + key.removeprefix("params/"): a for key, a in stored(golden, name).items()}
    assert big_vision.detect(file)
    reading = big_vision.read(file)
    assert ({*reading.keys.values()}, reading.unknown) == ({*file}, [])
    assert big_vision.read(stored(golden, name)).arrays.keys() == reading.arrays.keys()


def test_the_image_tower_of_a_pair_is_read_alone(golden):
    file = {key.replace("params/", "params/img/"): a for key, a in stored(golden, "bigvision_map").items()}
    beside = ["params/txt/pos_embedding", "params/t", "params/b", "opt/0/count"]
    assert big_vision.sidecar_keys([*file, *beside]) == beside
    assert {*big_vision.read(file).keys.values()} == {*file}


# Stacked blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*COUNTS])
def test_stacked_blocks_are_read_as_blocks(golden, name):
    file = stored(golden, name)
    plain, reading = big_vision.read(file), big_vision.read(stacked(file))
    assert plain.arrays.keys() == reading.arrays.keys()
    for ours, array in plain.arrays.items():
        np.testing.assert_array_equal(reading.arrays[ours], array)
    assert reading.keys["encoder_block_1/mlp/dense_0/bias"] == f"{STACK}MlpBlock_0/Dense_0/bias"
    assert {*reading.keys.values()} == {*stacked(file)}


@pytest.mark.parametrize("name", [*COUNTS])
def test_blocks_are_written_in_a_stack_or_one_by_one(golden, name):
    file = stored(golden, name)
    ours = big_vision.read(file).arrays
    for expected, scan in ((stacked(file), True), (file, False)):
        written = big_vision.write(ours, {}, scan=scan)
        assert written.keys() == expected.keys()
        for key, array in written.items():
            np.testing.assert_array_equal(array, expected[key], strict=True)


def test_more_than_ten_blocks_stand_in_their_order():
    model = small(num_layers=12, pooling="map", prefix_positions=False)
    written = big_vision.write(arrays(model), model.get_config(), scan=True)
    key = f"{STACK}LayerNorm_0/scale"
    assert written[key].shape == (12, 12)
    reading = big_vision.read(written)
    assert reading.arrays.keys() == arrays(model).keys()
    for i in range(12):
        name = f"encoder_block_{i}/attention_norm/gamma"
        np.testing.assert_array_equal(written[key][i], arrays(model)[name])
        np.testing.assert_array_equal(reading.arrays[name], arrays(model)[name])


@pytest.mark.parametrize("shape", [(2, 3), (2,), ()])
def test_an_unknown_name_in_the_stack_is_handed_back_once(golden, shape):
    file = stacked(stored(golden, "bigvision_map")) | {f"{STACK}odd": np.zeros(shape, "float32")}
    assert big_vision.read(file).unknown == [f"{STACK}odd"]


def test_blocks_do_not_stand_in_the_file_twice(golden):
    file = stored(golden, "bigvision_map")
    with pytest.raises(ValueError, match="encoderblock"):
        big_vision.read(stacked(file) | file)


def test_a_scanned_file_of_two_byte_numbers_loads(golden, tmp_path):
    """bfloat16 as the project stores it: .npz has no such type, and calls it two raw bytes."""
    file = stacked(stored(golden, "bigvision_map"))
    np.savez(tmp_path / "scan.npz", **{k: a.astype(ml_dtypes.bfloat16).view("V2") for k, a in file.items()})
    model, original = from_pretrained(tmp_path / "scan.npz"), from_pretrained(golden / "bigvision_map.npz")
    assert arrays(model).keys() == arrays(original).keys()
    for name, array in arrays(original).items():
        rounded = array.astype(ml_dtypes.bfloat16).astype("float32")
        np.testing.assert_array_equal(arrays(model)[name], rounded)


# Whose files these are -----------------------------------------------------------------------------


def test_positions_tell_whose_file_it_is():
    keys = ["embedding/kernel", "Transformer/encoder_norm/scale"]
    assert big_vision.detect(keys)
    assert big_vision.detect([*keys, "pos_embedding"])
    assert not big_vision.detect([*keys, "Transformer/posembed_input/pos_embedding"])
    assert not big_vision.detect([*keys, "conv_root/kernel"])
    assert not big_vision.detect(["embedding/kernel", "head/kernel"])
    assert not big_vision.detect(["params/embedding/kernel", "Transformer/encoder_norm/scale"])
    assert not big_vision.detect(["patch_embed.proj.weight"])


def test_it_implies_what_the_project_computes():
    assert big_vision.implied({}, {}) == {
        "activation": "gelu_tanh",
        "norm_epsilon": 1e-6,
        "prefix_positions": False,
        "position_embedding": "sincos2d",
    }
