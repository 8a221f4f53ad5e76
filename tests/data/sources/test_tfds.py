import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from made.prepared import CLASSES, COLORS, PICTURE, blank, number_of, prepare
from made.sampling import some
from made.tables import by_table

from keras_vit.data.batches import box_batches
from keras_vit.data.chunked_records import ChunkedRecords
from keras_vit.data.datasets import load_dataset, title_of
from keras_vit.data.samples import IndexedRecords
from keras_vit.data.sources.tfds import PRESETS
from keras_vit.preprocessing import Preprocessing

TAGS = tfds.features.Sequence(tfds.features.ClassLabel(names=["a", "b", "c", "d"]))
AGE = tfds.features.Scalar(np.float32)
KINDS = {"array_record": IndexedRecords, "tfrecord": ChunkedRecords}


@pytest.fixture(scope="module", params=KINDS)
def toy(request, tmp_path_factory):
    """90 and 10 examples in 5 files a split."""
    data_dir = tmp_path_factory.mktemp("toy")
    return prepare(data_dir, {"train": 90, "test": 10}, shards=5, file_format=request.param), request.param


def sizes(dataset):
    return tuple(len(dataset.splits[split]) for split in ("train", "validation", "test"))


def decoded(records):
    return [(number_of(tf.io.decode_png(r[-2]).numpy()), int(r[-1])) for r in records.as_numpy_iterator()]


def load(data_dir, name="toy", **options):
    return load_dataset(f"tfds:{name}", data_dir=data_dir, **options)


def test_files_of_both_formats_are_a_data_set(toy):
    data_dir, file_format = toy
    assert len([*pathlib.Path(data_dir).rglob("toy-train*")]) == 5
    dataset = load(data_dir)
    assert (dataset.name, dataset.class_names, dataset.task) == ("tfds:toy", COLORS, "single_label")
    assert sizes(dataset) == (81, 9, 10)
    found = {split: decoded(samples.evaluation_records()) for split, samples in dataset.splits.items()}
    assert {number for number, _ in found["train"] + found["validation"]} == set(range(90))
    assert {number for number, _ in found["test"]} == set(range(90, 100))
    assert all(label == number % 3 for records in found.values() for number, label in records)
    for samples in dataset.splits.values():
        assert type(samples) is KINDS[file_format] and samples.labels is None


def test_a_prepared_folder_a_version_and_a_configuration_are_found(tmp_path):
    prepare(tmp_path, {"train": 50}, name="plain")
    prepare(tmp_path, {"train": 60}, name="varied", config="small")
    (tmp_path / "mine").symlink_to(tmp_path / "plain" / "1.0.0")
    folder = tmp_path / "plain" / "1.0.0"
    assert len(load(None, folder).split("train")) == 36 and title_of(f"tfds:{folder}") == "plain/1.0.0"
    with pytest.raises(ValueError, match=f"'{folder.parent}' holds no prepared data set; expected a folder"):
        load(None, folder.parent)
    sizes = {"plain": 36, "plain:1.0.0": 36, "plain/1.0.0": 36, "mine": 36, "varied/small": 43}
    for name, size in {**sizes, "varied/small:1.0.0": 43}.items():
        assert len(load(tmp_path, name).split("train")) == size, name


def test_a_data_set_that_is_not_there_is_prepared_for_access_by_index(tmp_path, monkeypatch):
    prepare(tmp_path / "elsewhere", {"train": 50}, file_format="tfrecord")
    builder = tfds.builder_from_directory(tmp_path / "elsewhere" / "toy" / "1.0.0")
    asked = []

    class Absent:
        info = type("Info", (), {"splits": {}})

        def download_and_prepare(self, **options):
            asked.append(options)
            self.info = builder.info

    monkeypatch.setattr(tfds, "builder", lambda name, data_dir: Absent())
    load(tmp_path)
    assert asked == [{"file_format": "array_record"}]


def test_a_data_set_that_is_unknown_or_cannot_be_prepared_is_refused_in_one_line(tmp_path, monkeypatch):
    def fail(self, **options):
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    failed = f"is not prepared in {tmp_path} and could not be"
    with pytest.raises(ValueError, match=f"'tfds:mnist' {failed}: ConnectionError: no network$"):
        load(tmp_path, "mnist")
    with pytest.raises(ValueError, match=f"'tfds:nosuch' {failed}: DatasetNotFound"):
        load(tmp_path, "nosuch")


def labels_of(dataset):
    return [label for s in dataset.splits.values() for _, label in s.evaluation_records().as_numpy_iterator()]


def test_several_classes_per_sample_are_multi_hot(toy, tmp_path):
    tags = [[], [0], [1, 3], [3, 3], [0, 1, 2, 3]]
    found = [blank(tags=tags[i % 5]) for i in range(50)]
    prepare(tmp_path, {"train": found}, {"image": PICTURE, "tags": TAGS}, file_format=toy[1])
    dataset = load(tmp_path, task="multi_label")
    assert (dataset.class_names, dataset.task) == (("a", "b", "c", "d"), "multi_label")
    labels = labels_of(dataset)
    assert {label.dtype for label in labels} == {np.dtype("float32")}
    expected = [(0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 1), (1, 0, 0, 0), (1, 1, 1, 1)]
    assert sorted(map(tuple, labels)) == [label for label in expected for _ in range(10)]


@pytest.mark.parametrize("targets", [1, 2])
def test_floats_are_regression(targets, tmp_path):
    feature = AGE if targets == 1 else tfds.features.Tensor(shape=(targets,), dtype=np.float32)
    values = [np.float32(i / 8) if targets == 1 else np.float32([i, -i]) for i in range(50)]
    found = [blank(age=value) for value in values]
    prepare(tmp_path, {"train": found}, {"image": PICTURE, "age": feature})
    dataset = load(tmp_path, task="regression")
    assert dataset.class_names == (("age",) if targets == 1 else ("age_0", "age_1"))
    labels = labels_of(dataset)
    assert sorted(map(tuple, labels)) == [tuple(np.ravel(value)) for value in values]
    assert labels[0].dtype == np.float32


ALL = {"kind": CLASSES["label"], "label": CLASSES["label"], "tags": TAGS, "age": AGE}


@by_table(
    "features, keys, task, said",
    [
        ({"label": CLASSES["label"]}, None, "multi_label", r"has label \(single_label\)$"),
        ({"tags": TAGS}, ("image", "tags"), "regression", r"has tags \(multi_label\)$"),
        (ALL, None, "single_label", r"has age \(regression\), kind \(single_label\), label \(single_"),
        ({"text": tfds.features.Text()}, None, "single_label", "has no labels$"),
    ],
)
def test_labels_of_another_task_are_refused_with_what_there_is(features, keys, task, said, tmp_path):
    values = {"label": 1, "kind": 0, "tags": [2], "age": np.float32(1), "text": "no"}
    found = [blank(**{key: values[key] for key in features})] * 2
    prepare(tmp_path, {"train": found}, {"image": PICTURE, **features}, supervised_keys=keys)
    with pytest.raises(ValueError, match=f"task '{task}' needs .* one feature .*; 'toy/1.0.0' {said}"):
        load(tmp_path, task=task)


def test_of_several_labels_the_supervised_one_is_taken_and_else_the_only_one_of_the_task(tmp_path):
    found = [blank(kind=0, label=1, tags=[2], age=np.float32(1))] * 50
    prepare(tmp_path, {"train": found}, {"image": PICTURE, **ALL}, supervised_keys=("image", "label"))
    for task, expected in {"single_label": 1, "multi_label": [0, 0, 1, 0], "regression": [1]}.items():
        (_, label), *_ = load(tmp_path, task=task).split("test").evaluation_records().as_numpy_iterator()
        assert label.tolist() == expected


MASK = tfds.features.Image(shape=(None, None, 1), encoding_format="png")
COLOR_MASK = tfds.features.Image(shape=(None, None, 3), encoding_format="png")
VOC = tfds.features.LabeledImage(labels=["background", "aeroplane", "bicycle"])


@pytest.mark.parametrize(
    "name, key, values, classes, names",
    some(
        [
            ("oxford_iiit_pet", "segmentation_mask", [1, 2, 3, 0], [0, 1, 2, 255], ("pet", "border", 3)),
            ("scene_parse150", "annotation", [0, 1, 150, 151], [255, 0, 149, 255], ("1", "150", 150)),
            ("cityscapes", "segmentation_label", [7, 33, 0, 29], [0, 18, 255, 255], ("road", "bicycle", 19)),
            ("voc", "masks", [0, 2, 255, 1], [0, 2, 255, 1], ("background", "bicycle", 3)),
        ],
        every=2,
    ),
)
def test_masks_of_known_data_sets_become_classes(name, key, values, classes, names, tmp_path):
    mask = np.tile(np.uint8(values), (4, 2))[:, :6, np.newaxis]
    if key == "annotation":
        mask = np.concatenate([mask, mask[::-1] + 7, 0 * mask], -1)  # The others are numbers of instances.
    keys = ("image", key) if key == "annotation" else None
    features = {"image": PICTURE, key: {"annotation": COLOR_MASK, "masks": VOC}.get(key, MASK)}
    found = [blank(**{key: mask})] * 40
    splits = {"train": found, "test": found[:2], "validation": found[:2]}
    prepare(tmp_path, splits, features, name, supervised_keys=keys)
    dataset = load(tmp_path, f"{name}:1.0.0", task="segmentation")  # not the one that would be downloaded
    for label in labels_of(dataset):
        assert label.dtype == np.uint8
        np.testing.assert_array_equal(label[..., 0], np.tile(classes, (4, 2))[:, :6])
    assert (dataset.class_names[0], dataset.class_names[-1], len(dataset.class_names)) == names


def test_boxes_of_objects(tmp_path):
    objects = {
        "bbox": tfds.features.BBoxFeature(),
        "label": tfds.features.ClassLabel(names=["cat", "dog"]),
        "is_crowd": tfds.features.Scalar(np.bool_),
    }
    features = {"image": PICTURE, "objects": tfds.features.Sequence(objects)}
    box = tfds.features.BBox(ymin=0.25, xmin=0.0, ymax=1.0, xmax=0.5)
    found = [{"bbox": box, "label": 1, "is_crowd": False}, {"bbox": box, "label": 0, "is_crowd": True}]
    examples = [blank(objects=found), blank(objects=[])] * 20
    prepare(tmp_path, {"train": examples, "test": examples[:2], "validation": examples[:2]}, features, "toy")
    dataset = load(tmp_path, "toy", task="detection")
    assert dataset.class_names == ("cat", "dog")
    # TensorFlow Datasets shuffles when it writes.
    none, rows = sorted((label for _, label in dataset.split("test")), key=len)
    assert rows.tolist() == [[0, 0.25, 0.5, 1, 1, 0, 0.375], [0, 0.25, 0.5, 1, 0, 1, 0.375]]
    assert none.shape == (0, 7)
    [(_, boxes, counts, sizes)] = box_batches(dataset.split("test"), Preprocessing(8), 2)
    assert sorted(counts.numpy().tolist()) == [0, 2] and sizes.numpy().tolist() == [[4, 6]] * 2


def test_a_data_set_without_pictures_is_refused(tmp_path):
    prepare(tmp_path, {"train": [{"label": 1}] * 2}, {"label": CLASSES["label"]})
    with pytest.raises(ValueError, match="'toy/1.0.0' has no images; its features are label"):
        load(tmp_path)
    depth = tfds.features.Image(shape=(4, 6, 1), dtype=np.float32)
    found = [{"image": np.zeros((4, 6, 1), "float32"), "label": 1}] * 2
    prepare(tmp_path, {"train": found}, {"image": depth, "label": CLASSES["label"]}, name="depth")
    with pytest.raises(ValueError, match=r"'image' of 'depth/1.0.0' is not a picture: float32 \(4, 6, 1\)"):
        load(tmp_path, "depth")


@pytest.mark.parametrize(
    "own, expected",
    some(
        [
            ({"train": 100}, (72, 8, 20)),
            ({"full": 100}, (72, 8, 20)),
            ({"train": 100, "validation": 7}, (90, 10, 7)),
            ({"train": 100, "validation": 7, "test": 8, "extra": 9}, (100, 7, 8)),
        ],
        every=2,
    ),
)
def test_missing_splits_are_held_out(own, expected, tmp_path):
    prepare(tmp_path, own)
    dataset = load(tmp_path)
    assert sizes(dataset) == expected
    held = [{number for number, _ in decoded(s.evaluation_records())} for s in dataset.splits.values()]
    assert len(set().union(*held)) == sum(expected)


@by_table(
    "stored, expected",
    [
        ({"test": 100}, {"test": 100}),
        ({"validation": 100}, {"validation": 100, "test": 100}),
        ({"validation": 30, "test": 20}, {"validation": 30, "test": 20}),
    ],
)
def test_images_for_scores_alone_are_not_trained_on(stored, expected, tmp_path):
    prepare(tmp_path, stored)
    dataset = load(tmp_path)
    assert {split: len(samples) for split, samples in dataset.splits.items()} == expected
    with pytest.raises(ValueError, match="^split 'train' is unknown; tfds:toy has "):
        dataset.split("train")


def test_a_preset_is_found_by_the_data_sets_name(tmp_path):
    prepare(tmp_path, {"train": 100, "validation": 30, "test": 20}, name="imagenet2012")
    assert sizes(load(tmp_path, "imagenet2012/1.0.0")) == (99, 1, 30)
    assert PRESETS["imagenet21k"] == ("full[51200:]", "full[:51200]", "full[:51200]")


def test_a_split_that_is_missing_or_empty_is_refused(tmp_path):
    prepare(tmp_path, {"train": 40}, name="oxford_iiit_pet")
    with pytest.raises(ValueError, match=r"'oxford_iiit_pet/1.0.0' has no 'test'; it has train"):
        load(tmp_path, "oxford_iiit_pet/1.0.0")
    prepare(tmp_path, {"train": 3, "test": 3}, name="few")
    with pytest.raises(ValueError, match=r"'train\[90%:\]' of 'few/1.0.0' is empty"):
        load(tmp_path, "few")
