import ml_dtypes
import numpy as np
import pytest
from reference.comparing import arrays
from reference.goldens import stored

from keras_vit import from_pretrained
from keras_vit.weights.layouts import LAYOUTS

big_vision = LAYOUTS["big_vision"]
STACK = "params/Transformer/encoderblock/"
NAMES = ("bigvision_gap_sincos", "bigvision_map")


def stacked(file):
    """The file with its blocks stacked, as big_vision saves a model with `scan`."""
    others, blocks = {}, {}
    for key, array in file.items():
        start, found, rest = key.partition("Transformer/encoderblock_")
        if found:
            number, _, leaf = rest.partition("/")
            blocks.setdefault(f"{start}Transformer/encoderblock/{leaf}", {})[int(number)] = array
        else:
            others[key] = array
    return others | {key: np.stack([by[i] for i in range(len(by))]) for key, by in blocks.items()}


@pytest.mark.parametrize("name", NAMES)
def test_stacked_blocks_are_read_and_written(golden, name):
    file = stored(golden, name)
    plain, mapped = big_vision.read(file), big_vision.read(stacked(file))
    assert plain.arrays.keys() == mapped.arrays.keys()
    for ours, array in plain.arrays.items():
        np.testing.assert_array_equal(mapped.arrays[ours], array)
    assert mapped.keys["encoder_block_1/mlp/dense_0/bias"] == f"{STACK}MlpBlock_0/Dense_0/bias"
    assert {*mapped.keys.values()} == {*stacked(file)}
    written = big_vision.write(plain.arrays, {}, scan=True)
    assert written.keys() == stacked(file).keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, stacked(file)[key], strict=True)


@pytest.mark.parametrize("shape", [(2, 3), (2,), ()])
def test_an_unknown_stack_is_reported_once(golden, shape):
    file = stacked(stored(golden, "bigvision_map")) | {f"{STACK}odd": np.zeros(shape, "float32")}
    assert big_vision.read(file).unknown == [f"{STACK}odd"]


def test_blocks_both_stacked_and_single_are_refused(golden):
    file = stored(golden, "bigvision_map")
    with pytest.raises(ValueError, match="encoderblock"):
        big_vision.read(stacked(file) | file)


def test_bfloat16_is_stored_as_two_raw_bytes(golden, tmp_path):
    file = stacked(stored(golden, "bigvision_map"))
    np.savez(tmp_path / "scan.npz", **{k: a.astype(ml_dtypes.bfloat16).view("V2") for k, a in file.items()})
    model, original = from_pretrained(tmp_path / "scan.npz"), from_pretrained(golden / "bigvision_map.npz")
    for name, array in arrays(original).items():
        rounded = array.astype(ml_dtypes.bfloat16).astype("float32")
        np.testing.assert_array_equal(arrays(model)[name], rounded)
