"""The loss of queries that predict masks and classes: matching, then cross-entropy, dice and classes."""

import keras
from keras import ops

from keras_vit.models.matching import assign
from keras_vit.tasks.segmentation_scores import IGNORE

OVERSAMPLING = 3  # points that are drawn for each one that is compared
IMPORTANT = 0.75  # fraction of the compared points that are the most uncertain ones
CLASS_WEIGHT, MASK_WEIGHT, DICE_WEIGHT, NO_OBJECT_WEIGHT = 2.0, 5.0, 5.0, 0.1


def query_loss(masks, classes, labels, draw=keras.random.uniform, num_points=12544):
    """The loss of one prediction of queries against maps of class numbers.

    Each class of an image is one target mask, which is matched with the query of the least cost. Masks are
    compared at random points, most of them where the prediction is uncertain; points in ignored pixels do
    not count. As in `SegmentationCrossEntropy`, a class out of range makes the loss NaN.

    Args:
        masks: Logits (batch, height, width, queries).
        classes: Logits (batch, queries, classes + 1); the last stands for no object.
        labels: Class numbers (batch, height, width), of any resolution; 255 is ignored.
        draw: A function of a shape that returns random numbers in [0, 1).
        num_points: Number of points for each mask.

    Returns:
        float32 (batch,): the loss of each image. For one image it is the published loss. That of a batch
        divides by the number of masks and the weights of the classes of all images, so that it would depend
        on how a batch is divided among devices.

    Example:
        >>> masks, classes = np.zeros((2, 4, 4, 3)), np.zeros((2, 3, 3))
        >>> query_loss(masks, classes, np.zeros((2, 8, 8), "int32"), num_points=16).shape
        TensorShape([2])

    Source: Kerssies et al. 2025 (EoMT), section 3.1; Cheng et al. 2022 (Mask2Former), sections 3.3 and 4.1.
    """
    masks, classes = ops.cast(masks, "float32"), ops.cast(classes, "float32")
    count = classes.shape[-1] - 1
    labels = ops.cast(labels, "int32")
    is_class = (labels >= 0) & (labels < count)
    is_wrong = ops.any(~is_class & (labels != IGNORE), axis=(1, 2))
    labels = ops.where(is_class, labels, count)
    batch, height, width, _ = ops.shape(masks)

    # Slots: the classes of an image, those that it has first.
    numbers = ops.arange(count, dtype="int32")
    is_present = _present(labels, count)  # (b, k)
    slots = ops.argsort(ops.where(is_present, numbers, numbers + count), axis=1)
    slots = ops.cast(slots, "int32")  # (b, t): the class of each slot
    present = ops.take_along_axis(ops.cast(is_present, "float32"), slots, axis=1)
    total = ops.sum(present, axis=1)

    points = draw((batch, num_points, 2))
    costs = _costs(masks, classes, labels, slots, points)
    queries = assign(ops.stop_gradient(costs), ops.cast(total, "int32"))  # (b, t), or -1
    chosen = ops.one_hot(queries, classes.shape[1], dtype="float32")  # (b, t, q)

    # Classes
    has_mask = ops.sum(chosen, axis=1)
    target = ops.sum(chosen * ops.cast(ops.expand_dims(slots, 2), "float32"), axis=1)
    target = ops.where(has_mask > 0, ops.cast(target, "int32"), count)
    weight = ops.where(has_mask > 0, 1.0, NO_OBJECT_WEIGHT)
    log_probabilities = ops.log_softmax(classes)
    found = ops.take_along_axis(log_probabilities, ops.expand_dims(target, 2), axis=2)[..., 0]
    class_loss = -ops.sum(weight * found, axis=1) / ops.sum(weight, axis=1)

    # Masks, each with points of its own
    matched = ops.einsum("btq,bhwq->bthw", chosen, masks)
    matched = ops.reshape(matched, (batch * count, height, width, 1))
    points = _uncertain_points(ops.stop_gradient(matched), draw, (batch, count), num_points)
    logits = ops.reshape(sample(matched, points), (batch, count, num_points))
    points = ops.reshape(points, (batch, count * num_points, 2))
    inside, valid = 0.0, 1.0
    for number, share in _neighbours(labels, points):
        number, share = (ops.reshape(x, (batch, count, num_points)) for x in (number, share))
        inside += share * ops.cast(number == ops.expand_dims(slots, 2), "float32")
        valid -= share * ops.cast(number == count, "float32")
    entropy = inside * ops.softplus(-logits) + (valid - inside) * ops.softplus(logits)
    entropy = ops.sum(entropy, axis=2) / ops.maximum(ops.sum(valid, axis=2), 1e-6)
    probability = ops.sigmoid(logits)
    overlap = 2 * ops.sum(probability * inside, axis=2)
    dice = 1 - (overlap + 1) / (ops.sum(probability * valid, axis=2) + ops.sum(inside, axis=2) + 1)
    mask_loss = ops.sum(present * (MASK_WEIGHT * entropy + DICE_WEIGHT * dice), axis=1)
    loss = CLASS_WEIGHT * class_loss + mask_loss / ops.maximum(total, 1.0)
    return ops.where(is_wrong, float("nan"), loss)


def sample(maps, points):
    """The values of maps at points, interpolated bilinearly between pixel centres; 0 outside.

    Args:
        maps: (batch, height, width, channels).
        points: (batch, points, 2): x and y in [0, 1].

    Returns:
        (batch, points, channels).

    Example:
        >>> maps, points = np.array([0.0, 1.0]).reshape(1, 1, 2, 1), np.array([[[0.5, 0.5]]])
        >>> sample(maps.astype("float32"), points.astype("float32")).numpy().item()
        0.5

    Source: `point_sample` of Mask2Former; torch's `grid_sample` with `align_corners=False`.
    """
    return sum(value * ops.expand_dims(share, 2) for value, share in _neighbours(maps, points))


def _neighbours(maps, points):
    """The values of the four pixels around each point, and their shares, which are 0 outside the map."""
    maps = ops.convert_to_tensor(maps)
    batch, height, width, *channels = ops.shape(maps)
    rows = ops.reshape(maps, (batch * height * width, *channels))
    first = ops.expand_dims(ops.arange(batch, dtype="int32") * (height * width), 1)
    x = points[..., 0] * ops.cast(width, "float32") - 0.5
    y = points[..., 1] * ops.cast(height, "float32") - 0.5
    left, top = ops.floor(x), ops.floor(y)
    for right in (0, 1):
        for below in (0, 1):
            column, row = ops.cast(left, "int32") + right, ops.cast(top, "int32") + below
            share = (x - left if right else 1 - x + left) * (y - top if below else 1 - y + top)
            is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            column, row = ops.clip(column, 0, width - 1), ops.clip(row, 0, height - 1)
            value = ops.take(rows, first + row * width + column, axis=0)
            yield value, ops.where(is_inside, share, 0.0)


def _present(labels, count):
    """Whether each image has each class, bool (batch, classes); `count` stands for no class."""
    batch = ops.shape(labels)[0]
    labels = ops.reshape(labels, (batch, -1))
    index = labels + ops.expand_dims(ops.arange(batch, dtype="int32") * (count + 1), 1)
    index = ops.reshape(index, (-1, 1))
    pixels = ops.scatter(index, ops.ones_like(index[:, 0]), (batch * (count + 1),))
    return ops.reshape(pixels, (batch, count + 1))[:, :count] > 0


def _costs(masks, classes, labels, slots, points):
    """The cost (batch, slots, queries) of matching each class of an image with each query."""
    count = classes.shape[-1] - 1
    logits = sample(masks, points)  # (b, p, q)
    inside, valid = 0.0, 1.0
    for number, share in _neighbours(labels, points):
        inside += ops.expand_dims(share, 2) * ops.one_hot(number, count, dtype="float32")
        valid -= share * ops.cast(number == count, "float32")
    inside = ops.take_along_axis(inside, ops.expand_dims(slots, 1), axis=2)  # (b, p, t)
    valid = ops.expand_dims(valid, 2)
    size = ops.maximum(ops.transpose(ops.sum(valid, axis=1, keepdims=True), (0, 2, 1)), 1e-6)
    outside = valid - inside
    entropy = ops.einsum("bpt,bpq->btq", inside, ops.softplus(-logits))
    entropy += ops.einsum("bpt,bpq->btq", outside, ops.softplus(logits))
    probability = ops.sigmoid(logits)
    overlap = 2 * ops.einsum("bpt,bpq->btq", inside, probability)
    sizes = ops.expand_dims(ops.sum(probability * valid, axis=1), 1)
    sizes += ops.expand_dims(ops.sum(inside, axis=1), 2)
    dice = 1 - (overlap + 1) / (sizes + 1)
    probabilities = ops.take_along_axis(ops.softmax(classes), ops.expand_dims(slots, 1), axis=2)
    likely = ops.transpose(probabilities, (0, 2, 1))
    return MASK_WEIGHT * entropy / size + DICE_WEIGHT * dice - CLASS_WEIGHT * likely


def _uncertain_points(masks, draw, slots, num_points):
    """Points (batch · slots, num_points, 2), most of them where the logits are closest to 0."""
    batch, count = slots
    drawn = draw((batch, count, OVERSAMPLING * num_points, 2))
    drawn = ops.reshape(drawn, (batch * count, OVERSAMPLING * num_points, 2))
    kept = int(IMPORTANT * num_points)
    _, index = ops.top_k(-ops.abs(sample(masks, drawn)[..., 0]), kept)
    uncertain = ops.take_along_axis(drawn, ops.expand_dims(ops.cast(index, "int32"), 2), axis=1)
    others = draw((batch, count, num_points - kept, 2))
    others = ops.reshape(others, (batch * count, num_points - kept, 2))
    return ops.concatenate([uncertain, others], axis=1)
