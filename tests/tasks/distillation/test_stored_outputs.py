"""Runs whose teacher's outputs were computed before."""

import dataclasses
import json
import re
from collections import Counter

import numpy as np
import pytest
from made.folders import write_classes
from made.tables import by_table
from reference.comparing import numpy

import keras_vit
from keras_vit.embeddings import embed, plan_embeddings
from keras_vit.embeddings.plan import Plan, begin
from keras_vit.reports.run_report import write_run_report
from keras_vit.tasks.distillation.stored_outputs import StoredOutputs
from keras_vit.training import train
from keras_vit.training.run import load_data

pytestmark = pytest.mark.usefixtures("eager")
SHORT = {"total_steps": 3, "warmup_steps": 1, "eval_every": 3, "checkpoint_every": 3, "ema": None}
STILL = {"crop_area": None, "flip": False, "mixup": 0.0, "accumulation_steps": 1}


@pytest.fixture(scope="module")
def live(labeled):
    """A run with a teacher, without augmentation; the batches end amid an epoch of its 18 images."""
    config = labeled("taught", **SHORT, **STILL)
    changes = {"batch_size": 7, "distillation": {"label_weight": 0.3}, "class_weights": (1.0, 2.0)}
    return dataclasses.replace(config, recipe=config.recipe.with_changes(**changes))


@pytest.fixture(scope="module")
def folder(live, tmp_path_factory):
    out, [teacher] = tmp_path_factory.mktemp("stored") / "out", live.teachers
    options = {"outputs": ("pooled", "logits"), "dtype": "float32"}
    embed(plan_embeddings(out, "", keras_vit.from_pretrained(teacher), {"name": live.dataset}, **options))
    return out


@pytest.fixture(scope="module")
def stored(live, folder):
    return dataclasses.replace(live, teachers=(f"embeddings:{folder}",))


@pytest.fixture(scope="module")
def finished(stored, tmp_path_factory):
    return train(stored, tmp_path_factory.mktemp("stored") / "run", 0)


@pytest.mark.slow
def test_a_run_is_that_with_the_model(live, finished, tmp_path):
    (workdir, record), (expected, of_model) = finished, train(live, tmp_path / "run", 0)
    for row, other in zip(workdir.metrics(), expected.metrics(), strict=True):
        timeless = [{name: of[name] for name in of if "second" not in name} for of in (row, other)]
        assert timeless[0] == pytest.approx(timeless[1], rel=1e-4)
    scores = {name: value for name, value in of_model.items() if name.startswith("test_")}
    assert scores.keys() >= {"test_kl", "test_agreement", "test_teacher_accuracy"}
    scores = {name: value for name, value in scores.items() if value is not None}
    assert {name: record[name] for name in scores} == pytest.approx(scores, rel=1e-4)
    for weight, other in zip(*(keras_vit.from_pretrained(run.path).weights for run in (workdir, expected))):
        np.testing.assert_allclose(numpy(weight), numpy(other), atol=1e-5)
    digests = [json.loads((run.path / "data.json").read_text())["teachers"] for run in (workdir, expected)]
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_the_report_shows_what_the_teacher_decided(stored, finished):
    workdir, record = finished
    write_run_report(stored, workdir, record)
    page = (workdir.path / "report.html").read_text()
    section = page[page.index("Differences from the teachers") :]
    rows, found = stored.task.loaded()[0].rows(load_data(stored).split("test")), Counter()
    found.update(re.findall(r"student: \w+[^;]*; teacher: (\w+)", section))
    assert found == Counter(("cat", "dog")[row.argmax()] for row in rows)


MAPS = {"task": "segmentation", "class_weights": None, "distillation": None}
REFUSED = {
    "features": ({"distillation": {"method": "features"}}, "expected a model as teacher of features; got"),
    "maps": (MAPS, "expected a model as teacher of task 'segmentation'; got embeddings:"),
    "mixup": ({"mixup": 0.2}, "expected mixup=0 and cutmix=0; got mixup=0.2 and cutmix=0.0"),
}


@by_table("reason", REFUSED)
def test_recipes_that_need_a_model_are_refused(reason, stored):
    changes, words = REFUSED[reason]
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(stored, recipe=stored.recipe.with_changes(**changes))


def test_embeddings_that_do_not_fit_are_refused_before_the_folder_is_made(stored, tmp_path, monkeypatch):
    def refused(words, **changes):
        with pytest.raises(ValueError, match=words):
            train(dataclasses.replace(stored, **changes), tmp_path / "run", 0)
        assert not (tmp_path / "run").exists()

    others = write_classes(tmp_path / "others", count=12)
    refused("lacks 18 of 18 images", dataset=f"folder:{others}")
    refused("got the order 'mixture'", dataset=f"{stored.dataset}*1 + {stored.dataset}*1")
    begin(tmp_path / "pooled", Plan("", "1f", {"name": "digits"}, "2e", {"train": 7}, 1))
    refused("pooled' has the outputs pooled; got 'logits'", teachers=(f"embeddings:{tmp_path / 'pooled'}",))
    reader = "keras_vit.tasks.distillation.teacher_rows.teacher_in"
    monkeypatch.setattr(reader, lambda folder: StoredOutputs(2, ("cat", "fish")))
    refused(r"student's 2 classes \(cat, dog\); embeddings:.* has 2 \(cat, fish\)")
