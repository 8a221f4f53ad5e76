"""Keypoints in tar and Parquet files and in TensorFlow Datasets."""

import io
import json
import re

import numpy as np
import pyarrow.parquet
import pytest
import tensorflow_datasets as tfds
from made.folders import write_keypoints
from made.prepared import PICTURE, blank, prepare
from made.shards import write_tar
from made.tables import by_table
from PIL import Image

from keras_vit.data import load_dataset
from keras_vit.data.damage import damaged
from keras_vit.data.shard_writing import write_shards
from keras_vit.tasks.keypoints.labels import BOX_ROWS, WHOLE
from keras_vit.tasks.keypoints.reader import KeypointReader

FORMATS = {"webdataset": ".tar", "parquet": ".parquet"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A folder with keypoints, and the folders of both formats that are written of it."""
    root = tmp_path_factory.mktemp("keypoints")
    write_keypoints(root / "in")
    dataset = load_dataset(f"folder:{root}/in", task="keypoints")
    for name in FORMATS:
        write_shards(dataset, root / name, name)
    return root


@pytest.mark.parametrize("file_format", FORMATS)
def test_shards_keep_what_the_points_are(shards, file_format):
    written = load_dataset(f"{file_format}:{shards}/{file_format}", task="keypoints")
    assert written.class_names == ("left_top", "right_top", "foot")
    expected = {"names": [*written.class_names], "flip_index": [1, 0, 2], "skeleton": [[0, 1]]}
    assert written.split("test").label_values == expected


def test_a_mixture_keeps_what_its_points_are(shards, tmp_path):
    name = f"folder:{shards}/in + webdataset:{shards}/webdataset"
    dataset = load_dataset(name, task="keypoints")
    write_shards(dataset, tmp_path / "out")
    written = load_dataset(f"webdataset:{tmp_path}/out", task="keypoints")
    [known] = {str(of.split("test").label_values) for of in (dataset, *dataset.parts, written)}
    assert "'skeleton': [[0, 1]]" in known
    write_keypoints(tmp_path / "in")
    (tmp_path / "in" / "keypoints.json").write_text('{"flip_index": [0, 1, 2]}')
    with pytest.raises(ValueError, match=r"expected the flip_index of .*: \[1, 0, 2\]; got \[0, 1, 2\]"):
        load_dataset(f"{name} + folder:{tmp_path}/in", task="keypoints")


@pytest.mark.parametrize("task", ["detection", "depth", "segmentation", "single_label"])
@pytest.mark.parametrize("file_format", FORMATS)
def test_keypoints_are_no_labels_of_other_tasks(shards, file_format, task):
    with pytest.raises(ValueError, match="has no (member|columns)"):
        load_dataset(f"{file_format}:{shards}/{file_format}", task=task)


def test_boxes_depths_and_keypoints_of_one_tar_file_are_told_apart(tmp_path):
    picture, depth = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (8, 4)).save(picture, "PNG")
    np.save(depth, np.ones((4, 8), "float32"))
    points = {"keypoints": [[1, 2, 2]], "width": 8, "height": 4, "bbox": [0, 0, 4, 4], "area": 9}
    boxes = {"objects": {"bbox": [[0, 0, 8, 2]], "category": [0]}, "width": 8, "height": 4}
    members = {"png": picture.getvalue(), "depth.npy": depth.getvalue(), "json": json.dumps(boxes).encode()}
    members["keypoints.json"] = json.dumps(points).encode()
    members = [(f"{number}.{suffix}", members[suffix]) for number in range(10) for suffix in members]
    write_tar(tmp_path / "train.tar", members)
    (tmp_path / "keypoints.json").write_text('{"names": ["nose"]}')
    labels = {
        task: load_dataset(f"webdataset:{tmp_path}/train.tar", task=task).split("train")[0][1]
        for task in ("keypoints", "detection", "depth")
    }
    np.testing.assert_allclose(labels["keypoints"][BOX_ROWS:, :3], [[1.5 / 8, 2.5 / 4, 2]])
    np.testing.assert_allclose(labels["detection"][:, :4], [[0, 0, 1, 0.5]])
    assert labels["depth"].shape == (4, 8, 1)


def test_points_of_tensorflow_datasets_are_fractions_of_the_whole_image(tmp_path):
    features = {"image": PICTURE, "landmarks_2d": tfds.features.Tensor(shape=(3, 2), dtype=np.float32)}
    points = np.float32([[0.25, 0.5], [0.5, 0.75], [1, 0]])
    prepare(tmp_path, {"train": [blank(landmarks_2d=points)] * 20}, features, name="faces")
    data = load_dataset("tfds:faces", data_dir=tmp_path, task="keypoints")
    assert data.class_names == ("0", "1", "2")
    _, label = next(data.split("train").evaluation_records().as_numpy_iterator())
    assert label[0, WHOLE] == 1 and label[:2, :2].tolist() == [[0, 0], [1, 1]]
    np.testing.assert_allclose(label[BOX_ROWS:], [[*point, 2, k] for k, point in enumerate(points)])


def test_points_of_tensorflow_datasets_may_have_a_visibility(tmp_path):
    features = {"image": PICTURE, "keypoints": tfds.features.Tensor(shape=(2, 3), dtype=np.float32)}
    points = np.float32([[0.25, 0.5, 1], [0.5, 0.75, 0]])
    prepare(tmp_path, {"train": [blank(keypoints=points)] * 20}, features, name="people")
    data = load_dataset("tfds:people", data_dir=tmp_path, task="keypoints")
    _, label = next(data.split("train").evaluation_records().as_numpy_iterator())
    np.testing.assert_allclose(label[BOX_ROWS:], [[0.25, 0.5, 1, 0], [0, 0, 0, 1]])


GOOD = {"keypoints": [[1, 2, 2]], "width": 8, "height": 4}


@by_table(
    "value, message",
    [
        ([], "keypoints: expected an object with keypoints, width and height; got []"),
        ({"width": 8}, "expected an object with keypoints, width and height; got width"),
        ({"keypoints": []}, "expected the width and height of the image in pixels; got (None, None)"),
        (GOOD | {"keypoints": []}, "expected x, y and visibility of 1 keypoints, 3 num"),
        (GOOD | {"keypoints": [[9, 99, 2]]}, "an object is wrong: keypoints (a keypoint ou"),
        (GOOD | {"bbox": [0, 0, 0, 2]}, "an object is wrong: keypoints (a box without an"),
    ],
)
def test_wrong_values_in_shards_are_refused_in_a_line(value, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        KeypointReader(("nose",)).read(json.dumps(value).encode())
    assert "\n" not in str(refused.value)


def test_what_is_no_json_in_shards_is_refused():
    with pytest.raises(ValueError, match="^keypoints: expected JSON; got"):
        KeypointReader(("nose",)).read(b"{")


def test_shards_without_names_are_refused(shards, tmp_path):
    source = next((shards / "parquet").glob("train*"))
    (tmp_path / source.name).write_bytes(source.read_bytes())
    with pytest.raises(ValueError, match="^expected 'keypoints.json' beside the Parquet files, with names"):
        load_dataset(f"parquet:{tmp_path}", task="keypoints")


@pytest.mark.parametrize("file_format", FORMATS)
def test_objects_in_shards_are_checked(shards, file_format):
    samples = load_dataset(f"{file_format}:{shards}/{file_format}", task="keypoints").split("train")
    assert [*damaged(samples)] == []


def test_a_column_of_parquet_has_json(shards):
    [file] = (shards / "parquet").glob("test*")
    table = pyarrow.parquet.read_table(file)
    value = json.loads(table["keypoints"][0].as_py()["bytes"])
    assert sorted(value) == ["area", "bbox", "height", "keypoints", "width"]
