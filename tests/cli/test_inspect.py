import json
import pathlib

import keras
import numpy as np
import pytest
from made.pages import read_page
from made.tables import by_table
from PIL import Image
from reference.small import small

from keras_vit import from_pretrained
from keras_vit.cli import inspect
from keras_vit.cli.images import names_of
from keras_vit.data.datasets import load_dataset
from keras_vit.inspection import attention_distance, filter_components
from keras_vit.preprocessing import Preprocessing
from keras_vit.reports import model_views

pytestmark = pytest.mark.usefixtures("eager")

EVALUATION = ["Scores", "Confusions", "Worst predictions", "Best predictions"]
VIEWS = [heading for heading, _, _ in model_views.VIEWS.values()]
PNGS = ["components.png", "components-2.png", "similarity.png", "heads.png", "rollout.png", "rollout-2.png"]
PNGS += ["distances.png", "filters.png", "positions.png"]


def saved(path, **options):
    small(**options).save(path)
    return path


@pytest.fixture(scope="module")
def inspected(model, images, keras_vit, tmp_path_factory):
    """The folder and result of eleven inspected images, and of a split."""
    out = tmp_path_factory.mktemp("inspected") / "out"
    data = ("--dataset", f"folder:{images}", "--split", "train", "--seed", 3)
    given = ("--image", images / "cat" / "00.png", images / "dog", *data, "--output", out)
    done = keras_vit("inspect", "--model", model, *given)
    # A slow machine also prints the progress.
    assert all(line.startswith("inspecting: view ") for line in done.stderr.splitlines())
    return out, json.loads((out / "result.json").read_text())


@pytest.mark.slow
def test_it_writes_the_figures_and_a_report_without_paths_of_the_machine(inspected, images, model):
    folder, result = inspected
    files = ["confusion.png", *PNGS]  # eight images, four per figure
    assert result["inspected"] == ["cat/00.png", *(f"dog/{number:02d}.png" for number in range(7))]
    assert result["figures"] == files and result["left_out"] == {}
    assert {path.name for path in folder.iterdir()} == {*files, "report.html", "result.json"}
    for name in files:
        with Image.open(folder / name) as figure:
            assert figure.format == "PNG" and np.asarray(figure.convert("L")).std() > 5
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = read_page(text)
    assert page.headings == ["Predictions", *EVALUATION, *VIEWS, "Configuration"]
    assert "Inside shared_cat_or_dog" in page.text and "8 of 11 given images" in page.text
    assert not any(str(path) in text for path in (images, model.parent, pathlib.Path.home()))


@pytest.mark.slow
def test_the_scores_are_those_of_evaluate(inspected, images, model, json_of):
    data = ("--dataset", f"folder:{images}", "--split", "train", "--seed", 3, "--per_class")
    evaluated = json_of("evaluate", "--model", model, *data)
    for name in ("samples", "accuracy", "loss", "classes", "dataset", "split"):
        assert inspected[1][name] == evaluated[name]
    assert inspected[1]["drawn_from"] == 14


@pytest.mark.slow
def test_the_result_is_the_models(inspected, images, model):
    _, result = inspected
    live = keras.saving.load_model(model)
    paths = [images / "cat" / "00.png", *sorted((images / "dog").iterdir())]
    assert [row["image"] for row in result["images"]] == [str(path) for path in paths]
    for row, best in zip(result["images"], live.classify(paths)):
        assert [found["name"] for found in row["classes"]] == [name for name, _ in best]
        found = [found["probability"] for found in row["classes"]]
        np.testing.assert_allclose(found, [p for _, p in best], rtol=1e-4)
    distances = attention_distance(live, live.preprocessing(paths[:8])).mean(axis=0)
    np.testing.assert_allclose(result["mean_attention_distance"], distances, rtol=1e-5)
    np.testing.assert_allclose(result["explained_variance"], filter_components(live)[1], rtol=1e-5)


@pytest.mark.slow
def test_the_images_of_a_split_are_inspected_at_another_size(model, images, json_of, tmp_path):
    given = ("--dataset", f"folder:{images}", "--image_size", "24x32", "--output", tmp_path / "out")
    result = json_of("inspect", "--model", model, *given)
    assert result == json.loads((tmp_path / "out" / "result.json").read_text())
    page = read_page((tmp_path / "out" / "report.html").read_text())
    assert "image_size 24, 32" in page.text and "4 of 4 of images, test" in page.text
    resized = from_pretrained(model, image_size=(24, 32))
    split = load_dataset(f"folder:{images}").split("test")
    distances = attention_distance(resized, resized.preprocessing([*split.images])).mean(axis=0)
    np.testing.assert_allclose(result["mean_attention_distance"], distances, rtol=1e-5)


def test_a_table_of_many_images_ends():
    found = [{"classes": [{"name": "dog", "probability": 0.5}]}] * 150
    table = inspect._prediction_table(None, None, [str(i) for i in range(150)], found)
    assert "The first 100 of 150 predictions" in table and table.count("dog 50.0%") == 100


def test_a_score_that_several_tasks_share_is_printed_once():
    text = inspect._summary({"ap": 0.5, "inspected": ["a.png"], "left_out": {}}, [])
    assert text.splitlines() == ["ap         0.5000", "inspected  a.png"]


@pytest.mark.slow
def test_a_regressions_values_are_shown(keras_vit, images, tmp_path):
    path = saved(tmp_path / "numbers.keras", num_classes=1, class_names=("age",))
    given = ("--model", path, "--image", images / "cat" / "00.png", "--task", "regression")
    done = keras_vit("inspect", *given, "--output", tmp_path / "out")
    (found,) = json.loads((tmp_path / "out" / "result.json").read_text())["images"]
    assert done.stdout.splitlines()[0].split() == [found["image"], "age", f"{found['values'][0]:.4g}"]
    live = keras.saving.load_model(path)
    expected = live.predict_on_batch(live.preprocessing([images / "cat" / "00.png"]))[0]
    np.testing.assert_allclose(found["values"], expected)


@pytest.mark.parametrize("resize", ["crop", "squash"])
def test_a_page_says_that_predictions_are_of_crops(resize, monkeypatch, keras_vit, images, tmp_path):
    monkeypatch.setattr(model_views, "VIEWS", {})
    preprocessing = Preprocessing(16, resize=resize, crop_fraction=0.875)
    path = saved(tmp_path / "model.keras", num_layers=1, preprocessing=preprocessing)
    keras_vit("inspect", "--model", path, "--image", images / "cat" / "00.png", "--output", tmp_path / "out")
    page = read_page((tmp_path / "out" / "report.html").read_text())
    assert ("Predictions and scores are of cropped images" in page.text) == (resize == "crop")


@by_table(
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
def test_images_have_the_shortest_unique_names(paths, names):
    assert names_of(paths) == names


@pytest.mark.slow
def test_features_of_any_size_keep_the_aspect_ratio_and_crop_nothing(keras_vit, tmp_path):
    preprocessing = Preprocessing(16, resize="crop", crop_fraction=0.875)
    path = saved(tmp_path / "features.keras", num_classes=None, preprocessing=preprocessing)
    Image.fromarray(np.zeros((30, 70, 3), "uint8")).save(tmp_path / "wide.png")
    given = ("--image", tmp_path / "wide.png", "--patch", "2,6", "--output", tmp_path / "out")
    keras_vit("inspect", "--model", path, *given)
    page = read_page((tmp_path / "out" / "report.html").read_text())
    assert "Images keep their aspect ratio" in page.text
    (attributes,) = (a for tag, a in page.tags if a.get("class") == "explorer")
    assert (attributes["data-rows"], attributes["data-columns"]) == ("3", "7")


def test_a_patch_outside_of_the_image_is_refused(refused, images, model, tmp_path):
    given = ("--model", model, "--image", images / "cat" / "00.png", "--patch", "9,9")
    refused(("inspect", *given, "--output", tmp_path / "out"), "expected patches in the", "of 00.png")
    assert not (tmp_path / "out").exists()
