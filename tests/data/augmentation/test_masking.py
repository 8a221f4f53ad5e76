import numpy as np
import pytest
import tensorflow as tf
from made.tables import by_table

from keras_vit.data.augmentation.masking import corruption, masked_patch_batches, random_order_batches


def sampled(images, patches, seed=(0, 0), **fractions):
    sources, corrupted = (x.numpy() for x in corruption(images, patches, seed, **fractions))
    assert sources.shape == corrupted.shape == (images, patches)
    assert (sources.dtype, corrupted.dtype) == (np.int32, bool)
    return sources, corrupted


@by_table("patches, rate, count", [(9, 0.5, 4), (11, 0.25, 3), (4, 1.0, 4), (7, 0.01, 1)])
def test_every_image_has_the_same_number_of_corrupted_patches(patches, rate, count):
    _, corrupted = sampled(30, patches, corrupt_rate=rate)
    assert (corrupted.sum(axis=1) == count).all()


@pytest.mark.parametrize("mask, other", [(0.8, 0.1), (0.0, 0.6)])
def test_corrupted_patches_are_masked_replaced_or_kept_by_the_fractions_and_others_unchanged(mask, other):
    sources, corrupted = sampled(1000, 20, mask_fraction=mask, random_fraction=other)
    own = np.broadcast_to(np.arange(20), sources.shape)
    np.testing.assert_array_equal(sources[~corrupted], own[~corrupted])
    masked, kept = (sources == -1)[corrupted], (sources == own)[corrupted]
    replaced = ~masked & ~kept  # by another patch, never by itself
    for found, fraction in ((masked, mask), (replaced, other), (kept, 1 - mask - other)):
        assert abs(found.mean() - fraction) <= 4 * np.sqrt(fraction * (1 - fraction) / 10_000) + 1e-9


def test_the_corruption_is_a_function_of_both_seeds():
    sources, _ = sampled(4, 16, (3, 5))
    np.testing.assert_array_equal(sampled(4, 16, (3, 5))[0], sources)
    for other in ((3, 6), (4, 5), (5, 3)):
        assert (sampled(4, 16, other)[0] != sources).any()
    assert len({tuple(row) for row in sources}) == 4, "each image has its own"


def classes(images):
    """Four patches per image, with one class each."""
    return tf.cast(tf.reshape(images[:, ::2, ::2, 0], (tf.shape(images)[0], 4)), tf.int32)


IMAGES = tf.data.Dataset.from_tensor_slices(tf.random.stateless_uniform((3, 4, 4, 4, 3), [0, 0], 0, 100))


def corrupted_batches(images=IMAGES, targets=classes, **options):
    return [*masked_patch_batches(images, targets, **{"seed": 1, **options}).as_numpy_iterator()]


def assert_same(actual, expected):
    tf.nest.map_structure(np.testing.assert_array_equal, actual, expected)


def test_images_come_with_their_sources_targets_and_weights():
    for (inputs, targets, weights), images in zip(corrupted_batches(), IMAGES):
        np.testing.assert_array_equal(inputs["images"], images)
        np.testing.assert_array_equal(targets, classes(images))
        np.testing.assert_array_equal(np.sort(weights), [[0, 0, 2, 2]] * 4)
        assert ((inputs["sources"] == np.arange(4)) | (weights == 2)).all()


@pytest.mark.parametrize("dtype, shape", [(tf.int32, (4, 4, 16)), (tf.float32, (4, 4))])
def test_there_is_a_weight_for_each_loss(dtype, shape):
    def many(images):
        return tf.cast(tf.repeat(classes(images)[..., tf.newaxis], 16, axis=2), dtype)

    for (_, _, weights), (_, _, expected) in zip(corrupted_batches(targets=many), corrupted_batches()):
        assert weights.shape == shape
        assert (weights.reshape(4, 4, -1) == expected[..., np.newaxis]).all()


def test_a_resumed_run_gets_the_same():
    expected = corrupted_batches()
    assert_same(corrupted_batches(IMAGES.skip(2), first_step=2), expected[2:])
    assert (corrupted_batches(IMAGES.skip(2))[0][0]["sources"] != expected[2][0]["sources"]).any()


def test_workers_have_their_parts_of_the_same_global_batch():
    parts = []
    for worker in range(2):
        own = IMAGES.map(lambda images, start=2 * worker: images[start : start + 2])
        parts.append(corrupted_batches(own, worker=worker, workers=2))
    joined = [tf.nest.map_structure(lambda *x: np.concatenate(x), *batch) for batch in zip(*parts)]
    assert_same(joined, corrupted_batches())


def test_batches_may_be_smaller_or_empty_and_of_dynamic_size():
    dynamic = IMAGES.unbatch().batch(8)
    inputs, _, weights = masked_patch_batches(dynamic, classes, seed=0).element_spec
    assert inputs["sources"].shape.as_list() == weights.shape.as_list() == [None, 4]
    assert [len(weights) for _, _, weights in corrupted_batches(dynamic)] == [8, 4]
    ((inputs, targets, weights),) = corrupted_batches(tf.data.Dataset.from_tensors(tf.zeros((0, 4, 4, 3))))
    assert inputs["sources"].shape == targets.shape == weights.shape == (0, 4)


def orders(images=IMAGES, **options):
    return [*random_order_batches(images, 9, **{"seed": 1, **options}).as_numpy_iterator()]


def test_each_image_has_an_order_by_seed_and_step():
    whole = orders()
    for (inputs,), images in zip(whole, IMAGES, strict=True):
        np.testing.assert_array_equal(inputs["images"], images)
        assert inputs["order"].dtype == np.int32
        np.testing.assert_array_equal(np.sort(inputs["order"], axis=1), [range(9)] * 4)
    assert len({tuple(row) for (inputs,) in whole for row in inputs["order"]}) == 12
    assert_same(orders(IMAGES.skip(1), first_step=1), whole[1:])
    assert (orders(seed=2)[0][0]["order"] != whole[0][0]["order"]).any()
    halves = IMAGES.map(lambda x: x[:2]), IMAGES.map(lambda x: x[2:])
    parts = [orders(half, worker=i, workers=2) for i, half in enumerate(halves)]
    for (inputs,), *of_workers in zip(whole, *parts, strict=True):
        found = np.concatenate([own["order"] for (own,) in of_workers])
        np.testing.assert_array_equal(found, inputs["order"])


def test_patches_are_visible_equally_often():
    many = tf.data.Dataset.from_tensors(tf.zeros((3000, 1, 1, 1)))
    order = orders(many)[0][0]["order"]
    counts = np.bincount(order[:, :3].ravel(), minlength=9)
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(3000 * 2 / 9)


def test_labels_are_passed_on_and_batches_may_be_empty():
    labeled = tf.data.Dataset.from_tensors((tf.zeros((0, 4, 4, 3)), tf.zeros(0)))
    ((inputs, labels),) = orders(labeled)
    assert (inputs["order"].shape, labels.shape) == ((0, 9), (0,))
    inputs, _ = random_order_batches(labeled.unbatch().batch(8), 9, seed=0).element_spec
    assert inputs["order"].shape.as_list() == [None, 9]


@pytest.mark.parametrize(
    "fractions, message",
    [
        ({"corrupt_rate": 0}, r"corrupt_rate must be a number in \(0, 1\]; got 0"),
        ({"mask_fraction": 0.8, "random_fraction": 0.3}, r"mask_fraction \+ random_fraction must .* got 1.1"),
    ],
)
def test_fractions_out_of_range_are_refused(fractions, message):
    with pytest.raises(ValueError, match=message):
        corruption(2, 4, (0, 0), **fractions)
    with pytest.raises(ValueError, match=message):
        masked_patch_batches(IMAGES, classes, seed=0, **fractions)
