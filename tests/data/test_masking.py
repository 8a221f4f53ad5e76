import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.masking import corruption, masked_patch_batches


def drawn(images, patches, seed=(0, 0), **shares):
    sources, corrupted = (x.numpy() for x in corruption(images, patches, seed, **shares))
    assert sources.shape == corrupted.shape == (images, patches)
    assert (sources.dtype, corrupted.dtype) == (np.int32, bool)
    return sources, corrupted


@pytest.mark.parametrize(
    "patches, rate, count", [(16, 0.5, 8), (9, 0.5, 4), (11, 0.25, 3), (4, 1.0, 4), (1, 0.5, 1), (7, 0.01, 1)]
)
def test_every_image_has_the_same_number_of_corrupted_patches(patches, rate, count):
    _, corrupted = drawn(30, patches, corrupt_rate=rate)
    assert (corrupted.sum(axis=1) == count).all()


def test_a_patch_that_is_not_corrupted_stays_where_it_is():
    sources, corrupted = drawn(50, 20)
    own = np.broadcast_to(np.arange(20), sources.shape)
    np.testing.assert_array_equal(sources[~corrupted], own[~corrupted])
    assert sources.min() == -1
    assert sources.max() == 19


@pytest.mark.parametrize("shares", [(0.8, 0.1), (0.5, 0.3), (0.0, 0.6), (0.3, 0.7)])
def test_the_corrupted_are_shared_out_as_asked(shares):
    sources, corrupted = drawn(1000, 20, mask_share=shares[0], random_share=shares[1])
    own = np.broadcast_to(np.arange(20), sources.shape)
    masked, kept = (sources == -1)[corrupted], (sources == own)[corrupted]
    other = ~masked & ~kept  # another patch is never the patch itself
    for found, share in ((masked, shares[0]), (other, shares[1]), (kept, 1 - sum(shares))):
        assert abs(found.mean() - share) <= 4 * np.sqrt(share * (1 - share) / 10_000) + 1e-9


def test_every_place_and_every_other_patch_is_as_likely():
    sources, corrupted = drawn(4000, 10, mask_share=0.0, random_share=1.0)
    assert (np.abs(corrupted.mean(axis=0) - 0.5) < 4 * 0.5 / np.sqrt(4000)).all()
    jumps = (sources - np.arange(10))[corrupted] % 10
    counts = np.bincount(jumps, minlength=10)
    assert counts[0] == 0
    assert (np.abs(counts[1:] / 20_000 - 1 / 9) < 4 * np.sqrt(1 / 9 * 8 / 9 / 20_000)).all()


def test_the_draws_are_a_function_of_both_seeds():
    sources, _ = drawn(4, 16, (3, 5))
    np.testing.assert_array_equal(drawn(4, 16, (3, 5))[0], sources)
    for other in ((3, 6), (4, 5), (5, 3)):
        assert (drawn(4, 16, other)[0] != sources).any()
    assert len({tuple(row) for row in sources}) == 4, "each image has its own"


def classes(images):
    """Four patches an image, one class each."""
    return tf.cast(tf.reshape(images[:, ::2, ::2, 0], (tf.shape(images)[0], 4)), tf.int32)


def pictures(batches=3, batch=4):
    images = tf.random.stateless_uniform((batches, batch, 4, 4, 3), [0, 0], 0, 100)
    return tf.data.Dataset.from_tensor_slices(images)


def listed(batches):
    return [tf.nest.map_structure(lambda x: x.numpy(), batch) for batch in batches]


def assert_same(actual, expected):
    tf.nest.map_structure(np.testing.assert_array_equal, actual, expected)


def test_images_pass_with_their_sources_targets_and_weights():
    for batch, images in zip(listed(masked_patch_batches(pictures(), classes, seed=1)), pictures()):
        inputs, targets, weights = batch
        np.testing.assert_array_equal(inputs["images"], images)
        np.testing.assert_array_equal(targets, classes(images))
        np.testing.assert_array_equal(np.sort(weights), [[0, 0, 2, 2]] * 4)
        assert ((inputs["sources"] == np.arange(4)) | (weights == 2)).all()


@pytest.mark.parametrize("targets, losses", [("classes", (4, 4, 16)), ("numbers", (4, 4))])
def test_there_is_a_weight_for_each_loss(targets, losses):
    def many(images):
        repeated = tf.repeat(classes(images)[..., tf.newaxis], 16, axis=2)
        return repeated if targets == "classes" else tf.cast(repeated, tf.float32)

    dataset = masked_patch_batches(pictures(), many, seed=1)
    plain = listed(masked_patch_batches(pictures(), classes, seed=1))
    assert dataset.element_spec[2].shape == (4, 4, 16)[: len(losses)]
    for (_, _, weights), (_, _, expected) in zip(listed(dataset), plain):
        assert weights.shape == losses
        assert (weights.reshape(4, 4, -1) == expected[..., np.newaxis]).all()


def test_labels_are_left_out():
    labelled = pictures().map(lambda images: (images, tf.zeros(4)))
    expected = listed(masked_patch_batches(pictures(), classes, seed=1))
    assert_same(listed(masked_patch_batches(labelled, classes, seed=1)), expected)


def test_a_run_that_starts_later_gets_the_same():
    expected = listed(masked_patch_batches(pictures(), classes, seed=1))
    later = masked_patch_batches(pictures().skip(2), classes, seed=1, first_step=2)
    assert_same(listed(later), expected[2:])
    wrong = listed(masked_patch_batches(pictures().skip(2), classes, seed=1))
    assert (wrong[0][0]["sources"] != expected[2][0]["sources"]).any()


def test_workers_have_their_parts_of_the_same_global_batch():
    expected = listed(masked_patch_batches(pictures(), classes, seed=1))
    parts = []
    for worker in range(2):
        mine = pictures().map(lambda images, start=2 * worker: images[start : start + 2])
        parts.append(listed(masked_patch_batches(mine, classes, seed=1, worker=worker, workers=2)))
    joined = [tf.nest.map_structure(lambda *x: np.concatenate(x), *batch) for batch in zip(*parts)]
    assert_same(joined, expected)


def test_the_shapes_are_known_as_far_as_the_images_are():
    inputs, targets, weights = masked_patch_batches(pictures(), classes, seed=0).element_spec
    assert inputs["sources"].shape == targets.shape == weights.shape == (4, 4)
    free = pictures().unbatch().batch(8)
    inputs, _, weights = masked_patch_batches(free, classes, seed=0).element_spec
    assert inputs["sources"].shape.as_list() == weights.shape.as_list() == [None, 4]
    sizes = [len(weights) for _, _, weights in masked_patch_batches(free, classes, seed=0)]
    assert sizes == [8, 4], "the last batch may be smaller"


def test_a_batch_of_no_images_stays_one():
    empty = tf.data.Dataset.from_tensors(tf.zeros((0, 4, 4, 3)))
    ((inputs, targets, weights),) = masked_patch_batches(empty, classes, seed=0)
    assert inputs["sources"].shape == targets.shape == weights.shape == (0, 4)


@pytest.mark.parametrize(
    "shares, message",
    [
        ({"corrupt_rate": 0}, r"corrupt_rate must be in \(0, 1\]; got 0"),
        ({"corrupt_rate": 1.5}, r"corrupt_rate must be in \(0, 1\]; got 1.5"),
        ({"mask_share": 0.8, "random_share": 0.3}, "1 at most together; got 0.8 and 0.3"),
        ({"mask_share": -0.1}, "must not be negative"),
        ({"random_share": -0.1}, "must not be negative"),
    ],
)
def test_shares_out_of_range_are_refused(shares, message):
    with pytest.raises(ValueError, match=message):
        corruption(2, 4, (0, 0), **shares)
    with pytest.raises(ValueError, match=message):
        masked_patch_batches(pictures(), classes, seed=0, **shares)
