import argparse
import json
import types

import numpy as np
import pytest
from made.disks import full_disk
from made.folders import write_broken, write_classes
from reference.small import small

from keras_vit import from_pretrained, save_weights
from keras_vit.cli import evaluate
from keras_vit.cli.source import seed_of, task_of
from keras_vit.data.datasets import Dataset, load_dataset
from keras_vit.evaluation.predicting import check_classes
from keras_vit.weights.class_names import class_names


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A checkpoint of as many classes as `images` has."""
    return save_weights(small(num_classes=2), tmp_path_factory.mktemp("weights") / "two.npz", "vit_jax")


def test_it_prints_the_accuracy_of_the_test_split(keras_vit, weights, images):
    done = keras_vit("evaluate", "--model", weights, "--dataset", f"folder:{images}")
    assert done.returncode == 0 and done.stderr == ""
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stdout.splitlines()[0] == "2 classes (cat, dog): 14 train, 2 validation, 4 test"
    shown = dict(line for line in lines if len(line) == 2)
    samples = load_dataset(f"folder:{images}").split("test")
    best = [int(row[0][0]) for row in from_pretrained(weights).classify(samples.images)]
    assert shown["samples"] == "4"
    assert float(shown["accuracy"]) == pytest.approx(np.mean(np.array(best) == samples.labels), abs=1e-4)


def test_json_has_all_scores_of_the_split(keras_vit, weights, images, tmp_path):
    command = ("evaluate", "--model", weights, "--dataset", f"folder:{images}", "--split", "train", "--json")
    done = keras_vit(*command, "--output", tmp_path / "found.json")
    found = json.loads(done.stdout)
    assert done.stderr == "2 classes (cat, dog): 14 train, 2 validation, 4 test\n"
    assert found == json.loads((tmp_path / "found.json").read_text()) and found["samples"] == 14
    names = ("model", "dataset", "split", "samples", "accuracy", "top5_accuracy", "loss", "bad_images")
    assert {*found} == {*names}


def test_the_seed_selects_the_split(keras_vit, weights, images):
    command = ("evaluate", "--model", weights, "--dataset", f"folder:{images}", "--json", "--seed")
    assert len({json.loads(keras_vit(*command, seed).stdout)["loss"] for seed in (0, 1)}) == 2


def test_an_unreadable_image_fails_or_is_skipped_and_listed(keras_vit, refused, weights, tmp_path):
    root = write_classes(tmp_path / "images")
    bad = write_broken(root / "cat" / "bad.png")
    command = ("evaluate", "--model", weights, "--dataset", f"folder:{root}")
    refused(keras_vit(*command), bad, "--on_bad_image skip")
    done = keras_vit(*command, "--on_bad_image", "skip")
    assert done.returncode == 0
    assert f"unreadable image  {bad}" in done.stdout
    done = keras_vit(*command, "--on_bad_image", "skip", "--json")
    assert json.loads(done.stdout)["bad_images"] == [str(bad)]


def nan_model(model):
    model.get_layer("head").bias.assign([np.nan, 0])
    return model


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: small(num_classes=2, class_names=("dog", "cat")),
            "class 0 is 'dog' in the model and 'cat' in",
        ),
        (
            lambda: small(num_classes=7, class_names=("cat", "dog", *"abcde")),
            "7 outputs (cat, dog, a, b, c and 2",
        ),
        (lambda: nan_model(small(num_classes=2)), "NaN or infinity"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused(make, message, keras_vit, images, tmp_path):
    make().save(tmp_path / "model.keras")
    done = keras_vit("evaluate", "--model", tmp_path / "model.keras", "--dataset", f"folder:{images}")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and message in line


@pytest.fixture
def evaluated(weights, images, tmp_path, capsys):
    """Run the subcommand with these options on top of the usual ones: (what is printed, the JSON)."""

    def run(**options):
        usual = {"model": str(weights), "dataset": f"folder:{images}", "split": "test", "seed": None}
        usual |= {"batch_size": 64, "on_bad_image": "fail", "data_dir": None, "task": "single_label"}
        usual |= {"real": None, "per_class": False, "confusion": None, "json": False}
        usual |= {"trust": False, "sha256": None}
        evaluate.run(argparse.Namespace(**usual | {"output": tmp_path / "found.json"} | options))
        return capsys.readouterr().out, json.loads((tmp_path / "found.json").read_text())

    return run


def test_per_class_has_a_row_for_each_class(evaluated, images, tmp_path):
    small(num_classes=2, class_names=("cat", "dog")).save(tmp_path / "model.keras")
    text, found = evaluated(model=str(tmp_path / "model.keras"), per_class=True)
    assert [row["name"] for row in found["classes"]] == ["cat", "dog"]
    assert [row["samples"] for row in found["classes"]] == [2, 2]
    assert sum(row["right"] for row in found["classes"]) == pytest.approx(4 * found["accuracy"])
    assert "classes" not in evaluated(model=str(tmp_path / "model.keras"))[1]
    *_, title, cat, dog = text.splitlines()
    assert title.split() == ["name", "samples", "right", "accuracy", "predicted", "precision"]
    assert (cat.split()[:2], dog.split()[:2]) == (["cat", "2"], ["dog", "2"])


def test_the_confusion_matrix_is_drawn(evaluated, tmp_path):
    _, found = evaluated(confusion=str(tmp_path / "confused.png"))
    assert (tmp_path / "confused.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {"confused.png", "found.json"}
    assert found["confusion"] == str(tmp_path / "confused.png")


def test_scores_are_printed_and_old_files_stay_where_new_ones_cannot_be_written(
    keras_vit, weights, images, tmp_path
):
    files = [tmp_path / "found.json", tmp_path / "confused.png"]
    for file in files:
        file.write_bytes(b"old")
    given = ("--model", weights, "--dataset", f"folder:{images}")
    with full_disk(tmp_path):
        done = keras_vit("evaluate", *given, "--output", files[0], "--confusion", files[1])
    assert done.returncode == 2 and "accuracy" in done.stdout
    assert done.stderr == f"keras-vit: '{files[1]}' cannot be written: No space left on device\n"
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(files, b"old")


def test_real_accuracy_is_by_file_name(evaluated, weights, tmp_path):
    root = write_classes(tmp_path / "images", ("a", "b"), count=6)
    for i, path in enumerate(sorted(root.glob("*/*.png"))):
        path.rename(path.with_name(f"ILSVRC2012_val_{12 - i:08d}.png"))
    samples = load_dataset(f"folder:{root}").split("train").images
    best = [int(row[0][0]) for row in from_pretrained(weights).classify(list(samples))]
    labels = [[] for _ in range(12)]
    for path, said in list(zip(samples, best))[:4]:  # the first is wrong, three are right
        labels[int(path[-12:-4]) - 1] = [said] if path != samples[0] else [1 - said]
    (tmp_path / "real.json").write_text(json.dumps(labels))
    text, found = evaluated(dataset=f"folder:{root}", split="train", real=tmp_path / "real.json")
    assert (found["real_samples"], found["real_accuracy"]) == (4, 0.75)
    assert "real_accuracy  0.7500" in text


def test_other_tasks_have_their_scores(evaluated, tmp_path):
    root = write_classes(tmp_path / "images", ("a",), count=10) / "a"
    rows = [f"{root.name}/{path.name},{i % 2},{(i + 1) % 2}" for i, path in enumerate(sorted(root.iterdir()))]
    (tmp_path / "images" / "labels.csv").write_text("\n".join(["file,red,blue", *rows]) + "\n")
    small(num_classes=2).save(tmp_path / "model.keras")
    given = {"model": str(tmp_path / "model.keras"), "dataset": f"folder:{tmp_path / 'images'}"}
    text, found = evaluated(**given, task="multi_label", per_class=True)
    assert 0 <= found["mean_average_precision"] <= 1 and "mean_average_precision" in text
    assert [row["name"] for row in found["classes"]] == ["red", "blue"]
    assert evaluated(**given, task="regression")[1]["mse"] > 0


@pytest.mark.parametrize(
    "options, words",
    [
        ({"task": "detection"}, "task must be one of 'single_label'"),
        ({"task": "multi_label", "real": "real.json"}, "--real and --confusion need one label per image"),
        ({"task": "regression", "per_class": True}, "--per_class needs classes"),
        ({"confusion": "confused.jpg"}, "expected --confusion to be a .png file; got 'confused.jpg'"),
        (
            {"confusion": "no/such/confused.png"},
            "'no/such/confused.png' cannot be written: there is no",
        ),
        ({"output": "no/such/found.json"}, "'no/such/found.json' cannot be written: there is no folder"),
        ({"output": "."}, "'.' cannot be written: it is a folder"),
        ({"real": "nowhere.json"}, "cannot read 'nowhere.json'"),
    ],
)
def test_impossible_options_are_refused_before_anything_is_computed(options, words, evaluated):
    with pytest.raises(ValueError, match=words):
        evaluated(**{"model": "no such model"} | options)


SYNSETS, WORDS = class_names("imagenet_1k_synsets"), class_names("imagenet_1k")


def swapped(names):
    """Two of the names in each other's place."""
    return tuple(names[{3: 5, 5: 3}.get(i, i)] for i in range(len(names)))


def classes(names=None):
    """A model with these classes."""
    return types.SimpleNamespace(is_classifier=True, num_classes=len(names or SYNSETS), class_names=names)


@pytest.mark.parametrize("ours", [WORDS, SYNSETS, tuple(w.split(",")[0].title() for w in WORDS), None])
@pytest.mark.parametrize("theirs", [WORDS, SYNSETS])
def test_imagenets_classes_must_have_the_same_order_whatever_their_names(ours, theirs):
    check_classes(classes(ours), Dataset("d", theirs, {}))
    if ours:
        check_classes(classes(swapped(ours)), Dataset("d", swapped(theirs), {}))
    if ours or theirs == SYNSETS:
        with pytest.raises(ValueError, match="class 3 is '.*' in the model and '.*' in the data set; these"):
            check_classes(classes(ours), Dataset("d", swapped(theirs), {}))


def test_a_thousand_other_synsets_are_not_imagenets():
    others = tuple(f"n{i:08d}" for i in range(1000))
    check_classes(classes(others), Dataset("d", others, {}))
    check_classes(classes(), Dataset("d", others, {}))
    with pytest.raises(ValueError, match="class 0 is 'tench, Tinca tinca' in the model and 'n00000000' in"):
        check_classes(classes(WORDS), Dataset("d", others, {}))


def test_seed_and_task_of_an_older_file_are_its_runs(tmp_path):
    model = small()
    (tmp_path / "config.json").write_text(json.dumps({"recipe": {"seed": 5, "task": "multi_label"}}))
    for source in (tmp_path, tmp_path / "model.keras"):
        assert (seed_of(source, model), task_of(source, model)) == (5, "multi_label")
    (tmp_path / "config.json").write_text("{}")
    for source in (tmp_path, "elsewhere.npz"):
        assert (seed_of(source, model), task_of(source, model)) == (0, "single_label")


@pytest.mark.parametrize("name", ["model.keras", pytest.param("model.npz", marks=pytest.mark.slow)])
def test_seed_and_task_are_stored_in_the_file(name, evaluated, tmp_path):
    model = small(num_classes=2, task="single_label", split_seed=1)
    path = tmp_path / "copied" / name
    path.parent.mkdir()
    model.save(path) if path.suffix == ".keras" else save_weights(model, path, "vit_jax")
    # Its folder is now that of another run.
    (path.parent / "config.json").write_text(json.dumps({"recipe": {"seed": 5, "task": "regression"}}))
    losses = [evaluated(model=str(path), task=None, seed=seed)[1]["loss"] for seed in (None, 1, 5)]
    assert losses[0] == losses[1] != losses[2]


def test_a_model_with_another_head_has_no_task_or_split(tmp_path):
    small(num_classes=2, task="multi_label", split_seed=1).save(tmp_path / "model.keras")
    kept = from_pretrained(tmp_path / "model.keras", image_size=32)
    assert (kept.task, kept.split_seed) == ("multi_label", 1)
    other = from_pretrained(tmp_path / "model.keras", num_classes=3)
    assert (other.task, other.split_seed) == (None, None)
