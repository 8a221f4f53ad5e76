import json

import keras
import numpy as np
import pytest
from made.folders import write_broken
from reference.small import small

from keras_vit import from_pretrained
from keras_vit.cli.source import named
from keras_vit.export.description import describe
from keras_vit.export.runtimes import ExportedModel


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A `.keras` file of a model with class names."""
    path = tmp_path_factory.mktemp("model") / "model.keras"
    small(class_names=("a", "b", "c", "d", "e")).save(path)
    return path


def test_the_script_prints_the_best_classes_of_each_image(script, model, images):
    paths = [images / "cat" / "00.png", images / "dog" / "01.png"]
    done = script("predict", "--model", model, *paths, "--top", 2)
    assert done.returncode == 0 and done.stderr == ""
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["image", "class", "probability"]
    assert [row.split()[0] for row in rows[::2]] == [str(path) for path in paths]
    expected = keras.saving.load_model(model).classify(paths, top=2)
    shown = [tuple(row.split()[-2:]) for row in rows]
    assert shown == [(name, f"{score:.2%}") for best in expected for name, score in best]


def test_json_holds_every_image_of_a_folder_in_order(keras_vit, weights, images, tmp_path):
    done = keras_vit("predict", "--model", weights, images, "--json", "--output", tmp_path / "found.json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "found.json").read_text())
    paths = [str(path) for path in sorted(images.rglob("*.png"))]
    assert [row["image"] for row in found] == paths
    expected = from_pretrained(weights).classify(paths)
    for row, best in zip(found, expected):
        assert [c["name"] for c in row["classes"]] == [name for name, _ in best]
        np.testing.assert_allclose(
            [c["probability"] for c in row["classes"]], [p for _, p in best], rtol=1e-4
        )
        assert len(row["classes"]) == 5


def test_class_names_may_be_given(keras_vit, refused, weights, images, tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("\n".join(f"name {i}" for i in range(7)))
    image = images / "cat" / "00.png"
    command = ("predict", "--model", weights, image, "--top", 1, "--json", "--class_names")
    (found,) = json.loads(keras_vit(*command, file).stdout)
    ((best, _),) = from_pretrained(weights).classify(image, top=1)[0]
    assert found["classes"][0]["name"] == f"name {best}"
    refused(keras_vit(*command, "imagenet_1k"), "1000 class names; the model has 7 classes")


def test_an_exported_models_class_names_may_be_given(tmp_path):
    exported = ExportedModel(describe(small(), "single_label"), compute=None)
    (tmp_path / "names.txt").write_text("\n".join("vwxyz"))
    assert named(exported, tmp_path / "names.txt").class_names == tuple("vwxyz")


def no_image(model, images, path):
    return model, path / "nowhere.png", ["no such image file", path / "nowhere.png"]


def broken_image(model, images, path):
    return model, write_broken(path / "bad.png"), ["not a readable image", path / "bad.png"]


def empty_folder(model, images, path):
    (path / "empty").mkdir()
    return model, path / "empty", ["no images in the folder", path / "empty", ".jpg"]


def no_model(model, images, path):
    return path / "nowhere.keras", images, ["no such model file", path / "nowhere.keras"]


def damaged_model(model, images, path):
    (path / "cut.keras").write_bytes(model.read_bytes()[:3000])
    return path / "cut.keras", images, ["cut.keras", "no .keras file that can be read"]


def other_model(model, images, path):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(path / "other.keras")
    return path / "other.keras", images, ["holds a Sequential; wanted a VisionTransformer"]


def unfinished_run(model, images, path):
    (path / "run").mkdir()
    return path / "run", images, ["holds no finished run", "model.keras"]


def no_numbers(model, images, path):
    broken = small()
    broken.get_layer("head").bias.assign([float("inf")] * 5)
    broken.save(path / "broken.keras")
    return path / "broken.keras", images, ["computes NaN or infinity", "weights show"]


def headless_model(model, images, path):
    small(num_classes=None).save(path / "features.keras")
    return path / "features.keras", images, ["no classification head"]


@pytest.mark.parametrize(
    "make",
    [
        no_image,
        broken_image,
        empty_folder,
        no_model,
        damaged_model,
        other_model,
        unfinished_run,
        headless_model,
        no_numbers,
    ],
)
def test_bad_input_is_refused_in_one_line(make, keras_vit, refused, model, images, tmp_path):
    source, given, words = make(model, images, tmp_path)
    refused(keras_vit("predict", "--model", source, given), *words)
