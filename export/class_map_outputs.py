"""Class maps as the outputs of exported segmenters, also of encoded images and at the images' own sizes."""

import dataclasses

import tensorflow as tf

from keras_vit.export.signatures import decoded_images, resized
from keras_vit.models.pretraining.encoder_model import patch_pixels
from keras_vit.models.vit.geometry import DYNAMIC_SIZE
from keras_vit.preprocessing.image_resizing import resize

MAP = "class_map"
_PARALLEL = 8  # images of various sizes that are computed at a time


def map_outputs(logits):
    """The outputs of `serving_default` of a segmenter.

    Args:
        logits: float32 (batch, height, width, classes).

    Returns:
        dict of `logits`; `class_map`, the class of each pixel (batch, height, width), uint8 for up to 256
        classes and int32 for more; and `scores`, the probabilities of these classes.

    Example:
        >>> outputs = map_outputs(tf.constant([[[[0.0, 1.0]]]]))
        >>> outputs["class_map"].numpy().item(), round(float(outputs["scores"][0, 0, 0]), 4)
        (1, 0.7311)
    """
    scores = tf.reduce_max(tf.nn.softmax(logits), axis=-1)
    return {MAP: class_map(logits), "logits": logits, "scores": scores}


def class_map(logits):
    """The class of each pixel: the first one with the highest logit."""
    classes = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return tf.cast(classes, tf.uint8) if logits.shape[-1] <= 256 else classes


def maps_of_uint8(images, compute, description):
    """The outputs of `serving_uint8`: of images of any one size, at this size.

    Args:
        images: uint8 (batch, any height, any width, channels).
        compute: A function from float32 images in [0, 1] of the model's size to logits.
        description: The model's `Description`.

    Returns:
        dict, as `map_outputs` returns.
    """
    return map_outputs(_whole_logits(images, compute, description))


def masks_of_bytes(image_bytes, compute, description):
    """The outputs of `serving_bytes`: a mask of each encoded image, of the image's own size.

    A model with one image size computes each image as a whole, resized, as `ImageSegmenter.segment` does with
    `whole=True`; a model for any size pads it to whole patches.

    Args:
        image_bytes: As for `signatures.from_bytes`.
        compute: As for `maps_of_uint8`.
        description: The model's `Description`.

    Returns:
        dict of `mask_bytes`: the contents of gray PNG files, whose values are the classes.

    Raises:
        tf.errors.InvalidArgumentError: as for `signatures.from_bytes`.
    """

    def mask(serialized):
        kind = tf.uint8 if description.channels == 3 else tf.float32
        image = tf.io.parse_tensor(serialized, kind)
        image = tf.expand_dims(tf.ensure_shape(image, (None, None, description.channels)), 0)
        classes = class_map(_whole_logits(image, compute, description))
        # A PNG file has values of 8 or 16 bits.
        values = tf.cast(classes, tf.uint8 if description.num_classes <= 256 else tf.uint16)
        return tf.io.encode_png(tf.expand_dims(values[0], -1))

    images = decoded_images(image_bytes, description.channels)
    spec = tf.TensorSpec((), tf.string)
    return {"mask_bytes": tf.map_fn(mask, images, fn_output_signature=spec, parallel_iterations=_PARALLEL)}


def _whole_logits(images, compute, description):
    """The logits of whole images (batch, height, width, channels) in 0…255, at the images' own size."""
    height, width = tf.unstack(tf.shape(images)[1:3])
    # Without a crop: each pixel gets a class.
    prepared = resized(images, dataclasses.replace(description.preprocessing, resize="squash"))
    if description.image_size == DYNAMIC_SIZE:
        return compute(_padded(prepared, description))[:, :height, :width]
    bilinear = dataclasses.replace(description.preprocessing, interpolation="bilinear")
    return resize(compute(prepared), (height, width), bilinear)


def _padded(images, description):
    """Images padded at the bottom and right to whole patches, by the mean color."""
    missing = [
        -side % patch for side, patch in zip(tf.unstack(tf.shape(images)[1:3]), patch_pixels(description))
    ]
    paddings = [(0, 0), *((0, count) for count in missing), (0, 0)]
    mean = tf.constant(description.mean)
    return tf.pad(images - mean, paddings) + mean
