"""The model that a run trains, and the one that it leaves."""

import numpy as np

from keras_vit.models import VisionTransformer
from keras_vit.models.masked_patch import MaskedPatchPredictor
from keras_vit.variants import parse_variant
from keras_vit.weights import from_pretrained


def build_model(config, dataset):
    """The model of a run's configuration, new or from weights, with as many classes as the data set.

    Raises:
        ValueError: if the weights cannot be had, or are not of the model that is asked for.
    """
    recipe = config.recipe
    sizes = parse_variant(config.model) if isinstance(config.model, str) else dict(config.model or {})
    options = {
        **recipe.model,
        "dropout_rate": recipe.dropout_rate,
        "stochastic_depth_rate": recipe.stochastic_depth_rate,
        "dtype": recipe.dtype,
        "task": recipe.task,
        "split_seed": recipe.seed,
    }
    if config.image_size or recipe.image_size:
        options["image_size"] = config.image_size or recipe.image_size
    if config.objective == "masked_patch":
        # What comes behind the tokens is not trained without labels.
        sizes = {name: value for name, value in sizes.items() if name != "representation_size"}
        options = {name: value for name, value in options.items() if name != "representation_size"}
        options["num_classes"] = None
    else:
        options["num_classes"] = len(dataset.class_names)
        options["class_names"] = dataset.class_names
    if config.weights is None:
        model = VisionTransformer(**{"image_size": 224, **sizes, **options})
    else:
        model = _loaded(config, sizes, options)
    if config.objective == "masked_patch":
        return MaskedPatchPredictor(model, config.target)
    if recipe.head_bias:
        for name in ("head", "head_distillation")[: 1 + model.distillation]:
            bias = model.get_layer(name).bias
            bias.assign(np.full(bias.shape, recipe.head_bias, "float32"))
    return model


def _loaded(config, sizes, options):
    classes = options.pop("num_classes") or 0  # 0: without the head that the file may have
    head = {"head": "reset"} if classes else {}
    model = from_pretrained(
        config.weights,
        sha256=config.sha256,
        **{"representation_size": None, **options, "num_classes": classes, **head},
    )
    for name, value in sizes.items():
        have = getattr(model, name)
        if have != value and have != (value, value):
            raise ValueError(f"{config.weights} has {name} {have}, but {config.model} has {value}")
    return model


def transformer_of(model):
    """The VisionTransformer that a run's model is or trains."""
    return model.encoder if isinstance(model, MaskedPatchPredictor) else model


def finished_model(model):
    """The trained VisionTransformer by itself: on one device, in float32, without what only training has."""
    trained = transformer_of(model)
    changes = {
        "dtype": "float32",
        "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0,
        "stochastic_depth_rate": 0.0,
        "remat": (),
    }
    finished = VisionTransformer.from_config({**trained.get_config(), **changes})
    for layer in finished.layers:
        layer.trainable = True  # also what the recipe has frozen
    finished.set_weights(trained.get_weights())
    return finished


def subset(samples, count, seed):
    """So many of the samples, drawn as evenly from the classes as can be.

    Args:
        samples: `Samples` whose labels are known.
        count: How many.
        seed: Which.

    Raises:
        ValueError: if there are fewer, or the labels are not known without reading.
    """
    if samples.labels is None:
        raise ValueError("train_samples needs labels that are known without reading: a folder or digits")
    if count > len(samples):
        raise ValueError(f"train_samples must be at most {len(samples)}, the training samples; got {count}")
    order = np.random.default_rng(seed).permutation(len(samples))
    labels = np.asarray([hash(samples.labels[i]) for i in order])
    # The first of each class, then the second of each, and so on.
    turn = np.empty(len(order), int)
    for label in np.unique(labels):
        turn[labels == label] = np.arange(np.sum(labels == label))
    return samples.take(sorted(order[np.argsort(turn, kind="stable")[:count]].tolist()))
