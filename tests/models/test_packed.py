"""Models of packed patches (NaFlex): images of any aspect ratio in one batch."""

import keras
import numpy as np
import pytest
from made.tables import by_table
from reference.comparing import assert_close, numpy, randomize
from reference.small import SMALL, small

import keras_vit
from keras_vit import ImageTextModel, PackedVisionTransformer, VisionTransformer
from keras_vit.preprocessing.packing import packed
from keras_vit.weights.array_resizing import resized_positions

PACKED = {
    **{**SMALL, "image_size": (None, None), "pooling": "map"},
    **{"position_grid": (3, 3), "max_num_patches": 12},
}
SIZES = ((16, 48), (70, 70), (9, 100), (100, 9), (8, 8), (30, 21))


@pytest.fixture(scope="module")
def model():
    return small(**PACKED)


@pytest.fixture
def images(rng):
    return [rng.random((*size, 3)).astype("float32") for size in SIZES]


def test_the_contents_of_padding_do_not_change_the_outputs(model, images, rng):
    batch = model.preprocessing(images)
    expected = numpy(model(batch))
    padding = np.arange(12) >= batch["grids"].prod(axis=1, keepdims=True)
    assert padding.any()
    batch["patches"][padding] = rng.standard_normal((padding.sum(), 192)) * 9
    assert_close(model(batch), expected, 1e-6)


def test_an_image_alone_has_the_outputs_that_it_has_in_a_batch(model, images):
    expected = numpy(model(model.preprocessing(images)))
    for image, row in zip(images, expected):
        assert_close(numpy(model(model.preprocessing([image])))[0], row, 1e-6)


@pytest.mark.parametrize("size", [(24, 24), (16, 48), (32, 16)])
def test_a_model_of_one_size_computes_the_same(size, model, rng):
    fixed = VisionTransformer(**{**SMALL, "image_size": size, "pooling": "map"})
    grid = tuple(side // 8 for side in size)
    for weight, stored in zip(fixed.weights, model.weights, strict=True):
        value = numpy(stored)
        if stored.path == "position_embedding/table":
            value = resized_positions(value, (3, 3), grid, "bilinear_antialias")
        weight.assign(value)
    images = rng.uniform(-1, 1, (2, *size, 3)).astype("float32")
    assert_close(model(packed(images, (8, 8), 12, channels=3)), numpy(fixed(images)))


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_fit_trains_on_packed_images(images):
    model = PackedVisionTransformer(**PACKED)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss)
    batch, labels = model.preprocessing(images), np.arange(6) % 2
    history = model.fit(batch, labels, batch_size=6, epochs=4, verbose=0).history["loss"]
    assert history[-1] < history[0] - 0.1


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_images_are_classified_and_compared_with_texts(model, images, tmp_path):
    for number, image in enumerate(images):
        keras.utils.save_img(tmp_path / f"{number}.png", image)
    paths = [str(tmp_path / f"{number}.png") for number in range(len(images))]
    together = model.classify(paths, batch_size=4)
    for path, best in zip(paths, together):
        np.testing.assert_allclose([p for _, p in model.classify(path)[0]], [p for _, p in best], rtol=1e-5)

    text = {**{name: SMALL[name] for name in ("hidden_size", "num_layers", "mlp_dim", "num_heads")}}
    tower = {**PACKED, "num_classes": None}
    towers = randomize(ImageTextModel(tower, {**text, "vocabulary_size": 9, "length": 4}))
    towers.text_preprocessing = lambda texts: np.array([[len(text) % 9] * 4 for text in texts])
    vectors = towers.encode_images(paths)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    (best,) = towers.zero_shot(paths[0], ["cat", "mouse"])
    logits = towers.similarity(vectors[:1], ["cat", "mouse"])[0]
    np.testing.assert_allclose(sorted(p for _, p in best), np.sort(1 / (1 + np.exp(-logits))), rtol=1e-4)
    classifier = towers.vision_transformer(["cat", "mouse"])
    assert_close(numpy(classifier(classifier.preprocessing(paths[:1])))[0], logits, 1e-5)


@by_table(
    "options, message",
    [
        ({"image_size": 16}, r"max_num_patches=12 needs image_size=\(None, None\)"),
        ({"position_embedding": "sincos2d"}, "position_embedding='learned'"),
        ({"pooling": "gap"}, "needs a Transformer with pooling='map' and without prefix tokens"),
        ({"num_registers": 1}, "got pooling='map', class_token=False and num_registers=1"),
        ({"rotary": "axial"}, "excludes rotary and relative positions"),
        ({"patch_padding": 1}, "packed patches have no padding; got patch_padding=1"),
        ({"max_num_patches": 0}, "max_num_patches must be a positive int or None; got 0"),
        ({"max_num_patches": None}, "max_num_patches must be a positive int; got None"),
        ({"preprocessing": keras_vit.Preprocessing(None)}, r"expected a preprocessing with \{'patch_size'"),
    ],
)
def test_other_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PackedVisionTransformer(**{**PACKED, **options})


def test_a_packing_preprocessing_needs_a_packed_model(model):
    with pytest.raises(ValueError, match="'max_num_patches': None"):
        VisionTransformer(**{**SMALL, "image_size": (None, None), "preprocessing": model.preprocessing})
