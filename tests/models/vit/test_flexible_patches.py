"""The model that a run at several patch sizes trains: the same outputs as the file that is loaded at each."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.tables import by_table
from reference.comparing import assert_close, numpy, randomize
from reference.small import PIXELS, SMALL, images_for

import keras_vit
from keras_vit import from_pretrained
from keras_vit.layers import extract_patches
from keras_vit.models.vit.flexible_patches import FlexiblePatches

SIZES = (4, 5, 6, 8, 10, 12, 15, 20, 24, 30)
SOME = (4, 8, 12, 30)
LARGE = {**SMALL, "image_size": 120, "num_layers": 1}
ANTIALIASED = {"position_interpolation": "bilinear_antialias"}
# The published structure: a table of 7×7, without a row for the class token.
PUBLISHED = {"position_grid": 7, "prefix_positions": False}
STRUCTURES = {
    "published": PUBLISHED,
    "table of the image": {"pooling": "map", "num_registers": 2, "patch_norm": True, "pre_norm": True},
    "no positions": {"position_embedding": "none", "pooling": "gap"},
}


def vit(**options):
    return randomize(keras_vit.VisionTransformer(**{**LARGE, **ANTIALIASED, **options}))


def as_in_graphs(model):
    """The model as training computes it, where the graph alone knows the sizes on TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        return model
    return tf.function(model, input_signature=[tf.TensorSpec((None,) * 4)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "structure, sizes",
    [("published", SOME)]
    + [pytest.param(structure, SIZES, marks=pytest.mark.slow) for structure in STRUCTURES],
)
def test_outputs_at_ten_sizes_are_those_of_the_file_loaded_at_each(structure, sizes, tmp_path):
    model = vit(**STRUCTURES[structure])
    model.save(tmp_path / "model.keras")
    flexible, images = as_in_graphs(FlexiblePatches(model, SIZES)), images_for(model)
    for size in sizes:
        loaded = from_pretrained(tmp_path / "model.keras", patch_size=size)
        assert loaded.patch_size == (size, size)
        assert_close(flexible(extract_patches(images, size)), numpy(loaded(images)))
    of_any_size = from_pretrained(tmp_path / "model.keras", patch_size=size, image_size=(None, None))
    assert_close(of_any_size(images), numpy(loaded(images)))


def resized_by_jax(table, side):
    import jax

    return jax.image.resize(table, (1, side, side, table.shape[-1]), "linear")


def resized_by_tensorflow(table, side):
    return tf.image.resize(table, (side, side), "bilinear", antialias=True)


@pytest.mark.parametrize(
    "resized, size",
    [(resized_by_tensorflow, 4), (resized_by_tensorflow, 12)]
    + [pytest.param(resized_by_jax, size, marks=pytest.mark.slow) for size in SIZES],
)
def test_tokens_are_those_of_big_visions_formulas(resized, size):
    of_tokens = {"pooling": None, "num_classes": None, "final_norm": False, "layer_scale": 0.0}
    model = keras_vit.VisionTransformer(**{**LARGE, **ANTIALIASED, **PUBLISHED, **of_tokens})
    for name in ("patch_embedding", "position_embedding"):
        randomize(model.get_layer(name))
    patches = extract_patches(images_for(model), size)

    kernel, bias = map(numpy, model.get_layer("patch_embedding").weights)
    units = np.eye(64, dtype="float32").reshape(64, 8, 8, 1)
    by_pixel = tf.image.resize(units, (size, size), "bilinear").numpy().reshape(64, -1)
    inverse = np.linalg.pinv(by_pixel.astype("float64"))
    embedded = numpy(patches) @ (inverse @ kernel.reshape(64, -1)).reshape(size * size * 3, -1) + bias
    table = numpy(model.get_layer("position_embedding").table).reshape(1, 7, 7, -1)
    expected = embedded + np.asarray(resized(table, 120 // size))
    tokens = FlexiblePatches(model, SIZES)(patches)
    assert_close(tokens, expected.reshape(2, -1, expected.shape[-1]), 1e-5)


def test_it_trains_the_transformer_and_validates_at_its_size():
    model = vit(image_size=16, patch_size=8)
    flexible = FlexiblePatches(model, (4, 16))
    assert flexible.trained() is model
    assert {id(weight) for weight in flexible.trainable_weights} == {
        id(weight) for weight in model.trainable_weights
    }
    images = images_for(model)
    np.testing.assert_array_equal(flexible(extract_patches(images, 8)), model(images))


DINOV3 = {"rotary": "dinov3", "position_embedding": "none"}
HALVES = {"resnet": (1,), "resnet_width": 32, "patch_size": 1}
REFUSED = {
    "another interpolation": ({"position_interpolation": "bilinear"}, "needs position_inter"),
    "rotary": ({**DINOV3, "hidden_size": 24}, "needs rotary=None; got {'kind': 'dinov3'"),
    "relative": ({"relative_positions": True}, "needs relative_positions=False; got True"),
    "stem": (HALVES, r"needs resnet=None; got \(1,\)"),
    "padding": ({"patch_padding": 1}, "needs patch_padding=0; got 1"),
    "palette": ({**PIXELS, "causal": False}, "needs palette=None; got 7"),
    "sincos2d": ({"position_embedding": "sincos2d"}, "needs learned positions, .* got .*'sincos2d'"),
    "any size": ({"image_size": (None, None)}, r"needs an image size; got \(None, None\)"),
    "rectangles": ({"patch_size": (8, 4)}, r"needs square patches; got \(8, 4\)"),
    "an image that 6 does not divide": ({}, "divide the image of 16×16; got 6$"),
}


@pytest.mark.slow
@by_table("reason", REFUSED)
def test_a_model_that_cannot_be_trained_at_other_sizes_is_refused_in_one_line(reason):
    options, message = REFUSED[reason]
    config = {**SMALL, "num_layers": 1, **ANTIALIASED, **options}
    model = keras_vit.VisionTransformer.from_config(config)
    with pytest.raises(ValueError, match=message) as refused:
        FlexiblePatches(model, (6, 8) if not options else (4, 8))
    assert "\n" not in str(refused.value)
