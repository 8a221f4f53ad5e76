"""Build the model of a run, and the finished model after training."""

import collections

import numpy as np

from keras_vit.engine.device_dtype import AUTO, device_dtype
from keras_vit.engine.sharding import whole
from keras_vit.models import VisionTransformer
from keras_vit.models.backbones import backbone
from keras_vit.variants import CHOICES, SIZES, parse_variant
from keras_vit.weights import from_pretrained


def build_model(config, dataset):
    """The model of a run's configuration, with the classes of the data set.

    Raises:
        ValueError: if the weights cannot be loaded, or are of another model.
    """
    recipe = config.recipe
    sizes = parse_variant(config.model) if isinstance(config.model, str) else dict(config.model or {})
    is_whole = config.weights or {*SIZES, "patch_size"} <= sizes.keys()
    options = {
        **({} if recipe.has_sizes and is_whole else recipe.model),
        "dropout_rate": recipe.dropout_rate,
        "stochastic_depth_rate": recipe.stochastic_depth_rate,
        "patch_dropout_rate": recipe.patch_dropout_rate,
        "dtype": device_dtype() if recipe.dtype == AUTO else recipe.dtype,
        "task": recipe.task,
        "split_seed": recipe.held_out_seed,
    }
    if config.image_size or recipe.image_size:
        options["image_size"] = config.image_size or recipe.image_size
    task = config.task
    options |= task.options(dataset)
    if task.ends_with_tokens:
        after = ("representation_size", "norm_after_pooling")
        sizes = {name: value for name, value in sizes.items() if name not in after}
        options = {name: value for name, value in options.items() if name not in after}
    if config.weights is not None:
        model = _loaded(config, sizes, task.loading(options, recipe, dataset))
    else:
        model = VisionTransformer.from_config({"image_size": 224, **sizes, **options})
    encoder = backbone(model)
    encoder.check_one_size("a run")
    # What weights without labels know remains when they are fine-tuned.
    if not task.needs_labels:
        encoder.pretraining = "self_supervised"
    elif encoder.pretraining in (None, "unknown"):
        encoder.pretraining = "image_text" if task.reads_texts else "supervised"
    return task.around(model, config, dataset)


def _loaded(config, sizes, options):
    model = from_pretrained(config.weights, sha256=config.sha256, **options)
    for name, value in sizes.items():
        if name in CHOICES and isinstance(config.model, str):
            continue
        loaded = getattr(backbone(model), name, None)
        value = tuple(value) if isinstance(value, list) else value
        if loaded not in (value, (value, value)):
            raise ValueError(f"expected {name} {value} for {config.model}; {config.weights} has {loaded}")
    return model


def finished_model(model, earlier=None):
    """The trained model on one device, in float32, without dropout, remat and frozen layers.

    Of a model that is only needed to train another one, it is the other one.

    Args:
        model: The model of a run.
        earlier: What this function returned for it at an earlier step, which then gets the weights of now;
            None: a new one.
    """
    part = model.trained()
    if earlier is None:
        return whole_model(part)
    earlier.set_weights([whole(weight) for weight in part.weights])
    return earlier


def whole_model(model):
    """The trained model with all its layers, as `finished_model`."""
    return model.finished({weight.path: whole(weight) for weight in model.weights})


def subset(samples, count, seed):
    """A random subset of samples; of single labels with as equal numbers from each class as possible.

    Args:
        samples: Such as `Samples` or `MaskSamples`.
        count: The size of the subset.
        seed: An int.

    Raises:
        ValueError: if there are fewer samples, or their labels are unknown before they are read.
    """
    if not hasattr(samples, "take"):
        raise ValueError("train_samples needs labels that are known before reading: a folder or digits")
    if count > len(samples):
        raise ValueError(f"train_samples must be at most {len(samples)}, the training samples; got {count}")
    from keras_vit.data.samples import class_indices  # needs TensorFlow

    # Rank the samples within their class, so that the first of each class come before the second ones.
    ranks, seen = {}, collections.Counter()
    classes = class_indices(samples).tolist()
    for index in np.random.default_rng(seed).permutation(len(samples)).tolist():
        ranks[index] = seen[classes[index]]
        seen[classes[index]] += 1
    return samples.take(sorted(sorted(ranks, key=ranks.get)[:count]))
