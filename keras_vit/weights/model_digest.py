"""A digest of what a model's outputs depend on."""

import hashlib
import json

import numpy as np

from keras_vit.engine.sharding import whole
from keras_vit.layers.dense import STATE
from keras_vit.models.vit.schema import OPTIONS

# Entries of models' configurations on which no vector depends.
NO_OPTIONS = {
    *("name", "trainable", "dtype", "build_config", "compile_config", *STATE),
    *("num_classes", "dropout_rate", "stochastic_depth_rate", "attention_dropout_rate"),
    *("patch_dropout_rate", "text_preprocessing"),
    *(name for name, option in OPTIONS.items() if option.metadata["group"] == "metadata"),
} - {"preprocessing"}


def model_digest(model):
    """A digest of what determines a model's vectors, in hexadecimal: weights, options and tokenizer.

    >>> from keras_vit.weights.model_digest import model_digest
    >>> other = keras_vit.VisionTransformer(32, 8, 24, 2, 48, 3, num_classes=7)
    >>> model_digest(other) == model_digest(model), len(model_digest(model))
    (False, 64)
    """
    config = model.get_config()
    digest = hashlib.sha256(json.dumps(_options(config), sort_keys=True, default=str).encode())
    if tokenizer := model.text_preprocessing:
        digest.update(tokenizer.digest.encode())
    for weight in model.weights:
        if "float" in weight.dtype:
            digest.update(np.ascontiguousarray(whole(weight)).tobytes())
    return digest.hexdigest()


def _options(config):
    """A configuration without the entries on which no vector depends, at any depth."""
    if isinstance(config, dict):
        return {name: _options(value) for name, value in config.items() if name not in NO_OPTIONS}
    return [*map(_options, config)] if isinstance(config, (list, tuple)) else config
