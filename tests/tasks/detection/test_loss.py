import keras
import numpy as np
import pytest
from reference.comparing import numpy
from reference.detection import detection_loss, giou_of

from keras_vit.tasks.detection.loss import DetectionLoss, focal_loss, giou


def random_rows(rng, count, classes, padding=3):
    """Rows of objects, of a crowd among them, and padding."""
    corners = np.sort(rng.random((count, 2, 2)), axis=1).reshape(count, 4)
    rows = np.column_stack([corners, rng.integers(0, classes, count), np.zeros(count), np.ones(count)])
    if count > 1:
        rows[0, 5] = 1  # a crowd, before others
    return np.concatenate([rows, np.eye(7)[[4] * padding] * -1])


@pytest.fixture
def batch(rng):
    """Labels (images, boxes, 7) and outputs (images, patches, 4 + classes)."""
    labels = np.stack([random_rows(rng, count, 4, 8 - count) for count in (5, 0, 1, 3)])
    outputs = np.concatenate([rng.uniform(0.1, 0.9, (4, 9, 4)), rng.standard_normal((4, 9, 4))], axis=2)
    return labels.astype("float32"), outputs.astype("float32")


def test_the_loss_is_that_of_its_definition(batch):
    labels, outputs = batch
    expected = [detection_loss(*pair) for pair in zip(labels, outputs)]
    np.testing.assert_allclose(numpy(DetectionLoss(reduction=None)(labels, outputs)), expected, rtol=1e-5)
    weights = np.array([1.0, 2, 0, 0.5])
    mean = (weights * expected).sum() / weights.sum()
    assert float(DetectionLoss()(labels, outputs, weights)) == pytest.approx(mean, rel=1e-5)


def test_gradients_are_those_of_its_definition(batch):
    """By differences of the reference, whose matches do not change with small steps."""
    labels, outputs = batch
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        variable = tf.Variable(outputs)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(DetectionLoss(reduction=None)(labels, variable))
        found = tape.gradient(loss, variable).numpy()
    else:
        import jax

        found = jax.grad(lambda x: DetectionLoss(reduction=None)(labels, x).sum())(outputs)
    step = 1e-6
    for image, patch, column in [(0, 0, 0), (0, 3, 2), (0, 5, 4), (1, 2, 5), (2, 1, 3), (3, 7, 1), (3, 8, 6)]:
        changed = np.repeat(outputs[image][np.newaxis].astype("float64"), 2, axis=0)
        changed[:, patch, column] += step, -step
        high, low = (detection_loss(labels[image], one) for one in changed)
        assert found[image, patch, column] == pytest.approx((high - low) / (2 * step), rel=1e-3, abs=1e-5)


def test_padding_and_the_order_of_rows_do_not_matter(batch, rng):
    labels, outputs = batch
    loss = DetectionLoss(reduction=None)
    expected = numpy(loss(labels, outputs))
    padded = np.concatenate([labels, np.tile(np.eye(7, dtype="float32")[4] * -1, (4, 92, 1))], axis=1)
    np.testing.assert_allclose(numpy(loss(padded, outputs)), expected, rtol=1e-5)
    np.testing.assert_allclose(numpy(loss(padded[:, ::-1], outputs)), expected, rtol=1e-5)


def test_a_class_out_of_range_makes_the_loss_nan(batch):
    labels, outputs = batch
    labels[3, 1, 4] = 4
    assert np.isnan(numpy(DetectionLoss(reduction=None)(labels, outputs))).tolist() == [False] * 3 + [True]


def test_more_objects_than_patches(rng):
    """The patches get the objects of the least costs; the others have none."""
    labels = random_rows(rng, 6, 2, padding=0)[np.newaxis].astype("float32")
    labels[0, 0, 5] = 0
    outputs = rng.uniform(0.1, 0.9, (1, 3, 6)).astype("float32")
    expected = detection_loss(labels[0], outputs[0])
    assert float(DetectionLoss()(labels, outputs)) == pytest.approx(expected, rel=1e-5)


def test_generalized_iou(rng):
    boxes, others = np.sort(rng.random((2, 20, 2, 2)), axis=2).reshape(2, 20, 4)
    expected = [giou_of(*pair) for pair in zip(boxes, others)]
    np.testing.assert_allclose(numpy(giou(boxes, others)), expected, rtol=1e-4, atol=1e-5)
    assert numpy(giou(np.zeros((1, 4)), np.zeros((1, 4)))).tolist() == [0]


def test_focal_loss_of_large_logits_is_finite():
    logits, target = np.array([-200.0, 200, -200, 200]), np.array([0.0, 1, 1, 0])
    found = numpy(focal_loss(logits.astype("float32"), target.astype("float32")))
    np.testing.assert_allclose(found, [0, 0, 0.3 * 200, 0.7 * 200], rtol=1e-6)
