"""Runs of DINO: views by (seed, step), resuming, scores of neighbors, and the encoder of the teacher."""

import pathlib
import shutil

import numpy as np
import pytest
from made.folders import write_classes
from made.workers import end_of
from reference.comparing import arrays, assert_close, assert_same_arrays
from reference.small import SMALL, run_live

from keras_vit import DINO, from_pretrained
from keras_vit.data import load_dataset
from keras_vit.evaluation import knn
from keras_vit.export.exported_model import open_exported
from keras_vit.export.saved_model import export_saved_model
from keras_vit.inspection import attention_maps
from keras_vit.reports.run_report import write_run_report
from keras_vit.training import RECIPES, Recipe, RunConfig, train
from keras_vit.weights.checkpoint import read_model

slow = pytest.mark.slow
SIZES = {**SMALL, "num_layers": 1}
del SIZES["num_classes"]
RECIPE = Recipe(
    "adamw",
    3e-3,
    total_steps=2,
    warmup_steps=1,
    batch_size=6,
    crop_area=(0.4, 1.0),
    photometric=0.8,
    dropout_rate=0.2,
    pretrainer={
        **{"num_local": 1, "local_size": 8, "out_dim": 16, "hidden_dim": 12, "bottleneck_dim": 6},
        **{"temperature_steps": 2, "first_teacher_temperature": 0.02, "freeze_steps": 1},
    },
    eval_every=1,
    checkpoint_every=1,
)


def config(dataset="digits", **changes):
    return RunConfig(dataset, RECIPE.with_changes(**changes), SIZES, objective="dino")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return f"folder:{write_classes(tmp_path_factory.mktemp('dino') / 'images')}"


@pytest.fixture(scope="module")
def finished(images, tmp_path_factory, eager):
    return train(config(images), tmp_path_factory.mktemp("dino") / "run", 0)


def test_a_run_ends_with_the_teachers_encoder_and_its_score(images, finished):
    workdir, record = finished
    model, whole = read_model(workdir.model), read_model(workdir.pretrainer, "pretrainer")
    assert_same_arrays(arrays(model), arrays(whole.encoder))
    student = arrays(whole.student, inside="student")
    assert any(np.abs(student[path] - value).max() > 1e-6 for path, value in arrays(model).items())
    assert model.trainable and len(model.trainable_weights) == len(model.weights)
    dataset = load_dataset(images, RECIPE.seed)
    expected = knn(model, dataset.split("train"), dataset.split("test"))
    assert record["test_knn_accuracy"] == pytest.approx(expected)
    assert record["test_samples"] == len(dataset.split("test"))
    rows = workdir.metrics()
    assert [row["step"] for row in rows if "val_knn_accuracy" in row] == [1, 2]
    assert 0 <= rows[-1]["val_knn_accuracy"] <= 1 and "val_loss" not in rows[-1]
    scores = {row["step"]: row["val_knn_accuracy"] for row in rows if "val_knn_accuracy" in row}
    assert scores[record["best_step"]] == max(scores.values())


@slow
def test_without_labels_a_run_has_no_scores(images, eager, tmp_path):
    flat = tmp_path / "images"
    flat.mkdir()
    for number, image in enumerate(sorted(pathlib.Path(images.removeprefix("folder:")).glob("*/*.png"))):
        shutil.copy(image, flat / f"{number}.png")
    workdir, record = train(config(f"folder:{flat}"), tmp_path / "run", 0)
    assert record["best_step"] is None and not [name for name in record if name.startswith("test_")]
    assert not [name for row in workdir.metrics() for name in row if name.startswith("val_")]
    figures = write_run_report(config(f"folder:{flat}"), workdir, record)
    assert any("attention" in figure for figure in figures)


@slow
@pytest.mark.usefixtures("eager")
def test_a_run_resumes_bit_for_bit(images, finished, tmp_path):
    expected = end_of(finished[0].path)
    shutil.copytree(finished[0].path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000002")
    assert (tmp_path / "run/checkpoints/step-00000001").is_dir()
    for name in ("result.json", "model.keras", "pretrainer.keras"):
        (tmp_path / "run" / name).unlink()
    train(config(images), tmp_path / "run", 0)
    np.testing.assert_equal(end_of(tmp_path / "run"), expected)


@slow
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_missing_pretrainer_is_rebuilt_from_a_checkpoint(has_checkpoint, images, finished, tmp_path, capfd):
    shutil.copytree(finished[0].path, tmp_path / "run")
    missing = tmp_path / "run/pretrainer.keras"
    missing.unlink()
    if not has_checkpoint:
        shutil.rmtree(tmp_path / "run/checkpoints")
    capfd.readouterr()
    train(config(images), tmp_path / "run", 2)
    assert missing.exists() == has_checkpoint  # Without one, the run would be trained again.
    if has_checkpoint:
        assert (
            f"{str(missing)!r} is missing and is rebuilt from the last checkpoint" in capfd.readouterr().out
        )
        np.testing.assert_equal(end_of(tmp_path / "run"), end_of(finished[0].path))


@slow
@pytest.mark.tensorflow_only("exports are TensorFlow programs")
def test_the_encoder_is_exported(finished, tmp_path):
    encoder = read_model(finished[0].model)
    export_saved_model(encoder, tmp_path / "exported")
    images = np.random.default_rng(0).uniform(0, 1, (2, 16, 16, 3)).astype("float32")
    found = open_exported(tmp_path / "exported").predict_on_batch(images)
    assert_close(found, run_live(encoder, images), 1e-5)


@slow
def test_the_encoder_is_weights_for_other_models(finished):
    encoder = read_model(finished[0].model)
    classifier = from_pretrained(finished[0].pretrainer, num_classes=3)
    assert_close(classifier.get_layer("encoder_norm").gamma, arrays(encoder)["encoder_norm/gamma"], 0)
    assert classifier.trainable and classifier.num_classes == 3


@slow
def test_the_report_shows_the_attention_of_the_class_token(finished):
    model = read_model(finished[0].pretrainer, "pretrainer")
    images = np.random.default_rng(0).uniform(-1, 1, (3, 16, 16, 3)).astype("float32")
    (pictures,) = config().task.figures(model, images)
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
def test_the_report_says_whose_attention_it_shows(pooling, words):
    model = DINO({**SIZES, "pooling": pooling}, **RECIPE.pretrainer)
    (pictures,) = config().task.figures(model, np.zeros((1, 16, 16, 3), "float32"))
    assert pictures.words.startswith(f"The {words} the patches")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"mixup": 0.2}, "got mixup, task"),
        ({"freeze": "encoder_block_0"}, "got freeze, task"),
        ({"ema": 0.9}, "got ema"),
        ({"crop_area": None}, "and crop_area None"),
        ({"task": "multi_label"}, "task 'multi_label'"),
    ],
)
def test_what_it_does_not_use_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes).task  # noqa: B018


@slow
def test_wrong_arguments_of_the_model_are_refused(tmp_path):
    with pytest.raises(ValueError, match="in the recipe's pretrainer; got outputs"):
        train(config(pretrainer={"outputs": 3}), tmp_path / "run", 0)
    assert not (tmp_path / "run").exists()


def test_the_recipe_fits_the_objective():
    assert RunConfig("digits", RECIPES["dino"], "S/16", objective="dino").task.name == "dino"
