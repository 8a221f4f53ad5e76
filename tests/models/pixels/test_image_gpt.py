import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made.sampling import some
from made.tables import by_table
from reference.comparing import numpy, randomize
from reference.small import SMALL

from keras_vit import ImageGPT, PixelTransformer
from keras_vit.inspection import attention_weights
from keras_vit.models.pixels.image_gpt import sampled_color

HEIGHT, WIDTH, COLORS = 3, 2, 9
ENCODER = {
    **{**SMALL, "num_classes": None, "image_size": (HEIGHT, WIDTH), "patch_size": 1, "pooling": "gap"},
    **{"palette": COLORS, "causal": True},
}
KINDS = {  # encoders that differ in what a pixel is computed from
    "iGPT": {"norm": "rms", "activation": "quick_gelu", "norm_epsilon": 1e-5},
    "sincos2d": {"position_embedding": "sincos2d"},
    "post_norm": {"post_norm": True, "layer_scale": 0.5, "final_norm": False},
    "grouped": {"num_kv_heads": 1, "qk_norm": True, "attention_sub_norm": True},
    "gated": {"gated_mlp": True, "position_embedding": "none"},
    "patch_norm": {"patch_norm": True},
    "position_grid": {"position_grid": (4, 3)},
}
every_kind = pytest.mark.parametrize("kind", some(KINDS, 4))


def random_model(kind="iGPT", **options):
    return randomize(ImageGPT({**ENCODER, **KINDS[kind], **options}))


def random_images(batch=2):
    return np.random.default_rng(0).uniform(-1, 1, (batch, HEIGHT, WIDTH, 3)).astype("float32")


# The model ----------------------------------------------------------------------------------------


@every_kind
def test_logits_depend_on_the_pixels_before(kind):
    model, images = random_model(kind), random_images(1)
    expected = numpy(model(images))
    assert expected.shape == (1, HEIGHT * WIDTH, COLORS)
    for pixel in range(HEIGHT * WIDTH):
        changed = images.copy()
        changed.reshape(-1, 3)[pixel] *= -1
        if (numpy(model.color_ids(changed)) == numpy(model.color_ids(images))).all():
            continue
        differences = np.abs(numpy(model(changed)) - expected).max(axis=(0, 2))
        assert (differences[: pixel + 1] == 0).all()
        assert (differences[pixel + 1 :] > 1e-6).all()


def test_a_new_model_gives_all_colors_one_probability():
    assert not numpy(ImageGPT(ENCODER)(random_images())).any()


@every_kind
def test_logits_from_kept_keys_and_values_are_the_models(kind):
    model, images = random_model(kind), random_images()
    expected, ids, caches = numpy(model(images)), numpy(model.color_ids(images)), model.caches(2)
    for pixel in range(HEIGHT * WIDTH):
        logits, caches = model.step(ids[:, pixel - 1], pixel, caches)
        assert np.abs(numpy(logits) - expected[:, pixel]).max() <= 1e-5


@pytest.mark.slow
def test_logits_that_are_not_finite_are_refused():
    model = random_model()
    model.get_layer("encoder_block_0").trainable_weights[0].assign(np.full(SMALL["hidden_size"], np.nan))
    with pytest.raises(ValueError, match="not finite|NaN"):
        model.sample(1)


@by_table(
    "changes, message",
    [
        ({"palette": None}, "palette=None and causal=True"),
        ({"palette": None, "causal": False}, "expected a PixelTransformer as encoder"),
        ({"causal": False}, "causal=False"),
        ({"image_size": (None, None), "position_grid": 4}, r"image_size=\(None, None\)"),
        ({"rotary": "axial", "position_embedding": "none"}, "without rotary or relative positions"),
        ({"relative_positions": True}, "relative_positions=True"),
        ({"num_classes": 3}, "without layers after its tokens"),
    ],
)
def test_an_encoder_that_cannot_predict_pixels_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ImageGPT({**ENCODER, **changes})


@by_table(
    "changes, message",
    [
        ({"patch_size": 2, "image_size": 4}, r"a palette needs patch_size=1, .*; got \(2, 2\)"),
        ({"pre_norm": True}, "no pre_norm"),
        ({"pooling": "token"}, "causal needs a Transformer without class"),
        ({"num_registers": 2}, "num_registers=2"),
        ({"palette": 0}, "palette must be a positive int or None; got 0"),
        ({"palette": None, "causal": False}, "without both, use VisionTransformer"),
    ],
)
def test_options_that_contradict_a_palette_or_causal_attention_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        PixelTransformer(**{**ENCODER, **changes})


@every_kind
def test_the_scores_of_a_block_are_of_earlier_pixels(kind):
    encoder, images = random_model(kind).encoder, random_images()
    scores = attention_weights(encoder, images, 1)
    assert np.abs(scores.sum(-1) - 1).max() < 1e-5
    pixels = HEIGHT * WIDTH
    later = np.triu(np.ones((pixels, pixels), bool), 1)
    assert (scores[..., later] == 0).all() and (scores[..., ~later] > 0).all()


# Sampling -----------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.floats(0.1, 3.0))
def test_colors_are_sampled_by_their_probabilities(seed, top_k, temperature):
    logits = np.random.default_rng(seed).normal(0, 2, 6)
    best = np.argsort(-logits)[:top_k]
    weights = np.zeros(6)
    weights[best] = np.exp((logits[best] - logits.max()) / temperature)
    uniform = (np.arange(1000) + 0.5) / 1000
    rows = np.tile(logits, (1000, 1)).astype("float32")
    ones = np.ones((1000, 1))
    found = sampled_color(rows, uniform[:, np.newaxis], temperature * ones, (top_k * ones).astype("int32"))
    counts = np.bincount(numpy(found), minlength=6)
    np.testing.assert_allclose(counts / 1000, weights / weights.sum(), atol=2e-3)


def test_random_numbers_at_the_ends_give_colors_among_the_best():
    logits, one = np.array([[-3.0, 1, 0, -9]] * 2, "float32"), np.ones((2, 1))
    ends = np.array([[0.0], [np.nextafter(np.float32(1), np.float32(0))]])
    found = numpy(sampled_color(logits, ends, one, (2 * one).astype("int32")))
    assert found.tolist() == [1, 2]


@pytest.mark.parametrize("temperature", [1e-10, 1e-50])
def test_at_a_very_low_temperature_the_best_color_is_sampled(temperature):
    logits, one = np.array([[-3.0, -1, -2, -9]], "float32"), np.ones((1, 1))
    for top_k in (1, 2, 4):
        found = sampled_color(logits, 0.9 * one, temperature * one, (top_k * one).astype("int32"))
        assert numpy(found).tolist() == [1]


@pytest.mark.slow
def test_completions_keep_the_first_rows_and_are_determined_by_the_seed():
    model, images = random_model(), random_images(5) / 2 + 0.5
    completed = model.complete(images, rows=2, seed=1)
    assert completed.shape == (5, HEIGHT, WIDTH, 3) and completed.dtype == "uint8"
    kept = model.images_of(model.color_ids(model.encoder.preprocessing(images)))
    np.testing.assert_array_equal(completed[:, :2], kept[:, :2])
    np.testing.assert_array_equal(model.complete(images, rows=HEIGHT), kept)
    np.testing.assert_array_equal(model.complete(images, rows=2, seed=1), completed)
    assert (model.complete(images, rows=2, seed=2) != completed).any()


@pytest.mark.slow
def test_the_most_probable_colors_follow_each_other():
    model, images = random_model(), random_images() / 2 + 0.5
    completed = model.complete(images, rows=1, top_k=1)
    ids = numpy(model.color_ids(model.encoder.preprocessing(images)))
    for pixel in range(WIDTH, HEIGHT * WIDTH):
        inputs = model.palette[ids].reshape(-1, HEIGHT, WIDTH, 3)
        ids[:, pixel] = numpy(model(inputs))[:, pixel].argmax(-1)
    np.testing.assert_array_equal(completed, model.images_of(ids))
    cold = model.complete(images, rows=1, temperature=1e-4)
    np.testing.assert_array_equal(cold, completed)


@pytest.mark.slow
def test_batches_of_any_size_and_one_channel_are_sampled():
    model = random_model(in_channels=1)
    assert model.sample(0).shape == (0, HEIGHT, WIDTH, 3)
    samples = model.sample(5, batch_size=2)
    assert samples.shape == (5, HEIGHT, WIDTH, 3)
    assert len(np.unique(samples.reshape(5, -1), axis=0)) > 1


@by_table(
    "arguments, message",
    [
        ({"rows": 4}, "rows must be at most 3, the height of the images; got 4"),
        ({"rows": -1}, "rows must be"),
        ({"rows": 1, "temperature": 0}, "temperature must be a number above 0; got 0"),
        ({"rows": 1, "batch_size": 0}, "batch_size must be a positive int; got 0"),
        ({"rows": 1, "top_k": 0}, "top_k must be a positive int or None; got 0"),
        ({"rows": 1, "top_k": 10}, "top_k must be at most 9, the colors of the palette; got 10"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        random_model().complete(random_images() / 2 + 0.5, **arguments)
