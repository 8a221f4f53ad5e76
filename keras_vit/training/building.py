"""Build the model of a run, and the finished model after training."""

import collections
import inspect

import numpy as np

from keras_vit.messages import did_you_mean, listed
from keras_vit.models import ImageSegmenter, ImageTextModel, VisionTransformer
from keras_vit.models.classifying import check_not_packed
from keras_vit.models.config import INFERENCE
from keras_vit.models.configured import backbone
from keras_vit.preprocessing.text import FAMILIES
from keras_vit.tasks import get_task
from keras_vit.training.sharding import whole
from keras_vit.variants import CHOICES, SIZES, parse_variant
from keras_vit.weights import from_pretrained
from keras_vit.weights.catalogue import resolve
from keras_vit.weights.tokenizer import read_text_preprocessing

_OF_RUN = ("self", "encoder", "num_classes", "class_names", "split_seed", "dtype", "name", "trainable")


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
        "dtype": recipe.dtype,
        "task": recipe.task,
        "split_seed": recipe.seed,
    }
    if config.image_size or recipe.image_size:
        options["image_size"] = config.image_size or recipe.image_size
    pretraining = config.pretraining
    segments = pretraining is None and get_task(recipe.task).has_class_maps
    if pretraining or segments:
        # No layers of the encoder after the tokens are trained.
        after = ("representation_size", "norm_after_pooling")
        sizes = {name: value for name, value in sizes.items() if name not in after}
        options = {name: value for name, value in options.items() if name not in after}
        options["num_classes"] = None
    elif recipe.image_text is not None:
        if getattr(dataset, "texts", None) is None:
            raise ValueError(
                "a recipe with image_text needs a data set with texts, such as digits_words or a folder with "
                "captions"
            )
        options["num_classes"] = None
    else:
        options["num_classes"] = len(dataset.class_names)
        options["class_names"] = dataset.class_names
    head = None
    if segments:
        head = {"num_classes": len(dataset.class_names), "class_names": dataset.class_names}
        given = recipe.segmenter or {}
        _check_arguments("segmenter", given, ImageSegmenter)
        head |= {"split_seed": recipe.seed, **given}
    if config.weights is not None:
        model = _loaded(config, sizes, options, head)
    else:
        model = VisionTransformer(**{"image_size": 224, **sizes, **options})
        model = ImageSegmenter(model, **head) if segments else model
    check_not_packed(model, "a run")
    if pretraining:
        given = recipe.pretrainer or {}
        _check_arguments("pretrainer", given, pretraining.model)
        return pretraining.model(model, **given)
    if recipe.image_text is not None:
        model = _with_texts(model, config, dataset.texts.preprocessing)
        if not dataset.has_captions:  # The finished model is tested as a classifier.
            model.check_projections()
        return model
    if recipe.head_bias and not segments:
        for name in ("head", "head_distillation")[: 1 + model.distillation]:
            bias = model.get_layer(name).bias
            bias.assign(np.full(bias.shape, recipe.head_bias, "float32"))
    return model


def _check_arguments(field, given, make):
    """Raise ValueError unless a field of the recipe has arguments of a model around an encoder."""
    names = inspect.signature(make.__init__ if isinstance(make, type) else make).parameters
    names = [name for name in names if name not in _OF_RUN]
    if unknown := [name for name in given if name not in names]:
        raise ValueError(
            f"expected {', '.join(names) or 'no arguments'} in the recipe's {field}; got "
            f"{', '.join(map(str, unknown))}{did_you_mean(unknown[0], names)}"
        )


def _with_texts(model, config, preprocessing):
    """The `ImageTextModel` of a run, with its tokenizer.

    Args:
        model: The weights' ImageTextModel, or a VisionTransformer that gets a new text tower.
        config: RunConfig.
        preprocessing: The data set's `TextPreprocessing`, or None.
    """
    recipe, given = config.recipe, config.recipe.image_text
    has_texts = isinstance(model, ImageTextModel)
    if has_texts:
        preprocessing = model.text_preprocessing
    text = model.text.get_config() if has_texts else given.get("text", {})
    if config.tokenizer is not None:
        preprocessing = _read_tokenizer(config.tokenizer, text.get("length"))
    if preprocessing is None:
        raise ValueError("the texts need a tokenizer: expected weights with one, or --tokenizer; got none")
    if not has_texts:
        text = {
            "vocabulary_size": preprocessing.vocabulary_size,
            "length": preprocessing.length,
            "dropout_rate": recipe.dropout_rate,
            **text,
            "dtype": recipe.dtype,
        }
        try:
            return ImageTextModel(model, **{**given, "text": text, "text_preprocessing": preprocessing})
        except TypeError as error:
            raise ValueError(f"wrong arguments in the recipe's image_text: {error}") from None
    for name, value in given.items():
        if value != getattr(model, name, None):
            raise ValueError(f"{config.weights} has another {name} than the recipe's image_text: {value!r}")
    if config.tokenizer is not None and preprocessing.vocabulary_size > text["vocabulary_size"]:
        raise ValueError(
            f"expected a tokenizer of at most {text['vocabulary_size']} tokens, the vocabulary size of "
            f"{config.weights}; got {preprocessing.vocabulary_size}"
        )
    model.text_preprocessing = preprocessing
    return model


def tokenizer_source(source):
    """The path or name, and the family or None, of PATH or PATH:FAMILY.

    >>> tokenizer_source("vocab.txt:lit_bert"), tokenizer_source("google/siglip-base-patch16-224")
    (('vocab.txt', 'lit_bert'), ('google/siglip-base-patch16-224', None))
    """
    path, _, family = source.rpartition(":")
    return (path, family) if family in FAMILIES else (source, None)


def _read_tokenizer(source, length=None):
    """The `TextPreprocessing` of PATH or PATH:FAMILY."""
    path, family = tokenizer_source(source)
    found = read_text_preprocessing(resolve(path), family, **({"length": length} if length else {}))
    if found is None:
        raise ValueError(
            f"expected a tokenizer in {path!r}, whose tokenizer_config.json names its class, or "
            f"{path}:FAMILY with one of {', '.join(FAMILIES)}"
        )
    return found


def _loaded(config, sizes, options, segmenter):
    classes = options.pop("num_classes") or 0  # 0 drops the file's head.
    head = {"head": "reset"} if classes else {"segmenter": segmenter}
    pairs = config.recipe.image_text
    both = pairs is not None and "text" not in pairs
    layers = {"kind": "image_text"} if both else {"representation_size": None, **head}
    options = {**layers, **options, "num_classes": classes}
    model = from_pretrained(config.weights, sha256=config.sha256, **options)
    for name, value in sizes.items():
        if name in CHOICES and isinstance(config.model, str):
            continue
        loaded = getattr(backbone(model), name)
        if loaded not in (value, (value, value)):
            raise ValueError(f"expected {name} {value} for {config.model}; {config.weights} has {loaded}")
    return model


def finished_model(model, earlier=None):
    """The trained model on one device, in float32, without dropout, remat and frozen layers.

    It is an ImageSegmenter for segmentation, an ImageTextModel for pairs, otherwise a VisionTransformer.

    Args:
        model: The model of a run.
        earlier: A VisionTransformer that this function returned for it at an earlier step, which then gets
            the weights of now; None: a new one.
    """
    if isinstance(model, ImageSegmenter | ImageTextModel):
        return whole_model(model)
    trained = backbone(model)
    finished = earlier
    if finished is None:
        config = {**trained.get_config(), **INFERENCE, "remat": (), "trainable": True}
        finished = VisionTransformer.from_config(config)
        for layer in finished.layers:
            layer.trainable = True
    finished.set_weights([whole(weight) for weight in trained.weights])
    return finished


def whole_model(model):
    """A model that is trained around a VisionTransformer, with all its layers, as `finished_model`."""
    return model.finished({weight.path: whole(weight) for weight in model.weights})


def head_note(model):
    """A line with the loaded and the new layers of a segmenter's head; None for other models."""
    new = getattr(model, "initial_weights", None)
    if new is None or not isinstance(model, ImageSegmenter):
        return None
    weights = [weight for layer in model.own_layers() for weight in layer.weights if "float" in weight.dtype]
    layers = {weight.path.partition("/")[0]: weight.path in new for weight in weights}
    loaded, new = ([name for name in layers if layers[name] == is_new] for is_new in (False, True))
    return f"layers of the head from the weights: {listed(loaded) or 'none'}; new: {listed(new) or 'none'}"


def subset(samples, count, seed):
    """A random subset of samples, with as equal numbers from each class as possible.

    Args:
        samples: `Samples` or `MaskSamples`.
        count: The size of the subset.
        seed: An int.

    Raises:
        ValueError: if there are fewer samples, or their labels are unknown before they are read.
    """
    if not hasattr(samples, "take"):
        raise ValueError("train_samples needs labels that are known before reading: a folder or digits")
    if count > len(samples):
        raise ValueError(f"train_samples must be at most {len(samples)}, the training samples; got {count}")
    # Rank the samples within their class, so that the first of each class come before the second ones.
    ranks, seen = {}, collections.Counter()
    labels = samples.labels or (None,) * len(samples)
    for index in np.random.default_rng(seed).permutation(len(samples)).tolist():
        ranks[index] = seen[labels[index]]
        seen[labels[index]] += 1
    return samples.take(sorted(sorted(ranks, key=ranks.get)[:count]))
