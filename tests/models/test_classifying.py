import numpy as np
import pytest
from made.tables import by_table
from reference.small import one_block

from keras_vit.models.classifying import classify, most_probable


def test_images_of_several_sizes_are_classified_by_a_model_of_any_size(rng):
    model = one_block(image_size=(None, None), position_grid=(2, 2))
    shapes = ((16, 16), (16, 16), (24, 8), (16, 16))
    images = [rng.integers(0, 256, (*shape, 3)).astype("uint8") for shape in shapes]
    sizes = [batch.shape[:3] for batch in model.preprocessing.batches(images, 32)]
    assert sizes == [(2, 16, 16), (1, 24, 8), (1, 16, 16)]
    for image, best in zip(images, model.classify(images), strict=True):
        expected = dict(model.classify(image)[0])
        assert dict(best) == pytest.approx(expected, abs=1e-6)


LOGITS = [3.0, 3.0, -3.0]
SIGMOIDS, SOFTMAX = [0.9526, 0.9526, 0.0474], [0.4994, 0.4994, 0.0012]


def of_fixed_logits(task):
    """A model with the same logits for all images."""
    model = one_block(num_classes=3, task=task)
    model.get_layer("head").kernel.assign(np.zeros((12, 3)))
    model.get_layer("head").bias.assign(LOGITS)
    return model


@by_table(
    "task, named, expected",
    [
        (None, None, SOFTMAX),
        ("single_label", None, SOFTMAX),
        ("multi_label", None, SIGMOIDS),
        ("multi_label", "single_label", SOFTMAX),
        (None, "multi_label", SIGMOIDS),
    ],
)
def test_the_probabilities_are_those_of_the_models_task(task, named, expected):
    [best] = of_fixed_logits(task).classify(np.zeros((16, 16, 3), "uint8"), task=named)
    assert [name for name, _ in best] == ["0", "1", "2"]
    assert [probability for _, probability in best] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("named", [None, "single_label", "regression"])
def test_a_regression_has_no_classes(named):
    with pytest.raises(ValueError, match="regression"):
        classify(of_fixed_logits("regression"), np.zeros((16, 16, 3), "uint8"), task=named)


@by_table("top", [1, 3, 40, 60])
def test_the_most_probable_classes_are_the_first_of_a_stable_order(top):
    probabilities = np.random.default_rng(0).integers(0, 9, (5, 40)) / 9  # many are equal
    names = [str(number) for number in range(40)]
    expected = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    order = [[int(name) for name, _ in best] for best in most_probable(probabilities, names, top)]
    np.testing.assert_array_equal(order, expected)
