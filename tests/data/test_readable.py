import numpy as np
import pytest
from made.folders import BROKEN
from made.prepared import example, prepare
from made.shards import encoded, tar_of, write_parquet

from keras_vit import Preprocessing
from keras_vit.data.datasets import load_dataset
from keras_vit.data.readable import readable_batches, why_unreadable
from keras_vit.data.samples import Samples

COUNT, BAD = 45, {7, 40}
IMAGES = [BROKEN if n in BAD else encoded(n) for n in range(COUNT)]


def of_folder(root):
    paths = [root / f"{n}.png" for n in range(COUNT)]
    for path, image in zip(paths, IMAGES):
        path.write_bytes(image)
    return Samples(tuple(map(str, paths)), tuple(range(COUNT)))


def of_tar(root):
    tar = tar_of(root / "a.tar", IMAGES, cls=range(COUNT))
    return load_dataset(f"webdataset:{tar}", seed=None).split("train")


def of_parquet(root):
    file = write_parquet(root / "a.parquet", {"image": IMAGES, "label": [*range(COUNT)]}, rows=10)
    return load_dataset(f"parquet:{file}", seed=None).split("train")


def of_mixture(root):
    names = []
    for name, numbers in (("a", range(20)), ("b", range(20, COUNT))):
        columns = {"image": [IMAGES[n] for n in numbers], "label": [*numbers]}
        if name == "a":
            columns["label"][-1] = COUNT - 1  # The same classes are in both.
        names.append(f"parquet:{write_parquet(root / f'{name}.parquet', columns, rows=6)}")
    return load_dataset(" + ".join(names), seed=None).split("train")


def numbers_of(batches):
    return np.concatenate([batch.numbers for batch in batches]).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("make", [of_folder, of_tar, of_parquet, of_mixture])
def test_each_readable_image_of_a_part_is_read_once_with_its_number(make, tmp_path):
    samples = make(tmp_path)
    batches = [*readable_batches(samples, 3, 43, Preprocessing(4, interpolation="nearest"), 8)]
    numbers = numbers_of(batches)
    assert sorted(numbers) == [n for n in range(3, 43) if n not in BAD]
    assert {len(batch.numbers) for batch in batches[:-1]} == {8}
    for batch in batches:
        assert batch.inputs.shape == (len(batch.numbers), 4, 4, 3)
        assert (batch.sizes == [6, 8]).all()
        if make is not of_mixture:
            assert batch.labels.tolist() == batch.numbers.tolist()
    again = readable_batches(samples, 3, 43, Preprocessing(4), 8)
    assert numbers_of(again) == numbers
    for number in BAD:
        assert why_unreadable(samples, number).startswith("not a readable image")
        assert samples.content(number) == BROKEN
    assert len({samples.place(number) for number in range(COUNT)}) == COUNT


def test_records_have_their_numbers(tmp_path):
    prepare(tmp_path, {"train": [example(n) for n in range(30)]}, file_format="tfrecord")
    samples = load_dataset("tfds:toy", data_dir=tmp_path).split("train")
    whole = [*samples.evaluation_records().as_numpy_iterator()]
    found = {int(n): (image, label) for n, image, label in samples.numbered_records(0, len(samples))}
    assert sorted((image.numpy(), int(label)) for image, label in found.values()) == sorted(whole)
    part = {int(n): image.numpy() for n, image, _ in samples.numbered_records(4, 9)}
    assert part == {n: found[n][0].numpy() for n in range(4, 9)}
    assert samples.content(5) == part[5] and samples.place(5) == "sample 5"


def test_a_file_that_vanishes_is_left_out_and_a_shard_that_does_is_an_error(tmp_path):
    samples = of_folder(tmp_path)
    (tmp_path / "2.png").unlink()
    assert 2 not in numbers_of(readable_batches(samples, 0, 10, Preprocessing(4), 8))
    assert why_unreadable(samples, 2) == "No such file or directory"
    samples = of_tar(tmp_path)
    (tmp_path / "a.tar").unlink()
    assert [*readable_batches(samples, 0, 10, Preprocessing(4), 8)] == []
    with pytest.raises(OSError, match="a.tar"):
        why_unreadable(samples, 2)
    with pytest.raises(OSError, match="4.png could not be read, but can be now; run the same command again"):
        why_unreadable(of_folder(tmp_path), 4)


def test_images_of_any_size_come_alone_and_packed_ones_together(tmp_path):
    samples = of_folder(tmp_path)
    assert [b.inputs.shape for b in readable_batches(samples, 0, 3, Preprocessing(None), 8)] == [
        (1, 6, 8, 3)
    ] * 3
    packing = Preprocessing(None, patch_size=2, max_num_patches=12)
    batches = [*readable_batches(samples, 0, 10, packing, 4)]
    assert numbers_of(batches) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert batches[0].inputs["patches"].shape == (4, 12, 12)
