"""Subcommands with models that segment images: files of masks, scores of pixels, figures, and refusals."""

import csv
import io
import json

import keras
import numpy as np
import pytest
from made.folders import write_masks
from made.pages import read_page
from made.refusals import assert_is, tables
from made.sampling import some
from PIL import Image
from reference.comparing import randomize
from reference.small import SMALL, small

from keras_vit import ImageSegmenter
from keras_vit.cli.images import png_files
from keras_vit.data.datasets import load_dataset
from keras_vit.export.folder import export_folder
from keras_vit.inspection import box_overlay, class_overlay
from keras_vit.tasks.segmentation.files import lines_of_classes
from keras_vit.tasks.segmentation.samples import read_mask

pytestmark = pytest.mark.usefixtures("eager")

NAMES = ("sky", "tree", "road")
ENCODER = {**SMALL, "num_classes": None, "num_layers": 1}


@pytest.fixture(scope="module")
def live(streets):
    """A model that predicts every class somewhere in these images."""
    model = randomize(ImageSegmenter(ENCODER, 3, class_names=NAMES))
    logits = model.predict_on_batch(model.preprocessing(sorted((streets / "images").iterdir())))
    model.get_layer("head").bias.assign_sub(logits.mean((0, 1, 2)))
    return model


@pytest.fixture(scope="module")
def model(live, tmp_path_factory):
    path = tmp_path_factory.mktemp("segmenter") / "model.keras"
    live.save(path)
    return path


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    """A data set of ten images with three classes."""
    root = write_masks(tmp_path_factory.mktemp("data") / "streets")
    (root / "classes.txt").write_text("\n".join(NAMES))
    return root


def test_masks_and_overlays_are_written_and_are_a_data_set(keras_vit, live, model, streets, tmp_path):
    paths = sorted(map(str, (streets / "images").iterdir()))[:4]
    given = ("predict", "--model", model, *paths, "--format", "csv", "--maps", tmp_path / "out")
    done = keras_vit(*given)
    assert done.stderr == ""
    maps = live.segment(paths, whole=True)
    assert len({*np.concatenate([each.ravel() for each in maps])}) > 1
    for path, classes in zip(paths, maps):
        name = path.rpartition("/")[2]
        np.testing.assert_array_equal(read_mask(str(tmp_path / "out" / "masks" / name)), classes)
        image = np.asarray(Image.open(path))
        with Image.open(tmp_path / "out" / "overlays" / name) as overlay:
            np.testing.assert_array_equal(np.asarray(overlay), class_overlay(image, classes))
    header, *rows = csv.reader(io.StringIO(done.stdout))
    assert header == ["image", "rank", "class", "fraction"]
    for path, classes in zip(paths, maps):
        fractions = [float((classes == NAMES.index(row[2])).mean()) for row in rows if row[0] == path]
        assert sum(fractions) == pytest.approx(1) and fractions == sorted(fractions, reverse=True)
        assert fractions == pytest.approx([float(row[3]) for row in rows if row[0] == path])
    (tmp_path / "out" / "overlays").rename(tmp_path / "out" / "images")
    assert load_dataset(f"folder:{tmp_path}/out", task="segmentation").class_names == NAMES


@pytest.fixture(scope="module")
def queries(tmp_path_factory):
    """The file of a model whose queries find objects of every class."""
    model = ImageSegmenter(ENCODER, 3, "mask", num_queries=5, query_blocks=1, class_names=NAMES)
    path = tmp_path_factory.mktemp("queries") / "model.keras"
    randomize(model).save(path)
    return path


@pytest.mark.slow
def test_objects_of_queries_are_listed_and_drawn(keras_vit, queries, streets, tmp_path):
    paths = sorted(map(str, (streets / "images").iterdir()))[:2]
    options = "--instances", "--threshold", "0", "--top", 3, "--boxes", tmp_path / "drawn", "--format", "json"
    done = keras_vit("predict", "--model", queries, *paths, *options)
    model = keras.models.load_model(queries)
    for path, row in zip(paths, json.loads(done.stdout), strict=True):
        [found] = model.instances([path], threshold=0.0, top=3)
        assert row["image"] == path and 0 < len(row["objects"]) <= 3
        expected = [NAMES[number] for number in found.classes]
        assert [each["name"] for each in row["objects"]] == expected
        assert [each["score"] for each in row["objects"]] == pytest.approx(found.scores.tolist(), rel=1e-4)
        boxes = [[each[side] for side in ("left", "top", "right", "bottom")] for each in row["objects"]]
        assert boxes == found.boxes.tolist()
        with Image.open(tmp_path / "drawn" / path.rpartition("/")[2]) as drawn:
            expected = box_overlay(np.asarray(Image.open(path)), found, NAMES)
            np.testing.assert_array_equal(np.asarray(drawn), expected)
    done = keras_vit("predict", "--model", queries, paths[0], "--instances", "--threshold", "1")
    assert done.stdout.splitlines()[1].split()[1:] == ["none"]


def test_only_objects_of_named_classes_are_listed(json_of, refused, queries, streets, tmp_path):
    image = "predict", "--model", queries, streets / "images" / "00.png"
    [row] = json_of(*image, "--instances", "--threshold", "0", "--things", "road,sky")
    assert {each["name"] for each in row["objects"]} == {"road", "sky"}
    (tmp_path / "names.txt").write_text("sky\ntree, palm\nroad\n")
    options = "--instances", "--threshold", "0", "--classes", tmp_path / "names.txt"
    [row] = json_of(*image, *options, "--things", 'road,"tree, palm"')
    assert {each["name"] for each in row["objects"]} == {"road", "tree, palm"}
    line = refused((*image, "--instances", "--things", "road,trees"))
    assert line.endswith("expected things among sky, tree, road; got 'trees' (did you mean 'tree'?)")
    refused((*image, "--things", "road"), "--things are the classes of --instances, which is not given")


def test_windows_keep_the_images_scale(json_of, live, model, streets):
    path, names = str(streets / "images" / "00.png"), streets / "classes.txt"
    (found,) = json_of("predict", "--model", model, path, "--windows", "--classes", names)
    (classes,) = live.segment([path])
    expected = {name: float((classes == number).mean()) for number, name in enumerate(NAMES)}
    assert {row["name"]: row["fraction"] for row in found["classes"]} == pytest.approx(
        {name: fraction for name, fraction in expected.items() if fraction}
    )


@pytest.mark.slow
def test_a_report_has_overlays_classes_and_the_worst_images_by_iou(keras_vit, model, streets, tmp_path):
    folder = tmp_path / "out"
    data = ("--dataset", f"folder:{streets}", "--split", "train", "--output", folder)
    done = keras_vit("inspect", "--model", model, "--image", streets / "images" / "00.png", *data)
    assert done.stderr == ""
    result = json.loads((folder / "result.json").read_text())
    maps = ["overlays.png", "confusion.png", "iou.png", "examples.png", "worst.png", "best.png"]
    assert sorted(result["figures"][:6]) == sorted(maps)
    assert "rollout.png" in result["figures"]
    page = read_page((folder / "report.html").read_text())
    sections = ["Predictions", "Scores", "Confusions", "Classes", "Worst predictions", "Best predictions"]
    assert page.headings[:6] == sections
    assert "mean IoU" in page.text and str(streets) not in page.text
    for name in maps:
        with Image.open(folder / name) as figure:
            assert np.asarray(figure.convert("L")).std() > 5
    assert [row["name"] for row in result["classes"]] == [*NAMES]
    assert {row["name"] for row in result["images"][0]["classes"]} <= {*NAMES}


@pytest.fixture(scope="module")
def exported(live, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "out"
    export_folder(live, folder, precisions=("float32",))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["saved_model", "model_float32.tflite"])
def test_exports_predict_and_are_inspected(name, exported, keras_vit, json_of, live, streets, tmp_path):
    path, file = str(streets / "images" / "00.png"), exported / name
    given = ("--model", file, "--dataset", f"folder:{streets}")
    keras_vit("predict", "--model", file, path, "--masks", tmp_path / "masks", "--format", "json")
    found = read_mask(str(tmp_path / "masks" / "masks" / "00.png"))
    # Of LiteRT's maps, not of logits, the size is changed.
    agreement = np.mean(found == live.segment([path], whole=True)[0])
    assert agreement == 1 if name == "saved_model" else agreement > 0.9
    result = json_of("inspect", *given, "--image", path, "--output", tmp_path / "inside")
    maps = ["overlays.png", "confusion.png", "iou.png", "examples.png", "worst.png", "best.png"]
    assert sorted(result["figures"]) == sorted(maps)


def test_names_of_classes_are_read_as_they_are_written(tmp_path):
    root = write_masks(tmp_path, classes=4)
    names = ["sky\ntree", "-", "a\u2028b", "a\tb"]
    lines = lines_of_classes(names)
    (root / "classes.txt").write_text("\n".join(lines))
    assert list(load_dataset(f"folder:{root}", task="segmentation").class_names) == lines
    assert lines == ["sky\\ntree", "- (1)", "a\\u2028b", "a\\tb"]


def test_masks_have_the_names_of_the_images_below_what_differs():
    assert png_files(["/1.jpg", "/a/2.png"]) == {"/1.jpg": "1.png", "/a/2.png": "2.png"}
    assert png_files(["/0.jpg", "/a/0.png"]) == {"/0.jpg": "0.png", "/a/0.png": "a/0.png"}
    urls = [f"https://host/{name}" for name in ("0.jpg?id=1", "0.jpg?id=2", "image?id=1", "image?id=2")]
    assert [*png_files(urls).values()] == ["0.png", "0#2.png", "image?….png", "image?…#2.png"]
    with pytest.raises(ValueError, match="one image for each file '0.png'; got a/0.jpg, a/0.png"):
        png_files(["a/0.jpg", "a/0.png"])
    with pytest.raises(ValueError, match=r"got https://host/0.jpg\?…, https://host/0.png"):
        png_files([urls[0], "https://host/0.png"])


# Arguments by the row of the manual, in which a name is in the folder of the test.
REFUSED = {
    "an existing folder": ["--masks", "found"],
    "a classifier": ["--model", "classes.keras", "--maps", "out"],
    "two images with one name": ["a/0.jpg", "a/0.png", "--masks", "out"],
    "more classes than a mask holds": ["--model", "many.keras", "--masks", "out"],
    "another number of class names": ["--classes", "names.txt"],
    "`--instances` of a model without queries": ["--instances"],
    "`--instances` of a classifier": ["--model", "classes.keras", "--instances"],
    "`--instances` with `--maps`": ["--instances", "--maps", "out"],
}
_, MESSAGES, _ = tables("segmentation.md")  # of data, of commands and of exports


@pytest.fixture(scope="module")
def inputs(model, streets, tmp_path_factory):
    """A folder with the files of `REFUSED`."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "found").mkdir()
    (folder / "names.txt").write_text("a\nb\n")
    (folder / "a").mkdir()
    for name in ("a/0.jpg", "a/0.png"):
        Image.open(streets / "images" / "00.png").save(folder / name)
    small(num_layers=1).save(folder / "classes.keras")
    ImageSegmenter(ENCODER, 300).save(folder / "many.keras")
    return folder


def test_the_manual_lists_what_predict_refuses():
    assert [*MESSAGES] == [*REFUSED, "another data set"]


@pytest.mark.parametrize("wrong", some(REFUSED, 3))
def test_bad_input_is_refused_with_the_message_of_the_manual_and_leaves_nothing(
    wrong, refused, model, inputs, monkeypatch
):
    monkeypatch.chdir(inputs)
    before = {*inputs.rglob("*")}
    image = [] if "a/0.jpg" in REFUSED[wrong] else ["a/0.png"]
    line = refused(("predict", *image, "--model", model, *REFUSED[wrong]))
    assert_is(line, f"keras-vit: {MESSAGES[wrong].replace('PATH', str(inputs / 'found'))}")
    assert {*inputs.rglob("*")} == before


def test_the_figures_of_a_model_for_any_size_need_one(refused, streets, tmp_path):
    any_size = {**ENCODER, "image_size": (None, None), "position_grid": (2, 2)}
    ImageSegmenter(any_size, 3).save(tmp_path / "any.keras")
    given = ("--image", streets / "images" / "00.png", "--output", tmp_path / "inside")
    refused(("inspect", "--model", tmp_path / "any.keras", *given), "any size; give --image_size")


def test_a_data_set_with_other_classes_is_refused(refused, model, tmp_path):
    root = write_masks(tmp_path, 4, classes=2)
    (root / "classes.txt").write_text("road\nline\n")
    line = refused(("evaluate", "--model", model, "--dataset", f"folder:{tmp_path}"))
    assert_is(line, f"keras-vit: {MESSAGES['another data set']}")


@pytest.mark.slow
def test_windows_of_a_model_for_any_size_change_nothing_and_say_so(keras_vit, streets, tmp_path):
    any_size = {"image_size": (None, None), "position_embedding": "none", "rotary": "dinov3"}
    ImageSegmenter({**ENCODER, **any_size}, 3).save(tmp_path / "any.keras")
    given = ("predict", streets / "images" / "00.png", "--model", tmp_path / "any.keras", "--format", "json")
    plain, windows = keras_vit(*given), keras_vit(*given, "--windows")
    assert plain.stdout == windows.stdout != ""
    assert "--windows changes nothing" in windows.stderr and "--windows" not in plain.stderr
