"""Heads for segmentation: what they read, how they train, and what is saved."""

import keras
import numpy as np
import pytest
from made.devices import devices
from made.sampling import some
from made.tables import by_table
from reference.comparing import assert_close, numpy, randomize
from reference.small import ENCODERS, SMALL, images_for, small

from keras_vit import ImageSegmenter, VisionTransformer
from keras_vit.layers.segmentation_head import QueryAttentionBias, resize
from keras_vit.losses import SegmentationCrossEntropy, pixel_weights
from keras_vit.metrics import MeanIoU
from keras_vit.tasks.segmentation.loss import query_loss
from keras_vit.training import SGD

ENCODER = {**SMALL, "num_classes": None}
QUERIES = {"head": "mask", "num_queries": 6, "query_blocks": 1, "loss_points": 32}
HEADS = {
    "linear": {},
    "multi": {"head": "multi", "head_norm": None},
    "up": {"head": "up", "decoder_size": 8},
    "mask": QUERIES,
}
KINDS = ("gap", "registers", "rectangle", "any_size", "DINOv3", "hybrid")  # of encoders


def made(encoder=None, **options):
    """A segmenter of five classes with random weights around a small encoder."""
    model = randomize(ImageSegmenter(VisionTransformer(**{**ENCODER, **(encoder or {})}), 5, **options))
    return with_probability(model, 1.0)


def with_probability(model, value):
    """The model, in which each query's attention is masked with this probability."""
    for layer in model.layers:
        if isinstance(layer, QueryAttentionBias):
            layer.probability.assign(value)
    return model


def labels_for(images):
    return np.random.default_rng(1).integers(0, 5, images.shape[:3]).astype("int32")


@pytest.mark.parametrize("kind, head", some([(kind, head) for kind in KINDS for head in HEADS], 5))
def test_every_head_computes_logits_at_the_size_of_the_image(kind, head):
    model = made(ENCODERS[kind], **{**HEADS[head], "num_queries": 6, "query_blocks": 1})
    images = images_for(model, size=(24, 24) if kind == "any_size" else None)
    assert model(images).shape == (*images.shape[:3], 5)


def test_the_linear_head_is_a_norm_and_a_linear_layer_for_each_patch():
    model = made()
    images = images_for(model)
    grid = numpy(model.encoder.feature_extractor("tokens", grid=True)(images)["tokens"])
    norm, head = model.get_layer("head_norm"), model.get_layer("head")
    x = grid - grid.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * numpy(norm.gamma) + numpy(norm.beta)
    expected = resize(x @ numpy(head.kernel) + numpy(head.bias), (16, 16))
    assert_close(model(images), numpy(expected))


def test_the_tokens_of_several_blocks_are_normalized_and_concatenated():
    model = made(head="multi", head_norm=None, blocks=(0, 1))
    images = images_for(model)
    stages = model.encoder.feature_extractor(["encoder_block_0", "tokens"], grid=True)(images)
    norm = model.encoder.get_layer("encoder_norm")
    x = np.concatenate([numpy(norm(stages["encoder_block_0"])), numpy(stages["tokens"])], axis=-1)
    head = model.get_layer("head")
    assert_close(model(images), numpy(resize(x @ numpy(head.kernel) + numpy(head.bias), (16, 16))))


def test_a_batch_norm_counts_all_pixels_of_the_batch():
    model = ImageSegmenter(VisionTransformer(**ENCODER), 5, head_norm="batch")
    images, norm = images_for(model), model.get_layer("head_norm")
    model(images, training=True)
    grid = numpy(model.encoder.feature_extractor("tokens", grid=True)(images)["tokens"])
    assert_close(norm.moving_mean, 0.1 * grid.mean((0, 1, 2)), 1e-5)


def test_a_query_attends_to_the_patches_of_its_mask_only():
    layer = QueryAttentionBias(1)
    masks = np.where(np.eye(2, dtype="float32"), 1.0, -1.0).reshape(1, 1, 2, 2).astype("float32")
    bias = numpy(layer(masks, masks))[0, 0]  # two queries, a prefix token and two patches
    assert (bias == 0).tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 0, 1], *[[1] * 5] * 3]
    layer.probability.assign(0.0)
    assert not numpy(layer(masks, masks)).any()
    assert not numpy(layer(masks, masks, training=True)).any()


def test_masks_change_what_the_queries_see_and_not_the_patches():
    masked, plain = made(**QUERIES), made(**QUERIES, masked_attention=False)
    for weight in plain.weights:
        weight.assign(next(w for w in masked.weights if w.path == weight.path))
    images = images_for(masked)
    assert np.abs(numpy(masked(images)) - numpy(plain(images))).max() > 1e-3
    with_probability(masked, 0.0)
    assert_close(masked(images), numpy(plain(images)), 1e-6)
    finished = masked.finished()
    assert not finished.masked_attention
    assert_close(finished(images), numpy(plain(images)), 1e-6)


def pixel_centers(shape):
    """Points in the middle of pixels of a 4 × 4 map, and shifts by whole pixels for 3 masks."""
    pixels = np.random.default_rng(0).integers(0, 4, shape)
    return (pixels + (0.5 if shape[1] > 3 else 0)).astype("float32") / 4


def test_the_loss_is_small_for_the_right_masks_and_ignores_ignored_pixels():
    labels = np.array([[0, 0, 2, 2], [0, 0, 2, 2], [255, 255, 255, 255], [255, 255, 255, 255]])[np.newaxis]
    masks = np.stack([labels == 2, labels == 0, labels == 9], axis=-1) * 400.0 - 200
    classes = np.eye(4)[[2, 0, 3]][np.newaxis] * 20

    def loss(masks, labels=labels):
        return numpy(query_loss(masks, classes, labels, pixel_centers, 64))[0]

    assert loss(masks) < 1e-6
    assert loss(np.concatenate([masks[:, :2], -masks[:, 2:]], axis=1)) < 1e-6
    assert loss(np.concatenate([-masks[:, :2], masks[:, 2:]], axis=1)) > 10
    assert np.isnan(loss(masks, labels + 1))


@pytest.mark.tensorflow_only("the gradient is by a tape")
def test_the_gradient_of_the_masks_is_the_slope_of_the_loss(rng):
    import tensorflow as tf

    labels = rng.integers(0, 3, (2, 4, 4))
    masks = rng.standard_normal((2, 4, 4, 2)).astype("float32")  # fewer queries than classes
    classes = rng.standard_normal((2, 2, 5)).astype("float32")
    masks = tf.Variable(masks)

    def loss():
        return tf.reduce_sum([1.0, 3.0] * query_loss(masks, classes, labels, _same_points, 64))

    with tf.GradientTape() as tape:
        value = loss()
    gradient = tape.gradient(value, masks)
    # A step along the gradient changes the loss by the gradient's squared norm.
    step = 1e-3 * gradient / tf.norm(gradient)
    masks.assign_add(step)
    above = loss()
    masks.assign_sub(2 * step)
    assert float(above - loss()) == pytest.approx(2e-3 * float(tf.norm(gradient)), rel=0.02)


@by_table("head", HEADS)
def test_lora_trains_all_layers_of_the_head_and_none_of_the_encoder(head):
    model = made(**HEADS[head])
    own = {weight.path for layer in model.own_layers() for weight in layer.trainable_weights}
    assert own
    model.enable_lora(2)
    factors = {weight.path for weight in model.encoder.trainable_weights}
    assert factors and all("lora_kernel" in path for path in factors)
    assert {weight.path for weight in model.trainable_weights} == own | factors


# Replicas and micro-batches; a batch norm has no micro-batches.
PARTS = [(head, replicas, steps) for head in HEADS for replicas, steps in ((0, 2), (2, 1), (2, 2))]


@pytest.mark.slow
@pytest.mark.tensorflow_only("JAX has one program, whose devices tests/training divides")
@pytest.mark.parametrize("head, replicas, accumulation_steps", [*PARTS, ("batch", 2, 1)])
def test_a_step_of_parts_is_that_of_the_batch(head, replicas, accumulation_steps):
    """Of five images, of which one has no labeled pixel."""
    images = images_for(made(), 5)
    labels = labels_for(images)
    labels[1], labels[2, :8] = 255, 255
    trained = []
    for parts in ((0, 1), (replicas, accumulation_steps)):
        with devices(parts[0]).scope():
            model = made(**(HEADS | {"batch": {"head_norm": "batch"}})[head])
            model._query_losses[True].draw = _same_points
            optimizer = SGD(0.1)
            model.compile(
                optimizer, SegmentationCrossEntropy(), accumulation_steps=parts[1], seed=0, total_steps=4
            )
            optimizer.iterations.assign(3)
        model.fit(images, labels, sample_weight=pixel_weights(labels), batch_size=5, verbose=0)
        trained.append(model)
    for first, second in zip(trained[0].weights, trained[1].weights):
        assert_close(numpy(first), numpy(second), 2e-5)
    assert {
        float(numpy(mask.probability)) for mask in trained[1].layers if isinstance(mask, QueryAttentionBias)
    } <= {0}


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_training_and_evaluation_have_the_same_loss():
    model = made(**QUERIES, masked_attention=False)
    images = images_for(model, 3)
    labels = labels_for(images)
    model.compile(SGD(0.0), SegmentationCrossEntropy(), metrics=[MeanIoU(5)], total_steps=1)
    for loss in model._query_losses.values():
        loss.draw = _same_points
    trained = model.fit(images, labels, batch_size=3, verbose=0).history
    evaluated = model.evaluate(images, labels, batch_size=3, verbose=0, return_dict=True)
    assert evaluated["loss"] == pytest.approx(trained["loss"][0], rel=1e-5)
    assert evaluated["mean_iou"] == pytest.approx(trained["mean_iou"][0], rel=1e-5)
    assert model.predict(images, verbose=0).shape[-1] == 5


def _same_points(shape):
    points = np.random.default_rng(len(shape)).uniform(size=tuple(shape[-2:])).astype("float32")
    return keras.ops.broadcast_to(points, shape)


def test_masks_of_the_attention_end_one_block_after_the_other():
    model = made({"num_layers": 3}, **{**QUERIES, "query_blocks": 2})
    masks = [layer for layer in model.layers if isinstance(layer, QueryAttentionBias)]
    model.compile("sgd", SegmentationCrossEntropy(), total_steps=8)
    assert [variable is mask.probability for (variable, _, _), mask in zip(model._annealed(), masks)]
    found = [
        [float(model._probability(step, start, end)) for _, start, end in model._annealed()]
        for step in range(8)
    ]
    first, second = np.transpose(found)
    halfway = 0.5**0.9
    np.testing.assert_allclose(first, [1, 1, 1, halfway, 0, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(second, [1, 1, 1, 1, 1, halfway, 0, 0], atol=1e-6)


@by_table(
    "options, message",
    [
        ({"encoder": {"num_classes": 3}}, "without layers after its tokens; got {'num_classes': 3}"),
        ({"encoder": {"image_size": 20}}, "an image size divisible by a token's region of (8, 8); got (20"),
        ({"encoder": {"relative_positions": True}, **QUERIES}, "there are no relative positions"),
        ({"head": "fpn"}, "head must be one of 'linear', 'multi', 'up', 'mask'; got 'fpn'"),
        ({"blocks": (0, 2)}, "blocks must be increasing numbers from 0 to 1; got (0, 2)"),
        ({"head": "mask"}, "query_blocks must be at most num_layers=2; got 4"),
        ({"class_names": ["a"]}, "class_names must hold num_classes=5 names; got 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ValueError) as error:
        made(**options)
    assert message in str(error.value)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
def test_norms_of_the_upscaling_of_masks_have_the_epsilon_of_transformers(epsilon):
    segmenter = ImageSegmenter(small(num_classes=None, norm_epsilon=epsilon), 3, "mask", query_blocks=1)
    assert segmenter.get_layer("upscale_0").norm_epsilon == 1e-6
