import io
import os

import pytest
from made.photos import exif, photo
from PIL import Image

from keras_vit.data.decoding.model_input import file_header
from keras_vit.data.files import file_headers
from keras_vit.data.image_headers import read_header
from keras_vit.preprocessing import bounds, read_image

FORMS = [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {})]


def written(path, content):
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("number", [1, 3, 6, 8])
@pytest.mark.parametrize("name, options", FORMS)
def test_a_header_has_the_orientation_and_size_of_the_decoded_image(name, options, number, tmp_path):
    path = written(tmp_path / "a", photo(number, name, **options))
    assert read_header(path) == file_header(path) == (number, read_image(path).shape[1::-1])


def test_orientations_after_other_segments_and_pixels_are_those_of_the_decoded_image(tmp_path):
    plain = photo(1, "JPEG", exif=b"")
    comment = b"\xff\xfe" + (5002).to_bytes(2, "big") + bytes(5000)  # longer than what is read first
    turn = exif(6)
    segment = b"\xff\xe1" + (2 + len(turn)).to_bytes(2, "big") + turn
    table = plain.index(b"\xff\xdb")  # of quantization, after which EXIF data are not read
    for content in (
        plain[:2] + comment + segment + plain[2:],
        plain[:2] + segment + segment.replace(turn, exif(3)) + plain[2:],
        plain[:table] + plain[table : table + 69] + segment + plain[table + 69 :],
        plain[:2] + b"\xff\xe1\x00\x08Exif\x00\x00" + plain[2:],
    ):
        path = written(tmp_path / "a", content)
        assert read_header(path) == file_header(path) is not None


@pytest.mark.parametrize("name, options", FORMS)
def test_cut_off_files_are_left_to_decoding(name, options, tmp_path):
    content = photo(6, name, **options)
    for end in (0, 1, 2, 8, 20, len(content) // 2, len(content) - 1):
        assert read_header(written(tmp_path / "a", content[:end])) is None
    assert read_header(written(tmp_path / "a", content + b"\n")) is None  # and decoding accepts it
    assert file_headers([str(tmp_path / "a")]) == [(6, (20, 33))]


def test_unusual_files_are_left_to_decoding(tmp_path, monkeypatch):
    file = io.BytesIO()
    Image.new("CMYK", (8, 8)).save(file, "JPEG")
    assert read_header(written(tmp_path / "a", file.getvalue())) is None
    assert read_header(written(tmp_path / "a", b"\xff\xd8" + b"\xff\xfe\x00\x00\xff\xd9")) is None
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "nowhere", "."):
        assert read_header(str(tmp_path / name)) is None
    path = written(tmp_path / "a", photo(1))
    monkeypatch.setattr(bounds, "MAX_PIXELS", 100)
    assert read_header(path) is None


def test_images_are_decoded_where_that_is_asked_for(tmp_path):
    content = photo(1, "PNG")
    middle = len(content) // 2
    path = written(tmp_path / "a", content[:middle] + bytes(8) + content[middle + 8 :])
    assert file_headers([path]) == [(1, (33, 20))] and file_headers([path], decode=True) == [None]
