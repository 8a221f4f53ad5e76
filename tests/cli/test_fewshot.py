import argparse
import json

import pytest

from keras_vit import from_pretrained
from keras_vit.cli import fewshot
from keras_vit.data.datasets import load_dataset
from keras_vit.evaluation import few_shot


def arguments(weights, images, **options):
    usual = {"model": str(weights), "dataset": f"folder:{images}", "shots": (1, 4), "seeds": (0, 3)}
    usual |= {"l2": 2.0, "batch_size": 8, "data_dir": None, "json": False, "output": None}
    usual |= {"trust": False, "sha256": None}
    return argparse.Namespace(**usual | options)


@pytest.fixture(scope="module")
def expected(weights, images):
    return few_shot(from_pretrained(weights), load_dataset(f"folder:{images}"), (1, 4), (0, 3), 2.0)


def test_a_row_for_each_number_of_shots(weights, images, expected, capsys):
    fewshot.run(arguments(weights, images))
    found, title, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(found) == "2 classes (cat, dog): 14 train, 2 validation, 4 test"
    assert title == ["shots", "mean", "seed", "0", "seed", "3"]
    for (shots, of), row in zip(expected.items(), rows, strict=True):
        assert row == [str(shots), f"{sum(of) / 2:.4f}", *(f"{accuracy:.4f}" for accuracy in of)]


def test_json_tells_all(weights, images, expected, capsys, tmp_path):
    fewshot.run(arguments(weights, images, json=True, output=tmp_path / "found.json"))
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "found.json").read_text())
    assert found == {
        **{"model": str(weights), "dataset": f"folder:{images}", "l2": 2.0, "seeds": [0, 3]},
        "accuracy": {str(shots): of for shots, of in expected.items()},
        "mean_accuracy": {str(shots): pytest.approx(sum(of) / 2) for shots, of in expected.items()},
    }


@pytest.mark.parametrize(
    "options, words",
    [
        ({"shots": (9,)}, "expected 9 or more training images per class; got 7 of 'cat'"),
        ({"l2": 0.0}, "l2 must be above 0"),
        ({"dataset": "mnist"}, "'mnist' is unknown"),
    ],
)
def test_bad_input_is_refused(options, words, weights, images):
    with pytest.raises(ValueError, match=words):
        fewshot.run(arguments(weights, images, **options))
