"""From a source to a local file. The servers are on the loopback; nothing else is asked."""

import base64
import gzip
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types
import urllib.parse

import numpy as np
import pytest
import requests
from made.servers import Server, asked_hub, chunked, file, serving, status, without_length

from keras_vit.weights import cache, download
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.fetch import cache_folder, fetch, is_cached

CONTENT = np.random.default_rng(0).bytes(3_000_000)
OTHER = np.random.default_rng(1).bytes(2_500_000)
PART = 16 * download.PIECE  # what is received of a broken piece is not kept
SHA = hashlib.sha256(CONTENT).hexdigest()
NPZ, JSON = "/a/vit.npz", "/a/vit.json"
WITHOUT_THE_PACKAGE = """
import importlib, pathlib, sys, types
for name in ("keras_vit", "keras_vit.weights"):  # their own __init__ would import Keras
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [str(pathlib.Path(*name.split(".")).resolve())]
from keras_vit.weights.fetch import fetch, is_cached
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The cache, empty; short waits; no proxy."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "WAITS", (0, 0, 0.01))
    return tmp_path / "cache"


@pytest.fixture
def server():
    with serving(Server()) as server:
        yield server


def lying(folder):
    """The names of the files in the cache, but for the empty locks."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not any(path.stat().st_size for path in files if ".locks" in path.parts)
    folders = [path for path in folder.iterdir() if path.is_dir()] if folder.exists() else []
    assert all(any(path.iterdir()) for path in folders), "an empty folder"
    return sorted(path.name for path in files if ".locks" not in path.parts)


def refusal(source, **options):
    """The message with which the source is refused: one line."""
    with pytest.raises(ValueError) as caught:
        fetch(source, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def run(code, *arguments, **environment):
    """A Python of its own, in which `fetch` is at hand."""
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=pathlib.Path(__file__).parents[2],
        env={**os.environ, **environment},
    )


# Local paths -------------------------------------------------------------------------------------


def test_a_path_is_its_file(tmp_path, monkeypatch):
    path = tmp_path / "vit.npz"
    path.write_bytes(CONTENT)
    assert fetch(path) == fetch(str(path)) == fetch(os.fsencode(path)) == path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch("~/vit.npz", sha256=SHA.upper(), size=len(CONTENT)) == path
    assert is_cached("~/vit.npz")
    assert not is_cached("~/other.npz")


@pytest.mark.parametrize("source", ["none.npz", "", "~nobody-of-that-name/x.npz", "a\0b", "x" * 5000])
def test_a_path_without_a_file_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal(source) == f"no such checkpoint file: {source!r}"
    assert not is_cached(source)


def test_a_folder_is_its_weights(tmp_path):
    assert refusal(tmp_path).endswith(
        "is a folder without model.keras, model.safetensors, pytorch_model.bin; give the checkpoint file"
    )
    assert not is_cached(tmp_path)
    for name in ("pytorch_model.bin", "model.safetensors", "model.keras"):  # the last is preferred
        (tmp_path / name).write_bytes(b"weights")
        assert fetch(tmp_path) == tmp_path / name
    assert is_cached(tmp_path)


def test_a_local_file_too_must_be_the_one_that_is_wanted(tmp_path):
    path = tmp_path / "vit.npz"
    path.write_bytes(b"something else")
    wrong = hashlib.sha256(b"something else").hexdigest()
    assert refusal(path, sha256=SHA) == f"{path} has SHA-256 {wrong}; wanted {SHA}"
    assert refusal(path, size=3) == f"{path} has 14 bytes; wanted 3"
    assert path.exists()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sha256": "abc"}, "sha256 must be 64 hexadecimal digits; got 'abc'"),
        ({"sha256": SHA + "\n"}, "sha256 must be 64 hexadecimal digits"),
        ({"size": -1}, "size must be a number of bytes; got -1"),
        ({"size": "12"}, "size must be a number of bytes; got '12'"),
        ({"size": True}, "size must be a number of bytes; got True"),
    ],
)
def test_what_cannot_be_checked_is_refused(options, message, golden):
    assert message in refusal(golden / "token.npz", **options)


@pytest.mark.parametrize("source", ["ftp://host/vit.npz", "s3://bucket/vit.npz", "file:///vit.npz", "://x"])
def test_another_scheme_is_refused_with_those_that_are_known(source):
    message = (
        f"{source!r}: {source.partition('/')[0]}// is unknown; wanted a path, hf://…, https://…, http://…"
    )
    assert refusal(source).startswith(message)
    with pytest.raises(ValueError, match="is unknown"):
        is_cached(source)


@pytest.mark.parametrize(
    "own, caches, wanted",
    [
        ("/own", "/caches", "/own"),
        ("", "/caches", "/caches/keras_vit"),
        ("~/own", "", "/home/me/own"),
        ("", "", "/home/me/.cache/keras_vit"),
    ],
)
def test_the_cache_is_where_the_environment_says(own, caches, wanted, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("KERAS_VIT_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", caches)
    assert cache_folder() == pathlib.Path(wanted)


def test_nothing_that_downloads_is_imported_before_it_is_needed():
    code = "fetch('setup.py'); print([n for n in sys.argv[1:] if n in sys.modules])"
    names = ("requests", "huggingface_hub", "tensorflow", "tqdm", "filelock", "keras", "numpy")
    out, err = run(code, *names).communicate(timeout=60)
    assert (out, err) == ("[]\n", "")


# The web -----------------------------------------------------------------------------------------


def test_a_file_is_downloaded_once_and_then_needs_no_server(folder):
    with serving(Server()) as server:
        server.answers[NPZ] = file(CONTENT)
        source = f"{server.url}{NPZ}"
        assert not is_cached(source)
        path = fetch(source, sha256=SHA, size=len(CONTENT))
        assert path.read_bytes() == CONTENT
        assert (path.name, path.parent.parent) == ("vit.npz", folder)
        seen = len(server.seen)
        assert fetch(source) == path
        assert len(server.seen) == seen, "a cached file was asked for"
    assert is_cached(source)
    assert is_cached(source.replace("http", "HTTP", 1))
    assert fetch(source, sha256=SHA) == path
    assert lying(folder) == ["vit.npz"]


def test_files_of_the_same_name_are_kept_apart(server, folder):
    server.answers |= {
        "/a/vit.npz": file(CONTENT),
        "/b/vit.npz": file(OTHER),
        "/a/vit.npz?v=2": file(b"third"),
    }
    paths = [fetch(f"{server.url}{path}") for path in server.answers]
    assert [path.name for path in paths] == ["vit.npz"] * 3
    assert [path.read_bytes() for path in paths] == [CONTENT, OTHER, b"third"]


@pytest.mark.parametrize(
    "path", ["/..%2F..%2Fevil.npz", "/", "", "/%00", "/.lock", "/..", f"/{'a' * 300}.npz", "/vït .npz"]
)
def test_no_address_leads_out_of_the_cache(path, server, folder):
    asked = {"": "/", "/vït .npz": "/v%C3%AFt%20.npz", "/..": "/"}.get(path, path)
    server.answers[asked] = file(b"content")
    path = fetch(server.url + path)
    assert path.parent.parent == folder
    assert path.resolve() == path
    assert path.read_bytes() == b"content"


def test_a_lost_connection_is_taken_up_where_it_was_lost(server, folder):
    server.answers[NPZ] = [file(CONTENT, until=PART), file(CONTENT, until=2 * PART), file(CONTENT)]
    assert fetch(server.url + NPZ).read_bytes() == CONTENT
    assert server.ranges(NPZ) == [None, f"bytes={PART}-", f"bytes={2 * PART}-"]
    assert [headers.get("If-Range") for _, path, headers in server.seen if path == NPZ] == [
        None,
        '"1"',
        '"1"',
    ]
    assert lying(folder) == ["vit.npz"]


def test_a_range_may_be_answered_with_less_than_was_asked_for(server):
    server.answers[NPZ] = [file(CONTENT, until=PART), file(CONTENT, most=PART), file(CONTENT)]
    assert fetch(server.url + NPZ).read_bytes() == CONTENT
    assert server.ranges(NPZ) == [None, f"bytes={PART}-", f"bytes={2 * PART}-"]


def test_a_date_marks_a_version_as_well(server):
    marks = {"tag": 'W/"weak"', "date": "Sat, 21 Nov 2026 03:32:21 GMT"}
    server.answers[NPZ] = [file(CONTENT, until=PART, **marks), file(CONTENT, **marks)]
    assert fetch(server.url + NPZ).read_bytes() == CONTENT
    assert server.seen[1][2]["If-Range"] == marks["date"]
    assert server.ranges(NPZ) == [None, f"bytes={PART}-"]


@pytest.mark.parametrize(
    "wanted, options, ranges",
    [
        (CONTENT, {"ranges": False}, [None, PART]),
        (OTHER, {"tag": '"2"'}, [None, PART]),
        (OTHER, {"tag": '"2"', "if_range": False}, [None, PART, None]),
        (OTHER, {"if_range": False}, [None, PART, None]),  # its length tells
        (CONTENT[::-1], {"tag": '"2"', "if_range": False}, [None, PART, None]),  # as long as before
        (OTHER[:900_000], {"tag": '"2"', "if_range": False}, [None, PART, None]),  # 416
        (CONTENT, {"packed": True}, [None, PART, None]),
    ],
    ids=["no ranges", "changed", "no If-Range", "same tag", "same length", "shorter", "packed"],
)
def test_what_cannot_be_continued_is_begun_anew(wanted, options, ranges, server, folder):
    server.answers[NPZ] = [file(CONTENT, until=PART), file(wanted, **options)]
    assert fetch(server.url + NPZ).read_bytes() == wanted
    assert server.ranges(NPZ) == [start and f"bytes={start}-" for start in ranges]
    assert lying(folder) == ["vit.npz"]


def test_without_a_mark_nothing_is_continued(server, folder):
    server.answers[NPZ] = [file(CONTENT, tag=None, until=PART), file(OTHER, tag=None)]
    assert fetch(server.url + NPZ).read_bytes() == OTHER
    assert server.ranges(NPZ) == [None, None]
    server.answers["/b.npz"] = file(CONTENT, tag=None, until=1000)
    assert "lost connection" in refusal(f"{server.url}/b.npz")
    assert lying(folder) == ["vit.npz"], "a part that nothing can be put after was kept"


def test_a_later_call_goes_on_where_the_first_gave_up(server, folder):
    server.answers[NPZ] = file(CONTENT, until=PART)
    message = refusal(server.url + NPZ)
    assert message.startswith(f"{server.url}{NPZ}: lost connection")
    assert "in 3 tries" in message
    assert "(what has arrived is kept)" in message
    assert lying(folder) == ["vit.npz.part", "vit.npz.part.state"]
    assert not is_cached(server.url + NPZ)
    server.answers[NPZ] = file(CONTENT)
    server.seen.clear()
    assert fetch(server.url + NPZ).read_bytes() == CONTENT
    assert server.ranges(NPZ) == [f"bytes={PART}-"]
    assert lying(folder) == ["vit.npz"]


@pytest.mark.parametrize("state", ["", "{", "[]", '{"total": "x", "mark": 1}', '{"total": 5, "mark": "a"}'])
def test_a_damaged_state_means_beginning_anew(state, server, folder):
    server.answers[NPZ] = file(CONTENT, until=PART)
    refusal(server.url + NPZ)
    next(folder.rglob("*.state")).write_text(state)
    server.answers[NPZ] = file(OTHER)
    server.seen.clear()
    assert fetch(server.url + NPZ).read_bytes() == OTHER
    assert server.ranges(NPZ) == [None]


def test_a_process_that_is_killed_leaves_what_another_takes_up(server, folder):
    waiting = threading.Event()
    server.answers[NPZ] = file(CONTENT, until=2 * PART, hang=waiting)
    process = run("fetch(sys.argv[1])", server.url + NPZ)
    end = time.monotonic() + 30
    while time.monotonic() < end and not any(p.stat().st_size > 500_000 for p in folder.rglob("*.part")):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    waiting.set()
    assert process.returncode == -signal.SIGKILL
    assert lying(folder) == ["vit.npz.part", "vit.npz.part.state"]
    server.answers[NPZ] = file(CONTENT)
    server.seen.clear()
    assert fetch(server.url + NPZ, sha256=SHA).read_bytes() == CONTENT
    assert int(server.ranges(NPZ)[0].removeprefix("bytes=").removesuffix("-")) >= 500_000
    assert lying(folder) == ["vit.npz"]


def test_two_threads_and_two_processes_make_one_download(server, folder):
    server.answers[NPZ] = lambda handler: (time.sleep(1.5), file(CONTENT)(handler))
    processes = [run("print(fetch(sys.argv[1]))", server.url + NPZ) for _ in range(2)]
    results = []
    threads = [threading.Thread(target=lambda: results.append(fetch(server.url + NPZ))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results += [pathlib.Path(process.communicate(timeout=30)[0].strip()) for process in processes]
    assert len(results) == 4
    assert {*results} == {next(folder.glob("*/vit.npz"))}
    assert results[0].read_bytes() == CONTENT
    assert server.ranges(NPZ) == [None], "one asks, the others wait"
    assert lying(folder) == ["vit.npz"]


# What is not the file that was wanted


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sha256": "0" * 64}, f"what came from {{}} has SHA-256 {SHA}; wanted {'0' * 64}"),
        ({"size": 5}, "{}: the server's file has 3000000 bytes; wanted 5"),
    ],
    ids=["sha256", "size"],
)
@pytest.mark.parametrize(
    "first", [file(CONTENT), [file(CONTENT, until=PART), file(CONTENT)]], ids=["whole", "lost"]
)
def test_a_wrong_file_is_refused_and_removed(first, options, message, server, folder):
    server.answers[NPZ] = list(first) if isinstance(first, list) else first
    assert refusal(server.url + NPZ, **options) == message.format(server.url + NPZ)
    assert lying(folder) == []
    assert fetch(server.url + NPZ).read_bytes() == CONTENT


def test_a_wrong_size_is_seen_before_anything_is_downloaded_even_of_a_part(server, folder):
    server.answers[NPZ] = file(CONTENT, until=PART)
    refusal(server.url + NPZ)
    assert refusal(server.url + NPZ, size=5).endswith("the server's file has 3000000 bytes; wanted 5")
    assert lying(folder) == []


def test_a_wrong_size_of_unknown_length_is_seen_at_the_end(server, folder):
    server.answers[NPZ] = chunked(b"abc", b"defg")
    assert refusal(server.url + NPZ, size=5) == f"what came from {server.url}{NPZ} has 7 bytes; wanted 5"
    assert lying(folder) == []


def test_a_cached_file_is_checked_again_and_its_path_told(server, folder):
    server.answers[NPZ] = file(CONTENT)
    path = fetch(server.url + NPZ)
    path.write_bytes(CONTENT[:-1] + b"x")
    seen = len(server.seen)
    message = refusal(server.url + NPZ, sha256=SHA)
    assert message.startswith(f"{path} has SHA-256 ")
    assert message.endswith(f"; wanted {SHA}; remove that file to download it from {server.url}{NPZ} again")
    assert refusal(server.url + NPZ, size=7).startswith(f"{path} has 3000000 bytes; wanted 7; remove")
    assert len(server.seen) == seen
    assert path.exists()


# Answers and their absence


@pytest.mark.parametrize(
    "answer, message, tries",
    [
        (status(401), "the server answered 401: log in where it comes from", 1),
        (status(403), "the server answered 403: log in where it comes from", 1),
        (status(404), "the server answered 404: no such file there; check the address", 1),
        (status(410), "the server answered 410: no such file there", 1),
        (status(204), "the server answered 204, not with a file", 1),
        (status(416), "the server answered 416, not with a file", 1),
        (status(500), "the server answered 500, in 3 tries; check the address and the connection", 3),
        (status(503), "the server answered 503, in 3 tries", 3),
        (status(429), "the server answered 429, in 3 tries", 3),
        (status(302, Location=NPZ), "the request failed (TooManyRedirects)", 31),
        (status(302, Location="ftp://x/y"), "the request failed (InvalidSchema)", 1),
        (status(200, Content_Type="text/html; charset=utf-8"), "answered with a web page, not with a", 1),
        (without_length(CONTENT), "does not say how long the file is; give its size in bytes", 1),
        (lambda handler: handler.hang_up(), "lost connection, in 3 tries", 3),
        (file(CONTENT, tag=None, declared=4_000_000), "lost connection, in 3 tries", 3),
        (chunked(CONTENT, end=False), "lost connection, in 3 tries", 3),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_answer_without_the_file_is_told_in_one_line(answer, message, tries, server, folder):
    server.answers[NPZ] = answer
    assert refusal(server.url + NPZ).startswith(f"{server.url}{NPZ}: ")
    assert len(server.ranges(NPZ)) == tries
    assert message in refusal(server.url + NPZ)
    assert lying(folder) == []


def test_a_file_that_is_shorter_than_declared_never_gets_its_name(server, folder):
    server.answers[NPZ] = file(CONTENT, declared=4_000_000)
    assert "lost connection" in refusal(server.url + NPZ)
    assert lying(folder) == ["vit.npz.part", "vit.npz.part.state"]


def test_a_server_that_recovers_is_asked_again(server):
    server.answers[NPZ] = [status(503), status(429), file(CONTENT)]
    assert fetch(server.url + NPZ).read_bytes() == CONTENT


def test_a_redirection_is_followed(server):
    server.answers |= {NPZ: status(302, Location="/b.npz"), "/b.npz": file(CONTENT)}
    path = fetch(server.url + NPZ)
    assert (path.name, path.read_bytes()) == ("vit.npz", CONTENT)
    assert {headers["Accept-Encoding"] for _, _, headers in server.seen} == {"identity"}


@pytest.fixture
def web(server, monkeypatch):
    """The server answers for every host; a list of the URL and the credentials of each request."""
    send, asked = requests.adapters.HTTPAdapter.send, []

    def answered_here(adapter, request, **options):
        asked.append((request.url, request.headers.get("Authorization")))
        request.url = server.url + urllib.parse.urlsplit(request.url).path
        return send(adapter, request, **options)

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", answered_here)
    return asked


def test_plain_http_needs_trust_or_a_digest_but_on_this_machine(server, web, folder):
    server.answers[NPZ] = file(CONTENT)
    for source in (f"http://host{NPZ}", f"http://10.0.0.1{NPZ}", f"HTTP://127.0.0.1.host:80{NPZ}"):
        message = refusal(source)
        assert "is not encrypted, and anyone on the way can change the file; use https://, give" in message
        assert web == []
    fetch(f"http://host{NPZ}", sha256=SHA)
    fetch(f"http://10.0.0.1{NPZ}", trust=True)
    assert "is not encrypted" in refusal(f"http://10.0.0.1{NPZ}")  # although it is in the cache
    for source in (f"https://host{NPZ}", f"http://localhost{NPZ}", f"http://[::1]:99{NPZ}"):
        fetch(source)


@pytest.mark.parametrize(
    "source, target, options, message",
    [
        ("https://host", "http://host", {"trust": True}, "redirects to http://host/b.npz, which is not enc"),
        ("https://host", "http://127.0.0.1", {"sha256": SHA}, "redirects to http://127.0.0.1/b.npz, which"),
        ("http://localhost", "http://host", {}, "http://host/b.npz is not encrypted, and anyone"),
        ("http://localhost", "http://host", {"sha256": SHA}, None),
        ("http://host", "https://host", {"trust": True}, None),
        ("https://host", "https://other", {}, None),
    ],
)
def test_each_redirect_is_checked_as_the_address_is(source, target, options, message, server, web):
    server.answers |= {NPZ: status(302, Location=f"{target}/b.npz"), "/b.npz": file(CONTENT)}
    if message:
        assert message in refusal(source + NPZ, **options)
        assert [url for url, _ in web if "b.npz" in url] == []
    else:
        assert fetch(source + NPZ, **options).read_bytes() == CONTENT


def test_credentials_of_netrc_are_sent_encrypted_only_and_after_the_addresss(
    server, web, tmp_path, monkeypatch
):
    (tmp_path / "netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.answers |= {path: file(CONTENT) for path in ("/1", "/2", "/3", "/4")}
    fetch("https://host/1")
    fetch("https://you:own@host/2")
    fetch("http://host/3", trust=True)
    fetch("http://127.0.0.1/4")
    basic = ["Basic " + base64.b64encode(pair).decode() for pair in (b"me:secret", b"you:own")]
    assert [authorization for _, authorization in web] == [*basic, None, None]


@pytest.mark.parametrize(
    "target, kept",
    [
        ("/b.npz", True),
        ("https://host/b.npz", True),
        ("https://other/b.npz", False),
        ("https://host:444/b.npz", False),
        ("https://they:theirs@other/b.npz", False),
    ],
)
def test_credentials_stay_with_their_server(target, kept, server, web, tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("default login me password secret\n")
    server.answers |= {NPZ: status(302, Location=target), "/b.npz": file(CONTENT)}
    for source in ("https://me:own@host", "https://host"):
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        web.clear()
        fetch(f"{source}{NPZ}")
        (_, first), (_, second) = web[:2]
        assert first.startswith("Basic ")
        assert second == (first if kept else None)


def test_an_answer_may_come_in_chunks_packed_or_to_the_end_of_the_connection(server):
    def packed(handler):
        handler.answer(200, gzip.compress(CONTENT), Content_Encoding="gzip", ETag='"1"')

    server.answers |= {"/1": chunked(CONTENT), "/2": packed, "/3": without_length(CONTENT)}
    for path in server.answers:
        size = len(CONTENT) if path == "/3" else None
        assert fetch(server.url + path, size=size).read_bytes() == CONTENT
    server.answers["/4"] = without_length(CONTENT[:-1])
    assert "has 2999999 bytes; wanted 3000000" in refusal(f"{server.url}/4", size=3_000_000)


def test_a_server_that_hangs_is_left_and_asked_again(server, folder, monkeypatch):
    monkeypatch.setattr(download, "READ", 0.2)
    waiting = threading.Event()
    server.answers[NPZ] = lambda handler: waiting.wait(20)
    assert "no answer within 0.2 s, in 3 tries" in refusal(server.url + NPZ)
    server.answers[NPZ] = [file(CONTENT, until=2 * PART, hang=waiting), file(CONTENT)]
    server.seen.clear()
    assert fetch(server.url + NPZ).read_bytes() == CONTENT
    waiting.set()
    assert len(server.seen) >= 2
    assert lying(folder) == ["vit.npz"]


def test_no_server_is_told(folder):
    with serving(Server()) as server:
        source = server.url + NPZ
    assert refusal(source).startswith(f"{source}: no connection, in 3 tries; check the address")
    assert "kept" not in refusal(source)
    assert "no connection" in refusal("http://no-such-host.invalid/vit.npz", trust=True)
    assert lying(folder) == []


@pytest.mark.parametrize(
    "source", ["http://", "https://host:port/a.npz", "http://[::1/a.npz", "http://.a/b.npz"]
)
def test_an_address_that_is_none_is_refused(source, folder):
    assert refusal(source, trust=True) in (
        f"{source}: the request failed (InvalidURL); check the address",
        f"{source!r} is no address: Invalid IPv6 URL",
    )
    assert lying(folder) == []


def test_what_is_secret_in_an_address_is_not_told(server):
    address = server.url.replace("//", "//me:hunter2@") + f"{NPZ}?signature=hunter3#hunter4"
    message = refusal(address)
    assert f"{server.url}{NPZ}?…: the server answered 404" in message
    assert "hunter" not in message
    server.answers[f"{NPZ}?signature=hunter3"] = file(CONTENT)
    assert "hunter" not in refusal(address, sha256="0" * 64)
    assert server.seen[-1][2]["Authorization"].startswith("Basic ")


def test_a_cache_that_cannot_be_written_is_told(server, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "a file"))
    server.answers[NPZ] = file(CONTENT)
    message = refusal(server.url + NPZ)
    assert f"cannot be kept in {tmp_path / 'a file'}: " in message
    assert "set KERAS_VIT_CACHE to a folder that can be written" in message


@pytest.mark.parametrize("bucket", ["vit_models", "big_vision", "somebody"])
def test_the_closed_buckets_are_explained(bucket, server, monkeypatch):
    source = f"http://storage.googleapis.com/{bucket}/vit.npz"
    server.answers[source] = status(403)
    monkeypatch.setenv("http_proxy", server.url)
    message = refusal(source, trust=True)
    assert message.startswith(f"{source}: the server answered 403: ")
    closed = bucket != "somebody"
    assert ("since February 2026 (google-research/vision_transformer issue 321)" in message) == closed
    assert ("use gs://…" in message) == closed
    assert ("`keras-vit models`" in message) == closed
    assert download.what_to_do(f"https://storage.googleapis.com/{bucket}/x") == message.partition(" 403: ")[2]


# What describes the weights


def test_what_describes_the_weights_is_kept_beside_them(server, folder):
    server.answers |= {f"{NPZ}?v=1": file(CONTENT), f"{JSON}?v=1": file(b'{"classes": ["a"]}')}
    path = fetch(f"{server.url}{NPZ}?v=1")
    assert json.loads(path.with_suffix(".json").read_text()) == {"classes": ["a"]}
    assert lying(folder) == ["vit.json", "vit.npz"]


@pytest.mark.parametrize(
    "answer",
    [
        *(status(number) for number in (401, 403, 404, 405)),
        *(file(content) for content in (b"<html>", b"", b'{"a": ', b"\xff\xfe", b"[" * 100_000)),
        *(status(200, Content_Type="text/html"), chunked(b"[", b" " * (1 << 24), b"]")),
    ],
    ids=["401", "403", "404", "405", "page", "empty", "half", "binary", "deep", "html", "huge"],
)
def test_weights_may_come_without_description(answer, server, folder):
    server.answers |= {NPZ: file(CONTENT), JSON: answer}
    for _ in range(2):
        assert fetch(server.url + NPZ).read_bytes() == CONTENT
    assert lying(folder) == ["vit.npz"]
    assert len(server.ranges(JSON)) == 1, "it is asked for once"


@pytest.mark.parametrize("path", ["/model", "/vit.json"])
def test_a_description_itself_has_none(path, server):
    server.answers[path] = file(b"[]")
    fetch(server.url + path)
    assert [seen for _, seen, _ in server.seen] == [path]


def test_a_description_that_cannot_be_had_now_is_not_left_out_for_ever(server, folder):
    server.answers |= {NPZ: file(CONTENT), JSON: status(503)}
    assert f"{JSON}: the server answered 503" in refusal(server.url + NPZ)
    assert lying(folder) == ["vit.npz.part", "vit.npz.part.state"]
    server.answers[JSON] = file(b"{}")
    assert fetch(server.url + NPZ).read_bytes() == CONTENT
    assert len(server.ranges(NPZ)) == 1, "the whole file lay there"
    assert lying(folder) == ["vit.json", "vit.npz"]


# Hugging Face ------------------------------------------------------------------------------------

COMMIT, OLDER = "a" * 40, "b" * 40
FILES = {"model.safetensors": b"weights", "config.json": b"{}", "preprocessor_config.json": b"[]"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with two repositories."""
    with asked_hub(tmp_path / "hub", monkeypatch) as server:
        versions = {"main": (COMMIT, FILES), COMMIT: (COMMIT, FILES)}
        versions |= {
            rev: (OLDER, {"old/vit.npz": b"old", "old/vit.json": b"{}"}) for rev in ("v1", OLDER, "a%2Fb")
        }
        server.repositories["org/vit"] = versions
        torch = {"pytorch_model.bin": b"pickle", "other.txt": b"x"}
        server.repositories["org/torch"] = {"main": (COMMIT, torch), COMMIT: (COMMIT, torch)}
        yield server


def test_a_repository_is_its_weights_with_what_describes_them_beside(hub):
    assert not is_cached("hf://org/vit")
    path = fetch("hf://org/vit", size=7, sha256=hashlib.sha256(b"weights").hexdigest())
    assert path.parts[-3:] == ("snapshots", COMMIT, "model.safetensors")
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == FILES
    assert all(f"/{COMMIT}/" in asked for _, asked, _ in hub.seen if "config" in asked), "another version's"
    assert is_cached("hf://org/vit")
    assert is_cached(f"hf://org/vit@{COMMIT}/model.safetensors")
    assert not is_cached("hf://org/vit/pytorch_model.bin")
    assert not is_cached("hf://org/vit@v1")


def test_the_second_name_is_taken_where_the_first_is_missing(hub):
    path = fetch("hf://org/torch/")
    assert path.read_bytes() == b"pickle"
    assert [p.name for p in path.parent.iterdir()] == ["pytorch_model.bin"]
    assert is_cached("HF://org/torch")


@pytest.mark.parametrize("revision", ["v1", OLDER, "a%2Fb"])
def test_a_named_file_of_a_revision_brings_the_description_of_its_name(hub, revision):
    path = fetch(f"hf://org/vit@{revision}/old/vit.npz")
    assert path.parts[-4:] == ("snapshots", OLDER, "old", "vit.npz")
    assert sorted(p.name for p in path.parent.iterdir()) == ["vit.json", "vit.npz"]


@pytest.mark.parametrize("source", ["hf://org/vit", "hf://org/torch", "hf://org/vit@v1/old/vit.npz"])
def test_the_cache_needs_no_hub(hub, source, monkeypatch):
    path = fetch(source)
    hub.shutdown()
    hub.server_close()
    assert fetch(source) == path
    from huggingface_hub import close_session, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()
    assert fetch(source) == path
    assert is_cached(source)


def test_a_pinned_version_that_is_cached_is_not_asked_for(hub):
    path = fetch(f"hf://org/vit@{COMMIT}")
    hub.seen.clear()
    assert fetch(f"hf://org/vit@{COMMIT}") == path
    assert hub.seen == []


def test_what_another_tool_left_in_the_cache_is_used_with_a_warning(hub):
    from huggingface_hub import hf_hub_download

    path = hf_hub_download("org/vit", "model.safetensors")
    hub.problems["org/vit"] = (503, "")
    with pytest.warns(UserWarning, match="hf://org/vit: no answer whether it has config.json; going without"):
        assert fetch("hf://org/vit") == pathlib.Path(path)


@pytest.mark.parametrize(
    "source, message",
    [
        ("hf://org/none", "HUB has no such repository, or a private one; check the name, or log in"),
        (
            "hf://org/gated",
            "the repository is gated; ask for access at HUB/org/gated and log in ('hf auth login'",
        ),
        ("hf://org/forbidden", "HUB answered 403; log in ('hf auth login', or HF_TOKEN)"),
        (
            "hf://org/down",
            "HUB answered 500, and it is not in FOLDER; connect, or give the path of a local file",
        ),
        ("hf://org/vit@v9", "the repository has no revision 'v9'; check the branch, tag or commit"),
        (
            "hf://org/vit@v1",
            "the repository has no model.safetensors or pytorch_model.bin; name a file, as hf://org/v",
        ),
        ("hf://org/vit/vit.npz", "the repository has no vit.npz; name a file"),
        (f"hf://org/vit@{OLDER}/old", "the repository has no old; name a file"),
        ("hf://org/vit/../vit.npz", "Invalid filename '../vit.npz'"),
        ("hf://org/v--t", "HFValidationError: Cannot have -- or .. in repo_id"),
    ],
)
def test_what_the_hub_does_not_give_is_told_in_one_line(hub, source, message, tmp_path):
    hub.problems |= {"org/gated": (403, "GatedRepo"), "org/forbidden": (403, ""), "org/down": (500, "")}
    message = message.replace("HUB", hub.url).replace("FOLDER", str(tmp_path / "hub"))
    fetch(f"hf://org/vit@{OLDER}/old/vit.npz")
    assert refusal(source).startswith(f"{source}: {message}")
    assert [path.name for path in (tmp_path / "hub").glob("*/snapshots/*")] == [OLDER]


def test_no_hub_and_nothing_cached_is_told_once(hub, monkeypatch, caplog):
    hub.shutdown()
    hub.server_close()
    assert refusal("hf://org/vit").startswith(f"hf://org/vit: no answer from {hub.url}, and it is not in ")
    assert not caplog.records, "the library told of each try"
    from huggingface_hub import close_session, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()
    assert refusal("hf://org/vit").startswith("hf://org/vit: HF_HUB_OFFLINE is set, and it is not in ")


def test_what_is_no_hub_is_told(server, monkeypatch, hub):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    server.answers["/org/vit/resolve/main/model.safetensors"] = file(b"weights")
    assert f"{server.url} does not answer as Hugging Face does" in refusal("hf://org/vit")


def test_a_name_is_looked_for_on_the_hub_and_the_refusal_says_so(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = "'somebody/none' is no local path and in no row of the catalogue; hf://somebody/none: "
    with pytest.raises(ValueError, match=f"^{message}{hub.url} has no such repository"):
        read_checkpoint("somebody/none")
    with pytest.raises(ValueError, match="^hf://google/vit-base-patch16-224: .* has no such repository"):
        read_checkpoint("google/vit-base-patch16-224")


@pytest.mark.parametrize("source", ["hf://", "hf://vit", "hf://org/vit@", "hf:///vit", "hf://org@v1/vit"])
def test_what_names_no_repository_is_refused(source):
    assert "wanted hf://org/repo, hf://org/repo@revision or either with /path/to/file" in refusal(source)
    with pytest.raises(ValueError, match="wanted hf://org/repo"):
        is_cached(source)


def test_a_file_from_the_hub_too_must_be_the_one_that_is_wanted(hub):
    message = refusal("hf://org/vit", size=5)
    assert message.endswith(f"{os.sep}{COMMIT}{os.sep}model.safetensors has 7 bytes; wanted 5")


def test_the_environment_says_where_the_hub_is_and_what_it_keeps(hub, tmp_path):
    code = "print(fetch('hf://org/vit'))"
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_secret"}
    out, err = run(code, **environment).communicate(timeout=60)
    assert pathlib.Path(out.strip()).is_relative_to(tmp_path / "home" / "hub"), err
    assert {headers.get("authorization", headers.get("Authorization")) for _, _, headers in hub.seen} == {
        "Bearer hf_secret"
    }
    hub.shutdown()
    hub.server_close()
    again, err = run(code, **environment, HF_HUB_OFFLINE="1").communicate(timeout=60)
    assert again == out, err


# Google Cloud ------------------------------------------------------------------------------------

GS = "gs://somebody/a/vit.npz"


@pytest.fixture
def cloud(monkeypatch, tmp_path):
    """What Google Cloud holds: dict of addresses to contents, or to errors."""
    import tensorflow as tf

    held, stat, open_file = {}, tf.io.gfile.stat, tf.io.gfile.GFile

    def local(url):
        content = held.get(url, tf.errors.NotFoundError(None, None, f"{url} was not found"))
        if isinstance(content, Exception):
            raise content
        path = tmp_path / "remote"
        path.write_bytes(content)
        return str(path)

    monkeypatch.setattr(tf.io.gfile, "stat", lambda url: stat(local(url)))
    monkeypatch.setattr(tf.io.gfile, "GFile", lambda url, mode: open_file(local(url), mode))
    return held


def test_a_file_is_copied_from_google_cloud(cloud, folder):
    cloud |= {GS: CONTENT, "gs://somebody/a/vit.json": b"{}"}
    assert not is_cached(GS)
    path = fetch(GS, sha256=SHA, size=len(CONTENT))
    assert path.read_bytes() == CONTENT
    assert lying(folder) == ["vit.json", "vit.npz"]
    cloud.clear()
    assert fetch(GS) == path
    assert is_cached(GS)


def test_a_wrong_file_from_google_cloud_is_refused_and_removed(cloud, folder):
    cloud[GS] = CONTENT
    assert refusal(GS, size=5) == f"{GS} has 3000000 bytes; wanted 5"
    assert refusal(GS, sha256="0" * 64) == f"what came from {GS} has SHA-256 {SHA}; wanted {'0' * 64}"
    assert lying(folder) == []
    assert fetch(GS).read_bytes() == CONTENT
    assert lying(folder) == ["vit.npz"]


@pytest.mark.parametrize("url", [GS, "gs://vit_models/augreg/vit.npz", "gs://big_vision/vit.npz"])
@pytest.mark.parametrize("error", ["PermissionDeniedError", "UnauthenticatedError"])
def test_a_bucket_that_may_not_be_read_is_explained(cloud, folder, url, error):
    import tensorflow as tf

    cloud[url] = getattr(tf.errors, error)(None, None, "HTTP response code 403\nwith body …")
    message = refusal(url)
    assert message.startswith(f"{url}: Google Cloud answered 401 or 403: ")
    assert ("since February 2026" in message) == (url != GS)
    assert lying(folder) == []


def test_what_google_cloud_does_not_give_is_told_in_one_line(cloud, folder, monkeypatch):
    import tensorflow as tf

    assert refusal(GS) == f"{GS}: Google Cloud has no such file; check the address"
    cloud[GS] = tf.errors.FailedPreconditionError(None, None, "Could not resolve\n\t host")
    assert refusal(GS).startswith(f"{GS} cannot be read: Could not resolve host; check the address and")
    cloud[GS] = CONTENT
    stat = types.SimpleNamespace(length=4_000_000)
    monkeypatch.setattr(tf.io.gfile, "stat", lambda url: stat)
    assert refusal(GS) == f"{GS}: received 3000000 of 4000000 bytes; try again"
    assert lying(folder) == []
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert refusal(GS).startswith(f"{GS}: it is TensorFlow that reads gs://; install it")


def test_a_description_in_google_cloud_has_a_bound(cloud, folder, monkeypatch):
    monkeypatch.setattr(cache, "LARGEST_SIDECAR", 3)
    cloud |= {GS: CONTENT, "gs://somebody/a/vit.json": b"[1,2]"}
    fetch(GS)
    assert lying(folder) == ["vit.npz"]
