import os
import time

import fsspec
import pytest
from made.servers import Server, chunked, file, serving, status

from keras_vit import http_requests
from keras_vit.data import remote_files
from keras_vit.data.remote_files import described, download, urls_of

CONTENT = bytes(range(256)) * 8


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(remote_files, "WAITS", (0, 0, 0))


@pytest.fixture
def server():
    with serving(Server()) as server:
        yield server


@pytest.fixture
def bucket():
    """The URL of a folder of a file system that lists its files."""
    system = fsspec.filesystem("memory")
    for name in ("train/1.tar", "train/0.tar", "test.tar", ".hidden.tar", "notes.txt"):
        system.pipe(f"/bucket/{name}", name.encode())
    yield "memory://bucket"
    system.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    "pattern, expected",
    [
        ("", "test.tar train/0.tar train/1.tar"),
        ("/", "test.tar train/0.tar train/1.tar"),
        ("/train", "train/0.tar train/1.tar"),
        ("/train/*", "train/0.tar train/1.tar"),
        ("/t*.tar", "test.tar"),
        ("/**/*1.tar", "train/1.tar"),
    ],
)
def test_folders_and_patterns_are_files_where_they_can_be_listed(pattern, expected, bucket):
    assert urls_of(bucket + pattern, ".tar") == [f"memory:///bucket/{name}" for name in expected.split()]


@pytest.mark.parametrize(
    "url, message",
    [
        ("memory://bucket/*.parquet", "no .parquet files in 'memory://bucket/"),
        ("abc://bucket/0.parquet", "'abc://bucket/0.parquet' cannot be read: Protocol not known: abc"),
        ("https://u:secret@host/*.parquet?key", "'https://host/[*].parquet.…': expected the name of a .parq"),
        ("https://host/data/", "or several as name-{000..127}.parquet, because a web server does not list"),
        ("https://host/0.parquet.gz", "expected the name of a .parquet file"),
        ("http://host.invalid/0.parquet", "http://host.invalid/0.parquet is not encrypted"),
    ],
)
def test_what_cannot_be_read_or_listed_is_refused_in_one_line(url, message, bucket):
    with pytest.raises(ValueError, match=message) as refused:
        urls_of(url, ".parquet")
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)


def test_a_protocol_without_its_package_names_it(monkeypatch):
    def url_to_fs(url):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    with pytest.raises(ValueError, match="'s3://bucket/a.tar' cannot be read: Install s3fs to access S3"):
        urls_of("s3://bucket/a.tar", ".tar")


def test_a_description_has_the_size_and_changes_with_the_file(server, tmp_path):
    server.answers["/a.tar"] = [file(CONTENT), file(CONTENT, tag='"2"')]
    assert described(f"{server.url}/a.tar") == (len(CONTENT), '"1"')
    assert described(f"{server.url}/a.tar") == (len(CONTENT), '"2"')
    path = tmp_path / "a.tar"
    path.write_bytes(CONTENT)
    before = described(f"file://{path}")
    path.write_bytes(CONTENT[::-1])
    assert before[0] == len(CONTENT) and described(f"file://{path}")[1] != before[1]


@pytest.mark.parametrize("broken", [file(CONTENT, until=100), status(503), status(302, Location="/a.tar")])
def test_a_download_is_tried_again_and_is_whole(broken, server, tmp_path):
    server.answers["/a.tar"] = [broken, broken, file(CONTENT)]
    download(f"{server.url}/a.tar", tmp_path / "a.tar", len(CONTENT))
    assert (tmp_path / "a.tar").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "answer, kind, message, attempts",
    [
        (file(CONTENT, until=100), OSError, "the request failed .ChunkedEncodingError., in 3 attempts", 3),
        (file(CONTENT[:-1]), OSError, "received 2047 of 2048 bytes, in 3 attempts", 3),
        (status(500), OSError, "the server answered 500, in 3 attempts", 3),
        (status(403), PermissionError, "the server answered 403$", 1),
        (status(404), FileNotFoundError, "is missing$", 1),
        (status(302, Location="http://host.invalid/"), ValueError, "is not encrypted", 1),
    ],
)
def test_a_failed_download_names_the_url_without_its_secrets(
    answer, kind, message, attempts, server, tmp_path
):
    server.answers["/a.tar?key=secret"] = answer
    url = server.url.replace("//", "//user:secret@")
    with pytest.raises(kind, match=message) as failed:
        download(f"{url}/a.tar?key=secret", tmp_path / "a.tar", len(CONTENT))
    assert "secret" not in str(failed.value) and server.downloads("/a.tar?key=secret") == attempts
    assert kind is ValueError or f"'{server.url}/a.tar?…'" in str(failed.value)


def test_more_bytes_than_were_stated_end_the_download_at_once(server, tmp_path):
    server.answers["/a.tar"] = chunked(*[bytes(1 << 16)] * 2000)
    with pytest.raises(ValueError, match=f"^{server.url}/a.tar has more than 2048 bytes$"):
        download(f"{server.url}/a.tar", tmp_path / "a.tar", len(CONTENT))
    assert (tmp_path / "a.tar").stat().st_size <= len(CONTENT) and server.downloads("/a.tar") == 1
    with pytest.raises(ValueError, match="has more than 16777216 bytes"):
        download(f"{server.url}/a.tar", tmp_path / "a.tar")


def test_a_server_that_sends_a_byte_now_and_then_is_not_waited_for(server, tmp_path, monkeypatch):
    monkeypatch.setattr(http_requests, "PATIENCE", 0.3)

    def slow(handler):
        handler.answer(200, Content_Length=len(CONTENT))
        for _ in range(100):
            time.sleep(0.02)
            handler.wfile.write(b"0")

    server.answers["/a.tar"] = slow
    start = time.monotonic()
    with pytest.raises(ValueError, match="/a.tar: expected 1024 bytes a second; .* has sent [0-9]+ in"):
        download(f"{server.url}/a.tar", tmp_path / "a.tar", len(CONTENT))
    assert time.monotonic() - start < 1.5 and server.downloads("/a.tar") == 1


@pytest.mark.parametrize("method", [described, lambda url: download(url, os.devnull, 6)])
def test_a_page_in_place_of_a_file_is_named(method, server):
    server.answers["/a.tar"] = lambda handler: handler.answer(200, b"<html>", Content_Type="text/html")
    with pytest.raises(ValueError, match=f"{server.url}/a.tar: the server answered with a web page"):
        method(f"{server.url}/a.tar")


@pytest.mark.parametrize("length", ["many", "-1", "1e9", "9" * 5000])
def test_a_length_that_is_no_number_is_named_with_the_url(length, server):
    server.answers["/a.tar"] = status(200, Content_Length=length)
    with pytest.raises(ValueError, match="/a.tar': expected a number of bytes as Content-Length; got '"):
        described(f"{server.url}/a.tar")


def test_a_server_that_does_not_say_the_size_is_refused(server):
    server.answers["/a.tar"] = status(200, Content_Length=None, Connection="close")
    with pytest.raises(ValueError, match="/a.tar': the server does not say how long the file is"):
        described(f"{server.url}/a.tar")
