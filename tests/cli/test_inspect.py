import functools
import json
import pathlib

import keras
import numpy as np
import pytest
from made.folders import picture, write_broken
from made.pages import read_page
from PIL import Image
from reference.small import small

import _keras_vit_cli
from keras_vit import from_pretrained
from keras_vit.cli import inspect
from keras_vit.inspection import attention_distance, figures, filter_components
from keras_vit.preprocessing import Preprocessing

NASTY = "<script>alert('cat')</script>"
SEEN = [
    "Attention rollout",
    "Attention of each head",
    "Attention distance",
    "Patch filters",
    "Position embeddings",
    "Patch similarity",
]
END = ["Configuration"]
PNGS = ["rollout.png", "heads.png", "distances.png", "filters.png", "positions.png", "similarity.png"]


def saved(path, **options):
    small(**options).save(path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A `.keras` file of a model of two classes, one with a name that tries to be more."""
    path = tmp_path_factory.mktemp("model") / "vit.keras"
    return saved(path, num_classes=2, class_names=(NASTY, "dog"))


@pytest.fixture(scope="module")
def looked(model, images, tmp_path_factory):
    """What a look at eleven images has written: the folder, and its numbers."""
    folder = tmp_path_factory.mktemp("looked")
    given = ["--image", str(images / "cat" / "00.png"), str(images / "dog")]
    assert (
        _keras_vit_cli.main(["inspect", "--model", str(model), *given, "--output", str(folder / "out")]) == 0
    )
    return folder / "out", json.loads((folder / "out" / "result.json").read_text())


def test_it_writes_the_figures_a_page_and_the_numbers(looked):
    folder, result = looked
    wanted = ["rollout.png", "rollout-2.png", *PNGS[1:]]  # eight images, in rows of four
    assert result["looked_at"] == ["cat/00.png", *(f"dog/{number:02d}.png" for number in range(7))]
    assert result["figures"] == wanted and result["left_out"] == {}
    assert {path.name for path in folder.iterdir()} == {*wanted, "report.html", "result.json"}
    for name in wanted:
        with Image.open(folder / name) as figure:
            assert figure.format == "PNG" and np.asarray(figure.convert("L")).std() > 5


def test_the_page_has_every_section_and_no_path_of_the_machine(looked, images, model):
    text = (looked[0] / "report.html").read_text(encoding="utf-8")
    page = read_page(text)
    assert page.headings == ["Predictions", *SEEN, *END]
    assert "Inside vit.keras" in page.text and "8 of 11 given" in page.text
    assert NASTY in page.text and len(page.pictures()) == 7
    alts = [picture["alt"] for picture in page.pictures()]
    assert alts[0] == "Attention rollout: cat/00.png, dog/00.png, dog/01.png, dog/02.png"
    assert alts[2] == "Attention of each head: cat/00.png"
    assert not any(str(path) in text for path in (images, model.parent, pathlib.Path.home()))


def test_the_numbers_are_the_models(looked, images, model):
    folder, result = looked
    live = keras.saving.load_model(model)
    paths = [images / "cat" / "00.png", *sorted((images / "dog").iterdir())]
    assert [row["image"] for row in result["images"]] == [str(path) for path in paths]
    for row, best in zip(result["images"], live.classify(paths)):
        assert [found["name"] for found in row["classes"]] == [name for name, _ in best]
        np.testing.assert_allclose(
            [found["probability"] for found in row["classes"]], [p for _, p in best], rtol=1e-4
        )
    distances = attention_distance(live, live.preprocessing(paths[:8])).mean(axis=0)
    np.testing.assert_allclose(result["mean_attention_distance"], distances, rtol=1e-5)
    np.testing.assert_allclose(result["explained_variance"], filter_components(live)[1], rtol=1e-5)


def test_a_data_set_is_judged_and_its_images_are_looked_at(model, images, keras_vit, tmp_path):
    given = ("--model", model, "--dataset", f"folder:{images}", "--split", "train")
    # its classes are not the model's by name
    assert keras_vit("inspect", *given, "--output", tmp_path / "no").returncode == 2
    plain = saved(tmp_path / "plain.keras", num_classes=2)
    given = ("--model", plain, *given[2:], "--seed", 3)
    done = keras_vit("inspect", *given, "--output", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "out" / "result.json").read_text())
    evaluated = json.loads(keras_vit("evaluate", *given, "--per_class", "--json").stdout)
    for name in ("samples", "accuracy", "loss", "classes", "dataset", "split"):
        assert found[name] == evaluated[name]
    page = read_page((tmp_path / "out" / "report.html").read_text())
    judged = ["Scores", "Confusions", "Worst predictions", "Best predictions"]
    assert page.headings == [*judged, *SEEN, *END]
    assert "8 of 14 of images, train" in page.text
    assert found["figures"][0] == "confusion.png" and found["drawn_from"] == found["samples"]


def test_a_model_without_head_or_positions_looks_at_images_of_many_sizes(keras_vit, tmp_path):
    """And they are grey: every way in which a model differs, at once."""
    grey = Preprocessing(None, mean=(0.5,), std=(0.25,))
    options = {"image_size": (None, None), "position_embedding": "none", "in_channels": 1}
    path = saved(tmp_path / "any.keras", num_classes=None, pooling="gap", preprocessing=grey, **options)
    for number, size in enumerate([(16, 24), (16, 24), (32, 16)]):
        Image.fromarray(picture(0, number, size)).save(tmp_path / f"{number}.png")
    files = [tmp_path / f"{number}.png" for number in range(3)]
    done = keras_vit(
        "inspect", "--model", path, "--image", *files, "--output", tmp_path / "out", "--block", "-2"
    )
    assert done.returncode == 0, done.stderr
    page = read_page((tmp_path / "out" / "report.html").read_text())
    assert page.headings == [*SEEN, *END]
    reason = "the model has no position embeddings to compare"
    assert f"Not shown: {reason}." in page.text and reason in done.stdout
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["left_out"] == {"positions": reason} and "images" not in result
    assert result["figures"] == ["rollout.png", "rollout-2.png", *(n for n in PNGS[1:] if n[0] != "p")]
    live = keras.saving.load_model(path)
    distances = [attention_distance(live, live.preprocessing([file]))[0] for file in files]
    np.testing.assert_allclose(result["mean_attention_distance"], np.mean(distances, axis=0), rtol=1e-5)


def test_of_a_large_split_it_is_told_that_some_were_drawn(images, keras_vit, monkeypatch, tmp_path):
    monkeypatch.setattr(inspect, "judge", functools.partial(inspect.judge, most=9))
    given = ("--model", saved(tmp_path / "plain.keras", num_classes=2), "--dataset", f"folder:{images}")
    done = keras_vit("inspect", *given, "--split", "train", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["samples"], result["drawn_from"]) == (9, 14)
    assert "9 drawn from 14" in done.stdout
    text = read_page((tmp_path / "out" / "report.html").read_text()).text
    assert "Scores on images, train (9 of 14 images drawn)" in text
    assert "images, train: 14 images. All that follows is of 9 drawn from them." in text


def test_images_of_many_sizes_are_classified_and_one_that_does_not_fit_is_named(keras_vit, refused, tmp_path):
    options = {
        "image_size": (None, None),
        "position_embedding": "sincos2d",
        "preprocessing": Preprocessing(None),
    }
    path = saved(tmp_path / "any.keras", **options)
    for name, size in (("a", (16, 24)), ("b", (32, 16)), ("c", (20, 16))):
        Image.fromarray(picture(0, 1, size)).save(tmp_path / f"{name}.png")
    given = ("--model", path, "--output", tmp_path / "out", "--image", tmp_path / "a.png", tmp_path / "b.png")
    refused(keras_vit("inspect", *given, tmp_path / "c.png"), "c.png: ", "20×16", "divisible")
    assert not (tmp_path / "out").exists()
    done = keras_vit("inspect", *given)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    live = keras.saving.load_model(path)
    best = [live.classify([tmp_path / name], top=1)[0][0] for name in ("a.png", "b.png")]
    assert [row["classes"][0]["name"] for row in result["images"]] == [name for name, _ in best]
    assert result["left_out"] == {} and result["looked_at"] == ["a.png", "b.png"]


def test_a_model_is_looked_at_in_another_size(model, images, keras_vit, tmp_path):
    image = images / "cat" / "00.png"
    given = ("--model", model, "--image", image, "--image_size", "24x32", "--output", tmp_path / "out")
    done = keras_vit("inspect", *given)
    assert done.returncode == 0, done.stderr
    page = read_page((tmp_path / "out" / "report.html").read_text())
    assert "image_size 24, 32" in page.text
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    resized = from_pretrained(model, image_size=(24, 32))
    distances = attention_distance(resized, resized.preprocessing([image]))[0]
    np.testing.assert_allclose(result["mean_attention_distance"], distances, rtol=1e-5)


def test_a_table_of_many_images_ends(model):
    found = [{"classes": [{"name": "dog", "probability": 0.5}]}] * 150
    (table,) = inspect._predictions(None, [str(i) for i in range(150)], found).tables
    assert table.title == "The first 100 of 150 predictions" and table.rows[99] == ("99", "dog 50.0%")
    assert len(table.rows) == 100


def test_a_model_without_head_looks_at_a_split(keras_vit, images, tmp_path):
    path = saved(tmp_path / "features.keras", num_classes=None)
    done = keras_vit(
        "inspect", "--model", path, "--dataset", f"folder:{images}", "--output", tmp_path / "out"
    )
    assert done.returncode == 0, done.stderr
    page = read_page((tmp_path / "out" / "report.html").read_text())
    assert page.headings == [*SEEN, *END] and "4 of 4 of images, test" in page.text


def test_a_regressions_numbers_are_told(keras_vit, images, tmp_path):
    path = saved(tmp_path / "numbers.keras", num_classes=1, class_names=("age",))
    given = ("--model", path, "--image", images / "cat" / "00.png", "--task", "regression")
    done = keras_vit("inspect", *given, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "out" / "result.json").read_text())["images"]
    assert done.stdout.splitlines()[0].split() == [found["image"], "age", f"{found['values'][0]:.4g}"]
    live = keras.saving.load_model(path)
    expected = live.predict_on_batch(live.preprocessing([images / "cat" / "00.png"]))[0]
    np.testing.assert_allclose(found["values"], expected)


REFUSED = {
    "neither images nor data": ([], ["--image", "--dataset"]),
    "no such image": (["--image", "{path}/nowhere.png"], ["no such image file"]),
    "no image": (["--image", "{path}/bad.png"], ["not a readable image", "bad.png"]),
    "an empty folder": (["--image", "{path}/empty"], ["no images in the folder"]),
    "no such block": (["--image", "{image}", "--block", "2"], ["--block 2 is not there", "2 blocks"]),
    "no block so far back": (["--image", "{image}", "--block", "-3"], ["--block -3 is not there"]),
    "an unknown data set": (["--dataset", "cloud:x"], ["'cloud:x' is unknown"]),
    "an unknown split": (["--dataset", "folder:{images}", "--split", "all"], ["split 'all' is unknown"]),
    "other classes": (["--dataset", "digits"], ["got one with 2 outputs ("]),
    "a regression of classes": (
        ["--dataset", "folder:{images}", "--task", "regression"],
        ["needs the table"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_one_line_and_leaves_nothing(
    case, model, images, keras_vit, refused, tmp_path
):
    options, words = REFUSED[case]
    write_broken(tmp_path / "bad.png")
    (tmp_path / "empty").mkdir()
    before = {*tmp_path.iterdir()}
    places = {"path": tmp_path, "images": images, "image": images / "cat" / "00.png"}
    options = [option.format(**places) for option in options]
    refused(keras_vit("inspect", "--model", model, *options, "--output", tmp_path / "out"), *words)
    assert {*tmp_path.iterdir()} == before


def test_a_folder_that_exists_is_refused_and_kept(model, images, keras_vit, refused, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    done = keras_vit("inspect", "--model", model, "--image", images, "--output", tmp_path / "out")
    refused(done, tmp_path / "out", "exists", "out-2", "is free")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_an_export_is_refused(keras_vit, refused, images, tmp_path):
    (tmp_path / "model.tflite").write_bytes(b"")
    given = ("--model", tmp_path / "model.tflite", "--image", images, "--output", tmp_path / "out")
    refused(keras_vit("inspect", *given), "exported model", "wanted the run, .keras file or checkpoint")


def test_nothing_is_left_behind_where_it_fails_in_the_middle(model, images, keras_vit, monkeypatch, tmp_path):
    def fail(*_):
        raise RuntimeError("out of ink")

    monkeypatch.setattr(figures, "filter_figure", fail)
    with pytest.raises(RuntimeError, match="out of ink"):
        keras_vit("inspect", "--model", model, "--image", images / "cat", "--output", tmp_path / "out")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "paths, names",
    [
        (["/home/me/cat/0.png"], ["0.png"]),
        (["/home/me/cat/0.png", "/home/me/cat/1.png", "/tmp/2.png"], ["0.png", "1.png", "2.png"]),
        (["/home/me/cat/0.png", "/tmp/dog/0.png"], ["cat/0.png", "dog/0.png"]),
        (["/a/x/0.png", "/b/x/0.png", "/b/x/1.png"], ["a/x/0.png", "b/x/0.png", "b/x/1.png"]),
        (["/a/0.png", "/a/../a/0.png"], ["0.png", "0.png"]),
        ([], []),
    ],
)
def test_images_are_named_so_that_they_can_be_told_apart_and_no_longer(paths, names):
    assert inspect.names_of(paths) == names


def test_both_images_and_data_are_refused_where_there_is_nothing_to_judge(
    images, keras_vit, refused, tmp_path
):
    path = saved(tmp_path / "features.keras", num_classes=None)
    given = ("--model", path, "--image", images / "cat", "--dataset", "digits", "--output", tmp_path / "out")
    refused(keras_vit("inspect", *given), "no head", "--image or --dataset")
    assert not (tmp_path / "out").exists()


def test_an_image_that_cannot_be_read_stops_it_before_anything_is_computed(
    model, images, keras_vit, refused, monkeypatch, tmp_path
):
    monkeypatch.setattr(inspect, "predicted", None)
    bad = write_broken(tmp_path / "bad.png")
    given = ("--model", model, "--image", images, bad, "--output", tmp_path / "out")  # the 21st
    refused(keras_vit("inspect", *given), "not a readable image", bad)
