"""DINO's outputs, loss, center and teacher follow the authors' formulas."""

import keras
import numpy as np
import pytest
from made.tables import by_table
from reference.comparing import arrays, assert_close, assert_same_arrays, numpy, randomize
from reference.fine_tuning import Losses
from reference.small import SMALL, small
from reference.vit_numpy import ACTIVATIONS, forward, softmax

from keras_vit import DINO
from keras_vit.layers import resize_position_grid
from keras_vit.tasks.pretraining.dino import dino_loss
from keras_vit.training import SGD, AdamW

pytestmark = pytest.mark.usefixtures("eager")
slow = pytest.mark.slow
ON_JAX = keras.backend.backend() == "jax"
ENCODER = {**SMALL, "num_layers": 1, "num_classes": None, "image_size": 32}
RELATIVE = {"relative_positions": True, "position_embedding": "none"}
SIZES = {"num_local": 3, "local_size": 16, "out_dim": 24, "hidden_dim": 20, "bottleneck_dim": 8}
SCHEDULES = {
    **{"momentum": 0.9, "temperature_steps": 4, "first_teacher_temperature": 0.2, "freeze_steps": 3},
    **{"teacher_temperature": 0.5, "center_momentum": 0.8},
}


def dino(**options):
    """A small model whose teacher differs from its student."""
    encoder = {**ENCODER, **options.pop("encoder", {})}
    model = DINO(encoder, **{**SIZES, **SCHEDULES, "name": "dino", **options})
    schedules = model.temperature, model.student_head.get_layer("last_layer").gradient_scale
    start = [float(numpy(weight)) for weight in schedules]
    randomize(model)
    for weight, value in zip(schedules, start):
        weight.assign(value)
    return model


def views(count, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"global_views": (2, 32, 32, 3), "local_views": (3, 16, 16, 3)}
    return {name: rng.normal(size=(count, *shape)).astype("float32") for name, shape in shapes.items()}


def train(model, inputs, batch_size, weights=None, optimizer=None, **options):
    """The losses of the steps of one pass."""
    losses, labels = Losses(), np.zeros(len(inputs["global_views"]))
    model.compile(optimizer or SGD(0.05), seed=3, **{"total_steps": 10, **options})
    model.is_segment = True
    fit = {"verbose": 0, "callbacks": [losses], "shuffle": False}
    model.fit(inputs, labels, batch_size, sample_weight=weights, **fit)
    return losses.values


# The authors' formulas ----------------------------------------------------------------------------


def authors_loss(student, teacher, center, student_temperature, teacher_temperature):
    """`DINOLoss.forward` for the rows of each view in turn."""
    total, terms = 0.0, 0
    for i in range(2):
        q = softmax((teacher[:, i] - center) / teacher_temperature)
        for v in range(student.shape[1]):
            if v != i:
                total += (-q * np.log(softmax(student[:, v] / student_temperature))).sum(-1).mean()
                terms += 1
    return total / terms


@pytest.mark.slow
@pytest.mark.parametrize("total_steps", [10, None])
def test_ten_steps_follow_the_authors_formulas(total_steps):
    model, data = dino(), views(20)
    model.compile(SGD(0.05), total_steps=total_steps, seed=3)
    students = {pair[1].path: pair[1] for pair in model._averages}
    teacher = {pair[1].path: numpy(pair[0]).astype("float64") for pair in model._averages}
    center = numpy(model.center).astype("float64")
    last = "student/last_layer/kernel"
    cosine = np.cos(np.pi * np.arange(10) / total_steps) if total_steps else np.ones(10)
    momenta = 1 - 0.5 * (1 - 0.9) * (1 + cosine)
    temperatures = np.concatenate([np.linspace(0.2, 0.5, 4), np.full(6, 0.5)])
    for step in range(10):
        batch = {name: part[2 * step : 2 * step + 2] for name, part in data.items()}
        logits = numpy(model(batch)).astype("float64")
        before = numpy(students[last])
        model.reset_metrics()
        loss = model.train_on_batch(batch, np.zeros(2))
        expected = authors_loss(logits[:, :-2], logits[:, -2:], center, 0.1, temperatures[step])
        assert float(loss) == pytest.approx(expected, rel=1e-5)
        assert np.array_equal(numpy(students[last]), before) == (step < 3)
        center = 0.8 * center + 0.2 * logits[:, -2:].mean((0, 1))
        np.testing.assert_allclose(numpy(model.center), center, rtol=1e-5, atol=1e-6)
        for path, value in teacher.items():
            teacher[path] = momenta[step] * value + (1 - momenta[step]) * numpy(students[path])
        for average, weight in model._averages:
            np.testing.assert_allclose(numpy(average), teacher[weight.path], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_frozen_last_layer_starts_as_if_its_first_step_were_the_runs_first():
    """The authors delete its gradient, so that the optimizer neither decays it nor counts the step."""
    model, data = dino(), views(10)
    model.compile(AdamW(1e-3, weight_decay=0.1), total_steps=10, seed=3)
    kernel = model.student_head.get_layer("last_layer").kernel
    start = numpy(kernel)
    for step in range(4):
        before = numpy(kernel)
        model.train_on_batch(
            {name: part[2 * step : 2 * step + 2] for name, part in data.items()}, np.zeros(2)
        )
        if step < 3:
            np.testing.assert_array_equal(numpy(kernel), start)
    # Adam's first step is the learning rate in the direction of each gradient.
    change = np.abs(numpy(kernel) - before * (1 - 1e-3 * 0.1))
    assert np.median(change) == pytest.approx(1e-3, rel=1e-3)


def head(w, x):
    for index in range(3):
        x = x @ w[f"projection_{index}/kernel"] + w[f"projection_{index}/bias"]
        x = ACTIVATIONS["gelu_erf"](x) if index < 2 else x
    kernel = w["last_layer/kernel"]
    return x / np.linalg.norm(x, axis=-1, keepdims=True) @ (kernel / np.linalg.norm(kernel, axis=0))


def test_the_outputs_are_those_of_both_encoders_and_heads():
    model, data = dino(), views(2)
    found = arrays(model)
    student = {name.removeprefix("student/"): value for name, value in found.items() if "student/" in name}
    options = model.encoder._config()

    def logits(w, name, count):
        w = {path: value.astype("float64") for path, value in w.items()}
        images = data[name].reshape(-1, *data[name].shape[2:])
        side = images.shape[1] // 8
        if side != 4:
            table = w["position_embedding/table"][0]
            resized = resize_position_grid(table[1:].reshape(4, 4, -1), (side, side), "bicubic_offset")
            w["position_embedding/table"] = np.concatenate([table[:1], resized.reshape(-1, 12)])[np.newaxis]
        return head(w, forward(w, images, options)["representation"]).reshape(2, count, -1)

    parts = [(student, "global_views", 2), (student, "local_views", 3), (found, "global_views", 2)]
    assert_close(model(data), np.concatenate([logits(*part) for part in parts], axis=1), 1e-5)


@pytest.mark.parametrize("views", [2, 5])
def test_the_loss_is_the_authors(views, rng):
    student, teacher = (rng.normal(size=(3, count, 6)).astype("float32") for count in (views, 2))
    options = student, teacher, rng.normal(size=6).astype("float32"), 0.1, 0.5
    assert numpy(dino_loss(*options)).mean() == pytest.approx(authors_loss(*options), rel=1e-5)


# Ways to compute a step ---------------------------------------------------------------------------


def trained(optimizer=None, **encoder):
    """The losses and weights after the steps of eight images."""
    model = dino(encoder=encoder)
    return train(model, views(8), 4, optimizer=optimizer), arrays(model)


def assert_same_training(found, expected, rtol=1e-5):
    np.testing.assert_allclose(found[0], expected[0], rtol=rtol)
    for path, value in expected[1].items():
        atol = rtol * max(np.abs(value).max(), 1e-2)
        np.testing.assert_allclose(found[1][path], value, rtol=0, atol=atol, err_msg=path)


@pytest.fixture(scope="module")
def whole(eager):
    return trained()


@slow
def test_samples_of_weight_zero_do_not_count(whole):
    weights = np.ones(10)
    weights[[4, 9]] = 0
    data = views(8)
    padded = {name: np.insert(part, [4, 8], 7 * part[:2], 0) for name, part in data.items()}
    model = dino()
    losses = train(model, padded, 5, weights)
    assert_same_training((losses, arrays(model)), whole)


@slow
@pytest.mark.parametrize("dtype, rtol", [("mixed_bfloat16", 0.1), ("mixed_float16", 0.02)])
def test_mixed_precision_trains_float32_weights(dtype, rtol, whole):
    optimizer = SGD(0.05)
    if dtype == "mixed_float16":  # With a larger scale the first steps would be left out.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=64.0)
    losses, found = trained(dtype=dtype, optimizer=optimizer)
    assert {value.dtype for value in found.values()} == {np.dtype("float32")}
    assert losses == pytest.approx(whole[0], rel=rtol)


def test_a_step_that_overflows_leaves_finite_weights_and_the_center():
    model, inputs = dino(encoder={"dtype": "mixed_float16"}), views(2)
    model.compile(keras.optimizers.LossScaleOptimizer(SGD(0.05)), seed=3)
    before = numpy(model.center)
    inputs["global_views"][0, 0, 0, 0] = 1e30
    assert not np.isfinite(model.train_on_batch(inputs, np.zeros(2)))
    assert all(np.isfinite(value).all() for value in arrays(model).values())
    np.testing.assert_array_equal(numpy(model.center), before)
    model.reset_metrics()
    assert np.isfinite(model.train_on_batch(views(2), np.zeros(2)))
    assert (numpy(model.center) != before).all()


@slow
def test_dropout_is_only_the_students():
    model, data = dino(encoder={"dropout_rate": 0.5}), views(2)
    inference, training = numpy(model(data)), numpy(model(data, training=True))
    np.testing.assert_array_equal(training[:, -2:], inference[:, -2:])
    assert np.abs(training[:, :-2] - inference[:, :-2]).max() > 1e-3


# Files and messages -------------------------------------------------------------------------------


def test_a_new_student_is_a_copy_of_the_given_encoder():
    encoder = small(**ENCODER)
    model = DINO(encoder, **SIZES)
    given = arrays(encoder)
    assert_same_arrays(arrays(model.student, inside="student"), given)
    assert model.encoder is encoder


@slow
def test_the_finished_model_is_for_inference():
    model = dino(encoder={"dtype": "mixed_bfloat16", "dropout_rate": 0.1})
    finished = model.finished()
    assert finished.encoder.dropout_rate == 0 and finished.dtype_policy.name == "float32"
    assert_same_arrays(arrays(finished), arrays(model))


@pytest.mark.parametrize("pooling", ["token", "token_gap"])
def test_without_local_views_there_are_two(pooling):
    model = dino(num_local=0, encoder={"pooling": pooling})
    assert model.input.keys() == {"global_views"} and model.output_shape == (None, 4, 24)


@by_table(
    "changes, message",
    [
        ({"local_size": 12}, r"local_size divisible by a token's region of \(8, 8\); got 12"),
        ({"local_size": 40}, "local_size of at most 32, that of the global views; got 40"),
        ({"momentum": 1.5}, "momentum"),
        ({"num_local": -1}, "num_local"),
        ({"student_temperature": 0}, "student_temperature"),
        ({"local_area": (0.0, 0.4)}, "local_area"),
        ({"local_area": (0.4, 0.2)}, r"must be \(smallest, largest\) in \(0, 1\]; got"),
        ({"encoder": {**ENCODER, "pooling": None}}, "with pooling, such as 'token'; got pooling=None"),
        ({"encoder": {**ENCODER, "image_size": (None, None)}}, "of a fixed size"),
        ({"encoder": SMALL}, "without layers after its tokens"),
        ({"encoder": {**ENCODER, **RELATIVE}}, "without relative positions"),
    ],
)
def test_invalid_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        DINO(**{"encoder": ENCODER, **SIZES, **changes})
