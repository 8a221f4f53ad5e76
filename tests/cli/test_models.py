import json

import pytest

from keras_vit import VisionTransformer
from keras_vit.variants import PUBLISHED, cost


def test_the_table_has_a_row_for_every_published_variant(script):
    done = script("models")
    assert done.returncode == 0 and done.stderr == ""
    title, empty, columns, *rows = done.stdout.splitlines()
    assert "224 px, 1000 classes" in title and empty == ""
    assert columns.split() == ["variant", "tokens", "million", "parameters", "GFLOPs"]
    assert [row.split()[0] for row in rows] == [*PUBLISHED]
    assert ["B/16", "197", "86.6", "35.13"] in [row.split() for row in rows]


def test_json_and_output_hold_the_same_numbers(keras_vit, tmp_path):
    done = keras_vit("models", "--json", "--output", tmp_path / "models.json")
    rows = json.loads(done.stdout)
    assert rows == json.loads((tmp_path / "models.json").read_text())
    assert rows == [{"variant": name, **cost(name)} for name in PUBLISHED]


@pytest.mark.parametrize("name", ["mu/16", "Ti/16", "S/32", "R+Ti/16", "R26+S/32"])
@pytest.mark.parametrize("classes", [0, 10])
def test_parameters_are_those_of_the_model(name, classes, keras_vit):
    done = keras_vit("models", "--json", "--image_size", 224, "--num_classes", classes)
    (row,) = [row for row in json.loads(done.stdout) if row["variant"] == name]
    model = VisionTransformer.from_variant(name, num_classes=classes or None)
    assert row["parameters"] == model.count_params()
    assert row["tokens"] == model.get_layer("tokens").output.shape[1]


def test_variants_whose_patch_does_not_divide_the_image_are_left_out(keras_vit):
    names = {row["variant"] for row in json.loads(keras_vit("models", "--json", "--image_size", 28).stdout)}
    assert names == {"So400m/14", "H/14", "g/14", "G/14", "e/14"}


def test_an_image_that_no_patch_divides_is_refused(keras_vit, refused):
    refused(keras_vit("models", "--image_size", 15), "no variant's patch divides an image of 15 pixels")


def test_an_output_that_cannot_be_written_is_refused(keras_vit, tmp_path):
    done = keras_vit("models", "--output", tmp_path / "nowhere" / "models.json")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "nowhere/models.json" in line
