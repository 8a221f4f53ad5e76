"""Image files to pixels by Pillow, so that they equal those of the TensorFlow graphs in `data.formats`."""

import contextlib
import io
import os
import stat
import struct
import sys

import numpy as np

from keras_vit.messages import redact_url, similar_path
from keras_vit.preprocessing import bounds
from keras_vit.preprocessing.web_images import download_image, is_url

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "AVIF", "HEIF")  # Pillow's names
# First bytes of files that TensorFlow does not decode; those of AVIF and HEIF have the name of a kind behind.
TIFF, BOX = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), b"ftyp"
HEIF = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
SUBFILE, REDUCED = 254, 1  # the TIFF tag of what a page is, and its bit for a smaller version
PREFIX = b"Exif\0\0"  # of EXIF data in a JPEG and in some WebP files
ORIENTATION, SHORT = 0x0112, 3  # the EXIF tag and the type of its value
TRANSPOSED = 5  # the first orientation whose rows are the columns of the stored image
# By orientation: whether rows and whether columns are reversed, after the transposition.
REVERSED = np.array([(0, 0), (0, 0), (0, 1), (1, 1), (1, 0), (0, 0), (0, 1), (1, 1), (1, 0)], bool)

# The BMP files that Pillow and TensorFlow decode alike: the sizes of their image headers (offset 14), and
# bits per pixel with the compression (offset 28). The pixels of the last form are compressed with bit fields,
# whose masks (offset 54) are those that every 32-bit BMP implies.
BMP_SIZES = tuple(struct.pack("<I", size) for size in (40, 52, 56, 64, 108, 124))
BMP_FORMS = tuple(struct.pack("<HI", bits, 0) for bits in (8, 24, 32))
BMP_MASKED = struct.pack("<HI3I", 32, 3, 0xFF0000, 0xFF00, 0xFF)
BMP_REQUIREMENT = "a BMP file must have 8, 24 or 32 bits per pixel and no compression"


def read_image(source):
    """The pixels of an image file (JPEG, PNG, BMP, GIF, WebP, TIFF, AVIF, HEIC) in its EXIF orientation.

    Pillow reads AVIF, and HEIC if the package pillow-heif is installed.

    Args:
        source: Path of the file, its `http://` or `https://` URL, or its content as bytes.

    Returns:
        uint8 (height, width, 3), of a GIF's first frame, as `keras_vit.data.decoding.model_input.decode`
        returns them. Of 16 bits per channel the upper 8 are kept.

    Raises:
        ValueError: if the file is missing, is not a readable image, or has more than `MAX_PIXELS`; the
            message contains its path or URL.

    Example:
        >>> keras.utils.save_img(tmp / "gray.png", np.full((8, 9, 3), 128), scale=False)
        >>> read_image(tmp / "gray.png").shape
        (8, 9, 3)
    """
    with _errors_named(source), _open(source) as file, _opened(file) as image:
        return _turned(_stored_pixels(image, file), image)


def image_header(source):
    """The format of an image file, by Pillow's name, and its (width, height) as it is stored.

    Args:
        source: As for `read_image`.

    Raises:
        ValueError: as `read_image`; the pixels are not decoded.

    Example:
        >>> keras.utils.save_img(tmp / "gray.png", np.full((8, 9, 3), 128), scale=False)
        >>> image_header(tmp / "gray.png")
        ('PNG', (9, 8))
    """
    with _errors_named(source), _open(source) as file, _opened(file) as image:
        return image.format, image.size


@contextlib.contextmanager
def _errors_named(source):
    """Errors of reading an encoded image as ValueErrors that name it."""
    from PIL import Image, UnidentifiedImageError

    name = _name(source)
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"no such image file: {name}{similar_path(name)}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        reason = f"it has more than {bounds.MAX_PIXELS} pixels"
        raise ValueError(f"not a readable image: {name} ({reason})") from None
    except UnidentifiedImageError:  # Its message has a Python object.
        raise ValueError(f"not a readable image: {name} (expected {', '.join(FORMATS)})") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"not a readable image: {name} ({error})") from None


def image_size(source):
    """The (width, height) of an image file in its EXIF orientation, as of `read_image`.

    Args:
        source: As for `read_image`.

    Returns:
        (width, height); None if the file is no image. Only PNG and TIFF files are decoded.

    Example:
        >>> keras.utils.save_img(tmp / "gray.png", np.full((8, 9, 3), 128), scale=False)
        >>> image_size(tmp / "gray.png"), image_size(b"no image")
        ((9, 8), None)
    """
    from PIL import Image

    try:
        with _open(source) as file, _opened(file) as image:
            if image.format in ("PNG", "TIFF"):  # EXIF data may be after the pixels; a TIFF may be turned.
                image.load()
            return image.size[::-1] if _orientation(image) >= TRANSPOSED else image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def picture_pixels(picture):
    """The pixels of a picture of Pillow, as `read_image` returns those of the file that it was opened from.

    Args:
        picture: A `PIL.Image.Image` of any mode.

    Returns:
        uint8 (height, width, 3), in the EXIF orientation, which `PIL.ImageOps.exif_transpose` removes.

    Raises:
        ValueError: if the file behind it is damaged, or it has 32 bits per channel.

    Example:
        >>> from PIL import Image
        >>> picture_pixels(Image.new("L", (9, 8), 128)).shape
        (8, 9, 3)
    """
    try:
        return _turned(_loaded_pixels(picture), picture)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"not a readable picture of Pillow ({error})") from None


def image_bytes(image, kind="PNG", **options):
    """The content of an image file by Pillow.

    Args:
        image: A Pillow image, or an array: colors (height, width, 3), or gray (height, width).
        kind: The file format.
        **options: Those of `PIL.Image.Image.save`.

    Example:
        >>> image_bytes(np.zeros((8, 9, 3), "uint8"))[:4]
        b'\x89PNG'
    """
    from PIL import Image

    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, kind, **options)
    return file.getvalue()


def _turned(pixels, image):
    """The pixels of a Pillow image in its EXIF orientation."""
    orientation = _orientation(image)
    pixels = pixels.swapaxes(0, 1) if orientation >= TRANSPOSED else pixels
    rows, columns = np.where(REVERSED[orientation], -1, 1)
    return pixels[::rows, ::columns]


def _orientation(image):
    """The EXIF orientation of a Pillow image that has been read."""
    return exif_orientation(image.info.get("exif") or b"")


def _opened(file):
    """The Pillow image of a file, whose pixels are not read yet."""
    from PIL import Image

    head = file.read(12)
    file.seek(0)
    if head[4:] in {BOX + brand for brand in HEIF}:
        try:
            from pillow_heif import register_heif_opener
        except ImportError:
            raise ValueError("HEIC needs: pip install pillow-heif") from None
        register_heif_opener()
    if Image.MAX_IMAGE_PIXELS is not None:  # Pillow's own bound must not be below ours.
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, bounds.MAX_PIXELS)
    Image.init()
    return Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN])


def needs_pillow(content):
    """Whether TensorFlow does not decode an image, of which Pillow may read the content (bytes).

    >>> needs_pillow(b"II*\\0"), needs_pillow(b"\\x89PNG")
    (True, False)
    """
    return content.startswith(TIFF) or content[4:8] == BOX


def is_encoded(image):
    """Whether an image is given as `read_image` takes it, not as pixels.

    >>> is_encoded("cat.jpg"), is_encoded(np.zeros((8, 8, 3)))
    (True, False)
    """
    return isinstance(image, str | bytes | bytearray | os.PathLike)


def is_picture(image):
    """Whether this is a picture of Pillow, of which there is none where Pillow is not imported.

    >>> is_picture(np.zeros((8, 8, 3)))
    False
    """
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(image, pillow.Image)


def _name(source):
    """What a message calls an encoded image."""
    if isinstance(source, bytes | bytearray):
        return f"{len(source)} bytes"
    return redact_url(source) if is_url(source) else os.fspath(source)


def _open(source):
    """The binary file of an encoded image.

    A path is not left to Pillow 13, which would map an uncompressed TIFF given by its name into memory and
    garble rotated ones.
    """
    if is_url(source):
        source = download_image(source)
    if not isinstance(source, bytes | bytearray):
        check_file(source)
        return open(source, "rb")
    check_length(len(source))
    return io.BytesIO(source)


def check_file(path):
    """Raise ValueError for a file that is too large, or is not regular, such as a pipe, which never ends.

    >>> check_file("/dev/null")
    Traceback (most recent call last):
    ValueError: it is not a regular file
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    check_length(status.st_size)


def check_length(count):
    """Raise ValueError for more bytes than an image file may have.

    >>> check_length(10**12)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: it has 1000000000000 bytes; at most ... are read
    """
    if count > bounds.MAX_BYTES:
        raise ValueError(f"it has {count} bytes; at most {bounds.MAX_BYTES} are read")


def _stored_pixels(image, file):
    """The pixels of an image that Pillow has opened, as TensorFlow decodes them, or ValueError."""
    if image.width * image.height > bounds.MAX_PIXELS:
        raise ValueError(
            f"it has {image.width}×{image.height} pixels; at most {bounds.MAX_PIXELS} are decoded"
        )
    if image.format == "BMP":
        file.seek(0)
        header = file.read(66)
        is_masked = header[28:34] + header[54:66] == BMP_MASKED
        if header[14:18] not in BMP_SIZES or not (header[28:34] in BMP_FORMS or is_masked):
            raise ValueError(BMP_REQUIREMENT)
    if image.format in ("WEBP", "AVIF") and image.is_animated:
        raise ValueError("it is animated")
    if image.format == "GIF":
        return _first_frame(image)
    if image.format == "TIFF":
        _check_pages(image)
    return _loaded_pixels(image)


def _loaded_pixels(image):
    """The pixels of a Pillow image, of the frame or page that it is at."""
    from PIL import Image

    image.load()  # A PNG may have its EXIF data after the pixels.
    if image.mode in ("I", "F") and image.format != "PNG":
        raise ValueError("expected 8 or 16 bits per channel; got 32")
    if image.mode.startswith("I"):  # TensorFlow keeps the upper 8 of 16 bits.
        image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
    if image.mode == "CMYK":
        light = np.asarray(image).astype("uint16")
        # Pillow inverts all JPEGs as if by Adobe; what it converts itself has no format.
        if image.format in ("TIFF", None) or "adobe" in image.info:
            light = 255 - light
        return (light[..., :3] * light[..., 3:] // 255).astype("uint8")  # TensorFlow rounds down, too.
    return np.asarray(image.convert("RGB"))


def _check_pages(image):
    """Raise ValueError for a TIFF file of several pages; smaller versions of the first one are no pages."""
    try:
        for page in range(1, image.n_frames):
            image.seek(page)
            if not image.tag_v2.get(SUBFILE, 0) & REDUCED:
                raise ValueError(f"expected one image; got {image.n_frames} pages")
        image.seek(0)
    except TypeError as error:  # of a damaged page
        raise ValueError(f"its pages are damaged: {error}") from None


def _first_frame(image):
    """A GIF's first frame at its position on the canvas, black elsewhere and where it is transparent."""
    left, top, right, bottom = image.tile[0][1]
    colors, alpha = np.split(np.asarray(image.convert("RGBA"))[top:bottom, left:right], [3], axis=-1)
    canvas = np.zeros((image.height, image.width, 3), "uint8")
    canvas[top:bottom, left:right] = colors * (alpha > 0)
    return canvas


def exif_orientation(exif):
    """The orientation in EXIF data (bytes): 1 to 8, and 1 where there is none or the data is malformed.

    >>> from PIL import Image
    >>> exif = Image.Exif()
    >>> exif[0x0112] = 6
    >>> exif_orientation(exif.tobytes())
    6
    """
    value = max((value for *_, value in orientation_tags(exif)), default=1)
    return value if 1 <= value <= 8 else 1


def orientation_tags(exif):
    """The orientations in EXIF data (bytes): (offset, byte order as of struct, value) of each.

    >>> from PIL import Image
    >>> exif = Image.Exif()
    >>> exif[0x0112] = 6
    >>> [*orientation_tags(exif.tobytes())]
    [(24, '>', 6)]
    """
    before = len(PREFIX) if exif.startswith(PREFIX) else 0
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[before : before + 4])
    if order is None:
        return
    with contextlib.suppress(struct.error):  # The data may end early.
        (directory,) = struct.unpack_from(f"{order}I", exif, before + 4)
        first = before + directory
        (count,) = struct.unpack_from(f"{order}H", exif, first)
        for start in range(first + 2, first + 2 + 12 * count, 12):
            tag, value_type, _, value, _ = struct.unpack_from(f"{order}HHIHH", exif, start)
            if (tag, value_type) == (ORIENTATION, SHORT):
                yield start + 8, order, value
