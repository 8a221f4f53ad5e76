"""Random views of an image at two sizes, for training without labels; functions of a seed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from keras_vit.data.augmentation.random_augmentation import inception_window
from keras_vit.data.decoding.model_input import cut, decode, with_channels
from keras_vit.preprocessing.image_resizing import resize
from keras_vit.rules import area, boolean, integer, number

if TYPE_CHECKING:
    from keras_vit.preprocessing import Preprocessing

GRAY, SOLARIZE, SOLARIZE_ABOVE = 0.2, 0.2, 128
BLURS = (1.0, 0.1)  # the probability of a blur of the global views, in turn
LOCAL_BLUR = 0.5
SIGMA = 0.1, 2.0  # of the blur, in pixels
# The largest changes of brightness, contrast and saturation by factors, and of the hue in turns.
JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1}


def view_augmentation(
    preprocessing: Preprocessing,
    global_area: tuple[float, float] = (0.4, 1.0),
    local_area: tuple[float, float] = (0.05, 0.4),
    num_local: int = 8,
    local_size: int = 96,
    flip: bool = True,
    photometric: float = 0.8,
    exif: bool = True,
) -> Callable[..., dict[str, tf.Tensor]]:
    """A function from an encoded image to two global views and several smaller local ones.

    Each view is a random rectangle, as of `inception_window`, mirrored with a probability of 1/2. Its
    brightness, contrast, saturation and hue change with the probability `photometric`, and it becomes gray
    with one of 0.2. It is blurred by a Gaussian of 0.1 to 2 pixels, the first global view always, the second
    with a probability of 0.1, and a local one with 0.5. Of the second global view, the values of 128 and more
    are inverted with a probability of 0.2.

    The authors' code differs in two points: it draws the logarithm of the aspect ratio uniformly, and
    Pillow's blur is an approximation by means.

    Args:
        preprocessing: `Preprocessing`, whose size is that of the global views.
        global_area, local_area: Smallest and largest fraction of the image that a view covers.
        num_local: Number of local views.
        local_size: Their height and width in pixels.
        flip: Whether to mirror half of the views.
        photometric: A probability; 0: no change of values at all, also no blur.
        exif: Whether to apply the EXIF orientation first.

    Returns:
        A function from an encoded image and a seed, two ints, to a dict of `global_views`, float32 (2,
        height, width, channels), and unless `num_local` is 0 `local_views`, float32 (num_local, local_size,
        local_size, channels), as model input.

    Raises:
        ValueError: for a preprocessing without a size, or a number out of its range.

    Example:
        >>> augment = view_augmentation(Preprocessing(32), num_local=4, local_size=16)
        >>> views = augment(tf.io.encode_png(tf.zeros((40, 50, 3), tf.uint8)), [0, 1])
        >>> views["global_views"].shape, views["local_views"].shape
        (TensorShape([2, 32, 32, 3]), TensorShape([4, 16, 16, 3]))

    Source: Caron et al. 2021 (DINO), section 3.1 and appendix B; `DataAugmentationDINO` of
    `facebookresearch/dino`.
    """
    if preprocessing.image_size is None:
        raise ValueError("expected a preprocessing with an image_size, that of the global views; got None")
    area.check("global_area", global_area)
    area.check("local_area", local_area)
    integer(at_least=0).check("num_local", num_local)
    integer(at_least=1).check("local_size", local_size)
    boolean.check("flip", flip)
    number(0, 1).check("photometric", photometric)

    def view(image, seed, covered, size, blur, solarize):
        crop_seed, flip_seed, value_seed = tf.unstack(tf.random.split(seed, 3))
        pixels = resize(cut(image, inception_window(crop_seed, covered)), size, preprocessing)
        pixels = tf.image.stateless_random_flip_left_right(pixels, flip_seed) if flip else pixels
        if photometric:
            pixels = random_values(pixels, value_seed, photometric, blur, solarize)
        return preprocessing.normalize(pixels)

    def augment(encoded, seed):
        image = with_channels(decode(encoded, exif), preprocessing.channels)
        seeds = tf.unstack(tf.random.split(seed, len(BLURS) + num_local))
        global_view = (global_area, preprocessing.image_size)
        local_view = (local_area, (local_size, local_size))
        first, second = (
            view(image, *each, blur, solarize)
            for each, blur, solarize in zip(((s, *global_view) for s in seeds), BLURS, (0.0, SOLARIZE))
        )
        views = {"global_views": tf.stack([first, second])}
        if num_local:
            local = [view(image, each, *local_view, LOCAL_BLUR, 0.0) for each in seeds[len(BLURS) :]]
            views["local_views"] = tf.stack(local)
        return views

    return augment


def random_values(pixels, seed, jitter=0.8, blur=0.5, solarize=0.0):
    """Change colors, blur and invert bright values, each with a probability.

    Args:
        pixels: float32 (height, width, 1 or 3) in [0, 255]; saturation, hue and grayscale need 3 channels.
        seed: Two ints; the same seed changes in the same way.
        jitter: The probability of changes of brightness, contrast, saturation and hue, in a random order.
        blur, solarize: The probabilities of a Gaussian blur, and of the inversion of values of 128 and more.

    Returns:
        float32 of the same shape, in [0, 255].

    Example:
        >>> float(random_values(tf.fill((16, 16, 3), 200.0), [0, 1], 0.0, 0.0, solarize=1.0)[0, 0, 0])
        55.0
    """
    choice_seed, amount_seed, order_seed = tf.unstack(tf.random.split(seed, 3))
    choices = tf.unstack(tf.random.stateless_uniform((4,), choice_seed))
    *amounts, sigma = tf.unstack(tf.random.stateless_uniform((5,), amount_seed, -1, 1))
    changes = [_brightness, _contrast] + ([_saturation, _hue] if pixels.shape[-1] == 3 else [])
    amounts = [amount * most for amount, most in zip(amounts, JITTER.values())]
    order = tf.unstack(tf.argsort(tf.random.stateless_uniform((len(changes),), order_seed)))
    low, high = SIGMA

    def jittered():
        x = pixels
        for number_of_change in order:
            branches = [functools.partial(change, x, amount) for change, amount in zip(changes, amounts)]
            x = tf.clip_by_value(tf.switch_case(number_of_change, branches), 0, 255)
        return x

    def gray(x):
        return tf.repeat(tf.image.rgb_to_grayscale(x), 3, axis=-1)

    x = tf.cond(choices[0] < jitter, jittered, lambda: pixels)
    if pixels.shape[-1] == 3:
        x = tf.cond((choices[1] < GRAY) & (jitter > 0), lambda: gray(x), lambda: x)
    x = tf.cond(choices[2] < blur, lambda: gaussian_blur(x, low + (high - low) * (sigma + 1) / 2), lambda: x)
    solarized = tf.where(x < SOLARIZE_ABOVE, x, 255 - x)
    return tf.ensure_shape(tf.where(choices[3] < solarize, solarized, x), pixels.shape)


def gaussian_blur(pixels, sigma):
    """Average the pixels of an image with weights that fall like a Gaussian with their distance.

    At the border the weights of the pixels inside sum to 1.

    Args:
        pixels: float32 (height, width, channels).
        sigma: The standard deviation in pixels, above 0.

    Example:
        >>> gaussian_blur(tf.ones((4, 6, 3)), 1.5).shape
        TensorShape([4, 6, 3])
    """

    def weights(side):
        places = tf.range(side, dtype=tf.float32)
        return tf.nn.softmax(-tf.square(places[:, tf.newaxis] - places) / (2 * sigma**2), axis=1)

    height, width = pixels.shape[:2]
    return tf.einsum("ij,jkc,lk->ilc", weights(height), pixels, weights(width))


def _brightness(x, amount):
    return x * (1 + amount)


def _contrast(x, amount):
    mean = tf.reduce_mean(tf.image.rgb_to_grayscale(x) if x.shape[-1] == 3 else x)
    return mean + (x - mean) * (1 + amount)


def _saturation(x, amount):
    gray = tf.image.rgb_to_grayscale(x)
    return gray + (x - gray) * (1 + amount)


def _hue(x, amount):
    return tf.image.adjust_hue(x / 255, amount) * 255
