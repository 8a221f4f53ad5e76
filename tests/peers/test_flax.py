"""Flax reads the files of scenic's layout that are written here, and its own are read."""

import numpy as np
from peers.packages import flax
from tasks.detection.test_scenic import words

from keras_vit import save_weights
from keras_vit.weights.array_files import read_arrays


def test_flax_reads_what_is_written(tmp_path):
    from flax import serialization, traverse_util

    assert flax.__name__ == serialization.__package__
    save_weights(words(), tmp_path / "model.msgpack", "scenic")
    tree = serialization.msgpack_restore((tmp_path / "model.msgpack").read_bytes())
    ours, theirs = read_arrays(tmp_path / "model.msgpack"), traverse_util.flatten_dict(tree, sep="/")
    assert {*theirs} - {*ours} == {"keras_vit_configuration_sha256"}
    for name, array in ours.items():
        np.testing.assert_array_equal(theirs[name], array, err_msg=name)


def test_what_flax_writes_is_read(tmp_path, monkeypatch):
    """Also an array in chunks, as it writes those of more than a gigabyte."""
    from flax import serialization

    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 40)
    tree = {
        "params": {"a": {"kernel": np.arange(24, dtype="float32").reshape(4, 6)}, "b": np.ones(3, "float16")}
    }
    (tmp_path / "x.msgpack").write_bytes(serialization.msgpack_serialize(tree, in_place=False))
    found = read_arrays(tmp_path / "x.msgpack")
    np.testing.assert_array_equal(found["params/a/kernel"], tree["params"]["a"]["kernel"])
    np.testing.assert_array_equal(found["params/b"], tree["params"]["b"])
