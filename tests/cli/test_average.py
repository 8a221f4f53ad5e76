"""Averages of models: each score is the one that `keras-vit evaluate` prints for the same file."""

import re

import pytest
from made.folders import write_captions, write_depths
from made.tables import by_table
from reference.comparing import randomize
from reference.small import SMALL, TEXT, one_block

from keras_vit import DepthEstimator, ImageTextModel
from keras_vit.data.sources.digits_words import word_tokenizer

ENCODER = {**SMALL, "num_classes": None, "num_layers": 1}


def classifier():
    return one_block(num_classes=2, class_names=("cat", "dog"))


def estimator():
    return DepthEstimator(ENCODER, head="linear", bins=8, class_names=("depth",))


def pairs():
    text = {**TEXT, "vocabulary_size": 9, "length": 12}
    words = word_tokenizer(["some photo of a dark bright"])
    return ImageTextModel({**ENCODER, "pooling": "gap"}, text, text_preprocessing=words)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Write three models of a kind with different weights; their files."""

    def write(model):
        folder = tmp_path_factory.mktemp("models")
        for number in range(3):
            randomize(model, seed=number).save(folder / f"{number}.keras")
        return [folder / f"{number}.keras" for number in range(3)]

    return write


@pytest.fixture(scope="module")
def classifiers(files):
    return files(classifier())


KINDS = {  # (the model, its data set, options of evaluate, its main score, whether more of it is better)
    "classifier": (classifier, None, (), "accuracy", True),
    "depth": (estimator, write_depths, (), "abs_rel", False),
    "pairs": (pairs, write_captions, ("--retrieval",), "image_to_text_recall_1", True),
}


@pytest.fixture
def evaluated(json_of):
    """The scores that `keras-vit evaluate` prints of a file."""

    def evaluate(path, split, *options):
        scores = json_of("evaluate", "--model", path, "--split", split, *options)
        return {name: value for name, value in scores.items() if name not in ("model", "dataset", "split")}

    return evaluate


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_a_greedy_soup_is_printed_with_each_decision_and_the_scores_that_evaluate_prints(
    files, keras_vit, evaluated, tmp_path
):
    paths, output = files(one_block(num_classes=10))[:2], tmp_path / "soup.keras"
    done = keras_vit("average", *paths, "--method", "greedy", "--output", output, "--dataset", "digits")
    summary, columns, first, second, _, heading, *scores, _, written = done.stdout.splitlines()
    assert summary.startswith("10 classes") and written == f"wrote {output}"
    assert re.split("  +", columns) == ["model", "validation accuracy", "validation accuracy with it", "kept"]
    (name, best, *start), (other, own, with_it, kept) = first.split(), second.split()
    assert {name, other} == {*map(str, paths)} and start == ["-", "yes"]
    assert float(best) >= float(own) and kept == ("yes" if float(with_it) >= float(best) else "no")
    assert heading.split() == ["soup", "validation", "test"]
    expected = evaluated(output, "test", "--dataset", "digits")
    scores = [row.split() for row in scores]
    assert scores[1][:2] == ["accuracy", with_it if kept == "yes" else best]
    assert [(name, test) for name, _, test in scores] == [
        (name, str(expected[name]) if name == "samples" else f"{expected[name]:.4f}")
        for name in ("samples", "accuracy", "top5_accuracy", "loss")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_soups_have_the_scores_that_evaluate_prints(kind, files, json_of, evaluated, images, tmp_path):
    make, write, options, metric, higher_is_better = KINDS[kind]
    data = ("--dataset", f"folder:{write(tmp_path / 'data') if write else images}")
    paths = files(make())
    own = {str(path): evaluated(path, "validation", *data, *options)[metric] for path in paths}
    for method in ("uniform", "greedy"):
        output = tmp_path / f"{method}.keras"
        found = json_of("average", *paths, "--output", output, "--method", method, *data)
        assert {row["model"]: row[f"validation_{metric}"] for row in found["models"]} == own
        for split in ("validation", "test"):
            expected = evaluated(output, split, *data, *options)
            assert {**found[split], "bad_images": found["bad_images"]} == expected
    scores = [row[f"validation_{metric}"] for row in found["models"]]
    assert scores == sorted(scores, reverse=higher_is_better)


def test_without_a_data_set_the_parts_of_the_models_are_printed(classifiers, keras_vit, tmp_path):
    output = tmp_path / "soup.keras"
    done = keras_vit("average", *classifiers[:2], "--proportions", "3,1", "--output", output)
    lines = [line.split() for line in done.stdout.splitlines()]
    first, second = map(str, classifiers[:2])
    assert lines == [["model", "weight"], [first, "0.7500"], [second, "0.2500"], [], ["wrote", str(output)]]
    assert [*tmp_path.iterdir()] == [output]


@pytest.mark.slow
@by_table(
    "options, words",
    [
        (["--output", "soup.npz"], "expected --output to be a .keras file; got 'soup.npz'"),
        (["--output", "{there}"], "'{there}' exists; '{folder}/there-2.keras' is free"),
        (["--method", "mean"], "--method must be one of 'uniform', 'greedy'; got 'mean'"),
        (["--method", "greedy"], "--method greedy needs --dataset"),
        (
            ["--method", "greedy", "--proportions", "1,2", "--dataset", "digits"],
            "expected --proportions with --method uniform only; got --method greedy",
        ),
        (["--proportions", "1,2"], "expected a weight for each of the 3 models; got 2"),
        (["--proportions", "1,a,2"], "expected numbers separated by commas; got '1,a,2'"),
        (["--task", "depth", "--field", "label=a"], "expected --dataset with --field, --task; got none"),
        (["--dataset", "digits"], "expected a model with the data set's 10 classes"),
    ],
)
def test_impossible_averages_are_refused_before_they_are_written(
    options, words, classifiers, refused, tmp_path
):
    there = tmp_path / "there.keras"
    there.write_bytes(b"old")
    places = {"there": there, "folder": tmp_path}
    options = [option.format(**places) for option in options]
    refused(["average", *classifiers, "--output", tmp_path / "soup.keras", *options], words.format(**places))
    assert [*tmp_path.iterdir()] == [there] and there.read_bytes() == b"old"


@pytest.mark.slow
def test_classes_do_not_score_pairs(files, keras_vit, tmp_path):
    data = ("--dataset", "digits_words", "--output", tmp_path / "soup.keras")
    done = keras_vit("average", *files(pairs())[:2], *data, status=2)
    message = "keras-vit: image-text models are scored on images with captions; got digits_words"
    assert done.stderr.splitlines()[-1] == message


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_runs_from_one_start_are_averaged(json_of, keras_vit, tmp_path):
    digits = ("--dataset", "digits", "--recipe", "digits", "--set", "warmup_steps=20")
    digits += ("--set", "split_seed=0")
    start = ("--model", "mu/8", "--image_size", 16, "--total_steps", 100)
    keras_vit("finetune", *digits, *start, "--workdir", tmp_path / "start")
    runs = [tmp_path / f"run-{number}" for number in range(3)]
    for seed, (run, rate) in enumerate(zip(runs, (0.0005, 0.001, 0.002))):
        tuning = ("--weights", tmp_path / "start/model.keras", "--total_steps", 30)
        own = ("--set", f"base_lr={rate}", "--set", f"seed={seed}")
        keras_vit("finetune", *digits, *tuning, *own, "--workdir", run)
    for method in ("uniform", "greedy"):
        output = tmp_path / f"{method}.keras"
        found = json_of("average", *runs, "--output", output, "--method", method, "--dataset", "digits")
        scores = json_of("evaluate", "--model", output, "--dataset", "digits")
        assert found["test"] == {name: scores[name] for name in found["test"]}
        assert scores["accuracy"] > 0.3
