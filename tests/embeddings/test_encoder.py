import numpy as np
import pytest
from reference.small import SMALL, one_block, small

from keras_vit import ImageSegmenter, Preprocessing, VisionTransformer
from keras_vit.embeddings.encoder import OUTPUTS, Encoder
from keras_vit.evaluation.representations import encoder_of

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (5, 16, 16, 3)).astype("float32")


@pytest.mark.slow
def test_outputs_are_those_of_the_model_whatever_the_batch():
    model = small()
    encoder = Encoder(model, tuple(OUTPUTS), batch_size=8)
    found = encoder(IMAGES)
    assert encoder.shapes == {"pooled": (12,), "tokens": (2, 2, 12), "logits": (5,), "classes": (5,)}
    assert {name: x.shape for name, x in found.items()} == {
        name: (5, *s) for name, s in encoder.shapes.items()
    }
    logits = model.predict_on_batch(IMAGES)
    expected = {
        "pooled": encoder_of(model)[0](IMAGES),
        "tokens": model.feature_extractor("tokens", grid=True)(IMAGES)["tokens"],
        "logits": logits,
        "classes": np.exp(logits) / np.exp(logits).sum(1, keepdims=True),
    }
    for name, x in found.items():
        np.testing.assert_allclose(x, expected[name], rtol=0, atol=2e-6, err_msg=name)
    for name, x in encoder(IMAGES[2:4]).items():
        np.testing.assert_array_equal(x, found[name][2:4], err_msg=name)


def test_classes_of_several_labels_have_probabilities_of_their_own():
    model = small(task="multi_label")
    classes = Encoder(model, ("classes",), 5)(IMAGES)["classes"]
    np.testing.assert_allclose(classes, 1 / (1 + np.exp(-model.predict_on_batch(IMAGES))), atol=1e-6)


def test_a_model_without_pooling_is_averaged():
    model = small(num_classes=None, pooling=None)
    np.testing.assert_allclose(
        Encoder(model, ("pooled",), 5)(IMAGES)["pooled"], encoder_of(model)[0](IMAGES), rtol=0, atol=1e-6
    )


def test_a_segmenter_has_the_fraction_of_the_pixels_of_each_class():
    options = {"num_classes": None, "pooling": None, "preprocessing": Preprocessing(16, "crop", 0.8)}
    model = ImageSegmenter(VisionTransformer(**{**SMALL, **options}), 3)
    encoder = Encoder(model, ("classes",), 5)
    assert encoder.preprocessing == model.preprocessing  # Whole images, as `predict` prints these fractions.
    classes = encoder(IMAGES)["classes"]
    maps = model.predict_on_batch(IMAGES).argmax(-1)
    np.testing.assert_allclose(classes, [[np.mean(m == i) for i in range(3)] for m in maps], atol=1e-6)


@pytest.mark.parametrize(
    "output, changes, words",
    [
        ("logits", {"num_classes": None}, "has no classification head"),
        ("classes", {"num_classes": None}, "has no classification head"),
        (
            "tokens",
            {"image_size": (None, None), "position_embedding": "sincos2d"},
            "of images of any size have no fixed",
        ),
        (
            "classes",
            {"task": "regression"},
            "task 'regression' has no classes; its values are the output logits",
        ),
    ],
)
def test_outputs_that_a_model_lacks_are_refused(output, changes, words):
    with pytest.raises(ValueError, match=words):
        Encoder(one_block(**changes), (output,), 4)
