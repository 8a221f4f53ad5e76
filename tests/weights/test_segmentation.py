"""Segmenters in transformers' files; tests/peers compares them with transformers."""

import numpy as np
import pytest
from reference.comparing import assert_close, numpy, randomise
from reference.small import SMALL

from keras_vit import ImageSegmenter, VisionTransformer, from_pretrained, save_weights

ENCODER = {**SMALL, "num_classes": None, "layer_scale": 0.1, "activation": "gelu_erf", "mlp_dim": 24}
QUERIES = {"head": "mask", "num_queries": 6, "query_blocks": 1}


def made(encoder=None, **options):
    encoder = VisionTransformer(**{**ENCODER, **(encoder or {})})
    return randomise(ImageSegmenter(encoder, 5, **{**QUERIES, **options}))


@pytest.mark.parametrize(
    "encoder, options",
    [({}, {"masked_attention": False}), ({"position_embedding": "none", "rotary": "dinov3"}, {})],
)
def test_a_segmenter_is_written_and_read(encoder, options, tmp_path):
    model = made(encoder, **options, class_names=[*"abcde"])
    for layer in model.layers:
        if layer.name.startswith("query_mask"):
            layer.probability.assign(1.0)
    images = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    save_weights(model, tmp_path / "model", "huggingface")
    again = from_pretrained(tmp_path / "model")
    assert (again.class_names, again.masked_attention) == (tuple("abcde"), model.masked_attention)
    assert_close(again(images), numpy(model(images)), 1e-5)
    encoder = from_pretrained(tmp_path / "model", num_classes=0)
    assert_close(
        encoder.feature_extractor("tokens")(images)["tokens"],
        numpy(model.encoder.feature_extractor("tokens")(images)["tokens"]),
        1e-5,
    )


@pytest.mark.parametrize(
    "encoder, options, message",
    [
        ({}, {"head": "up"}, "the layout 'huggingface' has segmenters with head='mask'; got 'up'"),
        ({"layer_scale": None}, {}, "as 'eomt': layer_scale=None"),
        ({}, {"head_activation": "silu"}, "as 'eomt': head_activation='silu' (supported: the encoder's)"),
    ],
)
def test_a_segmenter_that_the_layout_cannot_express_is_refused(encoder, options, message, tmp_path):
    with pytest.raises(ValueError) as error:
        save_weights(made(encoder, **options), tmp_path / "model", "huggingface")
    assert message in str(error.value)
    assert not [*tmp_path.iterdir()]
