"""Boxes of objects in images: how they move with their image, and are padded."""

import tensorflow as tf

from keras_vit.labels.box_rows import COLUMNS, MAX_BOXES, PADDING

MIN_VISIBLE = 0.25  # the least fraction of a box that is in the image, for it to be trained on
STREAM = 0x626F7865  # makes the random numbers independent of others of the same seed


def moved(boxes, scale, offset):
    """Boxes at `scale` · position + `offset`.

    Args:
        boxes: (boxes, 7): rows of `COLUMNS`, which are float32 from here on.
        scale, offset: float32 (2,): (down, right), in fractions of the image's sides.

    Example:
        >>> moved(tf.constant([[0.0, 0.0, 0.5, 1.0, 2, 0, 0.5]]), [1.0, 2.0], [0.0, -0.5]).numpy().tolist()
        [[-0.5, 0.0, 0.5, 1.0, 2.0, 0.0, 1.0]]
    """
    boxes = tf.cast(boxes, tf.float32)
    scale, offset = (tf.reverse(tf.cast(tf.stack(each), tf.float32), [0]) for each in (scale, offset))
    sides = boxes[:, :4] * tf.tile(scale, [2]) + tf.tile(offset, [2])
    return tf.concat([sides, boxes[:, 4:6], boxes[:, 6:] * tf.reduce_prod(scale)], axis=1)


def mirrored(boxes, is_mirrored):
    """Boxes of an image whose left and right are exchanged.

    >>> mirrored(tf.constant([[0.0, 0.0, 0.25, 1.0, 2, 0, 0.25]]), tf.constant(True)).numpy().tolist()
    [[0.75, 0.0, 1.0, 1.0, 2.0, 0.0, 0.25]]
    """
    left, right = 1 - boxes[:, 2:3], 1 - boxes[:, 0:1]
    return tf.where(is_mirrored, tf.concat([left, boxes[:, 1:2], right, boxes[:, 3:]], axis=1), boxes)


def visible(boxes, least=MIN_VISIBLE):
    """The boxes of which a fraction is in the image, cut at its edges.

    >>> rows = [[-0.5, 0.0, 0.5, 1.0, 2, 0, 1.0], [-0.9, 0.0, 0.1, 1.0, 2, 0, 1.0]]
    >>> visible(tf.constant(rows)).numpy().tolist()
    [[0.0, 0.0, 0.5, 1.0, 2.0, 0.0, 0.5]]
    """
    sides = tf.clip_by_value(boxes[:, :4], 0.0, 1.0)
    fraction = tf.math.divide_no_nan(_areas(sides), _areas(boxes))
    boxes = tf.concat([sides, boxes[:, 4:6], boxes[:, 6:] * fraction[:, tf.newaxis]], axis=1)
    return tf.boolean_mask(boxes, (fraction >= least) & (_areas(sides) > 0))


def prepared(boxes, size, preprocessing):
    """Boxes as the label of an image that a `Preprocessing` has resized: float32 (`MAX_BOXES`, 7).

    Args:
        boxes: float64 (boxes, 7).
        size: int32 (2,), the height and width of the image itself.
        preprocessing: `Preprocessing`.

    Example:
        >>> rows = tf.constant([[0.0, 0.0, 0.5, 1.0, 2, 0, 0.5]])
        >>> prepared(rows, [30, 60], keras_vit.Preprocessing(16))[:2, 4].numpy().tolist()
        [2.0, -1.0]
        >>> cropped = prepared(rows, [30, 60], keras_vit.Preprocessing(16, resize="crop"))
        >>> cropped[0, :4].numpy().tolist()
        [0.0, 0.0, 0.5, 1.0]
    """
    return padded(visible(moved(boxes, *placement(size, preprocessing)), least=0.0))


def trained(boxes, seed):
    """The boxes of a training image, as of `padded`, without crowds, whose objects are unknown.

    Of more than `MAX_BOXES` boxes, the seed, two ints, draws these.

    >>> crowd, box = [0.0, 0.0, 1.0, 1.0, 2, 1, 1.0], [0.0, 0.0, 0.5, 1.0, 3, 0, 0.5]
    >>> trained(tf.constant([crowd, box]), [0, 1])[:2, 4].numpy().tolist()
    [3.0, -1.0]
    """
    boxes = tf.boolean_mask(boxes, boxes[:, 5] == 0)
    order = tf.random.experimental.stateless_shuffle(tf.range(tf.shape(boxes)[0]), _box_seed(seed))
    return padded(tf.gather(boxes, tf.sort(order[:MAX_BOXES])))


def placement(size, preprocessing):
    """The scale and the offset of `moved` for an image that a `Preprocessing` has resized.

    >>> scale, offset = placement([30, 60], keras_vit.Preprocessing(16, resize="crop"))
    >>> scale.numpy().tolist(), offset.numpy().tolist()
    ([1.0, 2.0], [0.0, -0.5])
    """
    corner, shown = preprocessing.window(*tf.unstack(tf.cast(tf.stack(size), tf.int64)))
    return 1 / shown, (0.0 - corner) / shown


def padded(boxes):
    """The first `MAX_BOXES` boxes, or rows of zeros with the class `PADDING` after them.

    >>> padded(tf.zeros((3, 7))).shape
    TensorShape([100, 7])
    """
    boxes = boxes[:MAX_BOXES]
    rows = padding_rows(MAX_BOXES - tf.shape(boxes)[0])
    return tf.ensure_shape(tf.concat([boxes, rows], axis=0), (MAX_BOXES, len(COLUMNS)))


def padding_rows(count):
    """Rows that are no boxes.

    >>> padding_rows(1).numpy().tolist()
    [[0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0]]
    """
    return tf.pad(tf.fill((count, 1), float(PADDING)), [(0, 0), (4, len(COLUMNS) - 5)])


def _box_seed(seed):
    return tf.random.fold_in(tf.cast(tf.stack(seed), tf.int64), STREAM)


def _areas(boxes):
    return tf.reduce_prod(tf.maximum(boxes[:, 2:4] - boxes[:, :2], 0.0), axis=1)
