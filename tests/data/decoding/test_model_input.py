import io
import os

import numpy as np
import pytest
import tensorflow as tf
from made.encoded import encoded
from made.photos import ORIENTATIONS, exif, photo, waves
from made.tables import by_table
from PIL import Image, ImageOps

from keras_vit import Preprocessing
from keras_vit.data.decoding.model_input import (
    check_image,
    decodable,
    decode,
    decode_and_prepare,
    decode_window,
    file_header,
    read,
)
from keras_vit.preprocessing import read_image

# What is written: Pillow's mode and the format.
KINDS = {
    "png": ("RGB", "PNG"),
    "gray png": ("L", "PNG"),
    "transparent png": ("RGBA", "PNG"),
    "bmp": ("RGB", "BMP"),
}


@tf.function
def cut(encoded, window, exif):
    return decode_window(encoded, lambda shape: window, exif)


CONTENT = [tf.TensorSpec((), tf.string)]
whole_of = tf.function(decode, CONTENT)
stored_of = tf.function(lambda encoded: decode(encoded, exif=False), CONTENT)
content_of = tf.function(read, CONTENT)


def encode(kind):
    mode, name = KINDS[kind]
    pixels = waves(45, 61)
    pixels[15:22, 15:] = (250, 10, 30)  # a hard edge
    image = Image.fromarray(pixels)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(pixels[..., 1]))
    return encoded(image.convert(mode), name)


JPEGS = {
    "4:4:4": ("RGB", {"subsampling": "4:4:4"}),
    "4:2:0": ("RGB", {"subsampling": "4:2:0"}),
    "4:2:0, restart markers": ("RGB", {"subsampling": "4:2:0", "restart_marker_blocks": 3}),
    "CMYK, 4:2:0": ("CMYK", {"subsampling": "4:2:0"}),
}


@pytest.mark.parametrize("kind", JPEGS)
def test_a_window_of_a_jpeg_contains_the_pixels_of_the_whole(kind, rng):
    mode, options = JPEGS[kind]
    for _ in range(2):
        sides = rng.integers(1, 150, 2)
        noise = Image.fromarray(rng.integers(0, 255, (*sides // 4 + 1, 3), "uint8"))
        content = encoded(noise.resize(sides[::-1]).convert(mode), "JPEG", quality=85, **options)
        whole = whole_of(content).numpy()
        for _ in range(30):
            size = rng.integers(1, sides + 1)
            top, left = rng.integers(0, sides - size + 1)
            window = tf.constant([top, left, *size], tf.int32)
            expected = whole[top : top + size[0], left : left + size[1]]
            np.testing.assert_array_equal(cut(tf.constant(content), window, False), expected)


COLORS = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25)}


@by_table(
    "kind, preprocessing",
    [
        ("png", Preprocessing((24, 24), **COLORS)),
        ("gray png", Preprocessing((20, 37), "crop", 0.875, "nearest")),
        ("transparent png", Preprocessing((20, 37), "crop", 1.0, "bicubic", antialias=True)),
        ("bmp", Preprocessing(24, mean=(0.5,), std=(0.5,))),
    ],
    ids=str,
)
def test_the_graph_prepares_images_as_preprocessing_does(kind, preprocessing, tmp_path):
    (tmp_path / "image").write_bytes(encode(kind))
    expected = preprocessing(tmp_path / "image")[0]
    assert expected.shape[:2] == (preprocessing.image_size or (45, 61))
    prepare = tf.function(lambda encoded: decode_and_prepare(encoded, preprocessing), CONTENT)
    np.testing.assert_allclose(prepare(encode(kind)), expected, atol=2e-5)


def test_a_file_that_is_not_an_image_has_no_header(tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(encode("png"))
    assert file_header(str(path)) == (1, (61, 45))
    for content in (encode("png")[:100], encode("bmp")[:100], b"", b"no image"):
        path.write_bytes(content)
        assert file_header(str(path)) is None, content
    assert file_header(str(tmp_path / "nowhere.png")) is None
    path.rename(tmp_path / "image.tif")
    assert file_header(str(tmp_path / "image.tif")) is None
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "device.png"):
        assert file_header(str(tmp_path / name)) is None


@pytest.mark.parametrize("number", ORIENTATIONS)
@pytest.mark.parametrize("name", ["JPEG", pytest.param("PNG", marks=pytest.mark.slow)])
def test_photos_and_windows_of_them_are_decoded_in_their_orientation(name, number, tmp_path, rng):
    content = photo(number, name, exif=exif(number, "<>"[number % 2]))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
    np.testing.assert_array_equal(whole_of(content), expected)
    stored = np.asarray(Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(stored_of(content), stored)
    (tmp_path / "photo").write_bytes(content)
    np.testing.assert_array_equal(read_image(tmp_path / "photo"), expected)
    assert file_header(str(tmp_path / "photo")) == (number, expected.shape[1::-1])
    sides = np.array(expected.shape[:2])
    for _ in range(2):
        size = rng.integers(1, min(sides) + 1, 2)
        top, left = rng.integers(0, min(sides) - size + 1)
        window = tf.constant([top, left, *size], tf.int32)
        part = np.s_[top : top + size[0], left : left + size[1]]
        np.testing.assert_array_equal(cut(tf.constant(content), window, True), expected[part])
        np.testing.assert_array_equal(cut(tf.constant(content), window, False), stored[part])


def test_a_window_is_sampled_from_the_size_of_the_upright_photo():
    shapes = []
    decode_window(photo(6), lambda shape: shapes.append(shape.numpy().tolist()) or tf.constant([0, 0, 1, 1]))
    assert shapes == [[33, 20]]


@pytest.mark.parametrize(
    "mode, number, name",
    [("RGB", 6, "scan.png"), ("I;16", 6, "a.tif"), ("CMYK", 1, "a.tif")],
)
def test_pillow_reads_tiff_whatever_its_name(mode, number, name, tmp_path):
    image = Image.fromarray(waves()[..., 0] * np.uint16(250)) if mode == "I;16" else Image.fromarray(waves())
    path = str(tmp_path / name)
    (image if mode == "I;16" else image.convert(mode)).save(path, "TIFF", tiffinfo={0x0112: number})
    pixels = whole_of(content_of(path)).numpy()
    np.testing.assert_array_equal(pixels, read_image(path))
    assert pixels.shape == ((33, 20, 3) if number == 6 else (20, 33, 3))


@pytest.mark.parametrize("kind", ["TIFF", "AVIF"])
def test_pillow_converts_what_tensorflow_does_not_decode(kind, tmp_path):
    content = encoded(Image.fromarray(waves()), kind)
    (tmp_path / "photo.jpg").write_bytes(content)
    pixels = read_image(content)
    for again in (content_of(str(tmp_path / "photo.jpg")), decodable(content)):
        np.testing.assert_array_equal(whole_of(again).numpy(), pixels)
    assert np.abs(pixels - waves().astype(int)).mean() < 5
    check_image(content)
    damaged = content[: len(content) // 2]
    assert decodable(damaged) == damaged
    with pytest.raises(ValueError, match="not a readable image"):
        check_image(damaged)


def test_the_reason_is_text_where_tensorflow_names_bytes_of_the_image():
    with pytest.raises(ValueError, match="not a readable image: 7 bytes"):
        check_image(b"\x89PNG123")
