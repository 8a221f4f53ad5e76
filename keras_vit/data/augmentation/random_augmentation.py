"""Random augmentation of training images, a function of a seed."""

import functools

import keras
import tensorflow as tf

from keras_vit.data.augmentation.keras_layers import apply_layer, apply_rand_augment
from keras_vit.data.augmentation.options import Augmentation as Augmentation
from keras_vit.data.boxes import placement
from keras_vit.data.decoding.model_input import cut, decode, decode_window, with_channels
from keras_vit.data.maps import in_batches, nearest, resized_map
from keras_vit.preprocessing.image_resizing import resize

NEED_IMAGE_SIZE = ("crop_area", "scale_jitter", "randaugment", "random_erasing", "cutmix")
PHOTOMETRIC = 0x70686F74  # makes its random numbers independent of others of the same seed


def image_augmentation(augmentation, preprocessing, exif=True, kind=None):
    """A function from an encoded image to a training image.

    Args:
        augmentation: `Augmentation`.
        preprocessing: `Preprocessing`, or a dict of them, one for each input of the model.
        exif: Whether to apply the EXIF orientation first.
        kind: The `LabelKind` of labels that move with the image; None without these.

    Returns:
        A function from an encoded image and a seed, two ints, to model input: float32 (height, width,
        channels). With a label as third argument, a map (height, width, channels) of the image's size or
        boxes (boxes, 7), it returns the input and the label, which has moved with the image: the map as
        `data.maps.in_batches` returns it, or the boxes as `data.boxes.padded` does. With several inputs the
        first is a dict of them, changed in the same way; the label moves with the first one.

    Raises:
        ValueError: if the preprocessing has no size and a change needs one, for RandAugment of images that
            are not in color, or for `rotate`.

    Example:
        >>> augment = image_augmentation(Augmentation(crop_area=(0.05, 1.0)), Preprocessing(32))
        >>> png = tf.io.encode_png(tf.zeros((40, 50, 3), tf.uint8))
        >>> augment(png, [0, 1]).shape
        TensorShape([32, 32, 3])
        >>> masks = keras_vit.labels.label_kind("segmentation")
        >>> augment = image_augmentation(Augmentation(flip=True), Preprocessing(32), kind=masks)
        >>> augment(png, [0, 1], tf.zeros((40, 50, 1), tf.uint8))[1].shape
        TensorShape([32, 32])
    """
    if isinstance(preprocessing, dict):
        functions = {
            name: image_augmentation(augmentation, one, exif, kind) for name, one in preprocessing.items()
        }
        return functools.partial(_in_all, functions)
    _check(augmentation, preprocessing)
    changes = _changes(augmentation)

    def augment(encoded, seed, label=None):
        seeds = tf.unstack(tf.random.split(seed, 3 + len(changes)))
        place_seeds, change_seeds = seeds[:3], seeds[3:]
        window = augmentation.crop_area and inception_window(place_seeds[0], augmentation.crop_area)
        needs_size = label is not None and not kind.is_map  # Boxes are relative to the whole image.
        if window and not needs_size:
            image = decode_window(encoded, window, exif)
        else:
            image = decode(encoded, exif)
            size = tf.shape(image)[:2]
            image = cut(image, window) if window else image
        pixels = _move(with_channels(image, preprocessing.channels), place_seeds, augmentation, preprocessing)
        if augmentation.photometric:
            photo_seed = tf.random.fold_in(tf.cast(tf.stack(seed), tf.int64), PHOTOMETRIC)
            pixels = random_photometric(pixels, photo_seed, augmentation.photometric)
        for (apply, layer), layer_seed in zip(changes, change_seeds):
            changed = apply(layer, tf.expand_dims(pixels, 0), layer_seed)
            pixels = tf.ensure_shape(tf.cast(changed[0], tf.float32), pixels.shape)
        pixels = preprocessing.normalize(pixels)
        if label is None:
            return pixels
        size = size if needs_size else tf.shape(label)[:2]
        moves = _augmented_placement(size, window, place_seeds[0], augmentation, preprocessing)
        if needs_size:
            geometry = kind.geometry()
            label = _move_objects(geometry, label, moves, place_seeds, augmentation)
            return pixels, geometry.trained(label, seed)
        # How much larger than in evaluation it is shown: the geometric mean of both axes.
        enlarged = tf.sqrt(tf.reduce_prod(moves[0] / placement(size, preprocessing)[0]))
        label = cut(label, window) if window else label
        label = _move(label, place_seeds, augmentation, nearest(preprocessing), kind.outside)
        label = in_batches(label, kind)
        if augmentation.flip:
            label = kind.mirrored(label, _is_mirrored(place_seeds[2]))
        return pixels, kind.zoomed(label, enlarged)

    return augment


def _check(augmentation, preprocessing):
    """Raise ValueError for changes that images of this preprocessing cannot have."""
    names = [name for name in NEED_IMAGE_SIZE if getattr(augmentation, name)]
    if names and preprocessing.image_size is None:
        raise ValueError(f"{', '.join(names)} need a preprocessing with an image_size; got None")
    if augmentation.randaugment and preprocessing.channels != 3:
        raise ValueError(f"randaugment needs 3 channels; the model reads {preprocessing.channels}")
    if augmentation.rotate:
        raise ValueError(f"rotate is for keypoints, which turn with their image; got {augmentation.rotate}")


def _move(values, seeds, augmentation, preprocessing, outside=None):
    """An image, or a map that moves with it, whose pixels are `outside` where the image ends."""
    crop_seed, shift_seed, flip_seed = seeds
    if augmentation.crop_area:
        values = resize(values, preprocessing.image_size, preprocessing)
    elif augmentation.scale_jitter:
        values = random_scale(values, crop_seed, preprocessing, augmentation.scale_jitter, outside)
    else:
        values = resized_map(values, preprocessing, outside)
    if augmentation.shift:
        values = random_shift(values, shift_seed, augmentation.shift, outside)
    return tf.image.stateless_random_flip_left_right(values, flip_seed) if augmentation.flip else values


def _move_objects(geometry, label, moves, seeds, augmentation):
    """The label of an image that is moved by a scale and an offset, by a module of `LabelKind`."""
    _, shift_seed, flip_seed = seeds
    label = geometry.visible(geometry.moved(label, *moves))  # A shift does not bring back what was cut off.
    if augmentation.shift:
        label = geometry.moved(label, tf.ones(2), shift_fractions(shift_seed, augmentation.shift))
        label = geometry.visible(label)
    return geometry.mirrored(label, _is_mirrored(flip_seed)) if augmentation.flip else label


def _is_mirrored(flip_seed):
    """Whether an image with this seed is mirrored."""
    row = tf.image.stateless_random_flip_left_right(tf.constant([[[0.0], [1.0]]]), flip_seed)
    return row[0, 0, 0] > 0


def _augmented_placement(size, window, crop_seed, augmentation, preprocessing):
    """As `placement`, of an image of a size (height, width) that is cropped or scaled by chance."""
    if window:
        top_left, extent = tf.split(tf.cast(window(size), tf.float32), 2)
        return tf.cast(size, tf.float32) / extent, -top_left / extent
    if augmentation.scale_jitter:
        numbers = scaled_place(crop_seed, size, preprocessing, augmentation.scale_jitter)
        extent, kept, corner, before = (tf.cast(number, tf.float32) for number in numbers)
        factor, sides = kept / extent, tf.constant(preprocessing.image_size, tf.float32)
        return tf.cast(size, tf.float32) * factor / sides, (before - corner * factor) / sides
    return placement(size, preprocessing)


def _in_all(functions, encoded, seed, label=None):
    """A dict of the inputs that functions make of an image, and with a label that of the first."""
    first, *others = functions
    inputs = functions[first](encoded, seed, label)
    inputs, *labels = inputs if label is not None else (inputs,)
    inputs = {first: inputs, **{name: functions[name](encoded, seed) for name in others}}
    return (inputs, *labels) if labels else inputs


def _changes(augmentation):
    """(the function that applies it, layer) for each Keras layer that changes single images."""
    changes = [(apply_layer, keras.saving.deserialize_keras_object(config)) for config in augmentation.layers]
    if augmentation.randaugment:
        count, magnitude = augmentation.randaugment
        layer = keras.layers.RandAugment((0, 255), count, magnitude, dtype="float32")
        changes.insert(0, (apply_rand_augment, layer))
    if augmentation.random_erasing:
        probability = (augmentation.random_erasing,) * 2  # A single number would be a range from 0.
        changes.append((apply_layer, keras.layers.RandomErasing(probability, dtype="float32")))
    return changes


def batch_augmentation(augmentation):
    """A function that blends the images and labels of a batch with each other.

    Args:
        augmentation: `Augmentation`.

    Returns:
        A function from images (batch, height, width, channels), or a dict of several inputs, labels (batch,
        classes), both float32, and a seed, two ints, to images and labels.

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
                f"mixing expected float labels (batch, classes); got {labels.dtype.name} {labels.shape}"
            )
        choice_seed, layer_seed = tf.unstack(tf.random.split(seed, 2))

        def by(layer):
            new_labels = []  # the same for all inputs

            def mix(part):
                mixed = apply_layer(layer, {"images": part, "labels": labels}, layer_seed)
                new_labels.append(tf.ensure_shape(mixed["labels"], labels.shape))
                return tf.ensure_shape(mixed["images"], part.shape)

            return tf.nest.map_structure(mix, images), new_labels[0]

        chosen = tf.random.stateless_uniform((), choice_seed, 0, len(layers), tf.int32)
        return tf.switch_case(chosen, [functools.partial(by, layer) for layer in layers])

    return blend


def inception_window(seed, area):
    """The random rectangle that is cropped of an image ("Inception crop"), as `decode_window` takes it.

    Args:
        seed: Two ints; the same seed crops the same rectangle.
        area: Smallest and largest fraction of the image that the crop covers; its aspect ratio is between
            3:4 and 4:3.

    Returns:
        A function from an image's shape (height, width) to int32 (4,): the top, the left, the height and the
        width.

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

    return window


def random_scale(image, seed, preprocessing, jitter, outside=None):
    """Resize an image by a random factor, and crop or pad it to the model's size at a random place.

    Args:
        image: uint8 or float32 (height, width, channels) in [0, 255].
        seed: Two ints; the same seed gives the same image.
        preprocessing: `Preprocessing`, of which the size, interpolation and mean are used.
        jitter: The smallest and the largest factor; at 1 the image just covers the model's size.
        outside: The value of pixels that the image does not cover; None: the mean color.

    Returns:
        float32 (height, width, channels).

    Example:
        >>> random_scale(tf.zeros((40, 50, 3)), [0, 1], Preprocessing(32), (0.5, 2.0)).shape
        TensorShape([32, 32, 3])

    Source: DeepLabv3 (arXiv:1706.05587, section 4.1).
    """
    extent, size, corner, before = scaled_place(seed, tf.shape(image)[:2], preprocessing, jitter)
    padding = tf.pad(tf.stack([before, preprocessing.image_size - size - before], 1), [(0, 1), (0, 0)])
    kept = cut(image, lambda shape: tf.concat([corner, extent], 0))
    resized = resize(kept, (size[0], size[1]), preprocessing)
    if outside is None:
        mean = tf.constant(preprocessing.mean, tf.float32) * 255
        padded = tf.pad(resized - mean, padding) + mean
    else:
        padded = tf.pad(resized, padding, constant_values=outside)
    return tf.ensure_shape(padded, (*preprocessing.image_size, image.shape[-1]))


def scaled_place(seed, shape, preprocessing, jitter):
    """Where `random_scale` puts which part of an image.

    Args:
        seed, preprocessing, jitter: As for `random_scale`.
        shape: The image's (height, width), int32 (2,).

    Returns:
        int32 (2,) each, (down, right): the extent of the part and the size that it is resized to, in pixels;
        its corner in the image, and its corner in the result.

    Example:
        >>> extent, size, *_ = scaled_place([0, 1], tf.constant([40, 50]), Preprocessing(32), (1.0, 1.0))
        >>> extent.numpy().tolist(), size.numpy().tolist()
        ([40, 40], [32, 32])
    """
    scale_seed, place_seed, pad_seed = tf.unstack(tf.random.split(seed, 3))
    target, sides = tf.constant(preprocessing.image_size, tf.float32), tf.cast(shape, tf.float32)
    factor = tf.random.stateless_uniform((), scale_seed, *jitter) * tf.reduce_max(target / sides)
    extent = tf.clip_by_value(tf.round(target / factor), 1.0, sides)  # what is kept of the image
    size = tf.where(target / factor > sides, tf.clip_by_value(tf.round(sides * factor), 1.0, target), target)
    corner = tf.floor(tf.random.stateless_uniform((2,), place_seed) * (sides - extent + 1))
    before = tf.floor(tf.random.stateless_uniform((2,), pad_seed) * (target - size + 1))
    numbers = (extent, size, tf.minimum(corner, sides - extent), tf.minimum(before, target - size))
    return tuple(tf.cast(each, tf.int32) for each in numbers)


def random_photometric(pixels, seed, probability):
    """Change brightness, contrast, saturation and hue, each with a probability, as in the training of SSD.

    Args:
        pixels: float32 (height, width, channels) in [0, 255]; saturation and hue need three channels.
        seed: Two ints; the same seed changes in the same way.
        probability: Of each change, in [0, 1].

    Returns:
        float32 of the same shape, in [0, 255].

    Example:
        >>> float(random_photometric(tf.zeros((16, 16, 3)), [0, 1], 0.0)[0, 0, 0])
        0.0

    Source: Liu et al. 2016 (arXiv:1512.02325) and its authors' code.
    """
    seed = tf.cast(tf.stack(seed), tf.int64)
    choices = tf.random.stateless_uniform((5,), tf.random.fold_in(seed, 0))
    amounts = tf.random.stateless_uniform((4,), tf.random.fold_in(seed, 1), -1, 1)

    def changed(pixels, number, change):
        return tf.cond(
            choices[number] < probability,
            lambda: tf.clip_by_value(change(pixels, amounts[number]), 0, 255),
            lambda: pixels,
        )

    def contrast(pixels):
        return changed(pixels, 1, lambda x, amount: x * (1 + amount / 2))

    pixels = changed(pixels, 0, lambda x, amount: x + 32 * amount)
    contrast_first = choices[4] < 0.5
    pixels = tf.cond(contrast_first, lambda: contrast(pixels), lambda: pixels)
    if pixels.shape[-1] == 3:
        pixels = changed(
            pixels, 2, lambda x, amount: tf.image.adjust_saturation(x / 255, 1 + amount / 2) * 255
        )
        pixels = changed(pixels, 3, lambda x, amount: tf.image.adjust_hue(x / 255, amount * 18 / 360) * 255)
    return tf.cond(contrast_first, lambda: pixels, lambda: contrast(pixels))


def random_shift(image, seed, fraction, outside=None):
    """Shift an image by up to `fraction` of each side.

    Args:
        image: float32 (height, width, channels) in [0, 255].
        seed: Two ints; the same seed shifts by the same vector.
        fraction: Largest shift as a fraction of the side, in [0, 1]; at subpixel precision.
        outside: Of a map, the value of the exposed border; None: an image, whose border is black.

    Returns:
        float32 (height, width, channels): of an image interpolated bilinearly, of a map the nearest pixels.

    Example:
        >>> random_shift(tf.zeros((16, 16, 3)), [0, 1], fraction=0.1).shape
        TensorShape([16, 16, 3])
    """
    shape = tf.shape(image)[:2]
    shift = shift_fractions(seed, fraction) * tf.cast(shape, tf.float32)
    down, right = tf.unstack(shift)
    shifted = tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.expand_dims(image, 0),
        transforms=[[1.0, 0.0, -right, 0.0, 1.0, -down, 0.0, 0.0]],
        output_shape=shape,
        fill_value=float(outside or 0),
        interpolation="BILINEAR" if outside is None else "NEAREST",
        fill_mode="CONSTANT",
    )
    return tf.ensure_shape(shifted[0], image.shape)


def shift_fractions(seed, fraction):
    """(down, right) of `random_shift`, as fractions of the sides: float32 (2,)."""
    return tf.random.stateless_uniform((2,), seed, -fraction, fraction)
