import re

import numpy as np
import pytest
from reference.comparing import arrays, assert_same_arrays
from reference.goldens import stored

from keras_vit import from_pretrained
from keras_vit.weights.layouts import LAYOUTS

vit_jax = LAYOUTS["vit_jax"]


def to_linen(key):
    for old, new in (("LayerNorm_2", "LayerNorm_1"), ("Attention_1", "Attention_0"), ("Block_3", "Block_0")):
        key = key.replace(old, new)
    return key


def test_published_and_linen_names_load_the_same(golden, tmp_path):
    file = stored(golden, "hybrid")
    linen = {to_linen(key): array for key, array in file.items()}
    assert linen.keys() != file.keys()
    flat = {key: a.reshape(-1) if re.search(r"\bgn", key) else a for key, a in linen.items()}
    assert (file["gn_root/scale"].shape, flat["gn_root/scale"].shape) == ((1, 1, 1, 32), (32,))
    np.savez(tmp_path / "linen.npz", **flat)
    one, other = (arrays(from_pretrained(p)) for p in (golden / "hybrid.npz", tmp_path / "linen.npz"))
    assert_same_arrays(one, other)
    assert [*vit_jax.write(vit_jax.read(file).arrays, {})] == [*linen]


@pytest.mark.parametrize(
    "key, shape", [("cls", (1, 1, 1, 32)), ("gn_root/scale", (1, 1, 2, 16)), ("gn_root/bias", (1, 32))]
)
def test_other_shapes_do_not_change(key, shape):
    mapped = vit_jax.read({"embedding/kernel": np.zeros((1, 1, 1, 1)), key: np.zeros(shape)})
    assert [array.shape for array in mapped.arrays.values()] == [(1, 1, 1, 1), shape]
