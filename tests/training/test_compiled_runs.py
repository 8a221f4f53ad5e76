"""Runs whose steps XLA compiles, as on one GPU: TensorFlow there gets other programs than on CPUs."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.runs import changed, depth_estimator, detector, keypoint_estimator, segmenter
from reference.small import HEAD, small

from keras_vit.engine.distributed_model import DistributedModel
from keras_vit.engine.strategy import make_devices
from keras_vit.models import DINO
from keras_vit.models.vit.flexible_patches import FlexiblePatches
from keras_vit.training import run

pytestmark = pytest.mark.tensorflow_only("JAX compiles every step")
KINDS = ("classes", "flexible", "up", "mask", "boxes", "depths", "points", "taught", "features")
KINDS += ("sigmoid", "softmax", "mae", "igpt")
# XLA draws other random numbers.
PLAIN = {
    "dropout_rate": 0.0,
    "accumulation_steps": 1,
    "optimizer": "sgd",
    "base_lr": 0.1,
    "weight_decay": 0.0,
}
PLAIN |= {"total_steps": 2, "warmup_steps": 0, "eval_every": 2}


def uniform(shape, *args, **options):
    """The same points at which masks are compared in each image and step."""
    values = np.random.default_rng(len(shape)).uniform(size=shape[-2:]).astype("float32")
    return keras.ops.broadcast_to(values, shape)


@pytest.fixture
def losses(monkeypatch):
    """A function from a configuration to the losses of its first two steps, compiled by XLA or not."""
    compile_model = DistributedModel.compile

    def fit(config, jit_compile):
        def compiled(self, *args, **options):
            compile_model(self, *args, **options, jit_compile=jit_compile)

        monkeypatch.setattr(DistributedModel, "compile", compiled)
        dataset, devices, found = run.load_data(config), make_devices("single"), []
        samples = dataset.split("train")
        model = run._compiled_model(config, dataset, samples, devices)
        assert model.jit_compile == jit_compile
        batches = run._batches(config, model, dataset, samples, devices, first_step=0)
        for batch in batches.take(2):
            found.append(model.train_on_batch(*batch))
            model.reset_metrics()
        return found

    return fit


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_xla_compiles_has_the_same_loss(kind, losses, request, labeled, monkeypatch):
    if kind == "classes":
        config = request.getfixturevalue("finished")[0]
        model = {name: value for name, value in config.model.items() if name != "max_rotary_rescale"}
        rates = {"stochastic_depth_rate": 0.0, "patch_dropout_rate": 0.0}
        config = changed(config, **PLAIN, **rates, model=model)
    else:
        config = labeled(kind, **PLAIN)
    if kind == "mask":
        monkeypatch.setattr(keras.random, "uniform", uniform)
    first, second = losses(config, True), losses(config, False)
    np.testing.assert_allclose(np.hstack(first), np.hstack(second), rtol=1e-4)


def test_a_small_step_that_xla_compiles_has_the_loss_of_the_outputs(rng):
    model, labels = small(num_layers=1), np.arange(3)
    images = rng.random((3, 16, 16, 3), "float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    expected = float(loss(labels, model(images)))
    model.compile("sgd", loss, jit_compile=True)
    assert model.train_on_batch(images, labels) == pytest.approx(expected, rel=1e-5)
    assert float(loss(labels, model(images))) < expected


ANTIALIASED = {"position_interpolation": "bilinear_antialias"}
MODELS = {  # on one GPU: whether XLA compiles predictions, and steps
    "classes": (small, True, True),
    "views of two sizes": (lambda: DINO(small(num_classes=None), **HEAD), False, False),
    "any size": (lambda: small(image_size=(None, None)), False, False),
    "sizes of patches": (lambda: FlexiblePatches(small(**ANTIALIASED), (4, 8)), False, False),
    "masks": (lambda: segmenter("up"), True, True),
    "matched masks": (lambda: segmenter("mask"), True, False),
    "matched boxes": (lambda: detector(None), True, False),
    "depths": (lambda: depth_estimator(None), True, True),
    "points": (lambda: keypoint_estimator(None), True, True),
}


@pytest.mark.parametrize("name", MODELS)
def test_on_one_gpu_xla_compiles_what_has_one_size_and_matches_nothing(name, monkeypatch):
    make, predicts, trains = MODELS[name]
    model = make()
    gpu = [tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: gpu)
    assert model.jit_compile == predicts
    loss = None if model.own_loss else "mse"
    model.compile("sgd", loss)
    assert model.jit_compile == trains
    model.compile("sgd", loss, accumulation_steps=2)
    assert not model.jit_compile


def test_xla_computes_predictions_of_few_images_at_the_size_of_a_batch_before(monkeypatch):
    model, sizes = small(num_layers=1), []

    def predict(self, x):
        sizes.append(len(x))
        return {"rows": x[:, 0, 0, 0]}

    monkeypatch.setattr(keras.Model, "predict_on_batch", predict)
    images = np.random.default_rng(0).random((6, 16, 16, 3))
    for jit_compile, expected in (True, [2, 6, 6, 6]), (False, [2, 6, 1, 6]):
        model.jit_compile = jit_compile
        for count in 2, 6, 1, 6:
            np.testing.assert_equal(model.predict_on_batch(images[:count]), {"rows": images[:count, 0, 0, 0]})
        assert sizes == expected
        sizes.clear()


def test_evaluation_batches_of_a_compiled_run_have_one_size():
    def batches(worker, workers):
        return tf.data.Dataset.from_tensor_slices((np.ones((5, 3), "float32"), np.arange(5))).batch(4)

    devices, weights = make_devices("single"), [[1, 1, 1, 1], [1, 0, 0, 0]]
    filled = devices.distribute(batches, 4, compiled=True)
    assert [w.numpy().tolist() for _, _, w in filled] == weights
    for of_training in devices.distribute(batches, 4, 1, compiled=True), devices.distribute(batches, 4):
        assert [len(labels) for _, labels in of_training] == [4, 1]
