import threading

import numpy as np
import pytest
from made.encoded import encoded
from made.servers import Server, file, serving, status
from PIL import Image
from reference.small import one_block

from keras_vit import Preprocessing
from keras_vit.preprocessing import bounds, read_image, web_images


@pytest.fixture(scope="module")
def png():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype("uint8")
    return pixels, encoded(Image.fromarray(pixels), "PNG")


@pytest.fixture(scope="module")
def server():
    with serving(Server()) as server:
        yield server


def test_urls_and_bytes_are_read_like_files(png, server, tmp_path):
    pixels, content = png
    server.answers = {"/a.png?size=2": file(content), "/moved": status(302, Location="/a.png?size=2")}
    (tmp_path / "a.png").write_bytes(content)
    urls = [f"{server.url}/moved", f"{server.url.replace('http', 'HTTP')}/a.png?size=2"]
    sources = [tmp_path / "a.png", content, bytearray(content), *urls]
    for source in sources:
        np.testing.assert_array_equal(read_image(source), pixels)
        assert Preprocessing(8)(source).shape == (1, 8, 8, 3)
    model = one_block()
    assert [names for ((names, _),) in model.classify([*sources, pixels], top=1)] == ["4"] * 6
    assert len(model.classify(content)) == 1


@pytest.mark.parametrize(
    "answer, message",
    [
        (status(404), "the server answered 404"),
        (file(b"<html>"), "expected JPEG, PNG, BMP"),
        (file(b"0" * 2000), "has more than 1000 bytes"),
        (file(b"0" * 10, declared=900), "the request failed .ChunkedEncodingError"),
        (status(302, Location="file:///etc/passwd"), "the request failed .InvalidSchema"),
        (file(b"0" * 10, until=5, hang=threading.Event()), "the request failed .ConnectionError"),
    ],
)
def test_what_is_no_image_is_refused_in_one_line_without_secrets(server, monkeypatch, answer, message):
    monkeypatch.setattr(bounds, "MAX_BYTES", 1000)
    monkeypatch.setattr(web_images, "TIMEOUT", 0.2)
    server.answers = {"/a.png?key=secret": answer}
    with pytest.raises(
        ValueError, match=rf"^not a readable image: http://127\S+/a.png\?… \(.*{message}"
    ) as e:
        read_image(f"{server.url.replace('//', '//me:secret@')}/a.png?key=secret")
    assert "secret" not in str(e.value) and "\n" not in str(e.value)


def test_an_image_that_takes_too_long_is_refused(server, png, monkeypatch):
    monkeypatch.setattr(web_images, "LONGEST", -1)
    server.answers = {"/a.png": file(png[1])}
    with pytest.raises(ValueError, match="it takes more than -1 seconds"):
        read_image(f"{server.url}/a.png")
