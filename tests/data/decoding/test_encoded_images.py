import struct

import numpy as np
import pytest
import tensorflow as tf
from made.encoded import encoded, png_of
from made.tables import by_table
from PIL import Image

from keras_vit.data.decoding.encoded_images import decode_stored, is_bounded
from keras_vit.preprocessing import bounds, read_image
from keras_vit.preprocessing.image_files import BMP_REQUIREMENT

COLORS = np.random.default_rng(0).integers(0, 256, (12, 16, 3)).astype("uint8")
IMAGE = Image.fromarray(COLORS)
BGR_MASKS = struct.pack("<III", 0xFF0000, 0xFF00, 0xFF)
INK = Image.frombytes("CMYK", (16, 12), np.random.default_rng(2).bytes(12 * 16 * 4))
CLEAR = Image.fromarray(np.insert(COLORS, 3, np.arange(12 * 16).reshape(12, 16), -1))  # transparent in places


def without_adobe(jpeg):
    """A JPEG without the marker by which Adobe's programs say that they invert CMYK."""
    start = jpeg.index(b"\xff\xee")
    return jpeg[:start] + jpeg[start + 2 + int.from_bytes(jpeg[start + 2 : start + 4], "big") :]


def gif(*corner, screen=(16, 12), blocks=b"", **options):
    """A GIF whose first frame has its corner elsewhere, on another screen, after blocks of extensions."""
    content = encoded(IMAGE.quantize(64), "GIF", **options)
    frame = content.index(b"\x2c" + struct.pack("<HHHH", 0, 0, 16, 12))
    descriptor = b"\x2c" + struct.pack("<HH", *(corner or (0, 0))) + content[frame + 5 :]
    return content[:6] + struct.pack("<HH", *screen) + content[10:frame] + blocks + descriptor


def bmp_file(bits, compression=0, masks=b"", colors=0, top_down=False):
    """A BMP of 12×16 pixels."""
    rows = COLORS[:, :, 0] if bits == 8 else np.insert(COLORS[..., ::-1], 3, 9, -1)[..., : bits // 8]
    palette = np.random.default_rng(1).integers(0, 256, (colors, 4)).astype("uint8").tobytes()
    offset = 54 + len(masks) + len(palette)
    height = -12 if top_down else 12
    head = struct.pack(
        "<2sIIIIiiHHIIiiII", b"BM", 0, 0, offset, 40, 16, height, 1, bits, compression, 0, 0, 0, 0, 0
    )
    return head + masks + palette + (rows if top_down else rows[::-1]).tobytes()


stored_of = tf.function(decode_stored, [tf.TensorSpec((), tf.string)])
COMMENT = b"\x21\xfe" + b"\xff" * 256 * 3 + b"\x05hello\x00"
RARE = {
    "cmyk jpeg without adobe's marker": without_adobe(encoded(INK, "JPEG")),
    "bmp of 256 colors": encoded(IMAGE.quantize(256), "BMP"),
    "bmp of some colors": encoded(IMAGE.quantize(30), "BMP"),
    "bmp with alpha": encoded(IMAGE.convert("RGBA"), "BMP"),
    "bmp with the usual masks": bmp_file(32, 3, BGR_MASKS),
    "bmp from the top": bmp_file(24, top_down=True),
    "gif": gif(),
    "gif with an offset and transparent pixels": gif(3, 2, screen=(24, 15), transparency=5),
    "gif beyond its screen": gif(3, 2, screen=(10, 5)),
    "gif on a larger screen": gif(screen=(40, 30)),
    "gif with comments": gif(blocks=COMMENT * 2),
    "gif with larger frames": gif(save_all=True, append_images=[IMAGE.resize((60, 50)).quantize(9)]),
    "animated png": encoded(IMAGE, "PNG", save_all=True, append_images=[IMAGE.rotate(180)]),
    "webp with alpha": encoded(IMAGE.convert("RGBA"), "WEBP", lossless=True),
    "extended webp with transparent pixels": encoded(
        CLEAR, "WEBP", lossless=True, exact=True, exif=b"Exif\0\0"
    ),
}


@by_table("kind", RARE)
def test_rare_forms_are_decoded_as_pillow_does(kind, tmp_path):
    (tmp_path / "image").write_bytes(RARE[kind])
    pixels = read_image(tmp_path / "image")
    np.testing.assert_array_equal(stored_of(RARE[kind]), pixels)


REFUSED = {
    "bmp of 2 colors": (encoded(IMAGE.convert("1"), "BMP"), BMP_REQUIREMENT),
    "bmp with other masks": (bmp_file(32, 3, BGR_MASKS[::-1]), BMP_REQUIREMENT),
    "compressed bmp": (bmp_file(8, 1, colors=256), BMP_REQUIREMENT),
    "animated webp": (encoded(IMAGE, "WEBP", save_all=True, append_images=[IMAGE.rotate(90)]), "animated"),
    "gif without an image": (gif()[:100] + b";", ""),
    "postscript": (encoded(IMAGE, "EPS"), ""),
}


@by_table("kind", REFUSED)
def test_what_the_two_decoders_read_differently_is_refused_by_both(kind, tmp_path):
    content, message = REFUSED[kind]
    (tmp_path / "image").write_bytes(content)
    with pytest.raises(ValueError, match=f"not a readable image: .*{message}"):
        read_image(tmp_path / "image")
    with pytest.raises(tf.errors.InvalidArgumentError):
        stored_of(content)


# Bounds -------------------------------------------------------------------------------------------


def jpeg_of(width, height):
    content = bytearray(encoded(IMAGE, "JPEG"))
    start = content.index(b"\xff\xc0")
    content[start + 5 : start + 9] = struct.pack(">HH", height, width)
    return bytes(content)


def webp_of(width, height, **options):
    content = bytearray(encoded(IMAGE, "WEBP", **options))
    if content[12:16] == b"VP8X":
        content[24:30] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    elif content[12:16] == b"VP8L":
        content[21:25] = (width - 1 | (height - 1) << 14).to_bytes(4, "little")
    else:
        content[26:30] = struct.pack("<HH", width, height)
    return bytes(content)


LARGE = {
    "png": png_of(bytes(100), 60_000, 60_000, 8, 2),
    "jpeg": jpeg_of(60_000, 60_000),
    "bmp": bmp_file(24)[:18] + struct.pack("<ii", 60_000, -60_000) + bmp_file(24)[26:],
    "gif screen": gif(screen=(60_000, 60_000)),
    "gif offset": gif(60_000, 60_000),
    "webp": webp_of(16_000, 16_000),
    "lossless webp": webp_of(16_000, 16_000, lossless=True),
    "extended webp": webp_of(60_000, 60_000, exif=b"Exif\0\0MM\0*"),
}


@by_table("kind", LARGE)
def test_an_image_of_more_pixels_than_the_bound_is_refused_by_its_header(kind, tmp_path):
    content = LARGE[kind]
    (tmp_path / "image").write_bytes(content)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"more than {bounds.MAX_PIXELS} pixels"):
        stored_of(content)
    assert kind == "gif offset" or not is_bounded(content)
    with pytest.raises(ValueError, match=f"readable image: .*more than {bounds.MAX_PIXELS} pixels"):
        read_image(tmp_path / "image")


def test_a_gifs_later_frames_are_not_decoded():
    huge = b"\x2c" + struct.pack("<HHHH", 0, 0, 65_535, 65_535) + b"\0\x08" + b"\xff" * 256 * 9 + b"\0;"
    content = gif()[:-1] + huge
    np.testing.assert_array_equal(stored_of(content), stored_of(gif()))


def test_the_bounds_are_the_same_for_both_decoders_and_above_pillows(monkeypatch, tmp_path):
    png = encoded(IMAGE, "PNG")
    (tmp_path / "image.png").write_bytes(png)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)  # Pillow refuses twice as many.
    monkeypatch.setattr(bounds, "MAX_PIXELS", 12 * 16)
    assert is_bounded(png) and read_image(tmp_path / "image.png").shape == (12, 16, 3)
    monkeypatch.setattr(bounds, "MAX_BYTES", 100)
    assert not is_bounded(png)
    monkeypatch.setattr(bounds, "MAX_BYTES", 10_000)
    monkeypatch.setattr(bounds, "MAX_PIXELS", 12 * 16 - 1)
    assert not is_bounded(png)
    with pytest.raises(ValueError, match="it has 16×12 pixels; at most 191 are decoded"):
        read_image(tmp_path / "image.png")
