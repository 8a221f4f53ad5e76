"""Models with patch dropout: training computes fewer tokens, and inference is that of a model without it."""

import keras
import numpy as np
import pytest
from keras import ops
from reference.comparing import numpy, randomize
from reference.small import PACKED, SMALL, images_for, small

import keras_vit
from keras_vit.models.encoder_model import as_encoder
from keras_vit.seeds import override_seeds

SEED = np.array([1, 2], "uint32")
SIZE = {"image_size": 32}  # 16 patches
MODELS = {
    "class token": {},
    "pre-norm, gap": {"pre_norm": True, "pooling": "gap"},
    "map pooling": {"pooling": "map"},
    "no positions": {"position_embedding": "none"},
    "registers before positions": {"num_registers": 2, "prefix_positions": False},
    "dinov3": {"rotary": "dinov3", "num_registers": 2, "position_embedding": "none"},
    "mixed": {"rotary": "mixed"},
    "rotated registers": {"rotary": {"kind": "axial", "rotate_registers": True}, "num_registers": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_training_computes_the_kept_tokens_as_if_there_were_no_others(kind):
    options = MODELS[kind]
    model = randomize(small(**SIZE, **options, patch_dropout_rate=0.75))
    images = images_for(model)
    plain = small(**SIZE, **options)
    plain.set_weights(model.get_weights())
    np.testing.assert_array_equal(numpy(model(images)), numpy(plain(images)))

    layer = model.get_layer("patch_dropout")
    prefix = layer.num_prefix_tokens
    with override_seeds(model, lambda *_: SEED):
        trained = numpy(model(images, training=True))
    with override_seeds(layer, lambda *_: SEED):
        numbers = np.tile(np.arange(prefix + 16.0), (len(images), 1))[..., np.newaxis]
        kept = numpy(layer(numbers, training=True))[..., 0].astype(int)[:, prefix:] - prefix
    assert kept.shape == (len(images), 4)
    # Tokens that no other token attends to are not there.
    for image, patches in enumerate(kept):
        alone = numpy(masked(plain, images[image : image + 1], patches))
        np.testing.assert_allclose(trained[image : image + 1], alone, rtol=1e-4, atol=1e-5)


def masked(model, images, patches):
    """The outputs of a model without dropout whose blocks get a part of the patches, with their positions."""
    layers = {layer.name: layer for layer in model.layers}
    blocks = [layers[f"encoder_block_{index}"] for index in range(model.num_layers)]
    inputs = keras.Model(model.input, [keras.tree.flatten(block.input) for block in blocks])(images)
    prefix = model.num_prefix_tokens
    x = ops.take(inputs[0][0], [*range(prefix), *(prefix + patches)], axis=1)
    for block, (_, *tables) in zip(blocks, inputs):
        for table in tables:
            first = table.shape[1] - 16  # of the rows of registers
            tables = [ops.take(table, [*range(first), *(first + patches)], axis=1)]
        x = block(x, *tables)
    x = layers["encoder_norm"](x)
    if model.pooling == "map":
        x = layers["attention_pooling"](x)
    else:
        x = x[:, 0] if model.pooling == "token" else ops.mean(x[:, prefix:], axis=1)
    return layers["head"](x)


def test_the_finished_model_has_no_trace_of_it():
    finished = small(patch_dropout_rate=0.5).finished()
    assert finished.patch_dropout_rate == 0
    assert "patch_dropout" not in {layer.name for layer in finished.layers}


REFUSED = [
    ({"pooling": None}, "needs a Transformer and a pooling"),
    ({"relative_positions": True}, "excludes relative positions"),
    ({**PACKED}, "excludes relative positions and packed patches"),
]


@pytest.mark.parametrize("options, message", REFUSED)
def test_what_reads_all_patches_is_refused(options, message):
    with pytest.raises(ValueError, match=f"patch dropout {message}.*got patch_dropout_rate=0.5"):
        keras_vit.VisionTransformer.from_config({**SMALL, **options, "patch_dropout_rate": 0.5})


def test_models_around_a_grid_of_tokens_refuse_it():
    encoder = small(num_classes=None, num_layers=1, patch_dropout_rate=0.5)
    with pytest.raises(ValueError, match="^expected an encoder with patch_dropout_rate=0, .*; got 0.5$"):
        as_encoder(encoder)
