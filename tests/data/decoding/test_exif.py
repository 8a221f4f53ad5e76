import struct

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from made.photos import FORMATS, ORIENTATIONS, exif, photo
from made.tables import by_table

from keras_vit.data.decoding.encoded_images import decode_stored
from keras_vit.data.decoding.exif import orientation, without_orientation
from keras_vit.data.png_chunks import check_chunks
from keras_vit.preprocessing import read_image
from keras_vit.preprocessing.image_files import exif_orientation

in_graph = tf.function(orientation, input_signature=[tf.TensorSpec((), tf.string)])


def found(encoded):
    return int(in_graph(encoded))


def jpeg(*segments):
    """A JPEG file whose first segments have these markers and contents."""
    head = b"".join(struct.pack(">BBH", 0xFF, marker, len(x) + 2) + x for marker, x in segments)
    return b"\xff\xd8" + head + photo(1)[2:]


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("name", FORMATS)
def test_every_orientation_is_found_in_both_byte_orders(name, order):
    for number in ORIENTATIONS:
        assert found(photo(number, name, exif=exif(number, order, entries=3))) == number


def test_images_without_exif_data_are_upright():
    for name in FORMATS:
        assert found(photo(6, name, exif=b"")) == 1
    for content in (b"", b"\xff\xd8", b"BM", b"no image at all", b"RIFF"):
        assert found(content) == 1


def test_exif_data_is_found_after_other_segments():
    others = [(0xE0, b"JFIF\0" + bytes(9)), (0xFE, b"a comment"), (0xE1, b"http://ns.adobe.com/xap/1.0/\0")]
    assert found(jpeg(*others, (0xE1, exif(8)))) == 8
    assert found(jpeg(*others, (0xE2, b"ICC_PROFILE\0" + bytes(60_000)), (0xE1, exif(3)))) == 3


MALFORMED = {
    "another byte order": b"Exif\0\0" + b"MM\0*" + exif(6)[10:],
    "a directory beyond 2 GiB": exif(6)[:10] + b"\xff" * 4 + exif(6)[14:],
    "more entries than there are": exif(0x0612)[:14] + b"\xff\xff" + exif(9)[16:],
    "orientation 9": exif(9),
    "a value of another type": exif(6, kind=4),
    "a cut entry": exif(6)[:25],
}


@by_table("kind", MALFORMED)
def test_images_with_malformed_exif_data_are_upright(kind):
    assert found(jpeg((0xE1, MALFORMED[kind]))) == exif_orientation(MALFORMED[kind]) == 1


@given(st.binary(max_size=40), st.integers(0, 60), st.integers(0, 60), st.sampled_from("<>"))
def test_damaged_exif_data_is_read_as_files_are(noise, start, stop, order):
    whole = exif(6, order, entries=4)
    damaged = b"Exif\0\0" + (whole[:start] + noise + whole[stop:])[6:]
    assert found(jpeg((0xE1, damaged))) == exif_orientation(damaged)


@given(st.sampled_from([*FORMATS]), st.integers(0, 150), st.binary(max_size=8))
def test_damaged_files_have_some_orientation(name, position, noise):
    whole = photo(6, name)
    assert found(whole[:position] + noise + whole[position + len(noise) :]) in ORIENTATIONS
    assert found(whole[:position]) in ORIENTATIONS


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_without_its_orientation_is_shown_as_it_is_stored(name, order):
    upright = photo(1, name, exif=exif(1, order, entries=3))
    for number in ORIENTATIONS:
        assert without_orientation(photo(number, name, exif=exif(number, order, entries=3))) == upright
    np.testing.assert_array_equal(read_image(upright), decode_stored(upright))
    if name == "PNG":
        check_chunks(without_orientation(photo(6, name)).numpy())


@given(st.sampled_from([*FORMATS]), st.integers(0, 150))
def test_a_cut_file_without_its_orientation_has_none(name, stop):
    assert found(without_orientation(photo(6, name)[:stop])) == 1
