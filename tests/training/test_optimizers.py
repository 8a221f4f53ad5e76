import json
import os
import subprocess
import sys

import keras
import ml_dtypes
import numpy as np
import pytest
from reference.small import images_for, small

from keras_vit.training import SGD, AdamW, WarmupDecay, compile_model
from keras_vit.training.optimizers import make_optimizer
from keras_vit.training.recipes import Recipe


def decayed(optimizer, model):
    """The factor by which a step without gradients multiplies each weight."""
    before = {v.path: v.numpy() for v in model.trainable_variables}
    optimizer.apply([v * 0 for v in before.values()], model.trainable_variables)
    return {v.path: float((v.numpy() / before[v.path]).mean()) for v in model.trainable_variables}


def assert_only_kernels_decay(factors):
    kernels = {path for path in factors if path.endswith("/kernel")}
    assert {"head/kernel", "patch_embedding/kernel", "encoder_block_1/attention/out/kernel"} <= kernels
    assert {"head/bias", "class_token/token", "encoder_norm/gamma", "position_embedding/table"} <= {*factors}
    for path, factor in factors.items():
        assert factor == pytest.approx(1 - 0.1 * 0.5 * (path in kernels), abs=1e-5), path


@pytest.mark.parametrize("loaded", [False, True])
def test_weight_decay_acts_on_kernels_only(loaded, tmp_path):
    model = small()
    model.compile(AdamW(0.1, weight_decay=0.5), "mse")
    if loaded:
        model.optimizer.build(model.trainable_variables)
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    assert_only_kernels_decay(decayed(model.optimizer, model))


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
        ("sgd", SGD, {"momentum": 0.8, "global_clipnorm": 2.0, "accumulator_dtype": "bfloat16"}),
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
        accumulator_dtype="bfloat16",
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


RATE = WarmupDecay(0.2, total_steps=8, warmup_steps=2)


def depth_factors(paths, blocks, decay):
    """BEiT's factors: 1 after the last block, `decay` to the power of the depth below it for the others."""
    factors, after = {}, False
    for path in paths:
        first = path.split("/")[0]
        after = after or first.startswith("encoder_block_")
        number = int(first.removeprefix("encoder_block_")) if first.startswith("encoder_block_") else None
        exponent = blocks - number if number is not None else (0 if after else blocks + 1)
        factors[path] = decay**exponent
    return factors


def clipped(gradients, largest):
    norm = np.sqrt(sum((g.astype("float64") ** 2).sum() for g in gradients.values()))
    return {path: g * min(1, largest / norm) for path, g in gradients.items()}


def made_gradients(model, steps, rng):
    return [
        {v.path: rng.standard_normal(v.shape).astype("float32") for v in model.trainable_variables}
        for _ in range(steps)
    ]


def apply_all(optimizer, model, gradients):
    for each in gradients:
        variables = model.trainable_variables
        optimizer.apply([keras.ops.convert_to_tensor(each[v.path]) for v in variables], variables)


@pytest.mark.parametrize(
    "accumulator, decay, layer_decay, pooling", [(None, 0.5, 0.7, "map"), ("bfloat16", 0, None, "token")]
)
def test_momentum_is_the_authors(accumulator, decay, layer_decay, pooling, rng):
    model = small(pooling=pooling)
    w = {v.path: v.numpy().astype("float64") for v in model.trainable_variables}
    gradients = made_gradients(model, 5, rng)
    options = {"weight_decay": decay or None, "layer_decay": layer_decay, "global_clipnorm": 3.0}
    apply_all(SGD(RATE, 0.9, accumulator, **options), model, gradients)

    factors = depth_factors(w, 2, layer_decay or 1.0)
    buffers = dict.fromkeys(w, 0.0)
    for step, each in enumerate(gradients):
        for path, g in clipped(each, 3.0).items():
            rate = float(RATE(step)) * factors[path]
            new = g + 0.9 * buffers[path]
            buffers[path] = new.astype(accumulator and ml_dtypes.bfloat16 or "float64").astype("float64")
            w[path] = w[path] * (1 - rate * decay * path.endswith("/kernel")) - rate * new
    # What rounding to bfloat16 leaves is far larger than what float32 and float64 differ by,
    # but a sum at the edge between two bfloat16 numbers may fall to either side.
    for variable in model.trainable_variables:
        error = np.abs(variable.numpy() - w[variable.path])
        assert np.median(error) < 1e-6, variable.path
        assert error.max() < (1e-3 if accumulator else 5e-6), variable.path


def test_the_step_is_exact_though_the_buffer_is_rounded():
    weight = keras.Variable(np.zeros(1, "float32"))
    optimizer = SGD(1.0, 0.5, "bfloat16")
    exact, kept = 1 + 2**-12, 1.0  # the second is the first in bfloat16
    for expected in (exact, 0.5 * kept + exact):
        before = float(weight.numpy()[0])
        optimizer.apply([keras.ops.convert_to_tensor([exact])], [weight])
        assert before - float(weight.numpy()[0]) == expected
    assert str(optimizer.momentums[0].dtype) == "bfloat16"


def test_adamw_has_rates_by_depth_for_the_step_and_the_decay(rng):
    model = small(pooling="map")
    w = {v.path: v.numpy().astype("float64") for v in model.trainable_variables}
    gradients = made_gradients(model, 4, rng)
    optimizer = AdamW(RATE, weight_decay=0.3, layer_decay=0.6, global_clipnorm=2.0, epsilon=1e-8)
    apply_all(optimizer, model, gradients)
    factors = depth_factors(w, 2, 0.6)
    assert {round(f, 6) for f in factors.values()} == {0.216, 0.36, 0.6, 1.0}
    m, v = dict.fromkeys(w, 0.0), dict.fromkeys(w, 0.0)
    for step, each in enumerate(gradients):
        for path, g in clipped(each, 2.0).items():
            rate = float(RATE(step)) * factors[path]
            m[path], v[path] = 0.9 * m[path] + 0.1 * g, 0.999 * v[path] + 0.001 * g**2
            change = m[path] / (1 - 0.9 ** (step + 1)) / (np.sqrt(v[path] / (1 - 0.999 ** (step + 1))) + 1e-8)
            w[path] = w[path] * (1 - rate * 0.3 * path.endswith("/kernel")) - rate * change
    for variable in model.trainable_variables:
        np.testing.assert_allclose(variable.numpy(), w[variable.path], atol=1e-4, err_msg=variable.path)


def test_a_linear_probes_head_has_the_whole_rate():
    model = small()
    compile_model(model, "linear_probe", layer_decay=0.5, warmup_steps=0, base_lr=0.25, clip_norm=None)
    bias = model.get_layer("head").bias
    before = bias.numpy()
    ones = [keras.ops.ones(v.shape) for v in model.trainable_variables]
    model.optimizer.apply(ones, model.trainable_variables)
    np.testing.assert_allclose(before - bias.numpy(), 0.25, rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_moving_average_is_one_and_comes_back_from_a_file(optimizer, tmp_path):
    model = small(num_layers=1)
    options = {"accumulator_dtype": "bfloat16"} if optimizer == "sgd" else {"weight_decay": 0.1}
    recipe = Recipe(optimizer, 0.1, 10, 0, 4, ema=0.75, layer_decay=0.5, **options)
    compile_model(model, recipe)
    model.run_eagerly = True
    images, labels = images_for(model, 4), np.arange(4)
    kernel, average = model.get_layer("head").kernel, None
    for step in range(3):
        model.train_on_batch(images, labels)
        # Keras starts it with the weights after the first step.
        average = kernel.numpy() if step == 0 else 0.75 * average + 0.25 * kernel.numpy()
    index = model.optimizer._get_variable_index(kernel)
    np.testing.assert_allclose(model.optimizer._model_variables_moving_average[index], average, rtol=1e-5)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for one, other in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(other.numpy().astype("float64"), one.numpy().astype("float64"))
    again.run_eagerly = True
    for one in (model, again):
        one.train_on_batch(images, labels)
    np.testing.assert_array_equal(again.get_layer("head").kernel.numpy(), kernel.numpy())


@pytest.mark.parametrize(
    "kind, options, words",
    [
        (SGD, {"layer_decay": 0}, r"layer_decay must be a number in \(0, 1\] or None; got 0"),
        (AdamW, {"layer_decay": 1.5}, r"layer_decay must be a number in \(0, 1\] or None; got 1.5"),
        (SGD, {"momentum": 1.0}, r"momentum must be a number in \[0, 1\); got 1.0"),
    ],
)
def test_options_out_of_range_are_refused(kind, options, words):
    with pytest.raises(ValueError, match=words):
        kind(**options)


SHARDED = """
import json
import keras
from keras_vit.training import SGD, AdamW
from reference.small import SMALL
from keras_vit import VisionTransformer

D = keras.distribution
shards = D.LayoutMap(D.DeviceMesh((4,), ["batch"], D.list_devices()))
shards["encoder_block.*kernel"] = ("batch",)
D.set_distribution(D.ModelParallel(layout_map=shards, batch_dim_name="batch"))
found = {}
for name, optimizer in {
    "sgd": SGD(0.1), "bfloat16": SGD(0.1, accumulator_dtype="bfloat16"), "adamw": AdamW(use_ema=True)
}.items():
    model = VisionTransformer(**{**SMALL, "hidden_size": 16, "num_heads": 4, "num_layers": 1})
    optimizer.build(model.trainable_variables)
    kernel = model.get_layer("encoder_block_0").mlp.dense_0.kernel
    like = [v for v in optimizer.variables if v.shape == kernel.shape]
    found[name] = [list(v.value.addressable_shards[0].data.shape) for v in (kernel, *like)]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_state_of_an_optimizer_is_sharded_like_its_weight():
    done = subprocess.run(
        [sys.executable, "-c", SHARDED],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        },
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shards = json.loads(done.stdout.splitlines()[-1])
    # Each device has a quarter of the kernel and of each of its buffers, moments and averages.
    assert shards == {"sgd": [[4, 20]] * 2, "bfloat16": [[4, 20]] * 2, "adamw": [[4, 20]] * 4}
