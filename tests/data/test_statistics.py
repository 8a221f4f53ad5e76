import io

import pillow_heif
import pytest
from made.encoded import png_of
from made.folders import BROKEN, write_classes
from made.prepared import prepare
from made.shards import encoded, structs, tar_of, write_parquet
from PIL import Image

from keras_vit.data.datasets import load_dataset
from keras_vit.data.statistics import describe


def test_sizes_formats_classes_and_their_order_are_counted(tmp_path):
    columns = {"image": structs(range(11)), "label": [0] * 4 + [1] * 7}
    for split in ("train", "validation", "test"):
        write_parquet(tmp_path / f"{split}.parquet", columns)
    found = describe(load_dataset(f"parquet:{tmp_path}"))
    assert found["class_names"] == ["0", "1"] and found["damaged"] == []
    train = found["splits"]["train"]
    sizes = sorted(len(encoded(number)) for number in range(11))
    assert train["bytes"] == [sizes[0], sizes[5], sizes[-1]]
    assert (train["images"], train["read"], train["formats"]) == (11, 11, {"PNG": 11})
    assert (train["width"], train["height"]) == ([8, 8, 8], [6, 6, 6])
    assert train["by_class"] == {"0": 4, "1": 7}
    changes, expected = train["class_changes"]
    assert changes == 1 and expected == pytest.approx(10 - (4 * 3 + 7 * 6) / 11)
    assert len(found["doubled"]) == 11  # The splits have the same images.
    places = [f"{s}: {tmp_path}/{s}.parquet, row 0 of row group 0" for s in ("train", "validation", "test")]
    assert found["doubled"][0] == places


def test_damaged_and_doubled_images_have_places(tmp_path):
    giant = png_of(bytes(10), 20_000, 20_000, 8, 0)
    images = [BROKEN, encoded(1), encoded(1), giant, *map(encoded, range(2, 10))]
    tar = tar_of(tmp_path / "train.tar", images, cls=[0, 1] * 6)
    found = describe(load_dataset(f"webdataset:{tar}"))
    reasons = dict(found["damaged"])
    assert reasons.keys() == {f"{tar}/0.png", f"{tar}/3.png"}
    assert reasons[f"{tar}/0.png"].startswith(f"not a readable image: {len(BROKEN)} bytes (expected JPEG, ")
    assert reasons[f"{tar}/3.png"].endswith(" bytes (it has more than 89478485 pixels)")
    [places] = found["doubled"]
    assert sorted(place.partition(": ")[2] for place in places) == [f"{tar}/1.png", f"{tar}/2.png"]


def test_headers_are_those_of_images_that_can_be_decoded(tmp_path):
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.new("RGB", (32, 24))).save(file)
    write_parquet(tmp_path / "train.parquet", {"image": [file.getvalue()] * 2, "label": [0, 1]})
    found = describe(load_dataset(f"parquet:{tmp_path}", seed=None))
    train = found["splits"]["train"]
    assert found["damaged"] == [] and train["formats"] == {"HEIF": 2} and train["width"] == [32] * 3


def test_a_part_of_the_images_is_read(tmp_path):
    dataset = load_dataset(f"folder:{write_classes(tmp_path, count=50)}")
    found = describe(dataset, 10)["splits"]
    assert {split: (of["images"], of["read"]) for split, of in found.items()} == {
        **{"train": (72, 11), "validation": (8, 8), "test": (20, 10)},
    }


def test_labels_that_are_unknown_before_reading_are_not_counted(tmp_path):
    prepare(tmp_path, {"train": 30}, file_format="tfrecord")
    found = describe(load_dataset("tfds:toy", data_dir=tmp_path))["splits"]
    assert not any("by_class" in of for of in found.values()) and found["train"]["read"] == 22
