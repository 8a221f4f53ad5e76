import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit import Preprocessing
from keras_vit.data.images import decode, is_readable, prepare

KINDS = {  # what is written: Pillow's mode, the format and its options
    "png": ("RGB", "PNG", {}),
    "grey png": ("L", "PNG", {}),
    "palette png": ("P", "PNG", {}),
    "transparent png": ("RGBA", "PNG", {}),
    "grey and transparent png": ("LA", "PNG", {}),
    "jpeg": ("RGB", "JPEG", {"quality": 90}),
    "grey jpeg": ("L", "JPEG", {"quality": 90}),
    "progressive jpeg": ("RGB", "JPEG", {"quality": 80, "progressive": True}),
    "bmp": ("RGB", "BMP", {}),
    "gif": ("P", "GIF", {}),
    "webp": ("RGB", "WEBP", {"quality": 80}),
    "exact webp": ("RGB", "WEBP", {"lossless": True}),
}


def photograph(height=45, width=61):
    """Smooth waves and a hard edge, as (height, width, 3) uint8."""
    y, x = np.mgrid[:height, :width] / 10
    image = np.stack([np.sin(x + y), np.cos(2 * x), np.sin(y * x / 3)], -1) * 90 + 128
    image[height // 3 : height // 2, width // 4 :] = (250, 10, 30)
    return image.round().astype("uint8")


def encode(kind):
    mode, name, options = KINDS[kind]
    image = Image.fromarray(photograph())
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(photograph()[..., 1]))
    image = image.quantize(64) if mode == "P" else image.convert(mode)
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", [*KINDS])
def test_an_encoded_image_becomes_pillows_pixels(kind):
    # WebP's colours are upsampled in more than one way; all others decode to the same integers.
    bound = 0 if kind != "webp" else 3
    pixels = decode(encode(kind)).numpy().astype(int)
    expected = np.asarray(Image.open(io.BytesIO(encode(kind))).convert("RGB")).astype(int)
    assert pixels.shape == expected.shape
    assert np.abs(pixels - expected).max() <= bound


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("resize, fraction", [("squash", 1.0), ("crop", 1.0), ("crop", 0.875)])
@pytest.mark.parametrize("size", [(24, 24), (20, 37), (96, 64)])
@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_the_graph_makes_what_preprocessing_makes(
    tmp_path, kind, size, resize, fraction, interpolation, antialias
):
    preprocessing = Preprocessing(
        size, resize, fraction, interpolation, antialias, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25)
    )
    path = tmp_path / "image"
    path.write_bytes(encode(kind))
    expected = preprocessing(path)[0]
    actual = in_a_graph(encode(kind), preprocessing)
    assert actual.shape == (*size, 3)
    np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"png", "jpeg", "webp"}))
def test_the_graph_makes_what_preprocessing_makes_of_every_kind(tmp_path, kind):
    preprocessing = Preprocessing((24, 40))
    path = tmp_path / "image"
    path.write_bytes(encode(kind))
    np.testing.assert_allclose(in_a_graph(encode(kind), preprocessing), preprocessing(path)[0], atol=2e-5)


def in_a_graph(encoded, preprocessing):
    dataset = tf.data.Dataset.from_tensors(encoded).map(lambda x: prepare(decode(x), preprocessing))
    return next(dataset.as_numpy_iterator())


def test_without_an_image_size_the_image_keeps_its_own():
    prepared = in_a_graph(encode("png"), Preprocessing(None))
    np.testing.assert_allclose(prepared, photograph() / 127.5 - 1, atol=1e-6)


@pytest.mark.parametrize("size", [(24, 24), (20, 37), (90, 122), (1, 1), (7, 200)])
def test_squashing_is_bilinear_between_the_pixels_centres(size):
    prepared = in_a_graph(encode("png"), Preprocessing(size))
    expected = bilinear(photograph().astype("float64"), size) / 127.5 - 1
    np.testing.assert_allclose(prepared, expected, atol=1e-5)


def bilinear(image, size):
    """By the definition: the pixel (y, x) stands for the point ((y + ½) · old / new - ½, …)."""
    for axis, (old, new) in enumerate(zip(image.shape[:2], size)):
        at = (np.arange(new) + 0.5) * old / new - 0.5
        below = np.floor(at).astype(int)
        share = (at - below).reshape(-1, *[1] * (2 - axis))
        first, second = (np.take(image, np.clip(below + i, 0, old - 1), axis) for i in (0, 1))
        image = first * (1 - share) + second * share
    return image


def test_cropping_takes_the_middle_and_keeps_the_aspect():
    wide = np.zeros((40, 120, 3), "uint8")
    wide[:, 40:80] = 255
    preprocessing = Preprocessing((20, 20), resize="crop", crop_fraction=1.0)
    np.testing.assert_array_equal(prepare(wide, preprocessing), np.ones((20, 20, 3), "float32"))


def test_a_file_that_is_no_image_is_unreadable(tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(encode("png"))
    assert is_readable(str(path))
    path.write_bytes(encode("png")[:100])
    assert not is_readable(str(path))
    assert not is_readable(str(tmp_path / "nowhere.png"))
