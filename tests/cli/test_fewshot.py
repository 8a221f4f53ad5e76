import json
import shutil

import pytest

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
    done = keras_vit(*command, "--json", tmp_path / "found.json")
    assert given == [24, ("cat", "dog"), (1, 4), (0, 3), 2.0, 8, None]
    assert done.stdout.splitlines() == [
        "2 classes (cat, dog): 14 train, 2 validation, 4 test; validation and test held out",
        "shots  mean    seed 0  seed 3",
        "    1  0.3750  0.2500  0.5000",
        "    4  0.7500  0.5000  1.0000",
    ]
    assert json.loads((tmp_path / "found.json").read_text()) == {
        **{"model": str(weights), "dataset": f"folder:{images}", "l2": 2.0, "seeds": [0, 3]},
        "accuracy": {"1": [0.25, 0.5], "4": [0.5, 1.0]},
        "mean_accuracy": {"1": 0.375, "4": 0.75},
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [pytest.param((), marks=pytest.mark.slow), ("--neighbors", 3)], ids=["linear", "nearest"]
)
def test_embeddings_stand_for_the_model_and_its_images(options, weights, images, keras_vit, tmp_path):
    source = ("--model", weights, "--dataset", f"folder:{images}")
    keras_vit("embed", *source, "--output", tmp_path / "vectors", "--dtype", "float32")
    for command in (("fewshot", "--shots", "1,4"), ("probe", "--shots", "4")):
        found, expected = (
            json.loads(keras_vit(*command, *of, *options, "--json", "-").stdout)
            for of in (("--embeddings", tmp_path / "vectors"), source)
        )
        assert found.pop("embeddings") == str(tmp_path / "vectors")
        assert expected.pop("model") == str(weights) and expected.pop("dataset") == f"folder:{images}"
        if command[0] == "fewshot":
            assert found == expected
        else:
            assert len(found["accuracy"]) == 1 and 0 <= found["accuracy"][0][0] <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("fewshot", "--shots", "1", "--neighbors", "1"), marks=pytest.mark.slow),
        ("embed", "--output", "out"),
    ],
)
def test_images_that_cannot_be_read_are_left_out_if_asked(
    command, weights, images, keras_vit, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    bad = next((shutil.copytree(images, tmp_path / "in") / "cat").iterdir())
    bad.write_bytes(b"no image")
    done = keras_vit(*command, "--model", weights, "--dataset", "folder:in", "--on_bad_image", "skip")
    assert f"1 unreadable image skipped ({bad.name}" in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["fewshot", "probe"])
@pytest.mark.parametrize(
    "options, given",
    [((), "none"), (("--model", "m.npz"), "--model"), (("--dataset", "digits"), "--dataset")],
)
def test_a_source_of_features_is_whole_and_the_only_one(command, options, given, keras_vit):
    words = f"expected --model and --dataset, or --embeddings alone; got {given}"
    assert words in keras_vit(command, *options, status=2).stderr
    if not options:
        unused = keras_vit(command, "--embeddings", "vectors", "--sha256", "00", status=2).stderr
        assert "expected --model with --sha256; got none" in unused
    if options:
        more = keras_vit(command, *options, "--embeddings", "vectors", status=2).stderr
        assert f"{words}, --embeddings" in more
