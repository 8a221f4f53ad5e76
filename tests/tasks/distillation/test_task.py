"""Runs with teachers: their scores, digests and tasks, and what is refused."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from made.folders import write_classes
from made.scenes import few_scenes
from made.tables import by_table
from reference.comparing import numpy, randomize
from reference.small import SMALL
from reference.vit_numpy import softmax

import keras_vit
from keras_vit.data import load_dataset
from keras_vit.evaluation import evaluate
from keras_vit.reports.run_report import write_run_report
from keras_vit.training import Recipe, RunConfig, train
from keras_vit.training.building import build_model
from keras_vit.training.compiling import compile_model

slow = pytest.mark.slow
SHORT = {"total_steps": 2, "warmup_steps": 1, "eval_every": 2, "checkpoint_every": 1, "ema": None}
ENCODER = {**SMALL, "num_layers": 1, "num_classes": None}


@pytest.fixture(scope="module")
def config(labeled):
    return labeled("taught", accumulation_steps=1, **SHORT)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory, eager):
    return train(config, tmp_path_factory.mktemp("taught") / "run", 0)


@pytest.mark.slow
def test_a_run_ends_with_the_student_and_scores_beside_the_teachers(config, finished):
    workdir, record = finished
    student, teacher = (keras_vit.from_pretrained(path) for path in (workdir.path, config.teachers[0]))
    assert student.image_size == (16, 16) and teacher.image_size == (32, 32)
    assert student.class_names == ("cat", "dog")
    samples = load_dataset(config.dataset, config.recipe.seed).split("test")
    for name, model in (("", student), ("teacher_", teacher)):
        assert record[f"test_{name}accuracy"] == evaluate(model, samples)["accuracy"]
    images = [str(path) for path in samples.images]
    p, q = (softmax(numpy(of(of.preprocessing(images)))) for of in (teacher, student))
    assert record["test_kl"] == pytest.approx((p * np.log(p / q)).sum(-1).mean(), rel=1e-4)
    assert record["test_agreement"] == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean())
    scores = {name for row in workdir.metrics() for name in row if name.startswith("val_")}
    assert scores == {"val_loss", "val_kl", "val_agreement", "val_accuracy", "val_teacher_accuracy"}


@pytest.mark.slow
def test_checkpoints_do_not_contain_the_teacher_and_another_one_is_refused(config, finished, tmp_path):
    workdir, _ = finished
    student = keras_vit.from_pretrained(workdir.path)
    with np.load(next(workdir.checkpoints.glob("step-*")) / "values.npz") as values:
        names = [name.split("/", 2)[2] for name in values.files if name.startswith("model/")]
    assert names == [weight.path for weight in student.weights]
    assert len(json.loads((workdir.path / "data.json").read_text())["teachers"][0]) == 64
    shutil.copytree(workdir.path, tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    teacher = keras_vit.from_pretrained(config.teachers[0])
    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(
            "keras_vit.tasks.distillation.task.from_pretrained", lambda *a, **k: randomize(teacher)
        )
        with pytest.raises(ValueError, match="have changed: the teachers' weights"):
            train(config, tmp_path / "run", 0)


@slow
@pytest.mark.parametrize(
    "labels, title, metric",
    [
        ("taught", r"kl (\d\.\d{3}); student: ", "kl"),
        ("features", r"neighbor difference (\d\.\d{3})", "neighbor_difference"),
    ],
)
def test_the_report_shows_the_pictures_on_which_they_differ_most(labels, title, metric, labeled, tmp_path):
    config = labeled(labels, accumulation_steps=1, **SHORT)
    workdir, record = train(config, tmp_path / "run", 0)
    write_run_report(config, workdir, record)
    page = (workdir.path / "report.html").read_text()
    section = page[page.index("Differences from the teachers") :]
    values = [float(value) for value in re.findall(title, section)]
    assert len(values) == record["test_samples"] and values == sorted(values, reverse=True)
    assert np.mean(values) == pytest.approx(record[f"test_{metric}"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_features_are_learned_without_labels(labeled, tmp_path):
    config = labeled("features", accumulation_steps=1, **SHORT)
    workdir, record = train(config, tmp_path / "run", 0)
    student = keras_vit.from_pretrained(workdir.path)
    assert (student.num_classes, student.pooling) == (None, "gap")
    assert 0 <= record["test_knn_accuracy"] <= 1 and record["best_step"] == 2
    samples = load_dataset(config.dataset).split("test")
    teacher = keras_vit.from_pretrained(config.teachers[0])
    features = [keras_vit.evaluation.representations(one, samples)[0] for one in (student, teacher)]
    expected = keras_vit.evaluation.neighbor_difference(*features, k=1).mean()
    assert record["test_neighbor_difference"] == pytest.approx(expected)
    assert workdir.metrics()[-1].keys() >= {"val_loss", "val_image_cosine", "val_patch_cosine"}


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_without_labels_the_student_has_the_teachers_classes(config, tmp_path):
    flat = write_classes(tmp_path / "images", names=("",), count=24)
    config = dataclasses.replace(
        config, dataset=f"folder:{flat}", objective="distill", weights=None, model=ENCODER
    )
    workdir, record = train(config, tmp_path / "run", 0)
    assert keras_vit.from_pretrained(workdir.path).num_classes == 2
    scores = {name for name in record if name.startswith("test_")}
    assert scores == {"test_samples", "test_kl", "test_agreement"}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["detection", "multi_label", "regression", "segmentation"])
@pytest.mark.usefixtures("eager")
def test_teachers_of_other_tasks(task, tmp_path):
    """A student that starts as its teacher is at no distance from it."""
    if task in ("segmentation", "detection"):
        make = {"segmentation": keras_vit.ImageSegmenter, "detection": keras_vit.ObjectDetector}[task]
        dataset = few_scenes(task)
        model = make(ENCODER, len(dataset.class_names), class_names=dataset.class_names)
    else:
        names = ("a", "b", "c")
        model = keras_vit.VisionTransformer(**ENCODER | {"num_classes": 3, "class_names": names})
        dataset = dataclasses.replace(load_dataset("digits"), task=task, class_names=names)
    file = tmp_path / "teacher.keras"
    randomize(model).save(file)
    recipe = Recipe("sgd", 0.1, 2, 1, batch_size=4, task=task, crop_area=None)
    config = RunConfig(dataset.name, recipe, weights=str(file), teachers=(str(file),))
    model = build_model(config, dataset)
    if task in ("multi_label", "regression"):
        head = model.student.get_layer("head")
        for weight, other in zip(head.weights, keras_vit.from_pretrained(file).get_layer("head").weights):
            weight.assign(other)
    compile_model(model, recipe, task=config.task)
    images = np.random.default_rng(0).uniform(-1, 1, (3, 16, 16, 3)).astype("float32")
    outputs = model(images)
    assert float(model.loss(np.zeros(3), outputs)) == pytest.approx(0, abs=1e-5)
    randomize(model.student, seed=5)
    assert float(model.loss(np.zeros(3), model(images))) > 1e-2


NUMBERS, MAPS = {"task": "regression", "mixup": 0.0}, {"task": "segmentation", "mixup": 0.0}
HALF, TEMPERED, HARD = {"label_weight": 0.5}, {"temperature": 2.0}, {"method": "hard"}
REFUSED = {
    "no teacher": ({"distillation": {}}, {"teachers": ()}, "needs teachers: expected --teacher"),
    "unknown option": ({"distillation": {"tau": 1}}, {}, "in the recipe's distillation; got tau"),
    "unknown method": ({"distillation": {"method": "kl"}}, {}, "one of 'soft', 'hard', 'features'; got 'kl'"),
    "smoothing": ({"label_smoothing": 0.1}, {}, "expected a label_weight above 0"),
    "depth": ({"task": "depth", "mixup": 0.0}, {}, "expected distillation by a task among single_label"),
    "hard numbers": ({**NUMBERS, "distillation": HARD}, {}, "by 'soft'; got method 'hard' of task 'regress"),
    "temperature": (
        {"distillation": {**HARD, **TEMPERED}},
        {},
        "temperature needs method 'soft'; got 'hard'",
    ),
    "temperature of numbers": ({**NUMBERS, "distillation": TEMPERED}, {}, "have no temperature: .* got 2.0"),
    "labels of maps": ({**MAPS, "distillation": HALF}, {}, "expected label_weight=0 for task 'segmentation'"),
    "labels without labels": ({"distillation": HALF}, {"objective": "distill"}, "for a run without labels"),
    "probe without labels": ({"probe_first": True}, {"objective": "distill"}, "not use probe_first=True"),
    "teachers elsewhere": ({}, {"objective": "mae"}, "does not use teachers="),
}


@by_table("reason", REFUSED)
def test_what_does_not_go_together_is_refused(reason, config):
    changes, own, words = REFUSED[reason]
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(config, recipe=config.recipe.with_changes(**changes), **own)


@pytest.mark.slow
def test_a_teacher_without_classes_is_refused(config, tmp_path):
    """test_stored_outputs.py has one of other classes."""
    keras_vit.VisionTransformer(**ENCODER).save(tmp_path / "teacher.keras")
    with pytest.raises(ValueError, match="no classification head"):
        of_features = dataclasses.replace(config, teachers=(str(tmp_path / "teacher.keras"),))
        build_model(of_features, load_dataset(config.dataset))
