"""Mosaics: images of a batch side by side, each with a smaller copy of several."""

import tensorflow as tf

from keras_vit.data.boxes import moved, padding_rows
from keras_vit.labels.box_rows import COLUMNS, MAX_BOXES

GRIDS = (1, 2, 3)  # rows and columns of images in a mosaic


def mosaic_augmentation(probabilities):
    """A function that makes mosaics of the images of a batch, with their boxes.

    In a batch every image is equally often at every place of a mosaic, and always at the first place of its
    own.

    Args:
        probabilities: Of a mosaic of 1, 4 and 9 images.

    Returns:
        A function from images (batch, height, width, channels), float32, boxes (batch, `MAX_BOXES`, 7) and a
        seed, two ints, to images and boxes of the same shapes.

    Example:
        >>> from keras_vit.data.boxes import padded
        >>> boxes = padded(tf.constant([[0.0, 0.0, 1.0, 1.0, 2, 0, 1.0]]))
        >>> make = mosaic_augmentation((0.0, 1.0, 0.0))
        >>> images, boxes = make(tf.ones((4, 8, 8, 3)), tf.tile(boxes[tf.newaxis], (4, 1, 1)), [0, 1])
        >>> boxes[0, :5, 4].numpy().tolist(), boxes[0, 0, :4].numpy().tolist()
        ([2.0, 2.0, 2.0, 2.0, -1.0], [0.0, 0.0, 0.5, 0.5])

    Source: `preprocessing/mosaic.py` of OWL-ViT's code, which uses 0.4, 0.3 and 0.3; Bochkovskiy et al. 2020
    (arXiv 2004.10934).
    """

    def blend(images, boxes, seed):
        choice_seed, *seeds = tf.unstack(tf.random.split(seed, 1 + len(GRIDS)))
        count = tf.shape(images)[0]
        drawn = tf.random.stateless_uniform((count,), choice_seed)
        ends = tf.cumsum(tf.constant(probabilities, tf.float32) / sum(probabilities))
        chosen = tf.reduce_sum(tf.cast(drawn[:, tf.newaxis] >= ends[:-1], tf.int32), axis=1)
        mixed_images, mixed_boxes = images, boxes
        for number, (grid, own_seed) in enumerate(zip(GRIDS, seeds)):
            if grid > 1 and probabilities[number]:
                made = _mosaics(images, boxes, grid, own_seed)
                is_chosen = tf.reshape(chosen == number, (-1, 1, 1))
                mixed_boxes = tf.where(is_chosen, made[1], mixed_boxes)
                mixed_images = tf.where(is_chosen[..., tf.newaxis], made[0], mixed_images)
        return mixed_images, mixed_boxes

    return blend


def _mosaics(images, boxes, grid, seed):
    """For each image of a batch a mosaic of grid × grid images, and its boxes."""
    count, (height, width, _) = tf.shape(images)[0], images.shape[1:]
    sides = -(-height // grid), -(-width // grid)
    small = tf.image.resize(images, sides, antialias=True)
    scale = sides[0] / height, sides[1] / width
    tiles, moved_boxes = [], []
    seeds = tf.unstack(tf.random.split(seed, grid**2))
    for position in range(grid**2):
        order = tf.range(count)
        if position:
            order = tf.random.experimental.stateless_shuffle(order, seeds[position])
        tiles.append(tf.gather(small, order))
        down, right = divmod(position, grid)
        drawn_boxes = tf.reshape(tf.gather(boxes, order), (-1, len(COLUMNS)))
        drawn_boxes = moved(drawn_boxes, scale, (down * scale[0], right * scale[1]))
        moved_boxes.append(tf.reshape(drawn_boxes, (count, -1, len(COLUMNS))))
    rows = [tf.concat(tiles[start : start + grid], axis=2) for start in range(0, grid**2, grid)]
    made = tf.concat(rows, axis=1)[:, :height, :width]
    return tf.ensure_shape(made, images.shape), _drawn(tf.concat(moved_boxes, axis=1), boxes, seeds[0])


def _drawn(moved_boxes, boxes, seed):
    """Boxes that are no padding, as many as fit, cut at the edges, in the shape of a batch's."""
    is_padding = moved_boxes[..., 4] < 0
    drawn = tf.random.stateless_uniform(tf.shape(is_padding), seed) + tf.cast(is_padding, tf.float32)
    is_left_out = is_padding | (drawn > tf.sort(drawn, axis=1)[:, MAX_BOXES - 1 : MAX_BOXES])
    order = tf.argsort(tf.cast(is_left_out, tf.int32), axis=1, stable=True)[:, :MAX_BOXES]
    kept = tf.gather(moved_boxes, order, axis=1, batch_dims=1)
    flat = tf.reshape(kept, (-1, len(COLUMNS)))
    cut = tf.concat([tf.clip_by_value(flat[:, :4], 0.0, 1.0), flat[:, 4:]], axis=1)
    cut = tf.where(flat[:, 4:5] < 0, padding_rows(1), cut)
    return tf.ensure_shape(tf.reshape(cut, tf.shape(kept)), boxes.shape)
