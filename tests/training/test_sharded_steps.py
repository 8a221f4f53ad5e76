"""The training step on 8 simulated devices: the official trajectory, each device's memory, what is sent."""

import functools
import os
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from reference.comparing import randomize
from reference.fine_tuning import compiled, fit, official

import keras_vit
from keras_vit.engine.sharding import make_distribution
from keras_vit.losses import MEAN
from keras_vit.training import SGD, AdamW, Muon, SoftmaxCrossEntropy

DEVICES = "--xla_force_host_platform_device_count=8"
SIMULATED = DEVICES in os.environ.get("XLA_FLAGS", "")
simulated = pytest.mark.skipif(not SIMULATED, reason="runs in a process with 8 simulated devices")


@pytest.mark.slow
@pytest.mark.skipif(SIMULATED, reason="the process of the other tests")
def test_the_steps_of_this_file_on_simulated_devices(repository):
    flags = f"{DEVICES} --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", __file__],
        cwd=repository,
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout and "failed" not in done.stdout


@pytest.fixture
def distributed():
    """A function that sets the distribution of a strategy on the first devices."""

    def distribute(strategy, count=8):
        keras.distribution.set_distribution(
            make_distribution(strategy, keras.distribution.list_devices()[:count])
        )

    yield distribute
    keras.distribution.set_distribution(None)


def trajectory(golden, **options):
    """(losses, weights) of the twelve steps of the official fine-tuning."""
    model, trained = compiled(golden, **options)
    losses = fit(trained, official(golden))
    return losses, {variable.path: np.asarray(variable) for variable in model.weights}


@pytest.fixture(scope="module")
def alone(golden):
    return trajectory(golden)


# The mesh of 6 devices divides the golden file's 3 heads, the meshes of 8 its 40 hidden units.
@simulated
@pytest.mark.parametrize(
    "strategy, count, accumulation_steps",
    [
        ("data_parallel", 2, 1),
        ("data_parallel", 2, 4),
        ("data_parallel", 4, 2),
        ("data_parallel", 8, 1),
        ("fsdp", 8, 1),
        ("fsdp", 4, 2),
        ("model_parallel=2x4", 8, 1),
        ("model_parallel=2x4", 8, 4),
        ("model_parallel=2x3", 6, 2),
    ],
)
def test_fine_tuning_follows_the_official_trajectory(
    strategy, count, accumulation_steps, alone, distributed, golden
):
    distributed(strategy, count)
    losses, weights = trajectory(golden, accumulation_steps=accumulation_steps)
    np.testing.assert_allclose(losses, official(golden)["losses"], rtol=1e-5)
    np.testing.assert_allclose(losses, alone[0], rtol=1e-5)
    for path, value in alone[1].items():
        assert np.abs(weights[path] - value).max() <= 2e-5 * np.abs(value).max(), path


def two_steps(model, inputs, labels=None, weights=None, optimizer=None, **options):
    """(losses, weights) of two steps of a model on one batch."""
    model.compile(optimizer or SGD(0.1), **options)
    history = model.fit(
        inputs, labels, batch_size=16, epochs=2, verbose=0, shuffle=False, sample_weight=weights
    )
    return history.history["loss"], {variable.path: np.asarray(variable) for variable in model.weights}


def assert_same_steps(found, expected, losses=1e-5, weights=2e-5):
    np.testing.assert_allclose(found[0], expected[0], rtol=losses)
    for path, value in expected[1].items():
        if not path.endswith("key/bias"):  # Its gradient is zero but for rounding.
            assert np.abs(found[1][path] - value).max() <= weights * np.abs(value).max(), path


def trained_on_pairs(objective):
    """`two_steps` of a model with two towers."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    text = {"vocabulary_size": 16, "length": 8, "hidden_size": 32, "num_layers": 1, "mlp_dim": 64}
    image = keras_vit.VisionTransformer(16, 8, 32, 1, 64, 4, pooling="gap")
    model = keras_vit.ImageTextModel(image, {**text, "num_heads": 4}, objective)
    images = rng.normal(size=(16, 16, 16, 3)).astype("float32")
    return two_steps(model, {"images": images, "ids": rng.integers(0, 16, (16, 8)).astype("int32")})


@simulated
@pytest.mark.parametrize("objective", ["sigmoid", "softmax"])
def test_pairs_are_compared_with_those_of_all_devices(objective, distributed, monkeypatch):
    expected = trained_on_pairs(objective)
    monkeypatch.setattr("keras_vit.tasks.image_text.loss.CHUNK", 3)
    for strategy, count in (("data_parallel", 2), ("data_parallel", 4), ("fsdp", 8)):
        distributed(strategy, count)
        assert_same_steps(trained_on_pairs(objective), expected)
        keras.distribution.set_distribution(None)


def without_labels(objective):
    """A model that trains an encoder without labels, and a batch in which three samples do not count."""
    rng = np.random.default_rng(0)
    sizes = {"image_size": 8, "patch_size": 2, "hidden_size": 32, "num_layers": 1, "mlp_dim": 64}
    sizes["num_heads"] = 4
    images = rng.normal(size=(16, 8, 8, 3)).astype("float32")
    labels, weights, loss = np.zeros(16), np.ones(16), None
    weights[[3, 14, 15]] = 0
    if objective == "mae":
        decoder = {"decoder_hidden_size": 32, "decoder_num_layers": 1, "decoder_num_heads": 4}
        model = randomize(keras_vit.MaskedAutoencoder(sizes, **decoder))
        order = rng.permuted(np.tile(np.arange(16, dtype="int32"), (16, 1)), axis=1)
        inputs = {"images": images, "order": order}
    elif objective == "igpt":
        pixels = {"patch_size": 1, "palette": 16, "causal": True, "pooling": "gap"}
        model = randomize(keras_vit.ImageGPT({**sizes, **pixels}))
        inputs, labels, weights = images, np.asarray(model.color_ids(images)), np.tile(weights[:, None], 64)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=MEAN)
    else:
        head = {"out_dim": 64, "hidden_dim": 32, "bottleneck_dim": 16, "momentum": 0.5}
        model = randomize(keras_vit.DINO(sizes, num_local=1, local_size=4, **head))
        both = np.stack([images, images[:, ::-1]], axis=1)
        inputs = {"global_views": both, "local_views": both[:, :1, 2:6, 2:6]}
    return model, (inputs, labels, weights), {"loss": loss}


@simulated
@pytest.mark.parametrize("objective", ["mae", "igpt", "dino"])
def test_steps_without_labels_are_those_of_one_device(objective, distributed):
    def trained(**options):
        model, batch, loss = without_labels(objective)
        return two_steps(model, *batch, **loss, **options)

    expected = trained()
    for strategy, count, parts in (("data_parallel", 2, 2), ("fsdp", 8, 1), ("model_parallel=2x4", 8, 2)):
        distributed(strategy, count)
        assert_same_steps(trained(accumulation_steps=parts), expected)
        keras.distribution.set_distribution(None)


def trained(optimizer):
    """A model of 4 heads after a step, and its batch."""
    model = keras_vit.VisionTransformer(32, 8, 48, 3, 160, 4, num_classes=16)
    model.compile(optimizer, SoftmaxCrossEntropy())
    batch = np.zeros((32, 32, 32, 3), "float32"), np.zeros(32, "int32")
    model.fit(*batch, batch_size=32, verbose=0)
    return model, batch


def shares(variables):
    """The bytes on the first device, and the bytes of the whole variables."""
    values = [variable.value for variable in variables]
    return sum(value.addressable_shards[0].data.nbytes for value in values), sum(v.nbytes for v in values)


@simulated
@pytest.mark.parametrize(
    "make",
    [
        *(functools.partial(SGD, 0.1, accumulator_dtype=dtype) for dtype in ("float32", "bfloat16")),
        functools.partial(AdamW, 1e-3, use_ema=True),
    ],
)
def test_under_fsdp_each_device_has_an_eighth_of_weights_and_optimizer_state(make, distributed):
    distributed("fsdp")
    optimizer = make()
    model, _ = trained(optimizer)
    for variables in (model.trainable_variables, optimizer.variables):
        own, whole = shares(variables)
        assert own <= 1.05 * whole / 8
    kernel = model.get_layer("head").kernel
    layouts = {str(v.value.sharding.spec) for v in optimizer.variables if v.shape == kernel.shape}
    assert layouts == {str(kernel.value.sharding.spec)}


@simulated
@pytest.mark.parametrize("strategy", ["fsdp", "model_parallel=1x4"])
def test_orthogonal_steps_of_divided_kernels_are_those_of_one_device(strategy, distributed):
    def steps():
        keras.utils.set_random_seed(0)
        model = keras_vit.VisionTransformer(16, 8, 48, 2, 96, 4, num_classes=8)
        images = np.random.default_rng(0).normal(size=(16, 16, 16, 3)).astype("float32")
        options = {"optimizer": Muon(0.01, iteration_dtype="float32"), "loss": SoftmaxCrossEntropy()}
        return two_steps(model, images, np.arange(16) % 8, **options)

    expected = steps()
    distributed(strategy, 4)
    assert_same_steps(steps(), expected, losses=1e-4, weights=2e-3)


@simulated
@pytest.mark.parametrize("strategy, parts", [("fsdp", 8), ("model_parallel=2x4", 4)])
def test_the_student_and_the_teacher_of_dino_are_divided(strategy, parts, distributed):
    distributed(strategy)
    model, batch, _ = without_labels("dino")
    two_steps(model, *batch, loss=None)
    kernels = ("query/kernel", "dense_0/kernel", "dense_1/kernel", "projection_0/kernel", "last_layer/kernel")
    found = [variable for variable in model.weights if variable.path.endswith(kernels)]
    assert len(found) == 2 * len(kernels)
    own, whole = shares(found)
    assert own == whole / parts


def gathers(model, batch):
    """(shape, operation) of each all-gather of the compiled training step."""
    import jax
    from keras.src.backend.jax.trainer import _distribute_data

    groups = ("trainable", "non_trainable", "optimizer", "metrics")
    state = model._get_jax_state(**{f"{group}_variables": True for group in groups})
    step = jax.jit(model.train_step, out_shardings=(None, model._get_state_sharding_spec()))
    text = step.lower(state, _distribute_data(batch)).compile().as_text()
    found = re.findall(r'= (\S+)\S* all-gather(?:-start)?\(.*op_name="([^"]*)"', text)
    assert found
    return [([int(side) for side in re.search(r"\[([\d,]*)\]", a)[1].split(",")], op) for a, op in found]


@simulated
def test_fsdp_gathers_weights_and_no_tokens(distributed):
    distributed("fsdp")
    model, batch = trained(SGD(0.1))
    found = gathers(model, batch)
    assert any("attention/query" in op for _, op in found)
    # 32 images of 16 patches and a class token. The last block computes the class token alone.
    assert not [(shape, op) for shape, op in found if 32 * 17 in shape or shape[:2] in ([32, 17], [32, 4])]


@simulated
def test_model_parallel_gathers_nothing_in_attention_and_mlp(distributed):
    distributed("model_parallel=2x4")
    model, batch = trained(SGD(0.1))
    found = gathers(model, batch)
    assert not [(shape, op) for shape, op in found if "encoder_block" in op]
