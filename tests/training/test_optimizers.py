import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from reference.comparing import arrays
from reference.small import images_for, small

from keras_vit.training import AdamW, compile_model
from keras_vit.training.optimizers import make_optimizer
from keras_vit.training.recipes import Recipe

STEP = """
import json, sys
import keras_vit
import keras
model = keras.saving.load_model(sys.argv[1])
before = {v.path: v.numpy() for v in model.trainable_variables}
model.optimizer.apply([v * 0 for v in before.values()], model.trainable_variables)
print(json.dumps({v.path: float((v.numpy() / before[v.path]).mean()) for v in model.trainable_variables}))
"""


def decayed(optimizer, model):
    """How a step without gradients changes each weight, as a factor."""
    before = {v.path: v.numpy() for v in model.trainable_variables}
    optimizer.apply([v * 0 for v in before.values()], model.trainable_variables)
    return {v.path: float((v.numpy() / before[v.path]).mean()) for v in model.trainable_variables}


def assert_only_kernels_decay(factors):
    kernels = {path for path in factors if path.endswith("/kernel")}
    assert {"head/kernel", "patch_embedding/kernel", "encoder_block_1/attention/out/kernel"} <= kernels
    assert {"head/bias", "class_token/token", "encoder_norm/gamma", "position_embedding/table"} <= {*factors}
    for path, factor in factors.items():
        assert factor == pytest.approx(1 - 0.1 * 0.5 * (path in kernels), abs=1e-5), path


def test_weight_decay_acts_on_kernels_only():
    assert_only_kernels_decay(decayed(AdamW(0.1, weight_decay=0.5), small()))


def test_it_still_does_in_a_process_that_loaded_the_model(tmp_path):
    model = small()
    model.compile(AdamW(0.1, weight_decay=0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    done = subprocess.run(
        [sys.executable, "-c", STEP, tmp_path / "model.keras"],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode == 0, done.stderr
    assert_only_kernels_decay(json.loads(done.stdout))


def test_without_decay_a_step_is_adams(rng):
    start, gradients = rng.standard_normal(5), rng.standard_normal((3, 5))
    kernel = keras.Variable(start.astype("float32"), name="kernel")
    optimizer = AdamW(0.01, weight_decay=0.0)
    w, m, v = start, 0, 0
    for step, g in enumerate(gradients, 1):
        optimizer.apply([keras.ops.convert_to_tensor(g, "float32")], [kernel])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w = w - 0.01 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-7)
    np.testing.assert_allclose(kernel.numpy(), w, rtol=1e-4)


@pytest.mark.parametrize("size, factor", [(100.0, 0.01), (0.5, 1.0)])
def test_gradients_are_clipped_by_their_global_norm(size, factor):
    recipe = Recipe("sgd", 0.1, total_steps=10, warmup_steps=0, batch_size=1, momentum=0.0, clip_norm=1.0)
    weights = [keras.Variable(np.zeros(1)), keras.Variable(np.zeros(1))]
    gradients = [keras.ops.convert_to_tensor([0.6 * size]), keras.ops.convert_to_tensor([0.8 * size])]
    make_optimizer(recipe).apply(gradients, weights)
    moved = [float(weight.numpy()[0]) for weight in weights]
    np.testing.assert_allclose(moved, [-0.06 * size * factor, -0.08 * size * factor], rtol=1e-5)


@pytest.mark.parametrize(
    "name, kind, numbers",
    [
        ("sgd", keras.optimizers.SGD, {"momentum": 0.8, "global_clipnorm": 2.0, "weight_decay": None}),
        ("adamw", AdamW, {"weight_decay": 0.2, "global_clipnorm": 2.0, "beta_1": 0.9, "beta_2": 0.999}),
    ],
)
def test_a_recipes_optimizer_has_its_numbers_and_schedule(name, kind, numbers):
    recipe = Recipe(
        name,
        0.3,
        total_steps=50,
        warmup_steps=5,
        batch_size=1,
        decay="linear",
        momentum=0.8,
        weight_decay=0.2 if name == "adamw" else 0.0,
        clip_norm=2.0,
    )
    optimizer = make_optimizer(recipe)
    assert type(optimizer) is kind
    config = optimizer.get_config()
    assert {name: config[name] for name in numbers} == numbers
    assert config["learning_rate"]["config"] == {
        "base_lr": 0.3,
        "total_steps": 50,
        "warmup_steps": 5,
        "decay": "linear",
    }


def test_training_goes_on_the_same_after_saving_and_loading(tmp_path):
    model = small(num_layers=1)
    compile_model(model, "digits", total_steps=20, base_lr=0.01)
    images, labels = images_for(model, 8), np.arange(8) % 5
    fit = {"x": images, "y": labels, "batch_size": 4, "shuffle": False, "verbose": 0}
    model.fit(**fit)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    model.fit(**fit)
    again.fit(**fit)
    for path, array in arrays(model).items():
        np.testing.assert_array_equal(arrays(again)[path], array)
