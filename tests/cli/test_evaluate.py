import json
import types

import numpy as np
import pytest
from made.disks import full_disk
from made.folders import write_broken, write_classes
from made.sampling import some
from reference.small import small

from keras_vit import from_pretrained, save_weights
from keras_vit.cli.parser import parser
from keras_vit.cli.source import open_dataset, open_live, seed_of, task_of
from keras_vit.data.datasets import Dataset, load_dataset
from keras_vit.evaluation.predicting import check_classes, evaluate
from keras_vit.weights.class_names import class_names

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A checkpoint of as many classes as `images` has."""
    return save_weights(small(num_classes=2), tmp_path_factory.mktemp("weights") / "two.npz", "vit_jax")


@pytest.fixture
def evaluated(keras_vit, weights, images):
    """Evaluate with these options on top of the usual ones: the process."""

    def run(*options, **status):
        return keras_vit("evaluate", "--model", weights, "--dataset", f"folder:{images}", *options, **status)

    return run


def test_it_prints_the_accuracy_of_the_test_split(evaluated, weights, images):
    done = evaluated()
    assert done.stderr == ""
    found, *lines = done.stdout.splitlines()
    assert found == "2 classes (cat, dog): 14 train, 2 validation, 4 test; validation and test held out"
    shown = dict(line.split() for line in lines if len(line.split()) == 2)
    samples = load_dataset(f"folder:{images}").split("test")
    best = [int(row[0][0]) for row in from_pretrained(weights).classify(samples.images)]
    assert (shown["samples"], shown["top5_accuracy"]) == ("4", "-")
    assert float(shown["accuracy"]) == pytest.approx(np.mean(np.array(best) == samples.labels), abs=1e-4)


def test_json_has_all_scores_of_the_split_and_of_each_class_and_the_confusion_is_drawn(evaluated, tmp_path):
    output, confusion = tmp_path / "found.json", tmp_path / "confused.png"
    options = ("--split", "train", "--per_class", "--json", output, "--confusion", confusion)
    done = evaluated(*options)
    found = json.loads(output.read_text())
    sizes = "2 classes (cat, dog): 14 train, 2 validation, 4 test; validation and test held out\n"
    assert done.stdout.startswith(sizes) and found["samples"] == 14
    names = ("model", "dataset", "split", "samples", "accuracy", "top5_accuracy", "loss", "bad_images")
    assert {*found} == {*names, "classes", "confusion"}
    assert [(row["name"], row["samples"]) for row in found["classes"]] == [("cat", 7), ("dog", 7)]
    assert sum(row["right"] for row in found["classes"]) == pytest.approx(14 * found["accuracy"])
    assert found["confusion"] == str(confusion) and confusion.read_bytes().startswith(b"\x89PNG")
    assert {*tmp_path.iterdir()} == {output, confusion}


@pytest.mark.slow
def test_a_model_is_evaluated_at_another_patch_size(evaluated, weights, images):
    found = json.loads(evaluated("--patch_size", 4, "--json", "-").stdout)
    model = from_pretrained(weights, patch_size=4)
    expected = evaluate(model, load_dataset(f"folder:{images}").split("test"))
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.slow
def test_scores_are_printed_and_old_files_stay_where_new_ones_cannot_be_written(evaluated, tmp_path):
    files = [tmp_path / "found.json", tmp_path / "confused.png"]
    for file in files:
        file.write_bytes(b"old")
    with full_disk(tmp_path):
        done = evaluated("--per_class", "--json", files[0], "--confusion", files[1], status=2)
    assert "accuracy" in done.stdout
    *_, title, cat, dog = done.stdout.splitlines()
    assert title.split() == ["name", "samples", "right", "accuracy", "predicted", "precision"]
    assert (cat.split()[:2], dog.split()[:2]) == (["cat", "2"], ["dog", "2"])
    assert done.stderr == f"keras-vit: '{files[1]}' cannot be written: No space left on device\n"
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(files, b"old")


def test_an_unreadable_image_fails_or_is_skipped_and_listed(evaluated, refused, weights, tmp_path):
    root = write_classes(tmp_path / "images")
    bad = write_broken(root / "cat" / "bad.png")
    given = ("--dataset", f"folder:{root}")
    refused(("evaluate", "--model", weights, *given), bad, "--on_bad_image skip")
    done = evaluated(*given, "--on_bad_image", "skip", "--json", tmp_path / "found.json")
    assert f"unreadable image  {bad}" in done.stdout
    assert json.loads((tmp_path / "found.json").read_text())["bad_images"] == [str(bad)]


def test_a_model_that_computes_nan_is_refused(evaluated, tmp_path):
    model = small(num_classes=2)
    model.get_layer("head").bias.assign([np.nan, 0])
    model.save(tmp_path / "model.keras")
    (line,) = evaluated("--model", tmp_path / "model.keras", status=2).stderr.splitlines()
    assert "NaN or infinity" in line


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
    done = evaluated("--dataset", f"folder:{root}", "--split", "train", "--real", tmp_path / "real.json")
    shown = dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)
    assert (shown["real_samples"], shown["real_accuracy"]) == ("4", "0.7500")


def test_other_tasks_have_their_scores(evaluated, tmp_path):
    root = write_classes(tmp_path / "images", ("a",), count=10) / "a"
    rows = [f"{root.name}/{path.name},{i % 2},{(i + 1) % 2}" for i, path in enumerate(sorted(root.iterdir()))]
    (tmp_path / "images" / "labels.csv").write_text("\n".join(["file,red,blue", *rows]) + "\n")
    data = ("--dataset", f"folder:{tmp_path / 'images'}", "--task", "multi_label")
    found = json.loads(evaluated(*data, "--per_class", "--json", "-").stdout)
    assert 0 <= found["mean_average_precision"] <= 1
    assert [row["name"] for row in found["classes"]] == ["red", "blue"]


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
    if ours or theirs == SYNSETS:
        with pytest.raises(ValueError, match="class 3 is '.*' in the model and '.*' in the data set; these"):
            check_classes(classes(ours), Dataset("d", swapped(theirs), {}))


def test_classes_that_are_not_the_data_sets_are_refused():
    others = tuple(f"n{i:08d}" for i in range(1000))  # synsets, but not ImageNet's
    check_classes(classes(others), Dataset("d", others, {}))
    check_classes(classes(), Dataset("d", others, {}))
    with pytest.raises(ValueError, match="class 0 is 'tench, Tinca tinca' in the model and 'n00000000' in"):
        check_classes(classes(WORDS), Dataset("d", others, {}))
    with pytest.raises(ValueError, match=r"7 outputs \(cat, dog, a, b, c and 2"):
        check_classes(classes(("cat", "dog", *"abcde")), Dataset("d", ("cat", "dog"), {}))


def test_seed_and_task_of_an_older_file_are_its_runs(tmp_path):
    model = small()
    (tmp_path / "config.json").write_text(json.dumps({"recipe": {"seed": 5, "task": "multi_label"}}))
    (tmp_path / "model.keras").touch()
    for source in (tmp_path, tmp_path / "model.keras"):
        assert (seed_of(source, model), task_of(source, model)) == (5, "multi_label")
    (tmp_path / "config.json").write_text(json.dumps({"recipe": {"seed": 5, "split_seed": 0}}))
    assert seed_of(tmp_path, model) == 0
    (tmp_path / "config.json").write_text("{}")
    for source in (tmp_path, "elsewhere.npz"):
        assert (seed_of(source, model), task_of(source, model)) == (0, "single_label")


@pytest.mark.parametrize("name", some(["model.keras", "model.npz"], 2))
def test_seed_and_task_are_stored_in_the_file(name, images, tmp_path, capsys):
    model, path = small(num_classes=2, task="multi_label", split_seed=1), tmp_path / name
    model.save(path) if path.suffix == ".keras" else save_weights(model, path, "vit_jax")
    # Its folder is now that of another run.
    (tmp_path / "config.json").write_text(json.dumps({"recipe": {"seed": 5, "task": "regression"}}))
    model = open_live(path)
    assert (seed_of(path, model), task_of(path, model)) == (1, "multi_label")
    splits = [load_dataset(f"folder:{images}", seed).split("test").images for seed in (1, 5)]
    assert splits[0] != splits[1]
    words = ["evaluate", "--model", str(path), "--dataset", f"folder:{images}"]
    for seed, expected in zip(([], ["--seed", "5"]), splits):
        args = parser().parse_args(words + seed)
        assert open_dataset(args, model, "single_label").split("test").images == expected
    assert capsys.readouterr().out.count("14 train") == 2


@pytest.mark.slow
def test_a_model_with_another_head_has_no_task_or_split(tmp_path):
    small(num_classes=2, task="multi_label", split_seed=1).save(tmp_path / "model.keras")
    kept = from_pretrained(tmp_path / "model.keras", image_size=32)
    assert (kept.task, kept.split_seed) == ("multi_label", 1)
    other = from_pretrained(tmp_path / "model.keras", num_classes=3)
    assert (other.task, other.split_seed) == (None, None)
