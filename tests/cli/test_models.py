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


# The stem's last stages round up, so that a hybrid of 1×1 patches takes any image.
ANY_SIZE = {"R26+S/32", "R26+B/32", "R50+B/16", "R50+L/32"}


@pytest.mark.parametrize("size, fitting", [(28, {"So400m/14", "H/14", "g/14", "G/14", "e/14"}), (15, set())])
def test_variants_whose_patch_does_not_divide_the_image_are_left_out(size, fitting, keras_vit):
    names = {row["variant"] for row in json.loads(keras_vit("models", "--json", "--image_size", size).stdout)}
    assert names == fitting | ANY_SIZE


def test_an_output_that_cannot_be_written_is_refused(keras_vit, tmp_path):
    done = keras_vit("models", "--output", tmp_path / "nowhere" / "models.json")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "nowhere/models.json" in line
