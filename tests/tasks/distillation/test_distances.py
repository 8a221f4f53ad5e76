"""Distances and their gradients against the authors' formulas in float64, and metrics of closeness."""

import keras
import numpy as np
import pytest
from made.tables import by_table
from reference.comparing import gradient
from reference.vit_numpy import softmax

from keras_vit.tasks.distillation import distances
from keras_vit.tasks.distillation.loss import DistillationLoss, TeacherMetric

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 2, (2, 3, 4, 5))  # of a teacher and a student


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def kl(p, q):
    return (p * np.log(p / q)).sum(-1)


def soft(teacher, student, t):
    return t**2 * kl(softmax(teacher / t), softmax(student / t)).mean(1)


def bernoulli(teacher, student, t):
    p, q = sigmoid(teacher / t), sigmoid(student / t)
    return t**2 * (kl(p[..., None], q[..., None]) + kl(1 - p[..., None], 1 - q[..., None])).sum(-1).mean(1)


def hard(teacher, student, t):
    rows = np.log(softmax(student))
    return -np.take_along_axis(rows, teacher.argmax(-1)[..., None], -1)[..., 0].mean(1)


def squared(teacher, student, t):
    return ((teacher - student) ** 2).mean((1, 2))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def features(teacher, student, t):
    apart = 1 - (unit(teacher) * unit(student)).sum(-1)
    difference = np.abs(teacher - student)
    smooth = np.where(difference < 1, difference**2 / 2, difference - 0.5).mean(-1)
    return apart[:, 0] + (0.9 * apart[:, 1:] + 0.1 * smooth[:, 1:]).mean(1)


def sides(boxes):
    return np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def area(boxes):
    return np.clip(boxes[..., 2] - boxes[..., 0], 0, None) * np.clip(boxes[..., 3] - boxes[..., 1], 0, None)


def giou(a, b):
    inner = np.concatenate([np.maximum(a, b)[..., :2], np.minimum(a, b)[..., 2:]], -1)
    outer = np.concatenate([np.minimum(a, b)[..., :2], np.maximum(a, b)[..., 2:]], -1)
    union = area(a) + area(b) - area(inner)
    return area(inner) / union - (area(outer) - union) / area(outer)


def detection(teacher, student, t):
    score = sigmoid(teacher[..., 4:]).max(-1)
    classes = bernoulli(teacher[..., 4:], student[..., 4:], t) * teacher.shape[1]
    a, b = sides(teacher[..., :4]), sides(student[..., :4])
    boxes = (score * (np.abs(a - b).sum(-1) + 1 - giou(a, b))).sum(1)
    return (classes + boxes) / np.maximum(score.sum(1), 1)


def boxes_and_logits():
    places = np.concatenate([RNG.uniform(0.3, 0.7, (2, 3, 4, 2)), RNG.uniform(0.1, 0.4, (2, 3, 4, 2))], -1)
    return np.concatenate([places, RNG.normal(-1, 2, (2, 3, 4, 2))], -1)


CASES = {
    "softmax": (distances.softmax_divergence, soft, 3.0, LOGITS),
    "sigmoid": (distances.sigmoid_divergence, bernoulli, 2.0, LOGITS),
    "hard": (distances.hard_cross_entropy, hard, 1.0, LOGITS),
    "numbers": (distances.squared_difference, squared, 1.0, LOGITS),
    "features": (distances.feature_distance, features, 1.0, LOGITS),
    "detection": (distances.detection_distance, detection, 2.0, boxes_and_logits()),
}


@by_table("case", CASES)
def test_distances_and_gradients_are_those_of_the_formulas(case):
    distance, formula, temperature, (teacher, student) = CASES[case]
    factors = np.array([1.0, 2.0, -1.0])
    dtype, bound = ("float64", 1e-6) if keras.backend.backend() == "tensorflow" else ("float32", 1e-4)
    inputs, outputs = teacher.astype(dtype), student.astype(dtype)
    expected = formula(teacher, student, temperature)
    np.testing.assert_allclose(distance(inputs, outputs, temperature), expected, rtol=bound)
    step, differences = 1e-5, np.zeros_like(student)
    for place in np.ndindex(*student.shape):
        change = np.zeros_like(student)
        change[place] = step
        upper, lower = (formula(teacher, student + by, temperature) @ factors for by in (change, -change))
        differences[place] = (upper - lower) / (2 * step)
    found = gradient(lambda x: distance(inputs, x, temperature) * factors.astype(dtype), outputs)
    np.testing.assert_allclose(found, differences, rtol=bound, atol=bound)


def test_the_loss_weights_labels_and_teachers_and_sums_over_teachers():
    outputs = RNG.normal(0, 2, (3, 4, 5))  # two heads of the student, two teachers
    labels = np.array([1, 0, 4])
    label_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss = DistillationLoss(students=2, label_weight=0.25, label_loss=label_loss)
    divergence = sum(soft(outputs[:, [row]], outputs[:, [1]], 1) for row in (2, 3))
    cross_entropy = -np.log(softmax(outputs[:, 0]))[np.arange(3), labels]
    weights = np.array([1.0, 0.0, 3.0])
    expected = ((0.25 * cross_entropy + 0.75 * divergence) * weights).sum() / weights.sum()
    assert float(loss(labels, outputs.astype("float32"), weights)) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="label_weight=0.5 needs a label_loss"):
        DistillationLoss(label_weight=0.5)


def test_agreement_counts_the_teachers_class_among_the_students_best():
    teacher, student = np.eye(4, 6)[[0, 1, 2]], np.array([[3, 2, 1, 0, 0, 0.5]] * 3)
    assert distances.agreement(teacher, student).numpy().tolist() == [1, 0, 0]
    assert distances.agreement(teacher, student, k=2).numpy().tolist() == [1, 1, 0]
    maps = np.stack([teacher, teacher[::-1]])  # (2, 3, 6)
    assert distances.agreement(maps, np.stack([teacher] * 2)).numpy() == pytest.approx([1, 1 / 3])


def test_a_metric_is_the_mean_over_teachers_and_weighted_samples():
    outputs = RNG.normal(0, 2, (3, 4, 5)).astype("float32")
    metric = TeacherMetric(distances.softmax_divergence, students=2)
    weights = np.array([1.0, 2.0, 0.0])
    for part in (slice(0, 1), slice(1, 3)):
        metric.update_state(np.zeros(3)[part], outputs[part], weights[part])
    student = outputs[:, :2].mean(1)
    values = sum(soft(outputs[:, [row]], student[:, None], 1) for row in (2, 3)) / 2
    assert float(metric.result()) == pytest.approx(values @ weights / 3, rel=1e-5)
