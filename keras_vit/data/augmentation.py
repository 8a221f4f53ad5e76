"""What changes training images at random, every draw a function of a seed."""

import dataclasses
import functools
import json
import numbers

import keras
import tensorflow as tf

from keras_vit.data.images import decode, decode_window, normalise, resize, resized, with_channels
from keras_vit.data.keras_layers import apply_layer, apply_rand_augment, is_exact

NEED_A_SIZE = ("crop_area", "randaugment", "random_erasing", "cutmix")
MIXING_LAYERS = (keras.layers.MixUp, keras.layers.CutMix)


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_share(value):
    return _is_number(value) and 0 <= value <= 1


def _is_pair(value):
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value))


def _is_rand_augment(value):
    return _is_pair(value) and isinstance(value[0], int) and value[0] > 0 and 0 < value[1] <= 1


# What a field must be, in words and as a test.
RULES = {
    "crop_area": (
        "(smallest, largest) in (0, 1] or None",
        lambda v: v is None or _is_pair(v) and 0 < v[0] <= v[1] <= 1,
    ),
    **dict.fromkeys(("shift", "mixup", "cutmix", "random_erasing"), ("a number in [0, 1]", _is_share)),
    "flip": ("True or False", lambda v: isinstance(v, bool)),
    "randaugment": (
        "(number of layers, magnitude in (0, 1]) or None",
        lambda v: v is None or _is_rand_augment(v),
    ),
    "layers": ("a tuple of Keras layers", lambda v: isinstance(v, tuple | list)),
}


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What changes training images at random; by default nothing does.

    The changes of single images come in the order of the fields. They work on pixels in [0, 255],
    and what they draw depends on the seed and on the image's position in the run. Then, in a whole
    batch, each image is blended with another by `mixup` or `cutmix` and the labels in the same
    proportion; where both are on, each batch gets one of them with even chances.

    Args:
        crop_area: Smallest and largest share of the image for random crops, or None for none.
        shift: Largest random shift as a share of the image's side, in [0, 1].
        flip: Whether half of the images are mirrored.
        randaugment: (layers, magnitude) of `keras.layers.RandAugment`: how many changes one after
            the other, and the largest strength of each, its `factor` in (0, 1]. That is not the
            scale of the paper and of AugReg, which goes to 10 and beyond; or None for none.
        layers: Keras layers that take images (batch, height, width, channels), `keras_cv.layers`
            among them, or what `keras.saving.serialize_keras_object` made of them, as which they are
            kept.
        random_erasing: The probability that a random rectangle becomes noise.
        mixup: The parameter of MixUp's Beta distribution; 0 for none.
        cutmix: The parameter of CutMix's Beta distribution; 0 for none.

    Raises:
        ValueError: for a number that cannot be, or a layer that cannot be rebuilt from its
            configuration.

    Example:
        >>> Augmentation(crop_area=(0.05, 1.0), flip=True, mixup=0.2).is_exact
        True
        >>> Augmentation(layers=[keras.layers.RandomBrightness(0.2)]).layers[0]["class_name"]
        'RandomBrightness'

    Source: `vit_jax/input_pipeline.py` for crop and flip; arXiv:1909.13719 (RandAugment), 1708.04896
    (erasing), 1710.09412 (MixUp), 1905.04899 (CutMix).
    """

    crop_area: tuple[float, float] | None = None
    shift: float = 0.0
    flip: bool = False
    randaugment: tuple[int, float] | None = None
    layers: tuple[dict, ...] = ()
    random_erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self):
        for name, (rule, fits) in RULES.items():
            value = getattr(self, name)
            if not fits(value):
                raise ValueError(f"{name} must be {rule}; got {value!r}")
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        object.__setattr__(self, "layers", tuple(map(_serialised, self.layers)))

    @property
    def mixes(self):
        """Whether images are blended with others, so that labels must be one number per class."""
        return bool(self.mixup or self.cutmix)

    @functools.cached_property
    def is_exact(self):
        """Whether every draw comes from the seed, so that a run that was cut off goes on with the same
        batches. It is so unless `layers` draw from elsewhere."""
        return all(is_exact(_layer(config)) for config in self.layers)


def _serialised(layer):
    """A layer as its configuration, once it is sure that this says everything about it."""
    try:
        config = keras.saving.serialize_keras_object(layer) if isinstance(layer, keras.Layer) else layer
        config = json.loads(json.dumps(config))
        layer = _layer(config)
    except (TypeError, ValueError, KeyError, NotImplementedError) as error:
        raise ValueError(
            "layers must be Keras layers that keras.saving can rebuild from their configuration (register "
            f"your own with @keras.saving.register_keras_serializable()); got {layer!r}: {_first_line(error)}"
        ) from None
    if not isinstance(layer, keras.Layer):
        raise ValueError(f"layers must be Keras layers; got {config!r}")
    if isinstance(layer, MIXING_LAYERS):
        raise ValueError(f"give {layer.name} by the field mixup or cutmix: it changes labels as well")
    if layer.weights:
        raise ValueError(f"layer {layer.name!r} has weights, which its configuration does not hold")
    return config


def _first_line(error):
    return str(error).strip().partition("\n")[0]


def _layer(config):
    return keras.saving.deserialize_keras_object(config)


def image_augmentation(augmentation, preprocessing, exif=True):
    """How an encoded image becomes a training image.

    Args:
        augmentation: Augmentation.
        preprocessing: What the model reads.
        exif: Whether to apply the EXIF orientation, before all changes.

    Returns:
        A function of an encoded image and a seed, two ints: float32 (height, width, channels) as the
        model reads it.

    Raises:
        ValueError: where the preprocessing has no size and a change needs one, or RandAugment is asked
            for and images are not in colour.

    Example:
        >>> augment = image_augmentation(Augmentation(crop_area=(0.05, 1.0)), Preprocessing(32))
        >>> augment(tf.io.encode_png(tf.zeros((40, 50, 3), tf.uint8)), [0, 1]).shape
        TensorShape([32, 32, 3])
    """
    wanting = [name for name in NEED_A_SIZE if getattr(augmentation, name)]
    if wanting and preprocessing.image_size is None:
        raise ValueError(f"{', '.join(wanting)}: needs one size; give the preprocessing an image_size")
    if augmentation.randaugment and preprocessing.channels != 3:
        raise ValueError(
            f"randaugment changes colours, but the model reads {preprocessing.channels} channel(s)"
        )
    changes = _changes(augmentation)

    def augment(encoded, seed):
        crop_seed, shift_seed, flip_seed, *seeds = tf.unstack(tf.random.split(seed, 3 + len(changes)))
        if augmentation.crop_area:
            pixels = random_crop(encoded, crop_seed, preprocessing, augmentation.crop_area, exif)
        else:
            pixels = resized(with_channels(decode(encoded, exif), preprocessing.channels), preprocessing)
        if augmentation.shift:
            pixels = random_shift(pixels, shift_seed, augmentation.shift)
        if augmentation.flip:
            pixels = random_flip(pixels, flip_seed)
        for (apply, layer), layer_seed in zip(changes, seeds):
            changed = apply(layer, tf.expand_dims(pixels, 0), layer_seed)
            pixels = tf.ensure_shape(tf.cast(changed[0], tf.float32), pixels.shape)
        return normalise(pixels, preprocessing)

    return augment


def _changes(augmentation):
    """(how it is applied, layer) for each Keras layer that changes single images."""
    changes = [(apply_layer, _layer(config)) for config in augmentation.layers]
    if augmentation.randaugment:
        count, magnitude = augmentation.randaugment
        layer = keras.layers.RandAugment((0, 255), count, magnitude, dtype="float32")
        changes.insert(0, (apply_rand_augment, layer))
    if augmentation.random_erasing:
        always = (augmentation.random_erasing,) * 2  # one number would be a range from 0
        changes.append((apply_layer, keras.layers.RandomErasing(always, dtype="float32")))
    return changes


def batch_augmentation(augmentation):
    """How images and labels of a batch are blended with each other.

    Args:
        augmentation: Augmentation.

    Returns:
        A function of images (batch, height, width, channels), labels (batch, classes), both float32,
        and a seed, two ints: images and labels.

    Example:
        >>> blend = batch_augmentation(Augmentation(mixup=0.2))
        >>> images, labels = blend(tf.ones((4, 8, 8, 3)), tf.one_hot([0, 1, 2, 0], 3), [0, 1])
        >>> labels.shape
        TensorShape([4, 3])
    """
    layers = []
    if augmentation.mixup:
        layers.append(keras.layers.MixUp(augmentation.mixup, dtype="float32"))
    if augmentation.cutmix:
        layers.append(keras.layers.CutMix((augmentation.cutmix,) * 2, dtype="float32"))

    def blend(images, labels, seed):
        if labels.shape.rank != 2 or not labels.dtype.is_floating:
            raise ValueError(
                f"mixing needs float labels (batch, classes); got {labels.dtype.name} {labels.shape}"
            )
        choice_seed, layer_seed = tf.unstack(tf.random.split(seed, 2))

        def by(layer):
            mixed = apply_layer(layer, {"images": images, "labels": labels}, layer_seed)
            return tf.ensure_shape(mixed["images"], images.shape), tf.ensure_shape(
                mixed["labels"], labels.shape
            )

        chosen = tf.random.stateless_uniform((), choice_seed, 0, len(layers), tf.int32)
        return tf.switch_case(chosen, [functools.partial(by, layer) for layer in layers])

    return blend


def random_crop(encoded, seed, preprocessing, area=(0.05, 1.0), exif=True):
    """Decode a random rectangle of an image and resize it to the model's size ("Inception crop").

    Args:
        encoded: The content of an image file.
        seed: Two ints; the same seed crops the same rectangle.
        preprocessing: Gives the size, the interpolation and the channels.
        area: Smallest and largest share of the image that the crop covers; its aspect ratio lies
            between 3:4 and 4:3.
        exif: Whether to apply the EXIF orientation, before the crop.

    Returns:
        float32 (height, width, channels) in [0, 255].

    Example:
        >>> png = tf.io.encode_png(tf.zeros((40, 50, 3), tf.uint8))
        >>> random_crop(png, [0, 1], Preprocessing(32)).shape
        TensorShape([32, 32, 3])

    Source: `vit_jax/input_pipeline.py`.
    """

    def window(shape):
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.concat([shape, [3]], 0),
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            seed,
            min_object_covered=0.0,
            aspect_ratio_range=(0.75, 1.33),
            area_range=area,
            max_attempts=100,
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([begin[:2], size[:2]], 0)

    image = with_channels(decode_window(encoded, window, exif), preprocessing.channels)
    pixels = resize(image, preprocessing.image_size, preprocessing)
    return tf.ensure_shape(pixels, (*preprocessing.image_size, preprocessing.channels))


def random_shift(image, seed, fraction):
    """Move an image by up to `fraction` of each side; what comes in at the border is black.

    Args:
        image: float32 (height, width, channels) in [0, 255].
        seed: Two ints; the same seed moves it the same way.
        fraction: Largest shift as a share of the side, in [0, 1]; not in whole pixels.

    Returns:
        float32 (height, width, channels), interpolated bilinearly.

    Example:
        >>> random_shift(tf.zeros((16, 16, 3)), [0, 1], fraction=0.1).shape
        TensorShape([16, 16, 3])
    """
    shape = tf.shape(image)[:2]
    down, right = tf.unstack(tf.random.stateless_uniform((2,), seed, -fraction, fraction))
    down, right = down * tf.cast(shape[0], tf.float32), right * tf.cast(shape[1], tf.float32)
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.expand_dims(image, 0),
        transforms=[[1.0, 0.0, -right, 0.0, 1.0, -down, 0.0, 0.0]],
        output_shape=shape,
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )
    return tf.ensure_shape(moved[0], image.shape)


def random_flip(image, seed):
    """Mirror the image left to right, for half of all seeds.

    Example:
        >>> random_flip(tf.zeros((16, 16, 3)), [0, 1]).shape
        TensorShape([16, 16, 3])

    Source: `vit_jax/input_pipeline.py`.
    """
    return tf.image.stateless_random_flip_left_right(image, seed)
