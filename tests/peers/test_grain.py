"""Grain reads the splits of a data set as its `MapDataset.source`."""

import numpy as np
import pytest
from peers.packages import grain

from keras_vit.data.datasets import load_dataset
from keras_vit.data.shard_writing import write_shards


@pytest.fixture(scope="module", params=["digits", "webdataset"])
def samples(request, tmp_path_factory):
    digits = load_dataset("digits")
    if request.param == "digits":
        return digits.split("test")
    folder = tmp_path_factory.mktemp("tars") / "tar"
    write_shards(digits, folder, "webdataset", images_per_shard=500)
    return load_dataset(f"webdataset:{folder}").split("test")


def test_grain_has_each_sample_once_in_an_epoch(samples):
    data = grain.MapDataset.source(samples)
    assert len(data) == len(samples) and data[3] == samples[3]
    shuffled = [*data.seed(1).shuffle()]
    assert shuffled != [*data]
    assert sorted(shuffled) == sorted(samples[i] for i in range(len(samples)))


def test_an_iterator_of_grain_is_continued(samples):
    data = grain.MapDataset.source(samples).seed(1).shuffle().map(lambda pair: (len(pair[0]), pair[1]))
    iterator = iter(data.to_iter_dataset().batch(16))
    first = next(iterator)
    state = iterator.get_state()
    expected = next(iterator)
    again = iter(data.to_iter_dataset().batch(16))
    again.set_state(state)
    for found, known in zip(next(again), expected):
        np.testing.assert_array_equal(found, known)
    assert not np.array_equal(first[0], expected[0])
