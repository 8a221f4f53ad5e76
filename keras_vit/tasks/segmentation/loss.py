"""The loss of queries that predict masks and classes: matching, then cross-entropy, dice and classes."""

import keras
from keras import ops

from keras_vit.labels import IGNORE, check_class_count
from keras_vit.tasks.segmentation.matching import assign

OVERSAMPLING = 3  # points that are drawn for each one that is compared
IMPORTANT = 0.75  # fraction of the compared points that are the most uncertain ones
CLASS_WEIGHT, MASK_WEIGHT, DICE_WEIGHT, NO_OBJECT_WEIGHT = 2.0, 5.0, 5.0, 0.1


def query_loss(masks, classes, labels, draw=keras.random.uniform, num_points=12544):
    """The loss of one prediction of queries against maps of class numbers.

    Each class of an image is one target mask, which is matched with the query of the least cost; of more
    classes than queries, those with the most pixels are. Masks are compared at random points, most of them
    where the prediction is uncertain; points in ignored pixels do not count. As in
    `SegmentationCrossEntropy`, a class out of range makes the loss NaN.

    The masks of an image are compared one after the other, and each one's gradient is computed with it. So
    the time grows with the largest number of classes in an image, and the memory is that of one mask of each
    image, of two arrays (batch, num_points, queries), and of the gradient, which has the size of `masks`.

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

    Raises:
        ValueError: for more than 255 classes.

    Example:
        >>> masks, classes = np.zeros((2, 4, 4, 3)), np.zeros((2, 3, 3))
        >>> query_loss(masks, classes, np.zeros((2, 8, 8), "int32"), num_points=16).shape
        TensorShape([2])

    Source: Kerssies et al. 2025 (EoMT), section 3.1; Cheng et al. 2022 (Mask2Former), sections 3.3 and 4.1.
    """
    masks, classes = ops.cast(masks, "float32"), ops.cast(classes, "float32")
    num_queries, count = classes.shape[1], classes.shape[-1] - 1
    check_class_count(count)
    labels = ops.cast(labels, "int32")
    is_class = (labels >= 0) & (labels < count)
    is_wrong = ops.any(~is_class & (labels != IGNORE), axis=(1, 2))
    labels = ops.where(is_class, labels, count)
    batch = ops.shape(masks)[0]

    # Slots: the classes of an image, the largest first.
    pixels, slots = ops.top_k(_pixels(labels, count), min(count, num_queries))
    slots = ops.cast(slots, "int32")  # (b, t): the class of each slot
    total = ops.sum(ops.cast(pixels > 0, "int32"), axis=1)

    points = draw((batch, num_points, 2))
    costs = _costs(ops.stop_gradient(masks), ops.stop_gradient(classes), labels, slots, total, points)
    queries = assign(costs, total)  # (b, t), or -1

    # Classes
    chosen = ops.one_hot(queries, num_queries, dtype="float32")  # (b, t, q)
    has_mask = ops.sum(chosen, axis=1)
    target = ops.sum(chosen * ops.cast(ops.expand_dims(slots, 2), "float32"), axis=1)
    target = ops.where(has_mask > 0, ops.cast(target, "int32"), count)
    weight = ops.where(has_mask > 0, 1.0, NO_OBJECT_WEIGHT)
    log_probabilities = ops.log_softmax(classes)
    target_probabilities = ops.take_along_axis(log_probabilities, ops.expand_dims(target, 2), axis=2)[..., 0]
    class_loss = -ops.sum(weight * target_probabilities, axis=1) / ops.sum(weight, axis=1)

    # Masks. Each has other points: the image's, moved by a shift of its own around the edges.
    kept = int(IMPORTANT * num_points)
    candidates = draw((batch, OVERSAMPLING * num_points, 2))
    random_points = draw((batch, num_points - kept, 2))
    shifts = ops.convert_to_tensor(draw((batch, slots.shape[1], 2)))

    @ops.custom_gradient
    def mask_loss(masks):
        def compare(slot, loss, gradient):
            query, number = queries[:, slot], slots[:, slot]
            chosen = ops.one_hot(query, num_queries, dtype="float32")  # (b, q), 0 without a class
            chosen = ops.reshape(chosen, (batch, 1, 1, num_queries))
            matched = ops.sum(masks * chosen, axis=3, keepdims=True)
            shift = ops.expand_dims(shifts[:, slot], 1)
            drawn = (candidates + shift) % 1.0
            _, index = ops.top_k(-ops.abs(sample(matched, drawn)[..., 0]), kept)
            uncertain = ops.take_along_axis(drawn, ops.expand_dims(ops.cast(index, "int32"), 2), axis=1)
            points = ops.concatenate([uncertain, (random_points + shift) % 1.0], axis=1)
            logits = sample(matched, points)[..., 0]
            value, slope = _compared(logits, *_targets(labels, points, number, count))
            is_present = ops.cast(slot < total, "float32")
            slope = _spread(slope * ops.expand_dims(is_present, 1), points, matched)
            return loss + is_present * value, gradient + slope * chosen

        start = ops.zeros_like(masks[:, 0, 0, 0]), ops.zeros_like(masks)
        loss, gradient = _for_each_slot(total, compare, *start)
        divisor = ops.cast(ops.maximum(total, 1), "float32")

        def gradients(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            return gradient * ops.reshape(upstream / divisor, (batch, 1, 1, 1))

        return loss / divisor, gradients

    loss = CLASS_WEIGHT * class_loss + mask_loss(masks)
    return ops.where(is_wrong, float("nan"), loss)


def sample(maps, points):
    """The values of maps at points, interpolated bilinearly between pixel centers; 0 outside.

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
    return sum(value * ops.expand_dims(share, 2) for value, share in _neighbors(maps, points))


def _spread(values, points, maps):
    """The gradient of `sample` for maps of one channel: from values (batch, points) to that of the maps."""
    batch, height, width, _ = ops.shape(maps)
    corners = [*_corners(batch, height, width, points)]
    index = ops.reshape(ops.concatenate([index for index, _ in corners], axis=1), (-1, 1))
    shares = ops.reshape(ops.concatenate([share * values for _, share in corners], axis=1), (-1,))
    return ops.reshape(ops.scatter(index, shares, (batch * height * width,)), (batch, height, width, 1))


def _neighbors(maps, points):
    """The values of the four pixels around each point, and their shares, which are 0 outside the map."""
    maps = ops.convert_to_tensor(maps)
    batch, height, width, *channels = ops.shape(maps)
    rows = ops.reshape(maps, (batch * height * width, *channels))
    for index, share in _corners(batch, height, width, points):
        yield ops.take(rows, index, axis=0), share


def _corners(batch, height, width, points):
    """The indices, in all maps, of the four pixels around each point, and their bilinear weights."""
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
            yield first + row * width + column, ops.where(is_inside, share, 0.0)


def _pixels(labels, count):
    """The number of pixels of each class, int32 (batch, classes); `count` stands for no class."""
    batch = ops.shape(labels)[0]
    labels = ops.reshape(labels, (batch, -1))
    index = labels + ops.expand_dims(ops.arange(batch, dtype="int32") * (count + 1), 1)
    index = ops.reshape(index, (-1, 1))
    pixels = ops.scatter(index, ops.ones_like(index[:, 0]), (batch * (count + 1),))
    return ops.reshape(pixels, (batch, count + 1))[:, :count]


def _for_each_slot(total, body, *start):
    """The values after a function of a slot and values for each slot that an image of the batch has."""
    most = ops.max(total, initial=0)
    slot = ops.convert_to_tensor(0, "int32")
    return ops.while_loop(
        lambda slot, *_: slot < most, lambda slot, *values: (slot + 1, *body(slot, *values)), (slot, *start)
    )[1:]


def _targets(labels, points, number, count):
    """How much of each point is in a class of each image, and in any: both (batch, points)."""
    inside, valid, number = 0.0, 1.0, ops.expand_dims(number, 1)
    for found, share in _neighbors(labels, points):
        inside += share * ops.cast(found == number, "float32")
        valid -= share * ops.cast(found == count, "float32")
    return inside, valid


def _compared(logits, inside, valid):
    """The loss (batch,) of logits (batch, points) of one mask of each image, and its derivatives."""
    points = ops.maximum(ops.sum(valid, axis=1, keepdims=True), 1e-6)
    entropy = valid * ops.softplus(logits) - inside * logits
    probability = ops.sigmoid(logits)
    numerator = 2 * ops.sum(probability * inside, axis=1, keepdims=True) + 1
    denominator = ops.sum(probability * valid + inside, axis=1, keepdims=True) + 1
    value = MASK_WEIGHT * ops.sum(entropy, axis=1, keepdims=True) / points
    value += DICE_WEIGHT * (1 - numerator / denominator)
    slope = MASK_WEIGHT * (valid * probability - inside) / points
    dice_slope = (numerator / denominator * valid - 2 * inside) / denominator
    return value[:, 0], slope + DICE_WEIGHT * dice_slope * probability * (1 - probability)


def _costs(masks, classes, labels, slots, total, points):
    """The cost (batch, slots, queries) of matching each class of an image with each query."""
    count = classes.shape[-1] - 1
    logits = sample(masks, points)  # (b, p, q)
    probability = ops.sigmoid(logits)
    likely = ops.softmax(classes)[..., :-1]
    _, valid = _targets(labels, points, slots[:, 0], count)
    size = ops.maximum(ops.sum(valid, axis=1, keepdims=True), 1e-6)
    softplus = ops.einsum("bp,bpq->bq", valid, ops.softplus(logits))
    areas = ops.einsum("bp,bpq->bq", valid, probability)

    def add(slot, costs):
        inside, _ = _targets(labels, points, slots[:, slot], count)
        entropy = (softplus - ops.einsum("bp,bpq->bq", inside, logits)) / size
        overlap = 2 * ops.einsum("bp,bpq->bq", inside, probability)
        dice = 1 - (overlap + 1) / (areas + ops.sum(inside, axis=1, keepdims=True) + 1)
        number = ops.reshape(slots[:, slot], (-1, 1, 1))
        right = ops.take_along_axis(likely, number, axis=2)[..., 0]
        cost = MASK_WEIGHT * entropy + DICE_WEIGHT * dice - CLASS_WEIGHT * right
        is_slot = ops.reshape(ops.arange(slots.shape[1], dtype="int32") == slot, (1, -1, 1))
        return (ops.where(is_slot, ops.expand_dims(cost, 1), costs),)

    start = ops.zeros((ops.shape(slots)[0], slots.shape[1], classes.shape[1]))
    (costs,) = _for_each_slot(total, add, start)
    return costs
