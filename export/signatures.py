"""The outputs of an exported model's signatures, for images or for encoded images.

`class_map_outputs` has the same functions for models of class maps: `of_images`, `of_uint8`, `of_bytes` and
`of_litert`, with the same arguments.
"""

import keras
import tensorflow as tf

from keras_vit.data.decoding.encoded_images import is_bounded
from keras_vit.data.decoding.model_input import decode, with_channels
from keras_vit.inspection.attention import rollout_outputs, rollout_tensor
from keras_vit.models.vit.geometry import DYNAMIC_SIZE, stem_stride
from keras_vit.preprocessing import bounds
from keras_vit.tasks import get_task

TOP = 5  # classes in the answer of `serving_bytes`


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


def of_images(images, stages, description):
    """The outputs of `serving_default` of a model of whole images.

    Args:
        images: float32 (batch, height, width, channels) in [0, 1].
        stages: A function from such images to what `forward` returns.
        description: The model's `Description`.

    Returns:
        dict of tensors: `logits` and `probabilities` of a classifier, `values` of a regression,
        `representation` of a model without a head; and `rollout` if it was computed.

    Example:
        >>> from keras_vit.export.description import describe
        >>> sorted(of_images(images, lambda images: {"logits": tf.zeros((1, 10))}, describe(model)))
        ['logits', 'probabilities']
    """
    outputs = stages(images)
    rollout = {"rollout": outputs["rollout"]} if "rollout" in outputs else {}
    if description.output == "representation":
        return {"representation": outputs["representation"], **rollout}
    if description.output == "values":
        return {"values": outputs["logits"], **rollout}
    activation = getattr(tf.nn, get_task(description.task).label.activation)
    return {"logits": outputs["logits"], "probabilities": activation(outputs["logits"]), **rollout}


of_litert = of_images  # of a LiteRT file


def of_uint8(images, stages, description):
    """The outputs of `serving_uint8`: of uint8 images of any one size, resized as for evaluation.

    Args:
        images: uint8 (batch, any height, any width, channels).
        stages, description: As for `of_images`.

    Returns:
        dict, as `of_images` returns.
    """
    checks = []
    if description.image_size == DYNAMIC_SIZE:
        checks = [_assert_divisible(images, description)]
    with tf.control_dependencies(checks):
        return of_images(resized(images, description.preprocessing), stages, description)


def of_bytes(image_bytes, stages, description):
    """The outputs of `serving_bytes`: the best classes of a classifier, or the outputs of `serving_default`.

    Args:
        image_bytes: As for `from_bytes`.
        stages, description: As for `of_images`.

    Returns:
        dict of tensors: `scores`, `class_ids` and `classes`, best first, of a classifier.

    Raises:
        tf.errors.InvalidArgumentError: as for `from_bytes`.

    Example:
        >>> from keras_vit.export.description import describe
        >>> png = tf.io.encode_png(tf.zeros((50, 40, 3), tf.uint8))
        >>> stages = lambda images: {"logits": 9 * tf.one_hot([7], 10)}
        >>> of_bytes(tf.stack([png]), stages, describe(model))["classes"][:, :2].numpy()
        array([[b'7', b'0']], dtype=object)
    """
    if description.image_size == DYNAMIC_SIZE:
        outputs = _compute_each(image_bytes, stages, description)
    else:
        outputs = of_images(from_bytes(image_bytes, description), stages, description)
    if "probabilities" not in outputs:
        return outputs
    scores, ids = tf.math.top_k(outputs["probabilities"], min(TOP, description.num_classes))
    return {"scores": scores, "class_ids": ids, "classes": tf.gather(tf.constant(description.labels), ids)}


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
        return description.preprocessing.resized(with_channels(decode(encoded), description.channels)) / 255.0

    spec = tf.TensorSpec((*description.image_size, description.channels), tf.float32)
    return _read_each(image_bytes, read, spec)


def _compute_each(image_bytes, stages, description):
    """The outputs of a model of any size for encoded images, each computed alone at its own size."""
    spec = tf.TensorSpec((None, None, None, description.channels), tf.float32)
    compute = tf.function(
        lambda images: of_images(images, stages, description), input_signature=[spec], autograph=False
    )

    def compute_one(image):
        with tf.control_dependencies([_assert_divisible(image, description)]):
            outputs = compute(resized(image, description.preprocessing))
        return tf.nest.map_structure(lambda x: x[0], outputs)

    batched = compute.get_concrete_function().structured_outputs
    single = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), batched)
    return map_encoded(compute_one, image_bytes, description.channels, single)


def map_encoded(compute, image_bytes, channels, spec, parallel=32):
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

    def read(encoded):  # Images of several sizes stack as serialized tensors: uint8, gray float32.
        return tf.io.serialize_tensor(with_channels(decode(encoded), channels))

    def compute_one(serialized):
        image = tf.io.parse_tensor(serialized, tf.uint8 if channels == 3 else tf.float32)
        return compute(tf.expand_dims(tf.ensure_shape(image, (None, None, channels)), 0))

    images = _read_each(image_bytes, read, tf.TensorSpec((), tf.string))
    return tf.map_fn(compute_one, images, fn_output_signature=spec, parallel_iterations=parallel)


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
    patch, stride = description.patch_size, stem_stride(description.resnet)
    sides = tf.shape(images)[1:3]
    message = tf.strings.format(
        f"images cannot be cut into patches: height and width are {{}}, but after a stride of {stride} "
        f"the patch of {patch} must divide them",
        sides,
    )
    return tf.debugging.Assert(tf.reduce_all(-(-sides // stride) % tf.constant(patch) == 0), [message])
