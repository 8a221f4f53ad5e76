import numpy as np
import pytest
from reference.comparing import assert_same_arrays
from reference.goldens import stored

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
    assert_same_arrays(mapped.arrays, plain.arrays)
    assert mapped.keys["encoder_block_1/mlp/dense_0/bias"] == f"{STACK}MlpBlock_0/Dense_0/bias"
    assert {*mapped.keys.values()} == {*stacked(file)}
    written = big_vision.write(plain.arrays, {}, scan=True)
    assert_same_arrays(written, stacked(file))


@pytest.mark.parametrize("shape", [(2, 3), (2,), ()])
def test_an_unknown_stack_is_reported_once(golden, shape):
    file = stacked(stored(golden, "bigvision_map")) | {f"{STACK}odd": np.zeros(shape, "float32")}
    assert big_vision.read(file).unknown == [f"{STACK}odd"]


def test_blocks_both_stacked_and_single_are_refused(golden):
    file = stored(golden, "bigvision_map")
    with pytest.raises(ValueError, match="encoderblock"):
        big_vision.read(stacked(file) | file)
