import numpy as np
import pytest
from reference.comparing import assert_close
from reference.small import small

from keras_vit.export.verify import compare, run_live


@pytest.mark.parametrize(
    "exported, difference, agreement",
    [
        ([[1.0, -4.0], [3.0, 2.0]], 0.0, 1.0),
        ([[1.0, -4.0], [3.0, 2.5]], 0.5 / 4, 1.0),
        ([[1.0, -4.0], [2.0, 3.0]], 1.0 / 4, 0.5),
        ([[1.0, 4.0], [2.0, 3.0]], 8.0 / 4, 0.0),
    ],
)
def test_the_difference_is_relative_to_the_largest_live_logit(exported, difference, agreement):
    live = np.array([[1.0, -4.0], [3.0, 2.0]])
    assert compare(live, np.array(exported)) == {
        "max_logit_difference": difference,
        "top1_agreement": agreement,
    }


def test_nan_does_not_pass_for_a_small_difference():
    found = compare(np.ones((1, 2)), np.full((1, 2), np.nan))["max_logit_difference"]
    assert not found <= 1e9


def test_logits_of_zero_are_compared_without_a_division_by_zero():
    assert compare(np.zeros((1, 2)), np.zeros((1, 2)))["max_logit_difference"] == 0
    assert compare(np.zeros((1, 2)), np.full((1, 2), 1e-6))["max_logit_difference"] > 1


def test_the_live_model_takes_pixels_as_the_exports_do(rng):
    model = small(preprocessing={"image_size": 16, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.1)})
    images = rng.uniform(size=(2, 16, 16, 3)).astype("float32")
    assert_close(run_live(model, images), model(model.preprocessing(images)), 1e-5)
