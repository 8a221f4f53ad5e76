import pytest
from made.sampling import some
from made.servers import serving_files
from made.shards import encoded, encoded_mask, read, read_splits, stored, structs, tar_of, write_parquet

from keras_vit.data import remote_files
from keras_vit.data.datasets import load_dataset
from keras_vit.training import RECIPES, RunConfig
from keras_vit.training.run import train

SUFFIXES = {"webdataset": ".tar", "parquet": ".parquet"}


@pytest.fixture(params=some(SUFFIXES, 2))
def source(request):
    return request.param


@pytest.fixture
def folder(source, tmp_path, monkeypatch):
    """A folder of two shards of 30 images of three classes, and room for one of them in the cache."""
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_files, "WAITS", (0, 0, 0))
    stored(tmp_path / "files", source)
    size = max(path.stat().st_size for path in (tmp_path / "files").iterdir())
    monkeypatch.setenv("KERAS_VIT_SHARD_CACHE_GB", str(1.5 * size / 1e9))
    return tmp_path / "files"


def name_of(source, server, last=1):
    return f"{source}:{server.url}/{{0..{last}}}{SUFFIXES[source]}"


def test_remote_shards_are_the_same_images_and_labels_as_local_ones(source, folder):
    (folder / "classes.txt").write_text("cat\ndog\nowl\n")
    with serving_files(folder) as server:
        data, local = load_dataset(name_of(source, server)), load_dataset(f"{source}:{folder}")
        assert data.summary() == local.summary() and data.version == local.version
        for split, samples in local.splits.items():
            assert data.split(split).labels == samples.labels and data.split(split).order == "lanes"
            assert read_splits(data, split) == read_splits(local, split)


@pytest.mark.slow
def test_training_reads_each_image_once_an_epoch_in_an_order_of_seed_and_step(source, folder):
    with serving_files(folder) as server:
        train = load_dataset(name_of(source, server)).split("train")
        whole = read(train.training_records(3, 0, 30, 3))
        epoch = sorted(read(train.evaluation_records()))
        assert sorted(whole[:45]) == sorted(whole[45:]) == epoch and len(epoch) == 45
        assert whole[:45] != whole[45:]
        assert read(train.training_records(3, 11, 30, 3)) == whole[33:]
        parts = [read(train.training_records(3, 5, 8, 6, slots)) for slots in (range(3), range(3, 6))]
        assert sorted(sum(parts, [])) == sorted(read(train.training_records(3, 5, 8, 6)))
    assert len([*(folder.parent / "cache" / "shards").glob("*.shard")]) == 1


def test_a_shard_is_a_chunk(source, folder):
    with serving_files(folder) as server:
        train = load_dataset(name_of(source, server)).split("train")
        shards = [number // 30 for number, _ in read(train.training_records(0, 0, len(train), 1))]
    assert sum(first != second for first, second in zip(shards, shards[1:])) > 10  # within a window
    assert len(train._chunked().counts) == 2


def test_a_second_start_fetches_no_shard_before_training_does(source, folder, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_SHARD_CACHE_GB", "1")
    with serving_files(folder) as server:
        for _ in range(2):
            data = load_dataset(name_of(source, server))
            downloads = [server.downloads(f"/{path.name}") for path in folder.iterdir()]
            assert downloads == [1, 1]
        for path in (folder.parent / "cache").rglob("*.shard"):
            path.unlink()
        assert len(read(load_dataset(name_of(source, server)).split("test").evaluation_records())) == 12
        assert [server.downloads(f"/{path.name}") for path in folder.iterdir()] == [2, 2]
        assert data.split("train").labels.count(0) == 15


def test_masks_and_captions_are_read_from_remote_shards(source, folder):
    numbers = range(60, 80)
    for path in folder.iterdir():
        path.unlink()
    texts, masks = [f"picture {n}" for n in numbers], [encoded_mask(n % 2) for n in numbers]
    write_parquet(
        folder / "0.parquet", {"image": structs(numbers), "text": texts, "mask": masks}, features=None
    )
    parts = {"txt": map(str.encode, texts), "seg.png": masks}
    tar_of(folder / "0.tar", map(encoded, numbers), **parts)
    (folder / "classes.txt").write_text("sky\nsea\n")
    fields = ["image=image"] if source == "parquet" else []
    with serving_files(folder) as server:
        data = load_dataset(name_of(source, server, 0), texts=True, fields=fields)
        for number, label in read(data.split("test").evaluation_records()):
            assert data.captions("test")[label] == (f"picture {number}",)
        data = load_dataset(name_of(source, server, 0), task="segmentation", fields=fields)
        assert data.class_names == ("sky", "sea")
        for number, label in read(data.split("train").evaluation_records()):
            assert label == [[[number % 2]] * 8] * 6


def test_a_missing_shard_is_named_before_anything_is_written(source, folder, tmp_path):
    with serving_files(folder) as server:
        shown = f"{server.url}/2{SUFFIXES[source]}"
        config = RunConfig(name_of(source, server, 2), RECIPES["digits"], "mu/8", image_size=16)
        with pytest.raises(ValueError, match=f"1 of 3 {SUFFIXES[source]} files are missing: {shown}$"):
            train(config, tmp_path / "run", 0)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_stops_with_the_name_of_a_shard_that_vanishes(source, folder, tmp_path):
    recipe = RECIPES["digits"].with_changes(total_steps=4, batch_size=8)
    with serving_files(folder) as server:
        config = RunConfig(name_of(source, server), recipe, "mu/8", image_size=16)
        data = load_dataset(config.dataset)
        del server.answers[f"/1{SUFFIXES[source]}"]
        for path in (tmp_path / "cache").rglob("*.shard"):
            path.unlink()
        with pytest.raises(OSError) as stopped:
            train(config, tmp_path / "run", 0, dataset=data)
    name = f"{server.url}/1{SUFFIXES[source]}"
    assert str(stopped.value) == f"'{name}' is missing; run the same command again when it can be read"
    assert not (tmp_path / "run" / "result.json").exists()
