import numpy as np
import pytest
import tensorflow as tf
from sklearn.utils.class_weight import compute_class_weight

from keras_vit.data.class_weights import class_weights, with_class_weights


def test_balanced_weights_are_scikit_learns():
    labels = [0, 2, 2, 2, 1, 0, 2]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    np.testing.assert_allclose(class_weights("balanced", labels, 3), expected, rtol=1e-6)


def test_a_class_without_images_has_no_weight_and_the_mean_over_images_is_one():
    labels = [0, 2, 2, 2]
    weights = class_weights("balanced", labels, 4)
    assert weights[1] == weights[3] == 0 and weights[labels].mean() == pytest.approx(1)


def test_another_number_of_weights_is_refused():
    with pytest.raises(ValueError, match="class_weights needs 3 numbers, one per class; got 2"):
        class_weights((1, 2), [0, 1, 2], 3)


def test_mixed_labels_have_the_mean_of_their_classes_weights():
    labels = tf.constant([[0.25, 0.75], [1.0, 0.0]])
    batches = with_class_weights(tf.data.Dataset.from_tensors((tf.zeros((2, 1)), labels)), [4, 8])
    np.testing.assert_allclose(next(iter(batches))[2], [7, 4])
