"""The authors' files of ViTPose, with the heat maps that their code computes."""

import numpy as np
import pytest
from reference.comparing import assert_close, numpy

from keras_vit import from_pretrained, save_weights
from keras_vit.tasks.keypoints.timm import ADDITIONS
from keras_vit.weights.array_files import read_arrays, write_arrays

GIVEN = {"num_heads": 3, "position_grid": (4, 3)}


@pytest.mark.parametrize("head", ["plus", "simple"])
def test_a_file_computes_what_its_authors_code_computes(head, golden):
    """ViTPose+ has the class token of MAE, experts and heads for other data sets, too."""
    model = from_pretrained(golden / f"vitpose_{head}.safetensors", **GIVEN)
    assert (model.head, model.num_classes) == ("simple" if head == "simple" else "classic", 5)
    assert (model.image_size, model.encoder.class_token) == ((64, 48), False)
    assert model.encoder.position_interpolation == "bicubic"
    assert model.preprocessing.mean == pytest.approx((0.485, 0.456, 0.406))
    with np.load(golden / f"vitpose_{head}.expected.npz") as expected:
        assert_close(numpy(model(expected["images"])), expected["heat_maps"], 3e-6)


def test_its_encoder_is_read_alone(golden):
    encoder = from_pretrained(golden / "vitpose_simple.safetensors", num_classes=0, **GIVEN)
    assert (encoder.num_classes, encoder.image_size) == (None, (64, 48))


def test_names_that_a_file_has_not_leave_its_head(golden):
    names = ("nose", "left_eye", "right_eye", "left_ear", "right_ear")
    options = {"class_names": names}
    model = from_pretrained(golden / "vitpose_simple.safetensors", keypoint_estimator=options, **GIVEN)
    assert (model.head, model.class_names, model.flip_index) == ("simple", names, (0, 2, 1, 4, 3))
    with np.load(golden / "vitpose_simple.expected.npz") as expected:
        assert_close(numpy(model(expected["images"])), expected["heat_maps"], 3e-6)


def test_a_file_for_other_points_gets_a_new_head(golden):
    options = {"class_names": ("left", "right")}
    model = from_pretrained(golden / "vitpose_simple.safetensors", keypoint_estimator=options, **GIVEN)
    assert model.output_shape == (None, 16, 12, 2)
    assert {path.split("/")[0] for path in model.initial_weights} == {"head"}


@pytest.mark.parametrize("hidden_size, heads", [(384, {"num_heads": 12}), (768, {})])
def test_sizes_that_no_array_shows_are_those_of_the_authors(hidden_size, heads):
    arrays = {
        "keypoint_head.final_layer.weight": np.zeros((17, hidden_size, 3, 3)),
        "backbone.patch_embed.proj.weight": np.zeros((hidden_size, 3, 16, 16)),
        "backbone.pos_embed": np.ones((1, 193, hidden_size)),
    }
    arrays, options = ADDITIONS.renamed(arrays)
    np.testing.assert_array_equal(arrays["backbone.pos_embed"], np.full((1, 192, hidden_size), 2))
    expected = {"patch_padding": 2, "position_interpolation": "bicubic", "position_grid": (16, 12)}
    assert options == expected | heads


def test_a_classifier_under_the_same_prefix_keeps_its_class_token(golden, tmp_path):
    arrays = read_arrays(golden / "timm_token.safetensors")
    path = tmp_path / "model.safetensors"
    write_arrays(((f"backbone.{key}", array) for key, array in arrays.items()), path, "float32")
    again = from_pretrained(path, num_heads=3)
    assert again.class_token and again.patch_padding == 0
    saved = read_arrays(save_weights(again, tmp_path / "again.safetensors", "timm"))
    for key, array in arrays.items():
        np.testing.assert_array_equal(saved[key], array)
