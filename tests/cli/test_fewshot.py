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


def test_a_row_per_number_of_shots_is_printed_and_all_is_written(weights, images, capsys, tmp_path):
    data = load_dataset(f"folder:{images}")
    expected = few_shot(from_pretrained(weights), data, (1, 4), (0, 3), 2.0)
    fewshot.run(arguments(weights, images, output=tmp_path / "found.json"))
    found, title, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(found) == "2 classes (cat, dog): 14 train, 2 validation, 4 test"
    assert title == ["shots", "mean", "seed", "0", "seed", "3"]
    for (shots, of), row in zip(expected.items(), rows, strict=True):
        assert row == [str(shots), f"{sum(of) / 2:.4f}", *(f"{accuracy:.4f}" for accuracy in of)]
    assert json.loads((tmp_path / "found.json").read_text()) == {
        **{"model": str(weights), "dataset": f"folder:{images}", "l2": 2.0, "seeds": [0, 3]},
        "accuracy": {str(shots): of for shots, of in expected.items()},
        "mean_accuracy": {str(shots): pytest.approx(sum(of) / 2) for shots, of in expected.items()},
    }


@pytest.mark.parametrize(
    "options, words",
    [
        ({"shots": (9,)}, "expected 9 or more training images per class; got 7 of 'cat'"),
        ({"l2": 0.0}, "l2 must be a number above 0"),
        ({"dataset": "mnist"}, "'mnist' is unknown"),
    ],
)
def test_bad_input_is_refused(options, words, weights, images):
    with pytest.raises(ValueError, match=words):
        fewshot.run(arguments(weights, images, **options))
