import io
import os
from itertools import product

import numpy as np
import pytest
import tensorflow as tf
from made.photos import FORMATS, ORIENTATIONS, photo, waves
from made.sampling import some
from PIL import Image, ImageOps

from keras_vit import Preprocessing
from keras_vit.data.images import decode, decode_window, file_orientation, normalise, prepare, read
from keras_vit.preprocessing import read_image

KINDS = {  # what is written: Pillow's mode, the format and its options
    "png": ("RGB", "PNG", {}),
    "grey png": ("L", "PNG", {}),
    "palette png": ("P", "PNG", {}),
    "transparent png": ("RGBA", "PNG", {}),
    "grey and transparent png": ("LA", "PNG", {}),
    "jpeg": ("RGB", "JPEG", {"quality": 90}),
    "grey jpeg": ("L", "JPEG", {"quality": 90}),
    "progressive jpeg": ("RGB", "JPEG", {"quality": 80, "progressive": True}),
    "cmyk jpeg": ("CMYK", "JPEG", {"quality": 90}),
    "bmp": ("RGB", "BMP", {}),
    "gif": ("P", "GIF", {}),
    "webp": ("RGB", "WEBP", {"quality": 80}),
    "exact webp": ("RGB", "WEBP", {"lossless": True}),
}


@tf.function
def cut(encoded, window, exif):
    return decode_window(encoded, lambda shape: window, exif)


whole_of = tf.function(decode, [tf.TensorSpec((), tf.string)])


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


JPEGS = {
    "4:4:4": ("RGB", {"subsampling": "4:4:4"}),
    "4:2:2": ("RGB", {"subsampling": "4:2:2"}),
    "4:2:0": ("RGB", {"subsampling": "4:2:0"}),
    "4:2:0, progressive": ("RGB", {"subsampling": "4:2:0", "progressive": True}),
    "4:2:0, restart markers": ("RGB", {"subsampling": "4:2:0", "restart_marker_blocks": 3}),
    "grey": ("L", {}),
    "CMYK": ("CMYK", {}),
    "CMYK, 4:2:0": ("CMYK", {"subsampling": "4:2:0"}),
}


@pytest.mark.parametrize("kind", JPEGS)
def test_a_window_of_a_jpeg_holds_the_pixels_of_the_whole(kind, rng):
    mode, options = JPEGS[kind]
    for _ in range(40 if "FULL" in os.environ else 4):
        sides = rng.integers(1, 150, 2)
        noise = Image.fromarray(rng.integers(0, 255, (*sides // 4 + 1, 3), "uint8"))
        file = io.BytesIO()
        noise.resize(sides[::-1]).convert(mode).save(file, "JPEG", quality=85, **options)
        encoded = file.getvalue()
        whole = decode(encoded).numpy()
        for _ in range(60):
            size = rng.integers(1, sides + 1)
            top, left = rng.integers(0, sides - size + 1)
            window = tf.constant([top, left, *size], tf.int32)
            expected = whole[top : top + size[0], left : left + size[1]]
            np.testing.assert_array_equal(cut(tf.constant(encoded), window, False), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_of_every_kind_is_drawn_from_its_own_size(kind):
    seen = []

    def window(shape):
        seen.append(shape.numpy().tolist())
        return tf.concat([[3, 5], shape - 10], 0)

    part = decode_window(encode(kind), window)
    assert seen == [[45, 61]]
    np.testing.assert_array_equal(part, decode(encode(kind))[3:38, 5:56])


@pytest.mark.parametrize("height, width", [(53, 90), (90, 53), (33, 40), (64, 64)])
def test_big_visions_evaluation_crop(height, width):
    """`resize_small(32)|central_crop(28)`: the shorter side to 32, the aspect kept, then the middle."""
    image = photograph(height, width)
    factor = 32 / min(height, width)
    small = bilinear(image.astype("float64"), [round(height * factor), round(width * factor)])
    top, left = ((side - 28) // 2 for side in small.shape[:2])
    expected = small[top : top + 28, left : left + 28] / 127.5 - 1
    prepared = prepare(tf.constant(image), Preprocessing(28, resize="crop", crop_fraction=28 / 32))
    np.testing.assert_allclose(prepared, expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 5, 3), (None, None, 3)])
def test_the_graph_scales_as_preprocessing_does(shape, rng):
    preprocessing = Preprocessing(None, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    pixels = rng.uniform(0, 255, (4, 5, 3)).astype("float32")
    scale = tf.function(lambda x: normalise(x, preprocessing), [tf.TensorSpec(shape)])
    np.testing.assert_allclose(scale(pixels), preprocessing.normalise(pixels), atol=1e-6)


WAYS = product(
    ["png", "jpeg"],
    [(24, 24), (20, 37), (96, 64)],
    [("squash", 1.0), ("crop", 1.0), ("crop", 0.875)],
    ["bilinear", "bicubic", "nearest"],
    [False, True],
)


@pytest.mark.parametrize("kind, size, cut, interpolation, antialias", some(WAYS, 5))
def test_the_graph_makes_what_preprocessing_makes(tmp_path, kind, size, cut, interpolation, antialias):
    resize, fraction = cut
    preprocessing = Preprocessing(
        size, resize, fraction, interpolation, antialias, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25)
    )
    path = tmp_path / "image"
    path.write_bytes(encode(kind))
    expected = preprocessing(path)[0]
    actual = in_a_graph(encode(kind), preprocessing)
    assert actual.shape == (*size, 3)
    np.testing.assert_allclose(actual, expected, atol=2e-5)


@pytest.mark.parametrize("shape", [(1, 2000), (60_000, 1), (5, 1234)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest"])
def test_of_a_long_image_the_graph_makes_what_preprocessing_makes(tmp_path, shape, interpolation, rng):
    preprocessing = Preprocessing((24, 40), "crop", 0.875, interpolation, antialias=True)
    Image.fromarray(rng.integers(0, 256, (*shape, 3)).astype("uint8")).save(tmp_path / "image.png")
    actual = in_a_graph((tmp_path / "image.png").read_bytes(), preprocessing)
    np.testing.assert_allclose(actual, preprocessing(tmp_path / "image.png")[0], atol=2e-5)


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


def test_a_file_that_is_no_image_has_no_orientation(tmp_path):
    path = tmp_path / "image.png"
    path.write_bytes(encode("png"))
    assert file_orientation(str(path)) == 1
    path.write_bytes(encode("png")[:100])
    assert file_orientation(str(path)) is None
    assert file_orientation(str(tmp_path / "nowhere.png")) is None
    path.rename(tmp_path / "image.tif")
    assert file_orientation(str(tmp_path / "image.tif")) is None
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "device.png"):
        assert file_orientation(str(tmp_path / name)) is None


@pytest.mark.parametrize("number", ORIENTATIONS)
@pytest.mark.parametrize("name", FORMATS)
def test_photos_are_decoded_in_their_orientation(name, number, tmp_path, rng):
    encoded = photo(number, name)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))))
    np.testing.assert_array_equal(whole_of(encoded), expected)
    stored = np.asarray(Image.open(io.BytesIO(encoded)))
    np.testing.assert_array_equal(decode(encoded, exif=False), stored)
    (tmp_path / "photo").write_bytes(encoded)
    np.testing.assert_array_equal(read_image(tmp_path / "photo"), expected)
    assert file_orientation(str(tmp_path / "photo")) == number
    sides = np.array(expected.shape[:2])
    for _ in range(4):
        size = rng.integers(1, min(sides) + 1, 2)
        top, left = rng.integers(0, min(sides) - size + 1)
        window, part = (
            tf.constant([top, left, *size], tf.int32),
            np.s_[top : top + size[0], left : left + size[1]],
        )
        np.testing.assert_array_equal(cut(tf.constant(encoded), window, True), expected[part])
        np.testing.assert_array_equal(cut(tf.constant(encoded), window, False), stored[part])


def test_a_window_is_drawn_from_the_size_of_the_upright_photo():
    seen = []
    decode_window(photo(6), lambda shape: seen.append(shape.numpy().tolist()) or tf.constant([0, 0, 1, 1]))
    assert seen == [[33, 20]]


@pytest.mark.parametrize("number, name", [(1, "scan.TIF"), (6, "scan.png")])
@pytest.mark.parametrize("mode", ["RGB", "L", "I;16", "CMYK", "P"])
def test_tiff_is_read_by_pillow_whatever_its_name(mode, number, name, tmp_path):
    image = Image.fromarray(waves())
    image = Image.fromarray(waves()[..., 0] * np.uint16(250)) if mode == "I;16" else image.convert(mode)
    path = str(tmp_path / name)
    image.save(path, "TIFF", tiffinfo={0x0112: number})
    pixels = decode(tf.function(read)(tf.constant(path))).numpy()
    np.testing.assert_array_equal(pixels, read_image(path))
    assert pixels.shape == ((33, 20, 3) if number == 6 else (20, 33, 3))


def test_tiff_of_floats_is_refused(tmp_path):
    Image.fromarray(waves()[..., 0].astype("float32")).save(tmp_path / "scan.tif")
    with pytest.raises(ValueError, match="scan.tif .it has 32 bits a channel; wanted 8 or 16"):
        read_image(tmp_path / "scan.tif")
    assert file_orientation(str(tmp_path / "scan.tif")) is None
