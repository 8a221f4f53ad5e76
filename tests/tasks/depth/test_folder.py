import io
import json

import numpy as np
import pytest
import tensorflow_datasets as tfds
from made.damage import damage_pixels
from made.encoded import npy
from made.folders import write_broken
from made.prepared import PICTURE, prepare
from made.sampling import some
from made.shards import encoded, write_parquet, write_tar
from made.tables import by_table
from PIL import Image

from keras_vit.data.damage import damaged
from keras_vit.data.datasets import load_dataset
from keras_vit.data.fingerprint import differences, fingerprint
from keras_vit.data.shard_writing import write_shards
from keras_vit.preprocessing.image_files import image_bytes
from keras_vit.tasks import digits_scenes

SIZE = (6, 8)
METERS = {"scale": 1000, "unit": "m"}
SPLITS = ("train", "validation", "test")


def meters(number):
    values = np.random.default_rng(number).integers(500, 9000, SIZE, "uint16") / 1000
    return values.astype("float32")


def millimeters(number):
    """A PNG of `meters`."""
    return image_bytes(np.round(meters(number) * 1000).astype("uint16"))


def write(root, count=10, folder="depths", suffix=".png", of=millimeters, settings=METERS):
    for name in ("images", folder):
        (root / name).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (root / "images" / f"{number}.png").write_bytes(encoded(number, SIZE))
        (root / folder / f"{number}{suffix}").write_bytes(of(number))
    if settings is not None:
        (root / "depth.json").write_text(json.dumps(settings))
    return root


def load(name, **options):
    return load_dataset(name if isinstance(name, str) else f"folder:{name}", task="depth", **options)


def maps(dataset):
    """The depth map of each image by the image's number."""
    return {
        int(np.asarray(Image.open(io.BytesIO(image)))[0, 0, 0]): depth
        for samples in dataset.splits.values()
        for image, depth in samples.evaluation_records().as_numpy_iterator()
    }


def assert_meters(dataset, count=10):
    found = maps(dataset)
    assert sorted(found) == [*range(count)]
    for number, depth in found.items():
        np.testing.assert_array_equal(depth[..., 0], meters(number))


def test_images_with_depth_maps_of_their_names_are_a_data_set(tmp_path):
    write(tmp_path)
    (tmp_path / "depths" / "extra.png").write_bytes(millimeters(0))
    dataset = load(tmp_path)
    assert [len(dataset.splits[split]) for split in SPLITS] == [7, 1, 2]
    assert dataset.summary() == (
        "1 channel (depth): 7 train, 1 validation, 2 test; validation and test held out; 1 file ignored "
        "(.png)"
    )
    assert_meters(dataset)
    np.testing.assert_array_equal(dataset.split("test")[0][1][..., 0], meters(4))
    known = np.stack([meters(number) for number in range(10)])
    about = dataset.split("test").label_values
    assert (about["scale"], about["unit"], about["quantity"]) == (1000, "m", "depth")
    assert (about["min"], about["max"]) == (known.min(), known.max())


def test_disparities_become_depths(tmp_path):
    write(
        tmp_path,
        folder="disparities",
        suffix=".npy",
        of=lambda n: npy(40 / meters(n)),
        settings={"scale": 40},
    )
    for number, depth in maps(load(tmp_path)).items():
        np.testing.assert_allclose(depth[..., 0], meters(number), rtol=1e-6)


def test_values_have_any_channels(tmp_path):
    write(
        tmp_path, folder="values", suffix=".npy", of=lambda n: npy(-meters(n)[..., np.newaxis].repeat(3, -1))
    )
    assert load(tmp_path).class_names == ("channel_0", "channel_1", "channel_2")
    (tmp_path / "depth.json").write_text('{"names": ["x", "y", "z"]}')
    dataset = load(tmp_path)
    assert dataset.class_names == ("x", "y", "z")
    np.testing.assert_array_equal(maps(dataset)[3], -meters(3)[..., np.newaxis].repeat(3, -1))


def no_measurement(number):
    return image_bytes(np.zeros(SIZE, "uint16"))


REFUSED = {  # what is wrong: how it is written, and the message
    "no scale": (
        {"settings": None},
        "depths/0.png: uint16 numbers, and depth.json has no scale, .*; write one, such as .*",
    ),
    "another size": (
        {"of": lambda n: image_bytes(np.ones((6, 9), "uint16"))},
        r"10 depth map\(s\) have another size than .*/depths/0.png \(9×6 pixels, but its image has 8×6",
    ),
    "nothing measured": ({"of": no_measurement}, r"10 image.*depths/0.png \(no valid measurement\)"),
    "several channels": (
        {"suffix": ".npy", "of": lambda n: npy(np.ones((*SIZE, 3)))},
        r"depths/0.npy \(expected 1 channel\(s\); got 3\)",
    ),
    "damaged": ({"of": lambda n: millimeters(n)[:-9]}, r"depths/0.png \(a damaged PNG file\)"),
    "color": ({"of": lambda n: encoded(n, SIZE)}, r"depths/0.png \(expected a gray image .* mode RGB\)"),
    "another suffix": (
        {"suffix": ".txt"},
        r"10 image\(s\) in .* have no depth map: .*expected images/NAME.jpg with",
    ),
    "an unknown key": (
        {"settings": {"scales": 1}},
        "depth.json: expected keys of .*; got 'scales' .*did you mean 'scale'",
    ),
    "no object": ({"settings": []}, "depth.json: expected an object; got list"),
}


@by_table("wrong", REFUSED)
def test_wrong_folders_are_refused(wrong, tmp_path):
    options, message = REFUSED[wrong]
    write(tmp_path, **options)
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path)
    assert str(caught.value).isprintable()


def test_two_maps_of_an_image_and_two_folders_of_maps_are_refused(tmp_path):
    write(tmp_path)
    with pytest.raises(ValueError, match="on_bad_image='keep' is for images without depth maps"):
        load(tmp_path, on_bad_image="keep")
    (tmp_path / "depths" / "3.npy").write_bytes(npy(meters(3)))
    with pytest.raises(
        ValueError, match="expected one depth map for each image; got depths/3.npy, depths/3.png"
    ):
        load(tmp_path)
    write(tmp_path, folder="disparities")
    with pytest.raises(ValueError, match="expected one folder of depths, .*; got depths, disparities"):
        load(tmp_path)


def test_images_and_depths_are_no_classes(tmp_path):
    with pytest.raises(
        ValueError, match="images and depths, for the task 'depth' .*; the task is 'single_label'$"
    ):
        load_dataset(f"folder:{write(tmp_path, 3)}")


def test_unreadable_images_and_maps_without_a_measurement_can_be_skipped(tmp_path):
    write(tmp_path, 20)
    (tmp_path / "depths" / "5.png").write_bytes(no_measurement(5))
    bad = {str(write_broken(tmp_path / name)) for name in ("images/3.png", "depths/7.png")}
    bad.add(damage_pixels(tmp_path / "images" / "11.png"))
    dataset = load(tmp_path, on_bad_image="skip")
    assert {*dataset.bad_images} == bad | {f"{tmp_path}/depths/5.png"}
    assert dataset.bad_images[f"{tmp_path}/depths/5.png"] == "no valid measurement"
    assert sorted(maps(dataset)) == sorted({*range(20)} - {3, 5, 7, 11})
    for path in tmp_path.glob("depths/*"):
        path.write_bytes(no_measurement(5))
    with pytest.raises(ValueError, match="^no image can be read with its depth map; left out: .*11.png"):
        load(tmp_path, on_bad_image="skip")


def test_another_scale_changes_the_fingerprint(tmp_path):
    before = fingerprint(load(write(tmp_path)))
    assert len(before["files"]) == 20 and differences(before, json_of(fingerprint(load(tmp_path)))) == []
    (tmp_path / "depth.json").write_text('{"scale": 100}')
    assert differences(before, fingerprint(load(tmp_path))) == ["how the labels' values are read"]


def json_of(found):
    """A fingerprint as `data.json` has it."""
    return {**json.loads(json.dumps({**found, "files": None})), "files": found["files"]}


@pytest.mark.parametrize("file_format", some(["webdataset", "parquet"], 2))
def test_shards_have_the_depths_and_their_unit(file_format, tmp_path):
    of = {"max": 8, "crop": "kitti_garg", **METERS}  # Some are invalid.
    dataset = load(write(tmp_path / "in", settings=of))
    write_shards(dataset, tmp_path / "out", file_format)
    written = load(f"{file_format}:{tmp_path}/out")
    assert written.class_names == ("depth",)
    about = written.split("train").label_values
    assert about["unit"] == "m" and about["max"] == 8 and "scale" not in about
    assert about["crop"] == "kitti_garg"
    expected, found = maps(dataset), maps(written)
    assert expected.keys() == found.keys() and np.isnan(np.stack([*found.values()])).any()
    for number, depth in expected.items():
        np.testing.assert_array_equal(found[number], depth)
    assert [*damaged(written.split("train"))] == []


def test_a_mixture_keeps_what_its_depths_are(tmp_path):
    names = []
    for name, scale in (("a", 1000), ("b", 10_000)):
        write(tmp_path / name, settings={"scale": scale, "unit": "m", "crop": "kitti_garg"})
        names.append(f"folder:{tmp_path}/{name}")
    dataset = load(" + ".join(names))
    write_shards(dataset, tmp_path / "out")
    expected = {"quantity": "depth", "unit": "m", "crop": "kitti_garg"}
    for samples in (dataset.split("train"), load(f"webdataset:{tmp_path}/out").split("train")):
        assert expected.items() <= samples.label_values.items()


@by_table(
    "settings, words",
    [
        ({"scale": 10, "unit": "cm"}, "expected the unit of 'folder:.*a' in 'folder:.*b': 'm'; got 'cm'"),
        ({"scale": 1000}, "expected the unit of .*: 'm'; got None"),
        ({"quantity": "values", **METERS}, "expected the quantity of .*: 'depth'; got 'values'"),
        ({"crop": "nyu_eigen", **METERS}, "expected the crop of .*: None; got 'nyu_eigen'"),
    ],
)
def test_sources_whose_depths_mean_other_things_are_refused(settings, words, tmp_path):
    write(tmp_path / "a", settings={"names": ["distance"], **METERS})
    write(tmp_path / "b", settings={"names": ["distance"], **settings})
    with pytest.raises(ValueError, match=words):
        load(f"folder:{tmp_path}/a + folder:{tmp_path}/b")


def test_tar_files_have_depths_in_any_format(tmp_path):
    members = []
    for n in range(10):
        depth = ("png", millimeters(n)) if n % 2 else ("npy", npy(meters(n) * 1000))
        members += [(f"{n}.png", encoded(n, SIZE)), (f"{n}.depth.{depth[0]}", depth[1])]
    write_tar(tmp_path / "train.tar", members)
    (tmp_path / "depth.json").write_text('{"scale": 1000}')
    assert_meters(load(f"webdataset:{tmp_path}/train.tar"))
    (tmp_path / "depth.json").unlink()
    found = {*damaged(load(f"webdataset:{tmp_path}/train.tar").split("train"))}
    reason = "uint16 numbers, and depth.json has no scale, the stored value of one unit"
    assert (f"{tmp_path}/train.tar/3.depth.png", reason) in found
    members[-1] = ("9.depth.npy", npy(np.ones((4, 5), "float32")))
    write_tar(tmp_path / "train.tar", members)
    (tmp_path / "depth.json").write_text('{"scale": 1000}')
    [(place, reason)] = damaged(load(f"webdataset:{tmp_path}/train.tar", seed=None).split("train"))
    assert place == f"{tmp_path}/train.tar/9.depth.npy"
    assert reason == f"5×4 pixels, but its image has {SIZE[1]}×{SIZE[0]} pixels"


def test_parquet_files_have_depths_as_images_or_bytes(tmp_path):
    (tmp_path / "depth.json").write_text('{"scale": 1000}')
    depths = [millimeters(number) for number in range(10)]
    for column in (depths, [{"bytes": depth, "path": None} for depth in depths]):
        columns = {"image": [encoded(number, SIZE) for number in range(10)], "depth_map": column}
        write_parquet(tmp_path / "a.parquet", columns)
        assert_meters(load(f"parquet:{tmp_path}/a.parquet"))


def test_data_sets_of_tensorflow_have_depths(tmp_path):
    def examples(value):
        return {"train": [{"image": np.full((*SIZE, 3), n, "uint8"), "depth": value(n)} for n in range(10)]}

    features = {"image": PICTURE, "depth": tfds.features.Tensor(shape=SIZE, dtype=np.float16)}
    folder = prepare(tmp_path / "a", examples(lambda n: meters(n).astype("float16")), features)
    for number, depth in maps(load(f"tfds:{folder}/toy/1.0.0")).items():
        np.testing.assert_array_equal(depth[..., 0], meters(number).astype("float16"))
    features["depth"] = tfds.features.Image(shape=(*SIZE, 1), dtype=np.uint16)
    values = examples(lambda n: np.round(meters(n) * 1000).astype("uint16")[..., np.newaxis])
    folder = prepare(tmp_path / "b", values, features)
    for number, depth in maps(load(f"tfds:{folder}/toy/1.0.0")).items():
        np.testing.assert_array_equal(depth[..., 0], np.round(meters(number) * 1000))


def test_scenes_have_larger_and_brighter_digits_in_front():
    scans, labels = np.ones((1, 8, 8), "float32"), [1]
    for index in range(20):
        picture, distances = digits_scenes.depth_scene(scans, labels, [0, 0, index])
        again, _ = digits_scenes.depth_scene(scans, labels, [0, 0, index])
        np.testing.assert_array_equal(picture, again)
        *digits, background = np.unique(distances)
        assert digits[0] >= 2000 and digits[-1] <= 4500 and 6000 <= background <= 10000
        shown = [picture[distances == distance].mean() for distance in (digits[0], background)]
        assert shown[0] > shown[1]
        side = round(32_000 / digits[0])  # The nearest digit, a full square here, is not hidden.
        assert (distances == digits[0]).sum() == side**2
