"""Runs of DINO: scores of neighbors, the encoder of the teacher, and the report."""

import dataclasses
import shutil
import types

import numpy as np
import pytest
from made.folders import write_classes
from made.workers import end_of
from reference.comparing import arrays, assert_close, assert_same_arrays
from reference.small import small

from keras_vit import DINO
from keras_vit.data import load_dataset
from keras_vit.evaluation import knn
from keras_vit.inspection import attention_maps
from keras_vit.reports.run_report import write_run_report
from keras_vit.training import train
from keras_vit.weights.checkpoint import read_model


@pytest.fixture(scope="module")
def config(labeled):
    return labeled("dino", total_steps=2, accumulation_steps=1, eval_every=1, checkpoint_every=1)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory, eager):
    return train(config, tmp_path_factory.mktemp("dino") / "run", 0)


@pytest.mark.slow
def test_a_run_ends_with_the_teachers_encoder_and_its_score(config, finished):
    workdir, record = finished
    model, whole = read_model(workdir.model), read_model(workdir.pretrainer, "pretrainer")
    assert_same_arrays(arrays(model), arrays(whole.encoder))
    student = arrays(whole.student, inside="student")
    assert any(np.abs(student[path] - value).max() > 1e-6 for path, value in arrays(model).items())
    assert model.trainable and len(model.trainable_weights) == len(model.weights)
    dataset = load_dataset(config.dataset, config.recipe.seed)
    expected = knn(model, dataset.split("train"), dataset.split("test"))
    assert record["test_knn_accuracy"] == pytest.approx(expected)
    assert record["test_samples"] == len(dataset.split("test"))
    rows = workdir.metrics()
    assert [row["step"] for row in rows if "val_knn_accuracy" in row] == [1, 2]
    assert 0 <= rows[-1]["val_knn_accuracy"] <= 1 and "val_loss" not in rows[-1]
    scores = {row["step"]: row["val_knn_accuracy"] for row in rows if "val_knn_accuracy" in row}
    assert scores[record["best_step"]] == max(scores.values())


@pytest.mark.slow
def test_without_labels_a_run_has_no_scores(config, eager, tmp_path):
    flat = write_classes(tmp_path / "images", names=("",), count=24)
    config = dataclasses.replace(config, dataset=f"folder:{flat}")
    workdir, record = train(config, tmp_path / "run", 0)
    assert record["best_step"] is None and not [name for name in record if name.startswith("test_")]
    assert not [name for row in workdir.metrics() for name in row if name.startswith("val_")]
    figures = write_run_report(config, workdir, record)
    assert any("attention" in figure for figure in figures)


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_missing_pretrainer_is_rebuilt_from_a_checkpoint(has_checkpoint, config, finished, tmp_path, capfd):
    shutil.copytree(finished[0].path, tmp_path / "run")
    missing = tmp_path / "run/pretrainer.keras"
    missing.unlink()
    if not has_checkpoint:
        shutil.rmtree(tmp_path / "run/checkpoints")
    capfd.readouterr()
    train(config, tmp_path / "run", 2)
    assert missing.exists() == has_checkpoint  # Without one, the run would be trained again.
    if has_checkpoint:
        line = f"{str(missing)!r} is missing and is rebuilt from the last checkpoint"
        assert line in capfd.readouterr().out
        np.testing.assert_equal(end_of(tmp_path / "run"), end_of(finished[0].path))


@pytest.mark.slow
def test_the_report_shows_the_attention_of_the_class_token(config, finished):
    model = read_model(finished[0].pretrainer, "pretrainer")
    images = np.random.default_rng(0).uniform(-1, 1, (3, 16, 16, 3)).astype("float32")
    (pictures,) = config.task.figures(model, images)
    assert [*pictures.rows] == ["image", "head 0", "head 1", "head 2"]
    assert_close(pictures.rows["image"], (images + 1) / 2, 1e-5)
    maps = attention_maps(model.encoder, images)[:, 1]
    found = pictures.rows["head 1"]  # of the images' size
    assert found.shape == (3, 16, 16, 3)
    for offset in (0, 7):
        of_patches = found[:, offset::8, offset::8, 0]
        assert_close(of_patches, maps / maps.max(axis=(1, 2), keepdims=True), 1e-6)


@pytest.mark.parametrize(
    "pooling, words",
    [("token", "attention of the class token to"), ("gap", "mean attention of all patches to")],
)
def test_the_report_says_whose_attention_it_shows(pooling, words, config):
    model = DINO({**config.model, "pooling": pooling}, **config.recipe.pretrainer)
    (pictures,) = config.task.figures(model, np.zeros((1, 16, 16, 3), "float32"))
    assert pictures.words.startswith(f"The {words} the patches")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"mixup": 0.2}, "got .* and mixup"),
        ({"freeze": "encoder_block_0"}, "got .* and freeze"),
        ({"ema": 0.9}, "got .* and ema"),
        ({"crop_area": None}, "got .* crop_area None"),
        ({"task": "multi_label"}, "task 'multi_label'"),
    ],
)
def test_what_it_does_not_use_is_refused(changes, message, labeled):
    with pytest.raises(ValueError, match=message):
        labeled("dino", **changes)


def test_without_labels_there_is_no_score_by_which_a_run_ends_early(labeled):
    config = labeled("dino", patience=2)
    unlabeled, labels = (types.SimpleNamespace(class_names=names) for names in ((), ("cat", "dog")))
    with pytest.raises(ValueError, match="without labels and patience=2"):
        config.task.around(small(num_classes=None), config, unlabeled)
    assert isinstance(config.task.around(small(num_classes=None), config, labels), DINO)
