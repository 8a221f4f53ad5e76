import types

import keras
import numpy as np
import pytest
from keras.src.trainers.compile_utils import MetricsList  # in which `compile` gives metrics to callbacks
from made.tables import by_table

from keras_vit.losses import SegmentationCrossEntropy
from keras_vit.metrics import MeanAveragePrecision, MeanIoU
from keras_vit.tasks.depth.loss import AbsoluteRelativeError
from keras_vit.tasks.image_text.pair_scores import PairRecall
from keras_vit.training import Accuracy, SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError

LABELS = np.array([2, 0, 4, 4, 1, 3])


@pytest.fixture
def logits(rng):
    return (5 * rng.standard_normal((6, 5))).astype("float32")


def by_definition(labels, logits, smoothing=0.0):
    targets = np.full(logits.shape, smoothing / 5)
    targets[np.arange(len(labels)), labels] += 1 - smoothing
    scores = np.exp(logits.astype("float64"))
    return -(targets * np.log(scores / scores.sum(1, keepdims=True))).sum(1)


FORMS = {
    "indices": LABELS,
    "a column": LABELS[:, np.newaxis],
    "one-hot": np.eye(5)[LABELS],
    "whole one-hot": np.eye(5, dtype="int32")[LABELS],
}


@pytest.mark.parametrize("form", FORMS)
def test_the_losses_equal_their_definitions_for_every_form_of_labels(form, logits):
    loss = SoftmaxCrossEntropy(0.1)(FORMS[form], logits)
    assert float(loss) == pytest.approx(by_definition(LABELS, logits, 0.1).mean(), rel=1e-5)
    rows = 0.8 * np.eye(5)[LABELS] + 0.2 / 5
    loss = SigmoidCrossEntropy(0.2)(FORMS[form], logits)
    assert float(loss) == pytest.approx(sigmoid_by_definition(rows, logits).mean(), rel=1e-5)


def test_rows_may_mix_classes_and_samples_be_weighted(logits):
    half = (np.eye(5)[LABELS] + np.eye(5)[(LABELS + 1) % 5]) / 2
    expected = (by_definition(LABELS, logits) + by_definition((LABELS + 1) % 5, logits)) / 2
    weights = np.array([0.0, 1, 2, 0, 0, 3])
    loss = SoftmaxCrossEntropy()(half, logits, sample_weight=weights)
    assert float(loss) == pytest.approx((weights * expected).sum() / 6, rel=1e-5)


CONFIGURED = [
    (SoftmaxCrossEntropy, {"label_smoothing": 0.2, "name": "loss", "reduction": "sum"}),
    (SigmoidCrossEntropy, {"label_smoothing": 0.2, "indices": False}),
    (SquaredError, {"reduction": "sum"}),
    (SegmentationCrossEntropy, {"ignore": 7}),
    (MeanAveragePrecision, {"num_classes": 3, "name": "ap"}),
    (MeanIoU, {"num_classes": 3, "ignore": 7}),
    (Accuracy, {"name": "top"}),
]


@by_table("kind, options", CONFIGURED)
def test_the_config_rebuilds_a_loss_or_metric(kind, options):
    made = kind(**options)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(made))
    assert type(again) is kind and again.get_config() == made.get_config()
    assert {name: getattr(again, name) for name in options} == options


METRICS = [
    (Accuracy(), True),
    (MeanAveragePrecision(3), True),
    (MeanIoU(3), True),
    (PairRecall("image", 1), True),
    (AbsoluteRelativeError(), False),
]


@by_table("metric, higher_is_better", METRICS)
def test_callbacks_of_keras_know_the_better_score(metric, higher_is_better):
    callback = keras.callbacks.EarlyStopping(f"val_{metric.name}")
    callback.set_model(types.SimpleNamespace(metrics=[MetricsList([metric])]))
    callback._set_monitor_op()
    assert bool(callback.monitor_op(2, 1)) == higher_is_better


@pytest.mark.parametrize("indices", [True, False])
def test_labels_of_another_width_are_refused(indices):
    loss = SigmoidCrossEntropy(indices=indices)
    words = " or class indices" * indices
    with pytest.raises(ValueError, match=rf"labels of 5 numbers, one per class{words}; got .* \(2, 4\)"):
        loss(np.zeros((2, 4)), np.zeros((2, 5)))
    if not indices:
        with pytest.raises(ValueError, match=r"labels of 5 numbers, one per class; got .* \(2,\)"):
            loss(np.zeros(2), np.zeros((2, 5)))


@by_table("shape, outputs", [((4,), 3), ((4, 1), 3), ((4, 3), 1), ((4, 2, 1), 2)])
def test_targets_are_not_broadcast(shape, outputs):
    with pytest.raises(ValueError, match=rf"targets of {outputs} numbers, one per output; got .* \(4,.*\)"):
        SquaredError()(np.zeros(shape), np.zeros((4, outputs)))


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_a_single_target_may_be_a_number(shape, rng):
    targets, predicted = rng.standard_normal((2, 4, 1)).astype("float32")
    loss = SquaredError()
    weights = np.array([0.0, 1, 2, 0])
    expected = (weights * np.square(targets - predicted)[:, 0]).sum() / 3
    assert float(loss(targets.reshape(shape), predicted, weights)) == pytest.approx(expected, rel=1e-6)


def test_a_smoothing_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"label_smoothing must be a number in \[0, 1\); got 1.0"):
        SoftmaxCrossEntropy(1.0)


@pytest.mark.parametrize("label", [-1, 3])
def test_an_index_out_of_range_makes_the_loss_nan(label):
    loss = SoftmaxCrossEntropy(reduction="none")(np.array([0, label]), np.zeros((2, 3), "float32"))
    assert np.isnan(loss).tolist() == [False, True]


def sigmoid_by_definition(rows, logits):
    chance = 1 / (1 + np.exp(-logits.astype("float64")))
    return -(rows * np.log(chance) + (1 - rows) * np.log(1 - chance)).sum(1)


def test_an_image_may_have_several_classes_or_none(logits, rng):
    rows = rng.integers(0, 2, (6, 5)).astype("float32")
    rows[0], rows[1] = 0, 1
    weights = np.array([2.0, 0, 1, 0, 0.5, 3])
    expected = sigmoid_by_definition(rows, logits)
    loss = SigmoidCrossEntropy()(rows, logits, sample_weight=weights)
    assert float(loss) == pytest.approx((weights * expected).sum() / weights.sum(), rel=1e-5)


@pytest.mark.parametrize("kind", [SoftmaxCrossEntropy, SigmoidCrossEntropy])
def test_large_logits_stay_finite(kind):
    loss = kind()(np.array([[0.0, 1.0]]), np.array([[1e4, 0.0]], "float32"))
    expected = {SoftmaxCrossEntropy: 1e4, SigmoidCrossEntropy: 1e4 + np.log(2)}
    assert float(loss) == pytest.approx(expected[kind])
