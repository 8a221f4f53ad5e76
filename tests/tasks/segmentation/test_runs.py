"""Runs of segmentation: the model of a recipe, frozen backbones, the finished model, and resuming."""

import types

import numpy as np
import pytest
from made.sampling import some
from reference.comparing import numpy
from reference.small import SMALL

from keras_vit import ImageSegmenter
from keras_vit.tasks import get_task
from keras_vit.training.building import build_model, finished_model
from keras_vit.training.compiling import compile_model
from keras_vit.training.named_recipes import RECIPES
from keras_vit.training.run_config import RunConfig

MODEL = {name: value for name, value in SMALL.items() if name != "num_classes"}
QUERIES = {"head": "mask", "num_queries": 12, "query_blocks": 1, "loss_points": 16}


def config(recipe="digits_scenes", model=MODEL, **changes):
    return RunConfig("digits_scenes", RECIPES[recipe].with_changes(**changes), model=model)


def built(*args, **changes):
    dataset = types.SimpleNamespace(class_names=("background", *"0123456789"))
    return build_model(config(*args, **changes), dataset)


@pytest.mark.parametrize("segmenter", some([{"head": "up", "decoder_size": 8}, None, QUERIES], 3))
def test_the_finished_model_is_a_segmenter_with_the_recipes_head(segmenter):
    model = built(head_options=segmenter, dropout_rate=0.1)
    assert isinstance(model, ImageSegmenter)
    assert model.head == (segmenter or {"head": "linear"})["head"]
    finished = finished_model(model)
    assert (finished.encoder.dropout_rate, finished.split_seed, finished.num_classes) == (0, 0, 11)


def test_the_recipes_whole_model_is_used_unless_a_run_has_another():
    own, given = built(model=None).encoder, built().encoder
    assert (own.image_size, own.hidden_size, own.rotary["kind"]) == ((32, 32), 64, "axial")
    assert (given.hidden_size, given.rotary) == (MODEL["hidden_size"], None)


@pytest.mark.parametrize("head", ["linear", "multi"])
def test_a_frozen_backbone_leaves_the_head(head):
    model = built("segment_linear", image_size=None, head_options={"head": head})
    compile_model(model, RECIPES["segment_linear"])
    trained = {variable.path.split("/")[0] for variable in model.trainable_variables}
    assert trained == {"head_norm", "head"}


@pytest.mark.slow
def test_a_run_starts_from_the_head_of_its_weights(tmp_path):
    trained = finished_model(built(head_options={"head": "up", "decoder_size": 8}))
    trained.get_layer("head").bias.assign(np.arange(11.0))
    trained.class_names = ("background", *"0123456789")
    trained.save(tmp_path / "model.keras")
    names = types.SimpleNamespace(class_names=trained.class_names)
    every = "head_projection, upscale_0, head"
    cases = (8, np.arange(11), f"{every}; new: none"), (4, np.zeros(11), f"none; new: {every}")
    for size, expected, line in cases:
        recipe = RECIPES["digits_scenes"].with_changes(head_options={"head": "up", "decoder_size": size})
        start = RunConfig("digits_scenes", recipe, weights=str(tmp_path / "model.keras"))
        model = build_model(start, names)
        np.testing.assert_array_equal(numpy(model.get_layer("head").bias), expected)
        assert model.split_seed == recipe.seed
        assert get_task("segmentation").note(model) == f"layers of the head from the weights: {line}"
