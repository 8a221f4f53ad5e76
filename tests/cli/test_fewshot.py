import json

from keras_vit import evaluation

FOUND = {1: [0.25, 0.5], 4: [0.5, 1.0]}  # accuracy by shots, for two seeds


def test_a_row_per_number_of_shots_is_printed_and_all_is_written(
    weights, images, keras_vit, monkeypatch, tmp_path
):
    given = []

    def few_shot(model, dataset, *options):
        given.extend((model.hidden_size, dataset.class_names, *options))
        return FOUND

    monkeypatch.setattr(evaluation, "few_shot", few_shot)
    options = ("--shots", "1,4", "--seeds", "0,3", "--l2", 2, "--batch_size", 8)
    command = ("fewshot", "--model", weights, "--dataset", f"folder:{images}", *options)
    done = keras_vit(*command, "--output", tmp_path / "found.json")
    assert given == [24, ("cat", "dog"), (1, 4), (0, 3), 2.0, 8, None]
    assert done.stdout.splitlines() == [
        "2 classes (cat, dog): 14 train, 2 validation, 4 test",
        "shots  mean    seed 0  seed 3",
        "    1  0.3750  0.2500  0.5000",
        "    4  0.7500  0.5000  1.0000",
    ]
    assert json.loads((tmp_path / "found.json").read_text()) == {
        **{"model": str(weights), "dataset": f"folder:{images}", "l2": 2.0, "seeds": [0, 3]},
        "accuracy": {"1": [0.25, 0.5], "4": [0.5, 1.0]},
        "mean_accuracy": {"1": 0.375, "4": 0.75},
    }
