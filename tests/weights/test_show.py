import numpy as np
import pytest
from made.checkpoints import base, write
from made.sampling import some
from made.tables import by_table
from reference.comparing import float_weights
from reference.small import small

from keras_vit import VisionTransformer, from_pretrained, save_weights
from keras_vit.weights.show import expected_shapes, show_checkpoint


@by_table("options", [{"class_names": [*"abcde"]}, {"image_size": (None, None), "position_grid": (3, 5)}])
def test_expected_shapes_are_those_of_the_model(options):
    model = small(**options)
    found = expected_shapes(model.get_config() | {"dtype": None, "name": None})
    assert found == {weight.path: tuple(weight.shape) for weight in float_weights(model)}


@pytest.mark.parametrize("name", some(["model.npz", "model.keras"], 2))
def test_another_position_grid_than_the_images_is_valid(name, tmp_path):
    model = small(position_grid=(3, 5))
    if name == "model.npz":
        save_weights(model, tmp_path / name, "vit_jax")
    else:
        model.save(tmp_path / name)
    found = show_checkpoint(tmp_path / name)
    assert (found["grid"], found["wrong_shape"], found["only_in_model"]) == ((3, 5), [], [])
    assert from_pretrained(tmp_path / name).position_grid == (3, 5)


@pytest.mark.parametrize("variant", ["mu/16", "mu/8", "R+mu/16"])
def test_a_variant_is_found_by_its_sizes(variant, tmp_path):
    model = VisionTransformer.from_variant(variant, image_size=32, num_classes=3)
    save_weights(model, tmp_path / "model.npz", "vit_jax")
    assert show_checkpoint(tmp_path / "model.npz")["variant"] == variant


def test_arrays_that_are_not_finite_and_skipped_keys_are_named(tmp_path):
    stored = {f"opt/target/{key}": array for key, array in base("token").arrays.items()}
    stored["opt/target/head/bias"] = np.full(7, np.inf, "float32")
    found = show_checkpoint(write({**stored, "opt/state/step": np.zeros(1, "float32")}, tmp_path / "run.npz"))
    assert found["not_finite"] == ["opt/target/head/bias"]
    assert found["left_out"] == ["opt/state/step"]
    assert found["parameters"] == 14247
