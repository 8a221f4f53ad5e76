import io
import re

import numpy as np
import pytest
from made.damage import damage_pixels
from made.folders import BROKEN, write_classes
from made.photos import exif
from made.prepared import example, prepare
from made.sampling import some
from made.shards import encoded, encoded_mask, structs, tar_of, write_parquet
from PIL import Image

from keras_vit import progress
from keras_vit.data.damage import damage_named, damaged
from keras_vit.data.dataset import Dataset
from keras_vit.data.datasets import load_dataset
from keras_vit.data.shard_writing import write_shards
from keras_vit.preprocessing import Preprocessing
from keras_vit.tasks.computing import computed


def of_folder(root, damage=None):
    """The name of a data set, and where the damage is."""
    path = write_classes(root) / "dog" / "03.png"
    if damage:
        path.write_bytes(damage)
    return f"folder:{root}", str(path) if damage else damage_pixels(path)


def of_tar(root, damage=BROKEN):
    images = [damage if number == 7 else encoded(number) for number in range(9)]
    tar = tar_of(root / "train.tar", images, cls=[0, 1, 0] * 3)
    return f"webdataset:{tar}", f"{tar}/7.png"


def of_parquet(root, damage=BROKEN):
    images = [*structs(range(7)), {"bytes": damage, "path": "7.png"}, *structs(range(8, 12))]
    file = write_parquet(root / "train.parquet", {"image": images, "label": [n % 2 for n in range(12)]})
    return f"parquet:{file}", f"{file}, row 3 of row group 1"


@pytest.mark.parametrize("write", some([of_folder, of_tar, of_parquet], 3))
def test_a_damaged_image_is_found_and_named_where_it_is_read(write, tmp_path):
    name, place = write(tmp_path)
    splits = load_dataset(name).splits
    [(found, reason)] = [found for samples in splits.values() for found in damaged(samples)]
    assert found == place and "\n" not in reason
    [samples] = [samples for samples in splits.values() if [*damaged(samples)]]
    with pytest.raises(ValueError) as error:
        [*computed(lambda images: np.zeros((len(images), 2)), samples, Preprocessing(8), 4)]
    words = f"1 image(s) cannot be read: {place} ({reason}); restore them and run the same command again"
    assert str(error.value) == words


@pytest.mark.parametrize("write", some([of_folder, of_tar, of_parquet], 3))
def test_an_image_of_too_many_pixels_is_named(write, tmp_path):
    file = io.BytesIO()
    Image.new("1", (12_000, 12_000)).save(file, "PNG")
    name, place = write(tmp_path, file.getvalue())
    splits = load_dataset(name, on_bad_image="keep").splits  # Others are refused by the headers of a folder.
    [(found, reason)] = [found for samples in splits.values() for found in damaged(samples)]
    assert found == place and re.search(r"more than \d+ pixels", reason)


@pytest.mark.parametrize("source", ["webdataset", "parquet"])
def test_masks_of_other_values_and_sizes_are_named(source, tmp_path, monkeypatch, capsys):
    (tmp_path / "classes.txt").write_text("sky\n-\nsea\n")
    turned = io.BytesIO()
    Image.new("RGB", (8, 6)).save(turned, "JPEG", exif=exif(6))
    images = [*map(encoded, range(11)), turned.getvalue()]
    masks = [encoded_mask(value) for value in (0, 1, 2, 255, 9)] + [encoded_mask(0)] * 7
    masks[7] = encoded_mask(1, (10, 6))
    numbers = range(len(images))
    if source == "webdataset":
        path = tar_of(tmp_path / "train.tar", images, **{"seg.png": masks})
        places = {number: f"{path}/{number}.seg.png" for number in numbers}
    else:
        path = write_parquet(tmp_path / "train.parquet", {"image": images, "mask": masks})
        places = {number: f"{path}, row {number % 4} of row group {number // 4}" for number in numbers}
    samples = load_dataset(f"{source}:{path}", task="segmentation", seed=None).split("train")
    reasons = {
        places[4]: "expected values of the 2 classes in classes.txt; got 9",
        places[7]: "10×6 pixels, but its image has 8×6 pixels",
        places[11]: "8×6 pixels, but its image has 6×8 pixels",
    }
    monkeypatch.setattr(progress, "LINE_EVERY", 1e-9)
    assert dict(damaged(samples)) == reasons
    shown = capsys.readouterr().err  # A total of the images alone would be half of all.
    assert "decoding images: image 24\n" in shown and "left" not in shown
    with (
        pytest.raises(ValueError, match=re.escape(f"{places[4]} ({reasons[places[4]]})")),
        damage_named([samples]),
    ):
        [*samples.evaluation_records()]
    with pytest.raises(ValueError, match=re.escape(reasons[places[4]])) as error:
        write_shards(
            Dataset("copy", ("sky", "sea"), {"train": samples}, task="segmentation"), tmp_path / "copy"
        )
    assert str(path) in str(error.value) and "Traceback" not in str(error.value)


@pytest.mark.slow
def test_records_are_all_decoded(tmp_path):
    prepare(tmp_path, {"train": [example(n) for n in range(20)]}, file_format="tfrecord")
    for samples in load_dataset("tfds:toy", data_dir=tmp_path).splits.values():
        assert len([*samples.stored()]) == len(samples) and [*damaged(samples)] == []
