"""The graph of an exported model, and functions that make its input from encoded images or pixels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from keras_vit.data.decoding.encoded_images import is_bounded
from keras_vit.data.decoding.model_input import decode, with_channels
from keras_vit.inspection.attention import rollout_outputs, rollout_tensor
from keras_vit.preprocessing import bounds
from keras_vit.types import Tensor

if TYPE_CHECKING:
    from keras_vit.export.description import Description
    from keras_vit.preprocessing import Preprocessing


def forward(model: keras.Model, rollout: bool = False) -> Callable[[Tensor, bool], dict[str, Tensor]]:
    """One graph for all signatures: float32 images in [0, 1] to the model's stages.

    Each signature calls it, so that the model's operations are stored once for inference and once
    for training.

    Args:
        model: A model of images.
        rollout: Whether to compute attention rollout, too, for batches of one image.

    Returns:
        tf.function (images, training) → dict of the model's `exported_stages`, with `logits` if there is a
        head, and `rollout` if it is asked for.

    Example:
        >>> sorted(forward(model)(tf.constant(images), False))
        ['logits', 'representation']
    """
    names = [*model.exported_stages, "logits"] if model.num_classes is not None else model.exported_stages
    stages = model.feature_extractor(names)

    if rollout:
        stages = keras.Model(model.input, {**stages.output, **rollout_outputs(model)})

    def compute(images: Tensor, training: bool) -> dict[str, Tensor]:
        outputs = stages(model.preprocessing.normalize(images * 255.0), training=training)
        return {**outputs, "rollout": rollout_tensor(model, outputs)} if rollout else outputs

    return tf.function(compute, autograph=False)


def from_bytes(image_bytes: Tensor, description: Description) -> Tensor:
    """Encoded images of mixed formats and sizes as float32 images in [0, 1], resized as for evaluation.

    Args:
        image_bytes: Strings (batch,), the contents of JPEG, PNG, GIF, BMP or WebP files; their EXIF
            orientation is applied.
        description: The model's `Description`, of a fixed image size.

    Returns:
        float32 (batch, height, width, channels) in [0, 1].

    Raises:
        tf.errors.InvalidArgumentError: for an image that cannot be decoded, or has more than
            `MAX_PIXELS` or `MAX_BYTES` of `keras_vit.preprocessing`; the message has its index.

    Example:
        >>> from keras_vit.export.description import describe
        >>> png = tf.io.encode_png(tf.zeros((50, 40, 3), tf.uint8))
        >>> from_bytes(tf.stack([png, png]), describe(model)).shape
        TensorShape([2, 32, 32, 3])
    """

    def read(encoded: Tensor) -> Tensor:
        return description.preprocessing.resized(with_channels(decode(encoded), description.channels)) / 255.0

    spec = tf.TensorSpec((*description.image_size, description.channels), tf.float32)
    return _read_each(image_bytes, read, spec)


def map_encoded(
    compute: Callable[[Tensor], Tensor | dict[str, Tensor]],
    image_bytes: Tensor,
    channels: int,
    spec: tf.TensorSpec | Mapping[str, tf.TensorSpec],
    parallel: int = 32,
) -> Tensor | dict[str, Tensor]:
    """What a function computes of each encoded image alone, stacked.

    Args:
        compute: A function from an image (1, its height, its width, channels) in 0…255.
        image_bytes: As for `from_bytes`.
        channels: Of the images.
        spec: Nested `tf.TensorSpec`s of what `compute` returns.
        parallel: The number of images that are computed at a time.

    Raises:
        tf.errors.InvalidArgumentError: as for `from_bytes`.

    Example:
        >>> pngs = [tf.io.encode_png(tf.zeros((side, 8, 3), tf.uint8)) for side in (8, 16)]
        >>> spec = tf.TensorSpec((), tf.int32)
        >>> map_encoded(lambda image: tf.shape(image)[1], tf.stack(pngs), 3, spec).numpy()
        array([ 8, 16], dtype=int32)
    """

    # Images of several sizes stack as serialized tensors: uint8, gray float32.
    def read(encoded: Tensor) -> Tensor:
        return tf.io.serialize_tensor(with_channels(decode(encoded), channels))

    def compute_one(serialized: Tensor) -> Tensor | dict[str, Tensor]:
        image = tf.io.parse_tensor(serialized, tf.uint8 if channels == 3 else tf.float32)
        return compute(tf.expand_dims(tf.ensure_shape(image, (None, None, channels)), 0))

    images = _read_each(image_bytes, read, tf.TensorSpec((), tf.string))
    return tf.map_fn(compute_one, images, fn_output_signature=spec, parallel_iterations=parallel)


def resized(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Images (batch, height, width, channels) in 0…255 of one size as float32 ones in [0, 1] of the model's.

    Args:
        images: A tensor.
        preprocessing: `Preprocessing`; without an `image_size` the images keep theirs.
    """
    if preprocessing.image_size is None:
        return tf.cast(images, tf.float32) / 255.0
    spec = tf.TensorSpec((*preprocessing.image_size, preprocessing.channels), tf.float32)
    return tf.map_fn(lambda image: preprocessing.resized(image) / 255.0, images, fn_output_signature=spec)


def _read_each(image_bytes: Tensor, read: Callable[[Tensor], Tensor], spec: tf.TensorSpec) -> Tensor:
    """`read` of every string, stacked; an error with the index of the first string that it fails for.

    An error within `tf.map_fn` would not say which element failed. A `tf.data` pipeline can skip failed
    elements, so that the first missing index is the failed one.
    """
    with tf.device("cpu:0"):
        count = tf.size(image_bytes, tf.int64)
        empty = tf.zeros([side or 0 for side in spec.shape], spec.dtype)
        # A placeholder goes first, because a batch cannot be empty.
        placeholder = tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), True, empty))

        def read_one(index: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            fits = is_bounded(encoded)
            return index, fits, tf.cond(fits, lambda: read(encoded), lambda: empty)

        read_all = (
            tf.data.Dataset.from_tensor_slices(image_bytes)
            .enumerate()
            .map(read_one, num_parallel_calls=tf.data.AUTOTUNE)
            .ignore_errors()
        )
        indices, fit, values = placeholder.concatenate(read_all).batch(count + 1).get_single_element()
        # Indices equal their positions 0, 1, 2, … up to the first missing one.
        in_place = tf.equal(indices[1:], tf.range(tf.size(indices, tf.int64) - 1))
        first_failed = tf.reduce_sum(tf.cast(in_place, tf.int64))
        bound = f"{bounds.MAX_PIXELS} pixels or {bounds.MAX_BYTES} bytes"
        too_large = tf.gather(indices, tf.argmin(fit))
        checks = (
            (tf.reduce_all(fit), f"image {{}} of the batch has more than {bound}", too_large),
            (tf.equal(first_failed, count), "image {} of the batch cannot be decoded", first_failed),
        )
        asserted = [tf.debugging.Assert(fine, [tf.strings.format(text, i)]) for fine, text, i in checks]
        with tf.control_dependencies(asserted):
            return tf.ensure_shape(values[1:], (None, *spec.shape))
