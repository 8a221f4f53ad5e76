import numpy as np
import pytest
from reference.small import one_block

from keras_vit.models.classifying import most_probable


def test_images_of_several_sizes_are_classified_by_a_model_of_any_size(rng):
    model = one_block(image_size=(None, None), position_grid=(2, 2))
    shapes = ((16, 16), (16, 16), (24, 8), (16, 16))
    images = [rng.integers(0, 256, (*shape, 3)).astype("uint8") for shape in shapes]
    sizes = [batch.shape[:3] for batch in model.preprocessing.batches(images, 32)]
    assert sizes == [(2, 16, 16), (1, 24, 8), (1, 16, 16)]
    for image, best in zip(images, model.classify(images), strict=True):
        expected = dict(model.classify(image)[0])
        assert dict(best) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("top", [1, 3, 40, 60])
def test_the_most_probable_classes_are_the_first_of_a_stable_order(top):
    probabilities = np.random.default_rng(0).integers(0, 9, (5, 40)) / 9  # many are equal
    names = [str(number) for number in range(40)]
    expected = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    order = [[int(name) for name, _ in best] for best in most_probable(probabilities, names, top)]
    np.testing.assert_array_equal(order, expected)
