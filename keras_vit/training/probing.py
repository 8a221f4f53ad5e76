"""The start of a head: the linear probe of what the encoder computes for the training images."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_vit.evaluation.representations import encoder_of
from keras_vit.labels import label_kind, labels_of
from keras_vit.preprocessing.inputs import is_raw
from keras_vit.tasks.computing import computed
from keras_vit.training.building import finished_model, subset

if TYPE_CHECKING:
    from keras_vit.types import Images, Tensor

MOST_IMAGES = 20_000  # that a probe is fitted to
_UNSEEN = -10.0  # logit of a class that no image has


def fit_head(
    model: keras.Model,
    inputs: Images,
    labels: Tensor,
    *,
    batch_size: int = 32,
    loss: str = "softmax",
    class_weights: str | tuple[float, ...] | None = None,
) -> None:
    """Set the head of a model to a linear probe of its frozen features, before it is fine-tuned.

    The probe is fitted to standardized features, as `evaluation.probe_vectors` does: a logistic regression
    for classes, one for each class of a multi-label model, and a ridge regression for numbers.

    Args:
        model: A `VisionTransformer` with one head.
        inputs: What `model.preprocessing` takes, or what it returns: (samples, height, width, channels).
        labels: Of the model's task: class numbers (samples,), or rows of numbers (samples, classes).
        batch_size: Images per batch.
        loss: "softmax" or "sigmoid", with which single labels are trained.
        class_weights: As for a `Recipe`.

    Raises:
        ValueError: for a model without a head of classes or numbers, or with two, for other labels, or for
            class weights that do not fit them.

    Example:
        >>> images, labels = np.random.default_rng(0).random((8, 32, 32, 3)), np.arange(8) % 2
        >>> model = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3, num_classes=2)
        >>> fit_head(model, images, labels)
        >>> (model.predict_on_batch(images).argmax(axis=1) == labels).tolist()
        [True, True, True, True, True, True, True, True]

    Source: Kumar et al. 2022, "Fine-Tuning can Distort Pretrained Features and Underperform
    Out-of-Distribution" (arXiv 2202.10054): linear probing, then fine-tuning (LP-FT).
    """
    check_has_one_head(model)
    encode, _ = encoder_of(model)
    batches = (inputs[start : start + batch_size] for start in range(0, len(inputs), batch_size))
    prepared = (model.preprocessing(batch) if is_raw(batch) else batch for batch in batches)
    features = np.concatenate([*map(encode, prepared)])
    labels = np.asarray(labels)
    task = labels_of(model).name
    _assign(model, solution(features, labels, model.num_classes, task, loss, class_weights))


def has_head(model):
    """Whether a model is a VisionTransformer with a head."""
    return getattr(model, "is_classifier", False)


def check_has_one_head(model):
    """Raise ValueError unless a model has one head that reads its representation."""
    if not has_head(model) or model.distillation:
        raise ValueError(f"a probe needs a VisionTransformer with one head; got a {type(model).__name__}")


def start_from_probe(model, samples, recipe, devices):
    """Set the head of a run's model to the probe of its training images, equally on all devices.

    Args:
        model: The model of the run.
        samples: Its training samples, of which at most `MOST_IMAGES` are computed.
        recipe: `Recipe`.
        devices: What `make_devices` returned; all processes compute the probe, each on one device.
    """
    part = model.trained()
    if len(samples) > MOST_IMAGES and hasattr(samples, "take"):
        samples = subset(samples, MOST_IMAGES, recipe.seed)
    with devices.one_device():
        whole = finished_model(model)
        encode, _ = encoder_of(whole)
        batches = computed(encode, samples, whole.preprocessing, recipe.batch_size, "computing features")
        batches = itertools.islice(batches, -(-MOST_IMAGES // recipe.batch_size))
        features, labels = map(np.concatenate, zip(*batches))
    options = part.num_classes, recipe.task, recipe.loss, recipe.class_weights
    values = solution(features, labels, *options)
    # Processes may round differently, but replicas have to be equal.
    _assign(part, [devices.of_first_worker(value) for value in values])


def _assign(model, values):
    head = model.get_layer("head")
    for weight, value in zip((head.kernel, head.bias), values):
        weight.assign(value)


def solution(features, labels, num_outputs, task, loss="softmax", class_weights=None):
    """The kernel and the bias of a linear layer that is fitted to features.

    Args:
        features: float32 (samples, width).
        labels: (samples,), or (samples, num_outputs) for several labels or numbers.
        num_outputs: The size of the layer.
        task, loss, class_weights: As for a `Recipe`.

    Returns:
        (kernel float32 (width, num_outputs), bias float32 (num_outputs,)).

    Raises:
        ValueError: for labels of another task or of other classes, or class weights that do not fit them.
    """
    from sklearn.linear_model import LogisticRegression, Ridge  # Its import takes long.
    from sklearn.preprocessing import StandardScaler

    label_kind(task).check(labels, num_outputs)
    weights = None
    if class_weights is not None:
        from keras_vit.data.class_weights import class_weights as weights_of_classes  # needs TensorFlow

        if task != "single_label":
            raise ValueError(f"class_weights need single labels; got task {task!r}")
        weights = weights_of_classes(class_weights, labels, num_outputs)[labels]
    scaler = StandardScaler().fit(features)
    scaled = scaler.transform(features)
    kernel, bias = np.zeros((scaled.shape[1], num_outputs)), np.full(num_outputs, _UNSEEN)

    def regression(targets):
        return LogisticRegression(max_iter=2000).fit(scaled, targets, sample_weight=weights)

    if task == "regression":
        ridge = Ridge().fit(scaled, labels)
        kernel, bias = ridge.coef_.reshape(num_outputs, -1).T, ridge.intercept_
    elif task == "single_label" and loss == "softmax":
        seen = np.unique(labels)
        if len(seen) == 1:
            bias[seen] = -_UNSEEN
        else:
            fitted = regression(labels)
            both = len(seen) == 2  # whose difference of logits is a single row
            rows, offsets = fitted.coef_, fitted.intercept_
            kernel[:, seen] = (np.concatenate([-rows, rows]) / 2 if both else rows).T
            bias[seen] = np.concatenate([-offsets, offsets]) / 2 if both else offsets
    else:
        targets = np.eye(num_outputs)[labels] if labels.ndim == 1 else labels
        for output, column in enumerate(targets.T > 0.5):
            if column.any() and not column.all():
                fitted = regression(column)
                kernel[:, output], bias[output] = fitted.coef_[0], fitted.intercept_[0]
            elif column.any():
                bias[output] = -_UNSEEN
    kernel = kernel / scaler.scale_[:, np.newaxis]
    return kernel.astype("float32"), (bias - scaler.mean_ @ kernel).astype("float32")
