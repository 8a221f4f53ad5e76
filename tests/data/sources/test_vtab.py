import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from made.prepared import CLASSES, PICTURE, blank, number_of, prepare

from keras_vit.data.datasets import load_dataset
from keras_vit.data.sources.vtab import TASKS, _closest_object, _closest_vehicle


def numbers(records):
    return [number_of(tf.io.decode_png(encoded).numpy()) for encoded, _ in records]


def vtab(data_dir, monkeypatch, task):
    """A task whose data set is the prepared "toy"."""
    real = tfds.builder_from_directory(data_dir / "toy" / "1.0.0")
    monkeypatch.setattr("keras_vit.data.sources.vtab.prepared", lambda name, data_dir: real)
    return load_dataset(f"vtab:{task}", data_dir=data_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, own, validation, test",
    [
        pytest.param("caltech101", {"train": 2000, "test": 7}, (1800, 2000), 7, marks=pytest.mark.slow),
        ("eurosat", {"train": 1500}, (900, 1100), 300),
    ],
)
def test_a_vtab_task_has_800_200_and_all_to_test(task, own, validation, test, tmp_path, monkeypatch):
    prepare(tmp_path, own)
    dataset = vtab(tmp_path, monkeypatch, task)
    assert [len(dataset.split(split)) for split in ("train", "validation", "test")] == [800, 200, test]
    builder = tfds.builder_from_directory(tmp_path / "toy" / "1.0.0")
    in_order = [number_of(e["image"]) for e in builder.as_data_source("train")]
    assert numbers(dataset.split("train").evaluation_records()) == in_order[:800]
    assert numbers(dataset.split("validation").evaluation_records()) == in_order[slice(*validation)]
    if test == 300:
        assert numbers(dataset.split("test").evaluation_records()) == in_order[-300:]


def test_there_are_19_vtab_tasks():
    assert len(TASKS) == 19


@pytest.mark.slow
def test_clevr_counts_objects(tmp_path, monkeypatch):
    objects = tfds.features.Sequence({"size": CLASSES["label"], "pixel_coords": tfds.features.Tensor(
        shape=(3,), dtype=np.float32)})  # fmt: skip
    one = {"size": 0, "pixel_coords": np.float32([0, 0, 9.7])}
    found = [blank(objects=[one] * (3 + i % 8)) for i in range(2000)]
    prepare(tmp_path, {"train": found, "validation": found[:8]}, {"image": PICTURE, "objects": objects})
    dataset = vtab(tmp_path, monkeypatch, "clevr_count")
    assert dataset.class_names == ("3", "4", "5", "6", "7", "8", "9", "10")
    labels = [int(label) for _, label in dataset.split("test").evaluation_records()]
    assert sorted(labels) == [*range(8)]
    dataset = vtab(tmp_path, monkeypatch, "clevr_distance")
    assert {int(label) for _, label in dataset.split("test").evaluation_records()} == {4}


@pytest.mark.slow
def test_dsprites_are_white_and_their_angles_are_16_classes(tmp_path, monkeypatch):
    label = tfds.features.ClassLabel(num_classes=40)
    features = {"image": tfds.features.Image(shape=(4, 4, 1)), "label_orientation": label}
    ones = np.ones((4, 4, 1), "uint8")
    prepare(
        tmp_path, {"train": [{"image": ones, "label_orientation": i % 40} for i in range(2000)]}, features
    )
    dataset = vtab(tmp_path, monkeypatch, "dsprites_orientation")
    assert [len(dataset.split(split)) for split in ("train", "validation", "test")] == [800, 200, 200]
    records = [*dataset.split("train").evaluation_records().as_numpy_iterator()]
    assert (tf.io.decode_png(records[0][0]).numpy() == 255).all()
    assert {int(label) for _, label in records} == set(range(16)) and len(dataset.class_names) == 16


def test_distances_are_binned_as_task_adaptation_does():
    """Its `reduce_max(where(thresholds - distance < 0))`."""
    _, clevr, clevr_names = _closest_object(None, None)
    _, kitti, kitti_names = _closest_vehicle(None, None)
    for distance in (0.5, 7.9, 8.0, 8.2, 9.4, 9.6, 10.0, 10.5, 20.0, 21.0):
        thresholds = np.array([0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0])
        coords = tf.constant([[0.0, 0.0, 30.0], [0.0, 0.0, distance]])
        assert int(clevr({"pixel_coords": coords})) == np.flatnonzero(thresholds - distance < 0).max()
        thresholds = np.array([-100.0, 8.0, 20.0, 999.0])
        objects = {
            "location": tf.constant([[0.0, 0.0, 1.0], [0.0, 0.0, distance]]),
            "type": tf.constant([3, 2]),
        }
        assert int(kitti(objects)) == np.flatnonzero(thresholds - distance < 0).max()
    assert int(kitti({"location": tf.zeros((1, 3)), "type": tf.constant([5])})) == 3
    assert clevr_names == ("0 to 8", "8 to 8.5", "8.5 to 9", "9 to 9.5", "9.5 to 10", "10 to inf")
    assert kitti_names == ("0 to 8", "8 to 20", "20 to inf", "none")
