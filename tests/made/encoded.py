"""Encoded images in every mode and container that Pillow writes, rare forms of PNG, and damaged ones."""

import functools
import io
import itertools
import struct
import warnings
import zlib

import numpy as np
from made.damage import damaged
from made.photos import exif, waves
from PIL import Image

PHOTO = Image.fromarray(waves(23, 34))
FRAMES = {"save_all": True, "append_images": [PHOTO.rotate(9)]}
# (container, modes that Pillow writes in it, options)
WRITTEN = [
    ("JPEG", "1 L RGB RGBX CMYK YCbCr", {"quality": 30}),
    ("JPEG", "L RGB CMYK", {"progressive": True, "subsampling": 1}),
    ("JPEG", "L RGB CMYK", {"optimize": True, "restart_marker_rows": 1}),
    ("JPEG", "RGB YCbCr", {"keep_rgb": True, "comment": "a" * 999}),
    ("PNG", "1 L LA P RGB RGBA I;16", {}),
    ("PNG", "1 L P I;16", {"transparency": 1}),
    ("PNG", "L P RGB RGBA", FRAMES),
    ("GIF", "1 L LA P RGB RGBA I I;16 F", {}),
    ("GIF", "1 L P RGB RGBA", {"transparency": 1}),
    ("GIF", "1 L LA P RGB RGBA", FRAMES),
    ("BMP", "1 L P RGB RGBA", {}),
    ("WEBP", "1 L LA P PA RGB RGBA RGBX CMYK YCbCr LAB HSV I I;16 F", {"quality": 20}),
    ("WEBP", "L LA P RGB RGBA", {"lossless": True}),
    ("WEBP", "LA RGB RGBA", {"lossless": True, "exact": True}),
    ("WEBP", "L LA P RGB RGBA", FRAMES),
    ("TIFF", "1 L LA P PA RGB RGBA RGBX CMYK YCbCr LAB I I;16 F", {}),
    ("TIFF", "1 L LA P RGB RGBA CMYK YCbCr I;16", {"compression": "packbits"}),
    ("TIFF", "1 L LA P RGB RGBA CMYK YCbCr I;16", {"compression": "tiff_lzw"}),
    ("TIFF", "1 L P RGB RGBA CMYK YCbCr I;16", {"compression": "zstd", "big_tiff": True}),
    ("TIFF", "L RGB CMYK YCbCr", {"compression": "jpeg"}),
    ("TIFF", "1", {"compression": "group4"}),
    ("TIFF", "1 L P RGB RGBA CMYK I;16", FRAMES),
    # Which the package does not read, but for AVIF, and an MPO, which begins with a JPEG.
    *((kind, "L RGB", {}) for kind in ("PPM", "TGA", "PCX", "ICO", "ICNS", "SGI", "JPEG2000", "AVIF", "DDS")),
    *((kind, "L RGB", {}) for kind in ("EPS", "PDF", "MPO")),
    ("MPO", "L RGB", FRAMES),
]
LONG = ((1, 2000), (2000, 1), (1, 60_000), (60_000, 1), (20_000, 1), (1, 1), (3, 16_000))  # (height, width)


def converted(image, mode):
    """An RGB image in another mode, transparent in places where that has an alpha channel."""
    gray = image.convert("L")
    if mode == "I;16":
        return Image.fromarray((np.asarray(gray).astype("uint16") << 8) + 77)
    if mode == "LAB":
        return Image.merge("LAB", image.split())
    if mode in ("LA", "PA", "RGBA"):
        made = {"LA": gray, "PA": image.convert("P"), "RGBA": image}[mode].convert(mode)
        made.putalpha(Image.linear_gradient("L").resize(image.size))
        return made
    return image.convert(mode)


def encoded(image, kind, **options):
    """The content of a file by Pillow."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image.save(file, kind, **options)
    return file.getvalue()


def png_chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of(rows, width, height, depth, color, interlaced=0, before=b""):
    """A PNG of these rows, each after the byte of its filter, and of chunks before them."""
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced))
    pixels = png_chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + head + before + pixels + png_chunk(b"IEND", b"")


def png(rng, width, height, depth, color, interlaced):
    """A PNG of random pixels of any bit depth and color type, as most writers do not make them."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    adam7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    rows = b""
    for left, top, across, down in adam7 if interlaced else [(0, 0, 1, 1)]:
        columns, lines = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0:
            size = -(-columns * channels * depth // 8)
            rows += b"".join(bytes([rng.integers(5)]) + rng.bytes(size) for _ in range(lines))
    palette = png_chunk(b"PLTE", rng.bytes(3 * 2**depth)) if color == 3 else b""
    transparent = png_chunk(b"tRNS", rng.bytes({0: 2, 2: 6, 3: 2}[color])) if color in (0, 2, 3) else b""
    return png_of(rows, width, height, depth, color, interlaced, palette + transparent * int(rng.integers(2)))


def _forms():
    """(name, suffix, function that makes the content) of sound images."""

    def form(name, kind, make_image, suffix=None, **options):
        suffix = suffix or {"JPEG": "jpg", "TIFF": "tif"}.get(kind, kind.lower())
        return f"{kind} {name}", suffix, lambda: encoded(make_image(), kind, **options)

    for number, (kind, modes, options) in enumerate(WRITTEN):
        for mode in modes.split():
            yield form(f"{mode} {number}", kind, functools.partial(converted, PHOTO, mode), **options)
    for kind, turn in itertools.product(("JPEG", "PNG", "WEBP", "TIFF"), range(1, 9)):
        data = exif(turn)[6 if kind == "TIFF" else 0 :]
        yield form(f"turned {turn}", kind, lambda: PHOTO, exif=data)
    for kind, size in itertools.product(("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"), LONG):
        if kind != "WEBP" or max(size) < 2**14:
            image = Image.fromarray(np.resize(waves(), (*size, 3)))
            yield form(f"of {size[0]}×{size[1]}", kind, functools.partial(Image.Image.copy, image))
    for kind, suffix in itertools.product(("JPEG", "PNG", "TIFF"), ("png", "tif", "TIFF", "txt", "gif")):
        yield form(f"called {suffix}", kind, lambda: PHOTO, suffix)
    depths = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
    for color, interlaced in itertools.product(depths, (0, 1)):
        for depth in depths[color]:
            rng = np.random.default_rng([color, interlaced, depth])
            name = f"PNG of type {color} in {depth} bits{' interlaced' * interlaced}"
            yield name, "png", functools.partial(png, rng, 34, 23, depth, color, interlaced)


FORMS = {name: (suffix, make) for name, suffix, make in _forms()}
READ = [name for name in FORMS if name.startswith(("JPEG ", "PNG ", "GIF ", "BMP ", "WEBP ", "TIFF "))]
DAMAGED = 300


@functools.cache
def form(name):
    """(suffix, content) of a sound image."""
    suffix, make = FORMS[name]
    return suffix, make()


def damaged_form(number):
    """(name, suffix, content) of a damaged image."""
    rng = np.random.default_rng(number)
    while True:
        name = READ[rng.integers(len(READ))]
        suffix, content = form(name)
        if len(content) < 10_000:
            return name, suffix, damaged(content, rng)


def npy(values, **options):
    """The content of a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(values), **options)
    return file.getvalue()
