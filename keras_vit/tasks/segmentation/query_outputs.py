"""What the queries of a model predict for images of any size."""

import dataclasses
import functools

import numpy as np

from keras_vit.layers.segmentation_head import resize as resize_bilinearly
from keras_vit.models.classifying import check_finite
from keras_vit.models.vit.geometry import is_dynamic, patch_pixels
from keras_vit.preprocessing.image_resizing import resize
from keras_vit.preprocessing.inputs import as_list, as_pixels

AT_ONCE = 2**24  # logits of masks that are resized at once, at least of one query


def query_outputs(model, images, value_range=None):
    """Compute images one after the other.

    An image is resized until it fits into the model's size, with its aspect ratio, and padded at the bottom
    and right with black, as the authors of EoMT do for objects and segments.

    Args:
        model: An `ImageSegmenter`.
        images: What `model.preprocessing` takes: an array, a path, a URL, bytes, a Pillow image, or a list.
        value_range: (lowest, highest) possible value of float images; None for (0, 1).

    Yields:
        For each image its (height, width); the logits of the queries' classes, float32 (queries,
        classes + 1), of which the last stands for no object; and a function from numbers of queries to the
        logits of their masks, (height, width, numbers).

    Raises:
        ValueError: for a model without queries, an image that cannot be read, or a model that computes NaN.

    Source: `resize_and_pad_imgs_instance_panoptic` and its inverse in EoMT's code.
    """
    queries = model.query_predictions()
    queries.run_eagerly = model.run_eagerly
    preprocessing = dataclasses.replace(model.preprocessing, interpolation="bilinear")
    for image in as_list(images, preprocessing.channels):
        pixels = as_pixels(image, preprocessing.channels, value_range)
        image_size = pixels.shape[:2]
        if is_dynamic(model.image_size):
            size = [-(-side // patch) * patch for side, patch in zip(image_size, patch_pixels(model.encoder))]
            factor = 1.0
        else:
            size = model.image_size
            factor = min(side / given for side, given in zip(size, image_size))
        inner = [max(round(side * factor), 1) for side in image_size]
        x = np.asarray(resize(pixels[np.newaxis], inner, preprocessing))
        x = np.pad(x, [(0, 0), *((0, side - given) for side, given in zip(size, inner)), (0, 0)])
        outputs = queries.predict_on_batch(preprocessing.normalize(x))
        outputs = {name: check_finite(np.asarray(values)) for name, values in outputs.items()}
        yield (
            image_size,
            outputs["classes"][0],
            functools.partial(_masks, outputs["masks"], size, inner, image_size),
        )


def _masks(logits, size, inner, own, numbers):
    """The masks of some queries at the image's own size, from those of the padded input of the model."""
    if not len(numbers):  # TensorFlow does not resize zero masks.
        return np.zeros((*own, 0), "float32")
    masks = resize_bilinearly(logits[..., numbers], size)[:, : inner[0], : inner[1]]
    return resize_bilinearly(masks, own)[0]
