import json

import numpy as np
import pytest
from made.folders import write_broken, write_classes
from reference.small import small

from keras_vit import from_pretrained
from keras_vit.cli.source import seed_of
from keras_vit.data.datasets import load_dataset


def test_the_script_prints_the_accuracy_of_the_test_split(script, weights, images):
    done = script("evaluate", "--model", weights, "--dataset", f"folder:{images}")
    assert done.returncode == 0 and done.stderr == ""
    lines = [line.split() for line in done.stdout.splitlines()]
    shown = dict(line for line in lines if len(line) == 2)
    samples = load_dataset(f"folder:{images}").split("test")
    best = [int(row[0][0]) for row in from_pretrained(weights).classify(samples.images)]
    assert shown["samples"] == "4"
    assert float(shown["accuracy"]) == pytest.approx(np.mean(np.array(best) == samples.labels), abs=1e-4)


@pytest.mark.parametrize("split, count", [("train", 14), ("validation", 2), ("test", 4)])
def test_json_tells_all_of_the_split(split, count, keras_vit, weights, images, tmp_path):
    done = keras_vit(
        *("evaluate", "--model", weights, "--dataset", f"folder:{images}", "--split", split),
        *("--json", "--output", tmp_path / "found.json"),
    )
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "found.json").read_text())
    assert found["samples"] == count
    assert {*found} == {
        *("model", "dataset", "split", "samples", "accuracy", "top5_accuracy", "loss", "bad_images")
    }


def test_the_seed_draws_the_split(keras_vit, weights, images):
    losses = {
        json.loads(
            keras_vit(
                *("evaluate", "--model", weights, "--dataset", f"folder:{images}", "--json", "--seed", seed)
            ).stdout
        )["loss"]
        for seed in (0, 1, 2)
    }
    assert len(losses) == 3


def test_an_unreadable_image_fails_or_is_left_out_and_listed(keras_vit, refused, weights, tmp_path):
    root = write_classes(tmp_path / "images")
    bad = write_broken(root / "cat" / "bad.png")
    command = ("evaluate", "--model", weights, "--dataset", f"folder:{root}")
    refused(keras_vit(*command), bad, "--on_bad_image skip")
    done = keras_vit(*command, "--on_bad_image", "skip")
    assert done.returncode == 0
    assert f"unreadable image  {bad}" in done.stdout
    done = keras_vit(*command, "--on_bad_image", "skip", "--json")
    assert json.loads(done.stdout)["bad_images"] == [str(bad)]


def unknown_split(weights, images, path):
    return weights, f"folder:{images}", ["--split", "dev"], ["'dev' is unknown", "validation"]


def empty_folder(weights, images, path):
    (path / "empty").mkdir()
    return weights, f"folder:{path / 'empty'}", [], ["no images in", path / "empty", "CLASS/*.jpg"]


def unknown_dataset(weights, images, path):
    return weights, "mnist", [], ["'mnist' is unknown", "folder:PATH"]


def other_classes(weights, images, path):
    small(num_classes=2, class_names=("dog", "cat")).save(path / "model.keras")
    return path / "model.keras", f"folder:{images}", [], ["['dog', 'cat']", "['cat', 'dog']"]


def too_few_classes(weights, images, path):
    return weights, "digits", [], ["labels up to 9", "7 classes"]


@pytest.mark.parametrize(
    "make", [unknown_split, empty_folder, unknown_dataset, other_classes, too_few_classes]
)
def test_bad_input_is_refused_in_one_line(make, keras_vit, weights, images, tmp_path):
    model, dataset, options, words = make(weights, images, tmp_path)
    done = keras_vit("evaluate", "--model", model, "--dataset", dataset, *options)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert all(str(word) in line for word in words), line


def test_the_split_is_the_runs_own_wherever_its_model_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"recipe": {"seed": 5}}))
    assert seed_of(tmp_path) == seed_of(tmp_path / "model.keras") == 5
    (tmp_path / "config.json").write_text("{}")
    assert seed_of(tmp_path) == seed_of("elsewhere.npz") == 0
