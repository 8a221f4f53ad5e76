import os
import sys

import numpy as np
import pillow_heif
import pytest
from made.photos import photo
from PIL import Image

from keras_vit import Preprocessing
from keras_vit.preprocessing import bounds, read_image
from keras_vit.preprocessing.image_files import image_size, picture_pixels

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype("uint8")


def test_missing_damaged_and_irregular_files_are_refused_with_their_path(tmp_path):
    (tmp_path / "notes.png").write_text("hello")
    Image.fromarray(PIXELS).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:600])
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    for name, message in (
        ("notes.png", "not a readable image: .*notes.png"),
        ("half.png", "not a readable image: .*half.png"),
        ("none.png", "no such image file: .*none.png"),
        ("", "not a readable image"),
        ("pipe.png", "not a readable image: .*pipe.png .it is not a regular file"),
        ("device.png", "not a readable image: .*device.png .it is not a regular file"),
    ):
        with pytest.raises(ValueError, match=message):
            Preprocessing(8)(tmp_path / name)


@pytest.mark.parametrize(
    "mode, name", [("P", "a.png"), ("1", "a.png"), ("LA", "a.png"), ("CMYK", "a.jpg"), ("I;16", "a.png")]
)
def test_a_picture_of_pillow_has_the_pixels_of_its_file(mode, name, tmp_path):
    picture = Image.fromarray(PIXELS).convert("I" if mode == "I;16" else mode)
    if mode == "I;16":
        picture = Image.fromarray((np.asarray(picture) * 257).astype("uint16"))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / name, exif=exif)
    with Image.open(tmp_path / name) as opened:
        np.testing.assert_array_equal(picture_pixels(opened), read_image(tmp_path / name))
    if name.endswith("png"):
        turned = np.rot90(picture_pixels(picture), -1)  # What is in memory has no EXIF data.
        np.testing.assert_array_equal(turned, read_image(tmp_path / name))


def test_inks_in_memory_are_what_pillow_makes_of_them():
    picture = Image.new("CMYK", (2, 2), (255, 0, 0, 0))
    assert picture_pixels(picture)[0, 0].tolist() == [0, 255, 255]


def test_a_damaged_picture_is_refused_in_one_line(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:600])
    message = "^not a readable picture of Pillow"
    with Image.open(tmp_path / "half.png") as picture, pytest.raises(ValueError, match=message):
        Preprocessing(8)([picture])


def test_of_16_bits_the_upper_8_are_kept(tmp_path):
    ramp = np.arange(0, 65536, 257, dtype="uint16").reshape(16, 16)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(read_image(tmp_path / "deep.png")[..., 0], ramp >> 8)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_tiffs_of_32_bits_per_channel_are_refused(dtype, tmp_path):
    Image.fromarray(np.arange(12, dtype=dtype).reshape(3, 4)).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match="a.tif .expected 8 or 16 bits per channel; got 32"):
        read_image(tmp_path / "a.tif")


def test_a_tiff_file_of_several_pages_is_refused_but_not_one_with_a_smaller_version(tmp_path):
    pages = [Image.fromarray(PIXELS), Image.fromarray(PIXELS[::2, ::2])]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(ValueError, match="pages.tif .expected one image; got 2 pages"):
        read_image(tmp_path / "pages.tif")
    pages[1].encoderinfo = {"tiffinfo": {254: 1}}
    pages[0].save(tmp_path / "pyramid.tif", save_all=True, append_images=pages[1:])
    with Image.open(tmp_path / "pyramid.tif") as image:
        assert image.n_frames == 2
    np.testing.assert_array_equal(read_image(tmp_path / "pyramid.tif"), PIXELS)


def test_a_file_of_more_bytes_than_the_bound_is_refused(tmp_path, monkeypatch):
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    monkeypatch.setattr(bounds, "MAX_BYTES", 100)
    for source in (tmp_path / "a.png", (tmp_path / "a.png").read_bytes()):
        with pytest.raises(ValueError, match=r"it has \d+ bytes; at most 100 are read"):
            read_image(source)


@pytest.mark.parametrize("number", [1, 3, 6])
def test_avif_is_read_in_its_orientation(number, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = number
    smooth = np.linspace(0, 255, 20 * 30 * 3).reshape(20, 30, 3).astype("uint8")
    Image.fromarray(smooth).save(tmp_path / "a.avif", exif=exif, quality=95)
    expected = {1: smooth, 3: smooth[::-1, ::-1], 6: smooth.swapaxes(0, 1)[:, ::-1]}[number]
    assert np.abs(read_image(tmp_path / "a.avif") - expected.astype(int)).mean() < 3


@pytest.mark.parametrize("number", [1, 3, 6])
def test_the_size_of_a_file_is_that_of_its_pixels(number, tmp_path):
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF"):
        exif = Image.Exif()
        exif[0x0112] = number
        Image.fromarray(PIXELS).save(tmp_path / "a", kind, exif=exif)
        assert image_size(tmp_path / "a") == read_image(tmp_path / "a").shape[1::-1], kind
    content = photo(number, "PNG")
    start, end = content.index(b"eXIf") - 4, content.index(b"IDAT") - 4
    late = content[:start] + content[end:-12] + content[start:end] + content[-12:]
    assert image_size(late) == read_image(late).shape[1::-1] == image_size(content)


def test_an_orientation_in_xmp_alone_turns_neither_pixels_nor_size(tmp_path):
    xmp = b'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    Image.fromarray(PIXELS).save(tmp_path / "a.jpg", xmp=xmp)
    assert image_size(tmp_path / "a.jpg") == read_image(tmp_path / "a.jpg").shape[1::-1] == (30, 20)


def test_animated_avif_is_refused(tmp_path):
    frame = Image.fromarray(PIXELS)
    frame.save(tmp_path / "a.avif", save_all=True, append_images=[frame.rotate(90)])
    with pytest.raises(ValueError, match="a.avif .it is animated"):
        read_image(tmp_path / "a.avif")


def test_heic_needs_a_package_that_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    with pytest.raises(ValueError, match=r"a.heic \(HEIC needs: pip install pillow-heif\)"):
        read_image(tmp_path / "a.heic")


def test_heic_is_read_by_the_package(tmp_path):
    smooth = np.linspace(0, 255, 64 * 64 * 3).reshape(64, 64, 3).astype("uint8")
    pillow_heif.from_pillow(Image.fromarray(smooth)).save(tmp_path / "a.heic", quality=95)
    assert np.abs(read_image(tmp_path / "a.heic") - smooth.astype(int)).mean() < 4
    assert image_size(tmp_path / "a.heic") == (64, 64)
