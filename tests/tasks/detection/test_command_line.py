"""The commands with a detector: finetune, evaluate, predict and inspect."""

import csv
import json
import shutil

import numpy as np
import pyarrow.parquet
import pytest
from made.folders import write_boxes
from made.undrawn import undrawn_figures
from PIL import Image
from reference.small import one_block

from keras_vit.data import load_dataset
from keras_vit.tasks.detection.coco_output import coco_parts

SMALL = {"image_size": 32, "patch_size": 8, "hidden_size": 24, "num_layers": 1, "mlp_dim": 48, "num_heads": 3}
LITTLE = ["--total_steps", 4, "--batch_size", 4, "--set", "eval_every=2", "--set", "warmup_steps=1"]
OBJECT = ["name", "score", "left", "top", "right", "bottom"]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A folder of rectangles with YOLO's labels."""
    return write_boxes(tmp_path_factory.mktemp("scenes"), count=12, size=(32, 32))


@pytest.fixture(scope="module")
def images(scenes):
    return [scenes / "images" / f"{number:02}.png" for number in range(2)]


@pytest.fixture(scope="module")
def run(keras_vit, scenes, tmp_path_factory, eager):
    """A run of a few steps on them, whose head then finds every class in every patch."""
    import keras

    workdir = tmp_path_factory.mktemp("runs") / "run"
    data = "--dataset", f"folder:{scenes}"
    with undrawn_figures():
        options = "--recipe", "digits_detect", "--set", f"model={SMALL}", *LITTLE
        keras_vit("finetune", *options, *data, "--workdir", workdir)
    model = keras.models.load_model(workdir / "model.keras")
    model.get_layer("head").bias.assign(np.linspace(0, 1, 2))
    model.save(workdir / "model.keras")
    return workdir


@pytest.mark.slow
def test_a_run_has_the_scores_of_the_test_split(run):
    result = json.loads((run / "result.json").read_text())
    assert {"test_ap", "test_ap50", "test_ar_100", "test_f1"} <= result.keys()
    assert result["test_samples"] == 2 and result["data"].startswith("2 classes (red, green)")
    with open(run / "metrics.csv") as file:
        rows = [*csv.DictReader(file)]
    assert [row["step"] for row in rows] == ["2", "4"]
    assert all(0 <= float(row["val_ap"]) <= 1 for row in rows)


@pytest.mark.slow
def test_evaluate(keras_vit, run, scenes, tmp_path):
    options = "--per_class", "--confusion", tmp_path / "m.png", "--json", "-"
    found = keras_vit("evaluate", "--model", run, "--dataset", f"folder:{scenes}", *options)
    value = json.loads(found.stdout)
    assert value["samples"] == 2 and len(value["classes"]) == 2 and "ap50" in value["classes"][0]
    with Image.open(tmp_path / "m.png") as image:
        assert image.width > 100


@pytest.mark.slow
def test_predict_writes_objects_in_every_format(keras_vit, run, images, tmp_path):
    table = keras_vit("predict", "--model", run, *images, "--top", 3).stdout.splitlines()
    assert table[0].split() == ["image", "class", *OBJECT[1:]] and len(table) == 7
    [first, _] = json.loads(keras_vit("predict", "--model", run, *images, "--format", "json").stdout)
    assert [*first["objects"][0]] == OBJECT
    rows = [*csv.reader(keras_vit("predict", "--model", run, *images, "--format", "csv").stdout.splitlines())]
    assert rows[0] == ["image", "rank", "class", *OBJECT[1:]]
    keras_vit("predict", "--model", run, *images, "--output", tmp_path / "found.parquet")
    written = pyarrow.parquet.read_table(tmp_path / "found.parquet")
    assert written.column_names == rows[0] and written.num_rows == len(rows) - 1


@pytest.mark.slow
def test_predict_writes_a_file_of_coco_that_can_be_read_as_labels(keras_vit, run, scenes, tmp_path):
    shutil.copytree(scenes / "images", tmp_path, dirs_exist_ok=True)
    options = "--top", 5, "--format", "json", "--output", tmp_path / "found.coco.json"
    rows = json.loads(keras_vit("predict", "--model", run, tmp_path, *options).stdout)
    content = json.loads((tmp_path / "found.coco.json").read_text())
    assert [image["id"] for image in content["images"]] == [*range(1, 13)]
    assert [category["name"] for category in content["categories"]] == ["red", "green"]
    assert content["annotations"][0]["score"] == rows[0]["objects"][0]["score"]
    data = load_dataset(f"folder:{tmp_path}", task="detection", seed=None)
    assert data.class_names == ("red", "green")
    for row, (_, boxes) in zip(rows, data.split("train"), strict=True):
        expected = {(f["name"], *(f[side] / 32 for side in OBJECT[2:])) for f in row["objects"]}
        found = {(data.class_names[int(box[4])], *box[:4].tolist()) for box in boxes}
        assert found == expected


def test_a_file_of_coco_has_each_box_of_a_class_once():
    box = {"left": 0.0, "top": 0.0, "right": 8.0, "bottom": 6.0}
    empty = {**box, "left": 8.0}
    found = [("b", 0.9, box), ("b", 0.8, box), ("a", 0.7, box), ("a", 0.6, empty)]
    objects = [{"name": name, "score": score, **sides} for name, score, sides in found]
    size = {"width": 8, "height": 6}
    results = {"image": "x/1.png", **size, "objects": []}, {"image": "y/1.png", **size, "objects": objects}
    content = json.loads("".join(coco_parts(results, ["a", "b"], "folder")))
    keys = "id", "image_id", "category_id", "score"
    found = [[annotation[key] for key in keys] for annotation in content["annotations"]]
    assert found == [[1, 2, 2, 0.9], [2, 2, 1, 0.7]]
    assert [image["file_name"] for image in content["images"]] == ["x/1.png", "y/1.png"]


def test_of_classes_of_one_name_objects_are_of_the_first():
    found = {"name": "cat", "score": 0.5, "left": 1.0, "top": 2.0, "right": 3.0, "bottom": 5.0}
    result = {"image": "a/1.png", "width": 8, "height": 6, "objects": [found]}
    content = json.loads("".join(coco_parts([result], ["dog", "cat", "cat"], "a")))
    assert [annotation["category_id"] for annotation in content["annotations"]] == [2]


@pytest.mark.slow
def test_predict_draws_boxes(keras_vit, run, images, tmp_path):
    options = "--boxes", tmp_path / "drawn", "--threshold", 0.6, "--format", "json"
    rows = json.loads(keras_vit("predict", "--model", run, *images, *options).stdout)
    assert all(found["score"] >= 0.6 for row in rows for found in row["objects"])
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["00.png", "01.png"]
    with Image.open(tmp_path / "drawn" / "00.png") as drawn, Image.open(images[0]) as image:
        assert drawn.size == image.size
        assert (np.asarray(drawn) != np.asarray(image)).any() == bool(rows[0]["objects"])
    message = "--boxes, --threshold, --iou and a file of .coco.json need a model that detects objects; this"
    classifier = one_block(num_classes=3)
    classifier.save(tmp_path / "classifier.keras")
    options = ("--boxes", tmp_path / "none"), ("--threshold", 0.5), ("--output", tmp_path / "none.coco.json")
    for option in options:
        found = keras_vit("predict", "--model", tmp_path / "classifier.keras", images[0], *option, status=2)
        assert message in found.stderr
    found = keras_vit("predict", "--model", run, images[0], "--threshold", "2", status=2)
    assert "expected a number from 0 to 1; got '2'" in found.stderr
    assert not [*tmp_path.glob("none*")]


@pytest.mark.slow
def test_an_image_without_objects_is_listed_as_such(keras_vit, run, images, tmp_path):
    import keras

    model = keras.models.load_model(run / "model.keras")
    model.get_layer("head").bias.assign(np.full(2, -30))
    model.save(tmp_path / "none.keras")
    of_none = "predict", "--model", tmp_path / "none.keras", images[0]
    assert keras_vit(*of_none).stdout.splitlines()[1].split()[1:] == ["none"]
    assert json.loads(keras_vit(*of_none, "--format", "json").stdout)[0]["objects"] == []
    keras_vit(*of_none, "--output", tmp_path / "found.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "found.parquet").num_rows == 0
    keras_vit(*of_none, "--output", tmp_path / "found.csv")
    assert (tmp_path / "found.csv").read_text() == "image,rank,class,score,left,top,right,bottom\n"


@pytest.mark.slow
def test_a_run_begins_with_the_words_of_a_clip(keras_vit, scenes, images, tmp_path):
    import keras
    from made import tokenizers

    from keras_vit import ImageTextModel, TextPreprocessing, VisionTransformer, save_weights

    for name, content in tokenizers.clip_files().items():
        (tmp_path / name).write_bytes(content)
    prepare = TextPreprocessing.from_files(tmp_path, "clip", length=8)
    sizes = {"hidden_size": 24, "num_layers": 1, "mlp_dim": 24, "num_heads": 3}
    text = {"vocabulary_size": prepare.vocabulary_size, "length": 8, **sizes, "causal": True}
    image = VisionTransformer(32, 8, **sizes, pre_norm=True, norm_after_pooling=True)
    options = {"objective": "softmax", "image_projection": 12, "text_projection": 12}
    clip = ImageTextModel(image, {**text, "pooling": "argmax"}, **options, text_preprocessing=prepare)
    save_weights(clip, tmp_path / "clip", "huggingface")
    words = "--recipe", "detect_words", "--weights", tmp_path / "clip", "--dataset", f"folder:{scenes}"
    keras_vit("finetune", *words, "--workdir", tmp_path / "run", *LITTLE)
    model = keras.models.load_model(tmp_path / "run" / "model.keras")
    assert model.class_names == (texts := ("red", "green"))
    np.testing.assert_allclose(model.encode_text(texts), clip.encode_text(texts), atol=1e-5)
    options = "--labels", "seven,eight", "--threshold", 0, "--top", 4
    found = keras_vit("predict", "--model", tmp_path / "run", *options, "--format", "json", images[0])
    [row] = json.loads(found.stdout)
    assert {one["name"] for one in row["objects"]} <= {"seven", "eight"}


@pytest.mark.slow
def test_inspect_and_report_draw_boxes(keras_vit, run, scenes, images, tmp_path):
    keras_vit("inspect", "--model", run, "--dataset", f"folder:{scenes}", "--output", tmp_path / "inside")
    names = {path.name for path in (tmp_path / "inside").iterdir()}
    assert {"precision_recall.png", "confusion.png", "worst.png"} <= names
    keras_vit("inspect", "--model", run, "--image", images[0], "--output", tmp_path / "one")
    assert "objects.png" in {path.name for path in (tmp_path / "one").iterdir()}
    assert "Worst predictions" in (tmp_path / "inside" / "report.html").read_text()
