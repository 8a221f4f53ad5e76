"""The twelve steps of the official fine-tuning, `golden/finetune.expected.npz`."""

import keras
import numpy as np

import keras_vit
from keras_vit.training import SGD, SoftmaxCrossEntropy, WarmupDecay


class Losses(keras.callbacks.Callback):
    """The loss of each step, or the mean over the steps of one execution."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(float(logs["loss"]))


def official(golden):
    """The arrays of the official run by name."""
    with np.load(golden / "finetune.expected.npz") as file:
        return dict(file)


def compiled(golden, plain=False, **options):
    """(the VisionTransformer, the compiled model): the same, or a plain keras.Model of it."""
    model = keras_vit.from_pretrained(
        golden / "token.npz", num_classes=5, head="reset", representation_size=None
    )
    trained = keras.Model(model.inputs, model.outputs[0]) if plain else model
    trained.compile(SGD(WarmupDecay(0.3, 12, 3), 0.9, global_clipnorm=1.0), SoftmaxCrossEntropy(), **options)
    return model, trained


def fit(trained, expected):
    """The losses of the steps of `fit` with the images of the official run."""
    images = (expected["images"].reshape(-1, 32, 32, 3).astype("float32") - 127.5) / 127.5
    losses = Losses()
    labels = expected["labels"].reshape(-1)
    trained.fit(images, labels, batch_size=8, verbose=0, callbacks=[losses], shuffle=False)
    return np.array(losses.values)
