"""What each task with labels has to do, from a folder to an export, for all of the table."""

import json

import numpy as np
import pytest
from made.folders import (
    write_boxes,
    write_classes,
    write_depths,
    write_keypoints,
    write_masks,
    write_table,
)
from made.sampling import some
from reference.small import SMALL

import _keras_vit_cli
from keras_vit import Preprocessing, tasks
from keras_vit.data import Augmentation, load_dataset, training_batches
from keras_vit.data.shard_writing import write_shards
from keras_vit.export import open_exported
from keras_vit.labels import kind_of_samples, label_kind
from keras_vit.training import Recipe, RunConfig, train

IMAGES = [f"{number:02d}.png" for number in range(12)]


def several(root):
    lines = (f"{name},{n % 2},{n % 3 // 2}" for n, name in enumerate(IMAGES))
    return write_table(root, "file,hat,hair", *lines, images=IMAGES)


def numbers(root):
    lines = (f"{name},{n / 4},{-n}" for n, name in enumerate(IMAGES))
    return write_table(root, "file,age,height", *lines, images=IMAGES)


FOLDERS = {
    "single_label": write_classes,
    "multi_label": several,
    "regression": numbers,
    "segmentation": write_masks,
    "detection": write_boxes,
    "depth": write_depths,
    "keypoints": write_keypoints,
}
FORMATS = ("webdataset", "parquet")


def write(task, root):
    """Write a folder with labels of a task; the name of the data set."""
    FOLDERS[task](root)
    return f"folder:{root}"


def test_the_tables_have_each_task():
    assert tuple(FOLDERS) == tasks.NAMES
    for table in (tasks.label_kinds, tasks.label_tasks, tasks.label_storages):
        assert tuple(table()) == tasks.NAMES
    with_maps_or_objects = {name for name in tasks.NAMES if label_kind(name).moves}
    assert {*tasks.label_pictures()} == {*tasks.export_outputs()} == with_maps_or_objects
    assert with_maps_or_objects < {*tasks.folder_loaders()}
    assert {cls.task for cls in tasks.headed_models().values()} == with_maps_or_objects
    assert {*tasks.headed_models().values()} < {*tasks.stored_parts()}


@pytest.mark.parametrize(
    "task, file_format", some([(task, form) for task in tasks.NAMES for form in FORMATS], 4)
)
def test_labels_are_the_same_in_shards(task, file_format, tmp_path):
    dataset = load_dataset(write(task, tmp_path / "in"), task=task)
    write_shards(dataset, tmp_path / "out", file_format)
    written = load_dataset(f"{file_format}:{tmp_path}/out", task=task)
    assert (written.class_names, written.task) == (dataset.class_names, task)
    augmentation = Augmentation(crop_area=None, flip=True)
    for split, samples in dataset.splits.items():
        shard = written.split(split)
        assert kind_of_samples(shard, axes=None) is label_kind(task)
        expected, found = (
            {image: label for image, label in of.evaluation_records().as_numpy_iterator()}
            for of in (samples, shard)
        )
        assert expected.keys() == found.keys()
        for image, label in expected.items():
            np.testing.assert_allclose(found[image], label, rtol=1e-15)
        batches = (
            training_batches(of, Preprocessing(16), 2, seed=0, steps=1, augmentation=augmentation)
            for of in (samples, shard)
        )
        expected, found = (of.element_spec for of in batches)
        assert expected == found


@pytest.mark.slow
@pytest.mark.tensorflow_only("exports need TensorFlow")
@pytest.mark.parametrize("task", tasks.NAMES)
def test_a_task_goes_from_a_folder_to_an_export(task, tmp_path, capsys):
    """A run and its report, a second one that resumes, the commands for its model, and an export."""
    name, workdir = write(task, tmp_path / "in"), tmp_path / "run"
    is_headed = label_kind(task).moves
    options = {"num_classes": None, "num_layers": 1} if is_headed else {"num_layers": 1}
    model = {key: value for key, value in (SMALL | options).items() if key != "num_classes"}
    recipe = Recipe("adamw", 1e-3, 4, warmup_steps=1, batch_size=2, task=task, crop_area=None, ema=None)
    recipe = recipe.with_changes(checkpoint_every=2, eval_every=2)
    config = RunConfig(name, recipe, model=model)
    _, record = train(config, workdir, verbose=0)
    again, resumed = train(config, workdir, verbose=0)
    assert resumed == record

    def printed(*arguments):
        assert _keras_vit_cli.main([*map(str, arguments)]) in (None, 0)
        return capsys.readouterr().out

    score = json.loads(printed("evaluate", "--model", workdir, "--dataset", name, "--json", "-"))
    metric = tasks.get_task(task).primary_metric
    assert score[metric] == pytest.approx(record[f"test_{metric}"], rel=1e-4)
    images = sorted((tmp_path / "in").rglob("*.png"))[:2]
    assert str(images[0]) in printed("predict", "--model", workdir, *images, "--format", "jsonl")
    printed("inspect", "--model", workdir, "--dataset", name, "--output", tmp_path / "views")
    options = ("--formats", "tflite,web", "--precisions", "float32,dynamic_int8")
    printed("export", "--model", workdir, "--output", tmp_path / "export", *options)
    exported = open_exported(tmp_path / "export" / "model_float32.tflite")
    assert exported.task == task
    assert (tmp_path / "export" / "web" / "index.html").is_file()
