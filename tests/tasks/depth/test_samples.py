import concurrent.futures
import io
import sys
import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf
from made.damage import damaged
from made.encoded import encoded, npy
from made.tables import by_table
from PIL import Image

from keras_vit import Preprocessing
from keras_vit.data import Augmentation
from keras_vit.data.augmentation.random_augmentation import image_augmentation
from keras_vit.data.batches import evaluation_batches, mask_batches
from keras_vit.data.maps import prepare_map
from keras_vit.labels import label_kind
from keras_vit.tasks.depth import samples as depth_maps
from keras_vit.tasks.depth.samples import DepthReader, DepthSamples, NoScaleError, read_depth_file

DEPTH = label_kind("depth")
MILLIMETERS = np.random.default_rng(0).integers(1, 60_000, (6, 5), "uint16")
METERS = (MILLIMETERS / 1000).astype("float32")
NORMALS = np.random.default_rng(1).normal(size=(6, 5, 3)).astype("float32")
READER = DepthReader(scale=1000, unit="m")


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def pfm(values, order="<"):
    """The content of a PFM file, whose rows are from the lowest to the highest."""
    kind = b"PF" if values.ndim == 3 else b"Pf"
    header = b"%s\n%d %d\n%s1.0\n" % (kind, values.shape[1], values.shape[0], b"-" if order == "<" else b"")
    return header + values[::-1].astype(f"{order}f4").tobytes()


def image(values, file_format="PNG"):
    return encoded(Image.fromarray(values), file_format)


WRITTEN = {  # what is written, and its values
    "PNG of 16 bits": (image(MILLIMETERS), MILLIMETERS),
    "PNG of 8 bits": (image(MILLIMETERS.astype("uint8")), MILLIMETERS.astype("uint8")),
    "TIFF of 16 bits": (image(MILLIMETERS, "TIFF"), MILLIMETERS),
    "TIFF of floats": (image(METERS, "TIFF"), METERS),
    ".npy": (npy(METERS), METERS),
    ".npy of 16-bit floats": (npy(METERS.astype("float16")), METERS.astype("float16")),
    ".npy by columns": (npy(np.asfortranarray(METERS)), METERS),
    ".npy of version 2": (npy(METERS, version=(2, 0)), METERS),
    ".npy of another byte order": (npy(METERS.astype(">f8")), METERS.astype("float64")),
    ".npy of channels": (npy(NORMALS), NORMALS),
    ".npz of one array": (npz(any=METERS), METERS),
    ".npz of several": (npz(depth=METERS, intrinsics=np.eye(3)), METERS),
    "PFM": (pfm(METERS), METERS),
    "PFM of another byte order": (pfm(METERS, ">"), METERS),
    "PFM of three channels": (pfm(NORMALS), NORMALS),
}


@by_table("form", WRITTEN)
def test_each_format_gives_the_values_that_were_written(form):
    content, values = WRITTEN[form]
    found = read_depth_file(content)
    np.testing.assert_array_equal(found, values.reshape(*values.shape[:2], -1))
    assert found.dtype == values.dtype


def test_headers_of_arrays_are_parsed_by_one_thread_at_a_time(monkeypatch):
    """Python before 3.11.8 raises a SystemError at times if several threads parse literals."""
    alone, counts, parse = threading.Lock(), [], np.lib.format.read_array_header_1_0

    def slow(file):
        counts.append(alone.acquire(blocking=False))
        time.sleep(0.01)
        alone.release()
        return parse(file)

    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", slow)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        maps = [*pool.map(read_depth_file, [npy(METERS)] * 8)]
    assert counts == [True] * 8 and all(np.array_equal(values[..., 0], METERS) for values in maps)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of damaged TIFF files
@pytest.mark.parametrize("form", ["PNG of 16 bits", "TIFF of floats", ".npy", ".npz of one array", "PFM"])
def test_a_damaged_file_is_refused_in_one_line_or_has_numbers(form, rng):
    content, _ = WRITTEN[form]
    for _ in range(100):
        try:
            assert read_depth_file(damaged(content, rng)).dtype.kind in "iuf"
        except ValueError as error:
            assert str(error).isprintable()
    with pytest.raises(ValueError):
        read_depth_file(content[:-3])


REFUSED = {  # what a file has, and the message
    "a color PNG": (image(np.zeros((2, 2, 3), "uint8")), "expected a gray image of 8 or 16 bits.* mode RGB"),
    "a PNG of 1 bit": (image(np.zeros((2, 2), bool)), "expected a gray image of 8 or 16 bits.* mode 1"),
    "a JPEG": (image(np.zeros((2, 2), "uint8"), "JPEG"), "expected a file of .png, .npy, .*; got"),
    "nothing": (b"", "got 0 bytes of another kind"),
    "objects": (npy(np.array([[None]]), allow_pickle=True), "a damaged .npy file"),
    "text": (npy(np.array([["a"]])), "expected integers or floating-point numbers; got <U1"),
    "complex numbers": (npy(np.ones((2, 2), "complex64")), "got complex64"),
    "one axis": (npy(np.ones(3)), r"expected an array \(height, width\) or .*; got \(3,\)"),
    "no pixels": (npy(np.ones((0, 3))), r"got \(0, 3\)"),
    "a large header": (npy(np.ones((1, 1))).replace(b"(1, 1)", b"(9, 9)"), "another number of bytes"),
    "two arrays": (npz(a=METERS, b=METERS), "expected one array, or one named depth or .*; got a, b"),
    "no array": (npz(), "expected one array, .*; got none"),
    "a PFM without pixels": (b"Pf\n4 4\n-1.0\n", "a damaged PFM file"),
    "a PFM without a header": (b"Pf\n", "a damaged PFM file"),
    "OpenEXR": (b"\x76\x2f\x31\x01" + bytes(20), "an OpenEXR file, which OpenCV cannot read here"),
}


@by_table("wrong", REFUSED)
def test_files_without_a_depth_map_are_refused(wrong):
    content, message = REFUSED[wrong]
    with pytest.raises(ValueError, match=message):
        read_depth_file(content)


def test_large_maps_and_missing_files_are_refused(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        read_depth_file(str(tmp_path / "none.npy"))
    monkeypatch.setattr(depth_maps.bounds, "MAX_PIXELS", 29)
    for form in ("PNG of 16 bits", ".npy"):
        with pytest.raises(ValueError, match="more than 29 pixels"):
            read_depth_file(WRITTEN[form][0])


def test_openexr_is_read_by_opencv(monkeypatch):
    cv2 = types.ModuleType("cv2")
    cv2.IMREAD_UNCHANGED, cv2.error = -1, RuntimeError
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    colors = np.concatenate([NORMALS, METERS[..., np.newaxis]], axis=-1)
    for values in (METERS, NORMALS, colors):
        stored = values if values.ndim == 2 else values[..., [2, 1, 0, 3][: values.shape[2]]]
        cv2.imdecode = lambda content, flags, stored=stored: stored
        np.testing.assert_array_equal(read_depth_file(b"\x76\x2f\x31\x01").squeeze(), values)


@pytest.mark.parametrize(
    ("options", "stored", "expected"),
    [
        ({"scale": 1000}, [0, 500, 65535], [np.nan, 0.5, 65.535]),
        ({}, [0.0, -1.0, np.inf, np.nan, 2.5], [np.nan] * 4 + [2.5]),
        ({"quantity": "disparity", "scale": 20}, [0.0, np.inf, 4.0], [np.nan, np.nan, 5.0]),
        ({"min": 1, "max": 2}, [0.9, 1.0, 2.0, 2.1], [np.nan, 1.0, 2.0, np.nan]),
        ({"invalid": 7}, [7.0, 6.0], [np.nan, 6.0]),
        ({"quantity": "values", "names": ["value"], "scale": 2}, [-4.0, 0.0, np.inf], [-2.0, 0.0, np.nan]),
    ],
)
def test_stored_values_become_depths_or_invalid(options, stored, expected):
    found = DepthReader(**options).converted(np.array([stored]))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[0, :, 0], np.float32(expected))


def test_a_pixel_of_several_channels_is_invalid_where_all_have_the_value():
    reader = DepthReader("values", invalid=0, names=("x", "y", "z"))
    found = reader.label(npy(np.float32([[[0, 0, 0], [0, 0, 1]]])))
    np.testing.assert_array_equal(found, np.float32([[[np.nan] * 3, [0, 0, 1]]]))


def test_integers_need_a_scale_and_channels_their_number():
    with pytest.raises(NoScaleError, match="uint16 numbers, and depth.json has no scale"):
        DepthReader().read(WRITTEN["PNG of 16 bits"][0])
    with pytest.raises(ValueError, match=r"expected 1 channel\(s\); got 3"):
        DepthReader().read(npy(NORMALS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantity": "depths"}, "expected a quantity of depth, disparity, values; got 'depths'"),
        ({"scale": 0}, "expected scale to be a positive number; got 0"),
        ({"scale": "1000"}, "expected scale to be a positive number; got '1000'"),
        ({"max": float("inf")}, "expected max to be a number; got inf"),
        ({"min": 2, "max": 1}, "expected a min below max; got 2 and 1"),
        ({"unit": ""}, "expected unit to be a text; got ''"),
        ({"names": ["a", "a"]}, "expected 1 to 64 different names of channels"),
        ({"names": "depth"}, "expected 1 to 64 different names of channels; got 'depth'"),
        ({"names": ["a", "b"]}, "expected the quantity values of 2 channels; got 'depth'"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DepthReader(**options)


# Geometry: the color of a pixel is its place, its depth that of a plane.
SIZE = (40, 56)
ROWS, COLUMNS = np.mgrid[: SIZE[0], : SIZE[1]]
PIXELS = Preprocessing((20, 24), interpolation="nearest", mean=(0,) * 3, std=(1 / 255,) * 3)  # keeps 0 to 255


def plane(rows, columns):
    return (2 + 0.5 * np.asarray(rows) + 0.25 * np.asarray(columns)).astype("float32")


PICTURE = image(np.stack([ROWS, COLUMNS, 0 * ROWS + 100], -1).astype("uint8"))
SAMPLES = DepthSamples((PICTURE,) * 4, (npy(plane(ROWS, COLUMNS)),) * 4, exif=False)


def augmented(seed, preprocessing=PIXELS, **options):
    """The places of pixels, their depths, and where the image is."""
    augment = image_augmentation(Augmentation(**options), preprocessing, kind=DEPTH)
    pixels, depth = augment(PICTURE, [0, seed], tf.constant(SAMPLES[0][1]))
    rows, columns, shown = np.moveaxis(pixels.numpy(), -1, 0)
    return rows, columns, depth.numpy()[..., 0], shown == 100


# The zoom is the geometric mean of those of both axes: evaluation squashes by 1/2 and 3/7.
@pytest.mark.parametrize(
    ("factor", "zoom"), [(1.0, (7 / 6) ** 0.5), (2.0, (14 / 3) ** 0.5), (0.5, (7 / 24) ** 0.5)]
)
def test_scale_jitter_divides_depths_by_the_zoom(factor, zoom):
    for seed in range(3):
        rows, columns, depth, shown = augmented(seed, scale_jitter=(factor, factor), flip=True)
        np.testing.assert_array_equal(np.isfinite(depth), shown)
        np.testing.assert_allclose(depth[shown], plane(rows, columns)[shown] / zoom, rtol=2e-6)
        assert shown.all() == (factor >= 1)


def test_a_crop_divides_depths_by_its_zoom():
    for seed in range(5):
        rows, columns, depth, _ = augmented(seed, crop_area=(0.1, 0.5), flip=True)
        zoom = plane(rows, columns) / depth
        np.testing.assert_allclose(zoom, zoom.mean(), rtol=2e-6)
        covered = np.ptp(rows) / 19 * np.ptp(columns) / 23  # source pixels of one pixel
        np.testing.assert_allclose(zoom.mean(), (2 * 56 / 24 / covered) ** 0.5, rtol=0.06)


def test_the_zoom_is_relative_to_the_crop_of_evaluation():
    cropped = Preprocessing((20, 24), "crop", 0.5, "nearest", mean=(0,) * 3, std=(1 / 255,) * 3)
    rows, columns, depth, _ = augmented(0, cropped, scale_jitter=(2.0, 2.0))
    np.testing.assert_allclose(depth, plane(rows, columns), rtol=2e-6)  # Both show twice of what just covers.


def test_flips_and_evaluation_keep_depths():
    rows, columns, depth, _ = augmented(1, flip=True)
    np.testing.assert_array_equal(depth, plane(rows, columns))
    [(pixels, depth)] = evaluation_batches(SAMPLES, PIXELS, 4)
    assert depth.shape == (4, 20, 24, 1)
    np.testing.assert_array_equal(depth[..., 0], plane(*np.moveaxis(pixels.numpy(), -1, 0)[:2]))


def test_a_shift_leaves_no_measurement_at_the_border():
    rows, columns, depth, _ = augmented(3, shift=0.4)
    known = np.isfinite(depth)
    assert 0.2 < known.mean() < 1
    inner = known & (rows > 4) & (columns > 4)  # Colors are interpolated with the black border.
    assert np.abs(depth - plane(rows, columns))[inner].max() < 2


def test_several_channels_keep_their_values():
    augment = image_augmentation(Augmentation(scale_jitter=(2.0, 2.0)), PIXELS, kind=DEPTH)
    _, values = augment(PICTURE, [0, 1], tf.ones((*SIZE, 3)))
    np.testing.assert_array_equal(values, np.ones((20, 24, 3)))


def test_a_padded_image_has_no_measurement_in_its_padding():
    label = tf.constant([[[1.0], [2.0]]])
    found = prepare_map(label, DEPTH, Preprocessing((2, 2), resize="pad")).numpy()[..., 0]
    np.testing.assert_array_equal(found, [[1, 2], [np.nan, np.nan]])


def test_a_missing_measurement_does_not_spread_in_a_long_image():
    label = np.arange(1, 2001, dtype="float32").reshape(2, 1000, 1)
    label[0, 500] = np.nan
    found = prepare_map(tf.constant(label), DEPTH, Preprocessing(32, resize="crop")).numpy()[..., 0]
    assert np.isnan(found).any() and np.isfinite(found[16:]).all()


def test_maps_of_their_own_sizes_are_padded_without_measurements():
    small = npy(np.ones((2, 3), "float32")), npy(np.ones((4, 2), "float32"))
    samples = DepthSamples(tuple(image(np.zeros(size, "uint8")) for size in ((2, 3), (4, 2))), small)
    [(images, maps, sizes)] = mask_batches(samples, PIXELS, 2)
    assert images.shape == (2, 20, 24, 3) and maps.shape == (2, 4, 3, 1)
    assert sizes.numpy().tolist() == [[2, 3], [4, 2]]
    for values, (height, width) in zip(maps.numpy(), sizes.numpy()):
        assert (values[:height, :width] == 1).all() and np.isfinite(values).sum() == height * width
