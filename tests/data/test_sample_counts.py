import json

import pytest
from made.servers import serving_files
from made.shards import encoded, tar_of

from keras_vit.data import remote_files
from keras_vit.data.datasets import load_dataset
from keras_vit.data.sample_counts import check_counts
from keras_vit.data.shard_cache import shards_at
from keras_vit.data.shard_writing import write_shards

METADATA = {
    "_info.json": {"splits": {"train": {"filenames": ["a.tar", "b.tar"], "shard_lengths": [20, 3]}}},
    "sizes.json": {"a.tar": 20, "b.tar": 3},
    "a_stats.json": {"count": 21, "successes": 20, "failed_to_download": 1},
}


@pytest.fixture
def tar(tmp_path):
    """A tar file of 20 images of two classes, the first of which is left out."""
    return tar_of(tmp_path / "a.tar", map(encoded, range(20)), cls=[-1, 1, *[0, 1] * 9])


@pytest.mark.parametrize("file", METADATA)
def test_tar_files_have_the_counts_of_the_metadata_beside_them(tar, file):
    (tar.parent / file).write_text(json.dumps(METADATA[file]))
    data = load_dataset(f"webdataset:{tar}")
    assert sum(map(len, data.splits.values())) == 19
    (tar.parent / file).write_text(json.dumps(METADATA[file]).replace("20", "25"))
    with pytest.raises(ValueError, match=f"a.tar': expected 25 samples, as {file} beside it says; got 20"):
        load_dataset(f"webdataset:{tar}")


def test_tar_files_have_the_splits_of_the_metadata_beside_them(tar):
    other = json.dumps(METADATA["_info.json"]).replace('"train"', '"validation"')
    (tar.parent / "_info.json").write_text(other)
    message = "a.tar': expected one split; got 'train' in its path, and 'validation' in _info.json"
    with pytest.raises(ValueError, match=message):
        load_dataset(f"webdataset:{tar}")
    tar.rename(tar.parent / "val-a.tar")
    (tar.parent / "_info.json").write_text(other.replace("a.tar", "val-a.tar"))
    with pytest.raises(ValueError, match="no samples to train on"):
        load_dataset(f"webdataset:{tar.parent}")


def test_remote_metadata_are_compared(tar, monkeypatch):
    monkeypatch.setattr(remote_files, "WAITS", (0, 0, 0))
    (tar.parent / "sizes.json").write_text('{"a.tar": 25}')
    message = "a.tar': expected 25 samples, as sizes.json beside it says; got 20"
    with serving_files(tar.parent) as server, pytest.raises(ValueError, match=message):
        load_dataset(f"webdataset:{server.url}/a.tar")


@pytest.mark.parametrize("text", ["{", "[1]", '{"splits": {"train": {}}}', '{"splits": {"train": 1}}'])
def test_damaged_metadata_are_named(tar, text):
    (tar.parent / "_info.json").write_text(text)
    with pytest.raises(ValueError, match="_info.json' is damaged: expected the sample counts"):
        load_dataset(f"webdataset:{tar}")


def test_the_counts_of_written_shards_are_compared(tar):
    folder = tar.parent / "written"
    files = write_shards(load_dataset(f"webdataset:{tar}"), folder, images_per_shard=7)
    counts = [json.loads((folder / "sizes.json").read_text())[file.rpartition("/")[2]] for file in files]
    shards = shards_at(files)
    check_counts(dict(zip(shards, counts)))
    message = f"expected {counts[0]} samples, as _info.json beside it says; got {counts[0] + 1}"
    with pytest.raises(ValueError, match=message):
        check_counts({shards[0]: counts[0] + 1})
