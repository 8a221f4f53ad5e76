import keras
import numpy as np
import pytest
from made.devices import devices

from keras_vit.losses import pixel_weights
from keras_vit.models import DistributedModel
from keras_vit.tasks import get_task

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow_only("other backends have one replica"),
]
TASK = get_task("segmentation")


def trained(images, labels, replicas=0, accumulation_steps=1):
    """The losses, the confusion matrix and the weights after four steps of 8 images."""
    with devices(replicas).scope():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((6, 7, 3))
        model = DistributedModel(inputs, keras.layers.Dense(4)(inputs))
        options = {"accumulation_steps": accumulation_steps, "seed": 0, "jit_compile": False}
        model.compile(keras.optimizers.SGD(0.5), TASK.loss(None), metrics=TASK.metrics(4), **options)
        history = model.fit(
            images, labels, sample_weight=pixel_weights(labels), batch_size=8, shuffle=False, verbose=0
        )
    matrix = [metric for metric in model.metrics if metric.name == "compile_metrics"][0].metrics[0]
    return history.history, matrix.confusion_matrix(), model.get_weights()


@pytest.mark.parametrize("options", [{"replicas": 2}, {"accumulation_steps": 3}], ids=["replicas", "micro"])
def test_replicas_and_micro_batches_give_one_devices_run(options, rng):
    """However unevenly the ignored pixels are divided among them."""
    images = rng.standard_normal((32, 6, 7, 3)).astype("float32")
    labels = rng.integers(0, 4, (32, 6, 7))
    ignored = rng.random(32)[:, np.newaxis, np.newaxis] ** 0.2
    labels[rng.random(labels.shape) < ignored] = 255
    labels[:3] = 255
    (expected, matrix, weights), (found, counts, others) = (
        trained(images, labels, **each) for each in ({}, options)
    )
    np.testing.assert_array_equal(counts, matrix)
    assert counts.sum() == (labels != 255).sum()
    assert found["mean_iou"] == expected["mean_iou"]
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    for array, same in zip(weights, others):
        np.testing.assert_allclose(same, array, atol=2e-6)
