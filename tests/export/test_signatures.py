import struct

import keras
import numpy as np
import pytest
import tensorflow as tf
from made.encoded import converted, encoded
from made.exports import pixels
from made.photos import FORMATS, ORIENTATIONS, photo, waves
from made.sampling import some
from PIL import Image
from reference.comparing import assert_close
from reference.small import HYBRID, one_block

from keras_vit import Preprocessing
from keras_vit.export.saved_model import export_saved_model

KINDS = {  # Pillow's mode, the format, (height, width)
    "jpeg": ("RGB", "JPEG", (45, 61)),
    "gray.jpeg": ("L", "JPEG", (20, 16)),
    "cmyk.jpeg": ("CMYK", "JPEG", (33, 70)),
    "png": ("RGB", "PNG", (16, 16)),
    "gray.png": ("L", "PNG", (50, 20)),
    "alpha.png": ("RGBA", "PNG", (9, 90)),
    "gray_alpha.png": ("LA", "PNG", (31, 17)),
    "16_bits.png": ("I;16", "PNG", (24, 40)),
    "gif": ("P", "GIF", (21, 34)),
    "bmp": ("RGB", "BMP", (64, 16)),
    "webp": ("RGB", "WEBP", (40, 25)),
}
PREPARE = {
    "squash": Preprocessing(16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1)),
    "nearest": Preprocessing(16, "crop", interpolation="nearest"),
    "pad": Preprocessing(16, "pad"),
}


def content_of(kind):
    mode, name, size = KINDS[kind]
    options = {"lossless": True} if name == "WEBP" else {}
    return encoded(converted(Image.fromarray(waves(*size)), mode), name, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Paths of encoded images of every kind and size."""
    folder = tmp_path_factory.mktemp("images")
    for kind in KINDS:
        (folder / kind).write_bytes(content_of(kind))
    return [folder / kind for kind in KINDS]


def exported(model, folder, **options):
    return tf.saved_model.load(export_saved_model(model, folder / "1", **options))


def serve(loaded, signature, **inputs):
    return {name: x.numpy() for name, x in loaded.signatures[signature](**inputs).items()}


def contents(files):
    return tf.constant([file.read_bytes() for file in files])


def assert_reads_as_the_model_does(model, loaded, files):
    outputs = serve(loaded, "serving_bytes", image_bytes=contents(files))
    assert {*outputs} == {"scores", "class_ids", "classes"}
    assert outputs["scores"].dtype == np.float32 and outputs["class_ids"].dtype == np.int32
    for row, best in enumerate(model.classify(files)):
        assert [name.decode() for name in outputs["classes"][row]] == [name for name, _ in best]
        np.testing.assert_allclose(outputs["scores"][row], [score for _, score in best], atol=1e-5)
        names = [model.class_names[i] if model.class_names else str(i) for i in outputs["class_ids"][row]]
        assert names == [name for name, _ in best]
    for size in ((16, 16), (45, 61), (70, 20)):
        images = np.stack([waves(*size), waves(*size)[::-1]])
        logits = serve(loaded, "serving_uint8", images=images)["logits"]
        assert_close(logits, model(model.preprocessing(images)), 1e-5)


@pytest.mark.slow
def test_encoded_and_uint8_images_are_read_as_the_model_reads_them(model, loaded, files):
    assert_reads_as_the_model_does(model, loaded, files)


@pytest.mark.slow
@pytest.mark.parametrize("prepare", PREPARE)
def test_images_are_resized_as_the_model_resizes_them(prepare, files, tmp_path):
    """Here of three classes without names."""
    model = one_block(preprocessing=PREPARE[prepare], num_classes=3)
    assert_reads_as_the_model_does(model, exported(model, tmp_path), files)


def test_photos_are_read_in_their_orientation(model, loaded, tmp_path):
    paths = [tmp_path / f"{number}.{name}" for number in ORIENTATIONS for name in FORMATS]
    for path in paths:
        path.write_bytes(photo(int(path.stem), path.suffix[1:]))
    scores = serve(loaded, "serving_bytes", image_bytes=contents(paths))["scores"]
    expected = [[score for _, score in best] for best in model.classify(paths)]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    upright, *turned = scores[:: len(FORMATS)]
    assert all(np.abs(row - upright).max() > 1e-4 for row in turned)


def test_the_feature_vector_shares_the_models_weights(model, saved_model):
    loaded = tf.saved_model.load(saved_model)
    outputs = serve(loaded, "image_feature_vector", images=pixels())
    assert {*outputs} == {"representation"}
    inputs = model.preprocessing.normalize(pixels() * 255)
    expected = model.feature_extractor("representation")(inputs)["representation"]
    assert_close(outputs["representation"], expected, 1e-5)
    for variable in loaded.variables:
        variable.assign(tf.zeros_like(variable))
    assert not serve(loaded, "image_feature_vector", images=pixels())["representation"].any()


@pytest.mark.slow
def test_values_of_a_regression_are_served(tmp_path):
    model = one_block()
    loaded = exported(model, tmp_path, task="regression")
    served = serve(loaded, "serving_bytes", image_bytes=tf.constant([content_of("png")]))
    assert {*served} == {"values"} and not hasattr(loaded, "labels")
    assert_close(served["values"], model(model.preprocessing(waves(16, 16))), 1e-5)


@pytest.fixture(scope="module")
def free(any_size):
    """A model of any size, and its export, loaded."""
    return any_size[0], tf.saved_model.load(any_size[1])


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_empty_batch_gives_empty_outputs(dynamic, loaded, free):
    for signature, inputs in (
        ("serving_default", {"images": tf.zeros((0, 16, 16, 3))}),
        ("serving_uint8", {"images": tf.zeros((0, 16, 16, 3), tf.uint8)}),
        ("serving_bytes", {"image_bytes": tf.constant([], tf.string)}),
    ):
        width = 5 if dynamic or signature == "serving_bytes" else 10
        for name, x in serve(free[1] if dynamic else loaded, signature, **inputs).items():
            assert x.shape == (0, width), (signature, name)


BROKEN = {
    "nothing": b"",
    "no image": b"this is no image",
    "a truncated jpeg": content_of("jpeg")[:-600],
    "half a header": content_of("png")[:20],
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_image_is_named_by_its_index(kind, loaded):
    batch = [*[content_of("png")] * 3, BROKEN[kind], content_of("jpeg"), b"the second one"]
    for index in (0, 3):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"image {index} of the batch cannot be dec"):
            serve(loaded, "serving_bytes", image_bytes=tf.constant(batch[3 - index :]))


def test_an_image_of_too_many_pixels_is_named_by_its_index(loaded):
    head = bytearray(content_of("png"))
    head[16:24] = struct.pack(">II", 60_000, 60_000)
    message = "image 1 of the batch has more than 89478485 pixels or 268435455 bytes"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        serve(loaded, "serving_bytes", image_bytes=tf.constant([content_of("png"), bytes(head), b"no image"]))


def test_a_model_of_any_size_computes_each_image_at_its_own_size(free):
    model, loaded = free
    images = [waves(*size) for size in ((16, 24), (32, 8), (16, 16))]
    pngs = tf.stack([tf.io.encode_png(image) for image in images])
    outputs = serve(loaded, "serving_bytes", image_bytes=pngs)
    for row, image in enumerate(images):
        live = model(model.preprocessing(image)).numpy()
        scores = keras.ops.softmax(live.astype("float64"))[0]
        np.testing.assert_allclose(outputs["scores"][row], np.sort(scores)[::-1], atol=1e-5)
        assert_close(serve(loaded, "serving_uint8", images=image[np.newaxis])["logits"], live, 1e-5)
        floats = (image / 255).astype("float32")[np.newaxis]
        assert_close(serve(loaded, "serving_default", images=floats)["logits"], live, 1e-5)
        assert_close(loaded(floats), live, 1e-5)


@pytest.mark.parametrize("resnet", some([False, True], 2))
def test_images_that_the_patch_does_not_divide_are_refused(resnet, free, tmp_path):
    loaded, stride, patch = free[1], 1, r"\(8, 8\)"
    if resnet:
        options = {**HYBRID, "image_size": (None, None), "resnet": (1, 1), "patch_size": 2}
        loaded, stride, patch = exported(one_block(**options), tmp_path), 8, r"\(2, 2\)"
    problem = rf"height and width are \[32 35\], but after a stride of {stride} the patch of {patch} must"
    for signature, inputs in (
        ("serving_uint8", {"images": waves(32, 35)[np.newaxis]}),
        ("serving_bytes", {"image_bytes": tf.stack([tf.io.encode_png(waves(32, 35))])}),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"images cannot be cut .*{problem}"):
            serve(loaded, signature, **inputs)


@pytest.mark.slow
def test_gray_models_read_encoded_images_too(files, tmp_path):
    model = one_block(in_channels=1)
    outputs = serve(exported(model, tmp_path), "serving_bytes", image_bytes=contents(files))
    for row, expected in zip(outputs["scores"], model.classify(files)):
        np.testing.assert_allclose(row, [score for _, score in expected], atol=1e-5)


@pytest.mark.slow
def test_tokens_are_served_of_images_of_one_size(tmp_path):
    model = one_block(pooling=None, class_token=True)
    loaded = exported(model, tmp_path / "fixed")
    live = model(model.preprocessing(waves(16, 16))).numpy()
    assert_close(serve(loaded, "serving_uint8", images=waves(16, 16)[np.newaxis])["logits"], live, 1e-5)
    outputs = serve(loaded, "serving_bytes", image_bytes=tf.constant([content_of("png")]))
    np.testing.assert_array_equal(outputs["class_ids"], np.argsort(-live, axis=-1))
    loaded = exported(one_block(pooling=None, image_size=(None, None)), tmp_path / "any")
    assert "serving_bytes" not in loaded.signatures
