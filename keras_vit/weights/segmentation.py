"""Segmenters in transformers' layout, EoMT: their options from the arrays, and their arrays for a file."""

import re

import numpy as np

from keras_vit.layers.segmentation import QueryAttentionBias
from keras_vit.models.adapting import plain_arrays
from keras_vit.models.mask_loss import NO_OBJECT_WEIGHT
from keras_vit.models.segmentation import ImageSegmenter
from keras_vit.weights.layouts.huggingface_types import MASK_PROBABILITIES

_HEAD = re.compile(rf"(queries|mask_dense_\d|class_head|upscale_\d+)/.*|{MASK_PROBABILITIES}")


def is_segmenter(arrays):
    """Whether the arrays, by our names, belong to an EoMT."""
    return "queries/token" in arrays and "class_head/kernel" in arrays


def drop_segmentation(arrays):
    """Remove the arrays of an EoMT's head, which leaves its encoder; return False."""
    for name in [name for name in arrays if _HEAD.fullmatch(name)]:
        del arrays[name]
    return False


def segmenter(checkpoint, encoder, num_classes=None, class_names=None):
    """The `ImageSegmenter` of an EoMT's arrays, with new weights.

    Args:
        checkpoint: `StoredModel`. Its array of all probabilities is replaced by one for each block with
            queries, or removed if no block masks.
        encoder: `VisionTransformer`.
        num_classes: Other than the file's, or None.
        class_names: The file's, or None.
    """
    arrays, keys = checkpoint.arrays, checkpoint.keys
    stored = arrays["class_head/kernel"].shape[-1] - 1
    probabilities = arrays.pop(MASK_PROBABILITIES, np.zeros(0))
    masked = bool(np.any(probabilities > 0))
    first = encoder.num_layers - len(probabilities)
    for i, probability in enumerate(probabilities if masked else ()):
        name = f"query_mask_{first + i}/probability"
        arrays[name], keys[name] = np.asarray(probability), keys[MASK_PROBABILITIES]
    return ImageSegmenter(
        encoder,
        num_classes or stored,
        head="mask",
        num_queries=arrays["queries/token"].shape[-2],
        query_blocks=max(len(probabilities), 1),
        upscale_blocks=sum(name.endswith("/depthwise/kernel") for name in arrays),
        # Theirs with DINOv2's gated MLPs has another activation in the head.
        head_activation=encoder.activation if encoder.rotary else None,
        masked_attention=masked,
        class_names=class_names if num_classes in (None, stored) else None,
    )


def reset_classes(checkpoint, model, head):
    """Remove the class predictor if it is reset; return the names of its variables.

    Args:
        checkpoint: `StoredModel`.
        model: `ImageSegmenter`.
        head: As for `from_pretrained`.
    """
    names = [f"class_head/{leaf}" for leaf in ("kernel", "bias")]
    same = checkpoint.arrays[names[0]].shape[-1] == model.num_classes + 1
    if head == "keep" or (head == "auto" and same):
        return []
    for name in names:
        del checkpoint.arrays[name]
    return names


def written_segmenter(model):
    """The arrays and the configuration of a segmenter, for the layout of transformers.

    Returns:
        (arrays by our names, `get_config()` of the encoder with the head's options under "segmentation",
        further arrays by the file's keys).

    Raises:
        ValueError: for another head than "mask".
    """
    if model.head != "mask":
        raise ValueError(f"the layout 'huggingface' has segmenters with head='mask'; got {model.head!r}")
    arrays = plain_arrays(model)
    masks = [layer for layer in model.layers if isinstance(layer, QueryAttentionBias)]
    for layer in masks:
        del arrays[layer.probability.path]
    upscale = sum(name.endswith("/depthwise/kernel") for name in arrays)
    options = {
        "num_queries": model.num_queries,
        "query_blocks": model.query_blocks,
        "upscale_blocks": upscale,
        "activation": model.get_layer("upscale_0").activation if upscale else model.encoder.activation,
    }
    config = {**model.encoder.get_config(), "segmentation": options}
    probabilities = [float(layer.probability) for layer in masks] or [0.0] * model.query_blocks
    arrays[MASK_PROBABILITIES] = np.array(probabilities, "float32")
    weights = np.ones(model.num_classes + 1, "float32")
    weights[-1] = NO_OBJECT_WEIGHT
    return arrays, config, {"criterion.empty_weight": weights}
