"""The computation of an exported model's signatures, from images or from encoded images."""

import keras
import tensorflow as tf

from keras_vit.data.decoding.encoded_images import is_bounded
from keras_vit.data.decoding.model_input import decode, with_channels
from keras_vit.inspection.attention import rollout_outputs, rollout_tensor
from keras_vit.models.vit.geometry import DYNAMIC_SIZE, stem_stride
from keras_vit.preprocessing import bounds
from keras_vit.tasks import get_task

TOP = 5  # classes in the answer of `serving_bytes`
_PARALLEL = 32  # images of various sizes that are computed at a time


def forward(model, rollout=False):
    """One graph for all signatures: float32 images in [0, 1] to the model's stages.

    Each signature calls it, so that the model's operations are stored once for inference and once
    for training.

    Args:
        model: A `VisionTransformer` or an `ImageSegmenter`.
        rollout: Whether to compute attention rollout, too, for batches of one image.

    Returns:
        tf.function (images, training) → dict of `representation`, if there is a head `logits`, and `rollout`
        if it is asked for; of a segmenter of `logits`.

    Example:
        >>> sorted(forward(model)(tf.constant(images), False))
        ['logits', 'representation']
    """
    names = [*model.exported_stages, "logits"] if model.num_classes is not None else model.exported_stages
    stages = model.feature_extractor(names)

    if rollout:
        stages = keras.Model(model.input, {**stages.output, **rollout_outputs(model)})

    def compute(images, training):
        outputs = stages(model.preprocessing.normalize(images * 255.0), training=training)
        return {**outputs, "rollout": rollout_tensor(model, outputs)} if rollout else outputs

    return tf.function(compute, autograph=False)


def named_outputs(stages, description):
    """The outputs of `serving_default` of a model of whole images.

    Args:
        stages: The outputs of `forward`.
        description: The model's `Description`.

    Returns:
        dict of tensors: `logits` and `probabilities` of a classifier, `values` of a regression,
        `representation` of a model without a head; and `rollout` if it was computed.

    Example:
        >>> from keras_vit.export.description import describe
        >>> sorted(named_outputs({"logits": tf.zeros((1, 10))}, describe(model)))
        ['logits', 'probabilities']
    """
    if description.output == "representation":
        outputs = {"representation": stages["representation"]}
    elif description.output == "values":
        outputs = {"values": stages["logits"]}
    else:
        activation = getattr(tf.nn, get_task(description.task).label.activation)
        outputs = {"logits": stages["logits"], "probabilities": activation(stages["logits"])}
    return outputs | ({"rollout": stages["rollout"]} if "rollout" in stages else {})


def top_classes(outputs, description):
    """The outputs of `serving_bytes`: the best classes of a classifier, or the outputs of `serving_default`.

    Args:
        outputs: The outputs of `named_outputs`.
        description: The model's `Description`.

    Returns:
        dict of tensors: `scores`, `class_ids` and `classes`, best first, of a classifier.

    Example:
        >>> from keras_vit.export.description import describe
        >>> outputs = {"probabilities": tf.one_hot([7], 10)}
        >>> top_classes(outputs, describe(model))["classes"][:, :2].numpy()
        array([[b'7', b'0']], dtype=object)
    """
    if "probabilities" not in outputs:
        return outputs
    scores, ids = tf.math.top_k(outputs["probabilities"], min(TOP, description.num_classes))
    return {"scores": scores, "class_ids": ids, "classes": tf.gather(tf.constant(description.labels), ids)}


def from_uint8(images, description):
    """uint8 images of any one size as float32 images in [0, 1], resized as for evaluation.

    Args:
        images: uint8 (batch, any height, any width, channels).
        description: The model's `Description`.

    Returns:
        float32 (batch, height, width, channels); of the images' own size if the model takes any.

    Example:
        >>> from keras_vit.export.description import describe
        >>> from_uint8(tf.zeros((2, 50, 40, 3), tf.uint8), describe(model)).shape
        TensorShape([2, 32, 32, 3])
    """
    if description.image_size == DYNAMIC_SIZE:
        with tf.control_dependencies([_assert_divisible(images, description)]):
            return resized(images, description.preprocessing)
    return resized(images, description.preprocessing)


def from_bytes(image_bytes, description):
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

    def read(encoded):
        return _resized(with_channels(decode(encoded), description.channels), description)

    return _read_each(image_bytes, read, _image_spec(description))


def compute_each(image_bytes, compute, description):
    """The outputs of a model of any size for encoded images, each computed alone at its own size.

    Args:
        image_bytes: As for `from_bytes`.
        compute: tf.function of float32 images (batch, height, width, channels) → dict of tensors.
        description: The model's `Description`.

    Returns:
        dict of tensors, as `compute` returns for a batch.

    Raises:
        tf.errors.InvalidArgumentError: as for `from_bytes`.

    Example:
        >>> from keras_vit.export.description import describe
        >>> pngs = [tf.io.encode_png(tf.zeros((side, 8, 3), tf.uint8)) for side in (8, 16)]
        >>> means = tf.function(lambda images: {"mean": tf.reduce_mean(images, (1, 2))})
        >>> free = keras_vit.VisionTransformer((None, None), 8, 24, 2, 48, 3)
        >>> compute_each(tf.stack(pngs), means, describe(free))["mean"].shape
        TensorShape([2, 3])
    """

    def compute_one(serialized):
        image = tf.io.parse_tensor(serialized, tf.uint8 if description.channels == 3 else tf.float32)
        images = tf.expand_dims(_resized(tf.ensure_shape(image, spec.shape[1:]), description), 0)
        with tf.control_dependencies([_assert_divisible(images, description)]):
            return tf.nest.map_structure(lambda x: x[0], compute(tf.identity(images)))

    spec = tf.TensorSpec((None, None, None, description.channels), tf.float32)
    batched = compute.get_concrete_function(spec).structured_outputs
    single = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), batched)
    images = decoded_images(image_bytes, description.channels)
    return tf.map_fn(compute_one, images, fn_output_signature=single, parallel_iterations=_PARALLEL)


def decoded_images(image_bytes, channels):
    """Encoded images of mixed formats and sizes as serialized tensors, which stack: uint8, gray float32.

    Args:
        image_bytes: As for `from_bytes`.
        channels: Of the images.
    """

    def read(encoded):
        return tf.io.serialize_tensor(with_channels(decode(encoded), channels))

    return _read_each(image_bytes, read, tf.TensorSpec((), tf.string))


def resized(images, preprocessing):
    """Images (batch, height, width, channels) in 0…255 of one size as float32 ones in [0, 1] of the model's.

    Args:
        images: A tensor.
        preprocessing: `Preprocessing`; without an `image_size` the images keep theirs.
    """
    if preprocessing.image_size is None:
        return tf.cast(images, tf.float32) / 255.0
    spec = tf.TensorSpec((*preprocessing.image_size, preprocessing.channels), tf.float32)
    return tf.map_fn(lambda image: preprocessing.resized(image) / 255.0, images, fn_output_signature=spec)


def _read_each(image_bytes, read, spec):
    """`read` of every string, stacked; an error with the index of the first string that it fails for.

    An error within `tf.map_fn` would not say which element failed. A `tf.data` pipeline can skip failed
    elements, so that the first missing index is the failed one.
    """
    with tf.device("cpu:0"):
        count = tf.size(image_bytes, tf.int64)
        empty = tf.zeros([side or 0 for side in spec.shape], spec.dtype)
        # A placeholder goes first, because a batch cannot be empty.
        placeholder = tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), True, empty))

        def read_one(index, encoded):
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


def _assert_divisible(images, description):
    """Assert that the patch size divides the images' sides."""
    patch = tuple(description.architecture["patch_size"])
    stride = stem_stride(description.architecture["resnet"])
    sides = tf.shape(images)[1:3]
    message = tf.strings.format(
        f"images cannot be cut into patches: height and width are {{}}, but after a stride of {stride} "
        f"the patch of {patch} must divide them",
        sides,
    )
    return tf.debugging.Assert(tf.reduce_all(-(-sides // stride) % tf.constant(patch) == 0), [message])


def _resized(image, description):
    """A decoded image at the model's size, in [0, 1]."""
    return description.preprocessing.resized(image) / 255.0


def _image_spec(description):
    return tf.TensorSpec((*description.image_size, description.channels), tf.float32)
