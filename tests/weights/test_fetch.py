"""Source to local file. The servers are on the loopback; no other is contacted."""

import base64
import gzip
import hashlib
import json
import os
import pathlib
import socket
import threading
import time
import urllib.parse

import numpy as np
import pytest
import requests
from made.servers import Server, asked_hub, chunked, file, serving, status, without_length
from made.tables import by_table

from keras_vit.weights import download
from keras_vit.weights.cache import cache_folder
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.fetch import fetch, is_cached

CONTENT = np.random.default_rng(0).bytes(3_000_000)
OTHER = np.random.default_rng(1).bytes(2_500_000)
PART = 1 << 20
SHA = hashlib.sha256(CONTENT).hexdigest()
NPZ, JSON = "/a/vit.npz", "/a/vit.json"


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


def files_in(folder):
    """Names of the files in the cache without the locks."""
    names = sorted(path.name for path in folder.rglob("*") if path.is_file())
    return [name for name in names if not name.endswith(".lock")]


def refusal(source, **options):
    """The one-line message with which the source is refused."""
    with pytest.raises(ValueError) as caught:
        fetch(source, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Local paths -------------------------------------------------------------------------------------


def test_a_path_is_its_file_if_digest_and_size_agree(tmp_path, monkeypatch):
    path = tmp_path / "vit.npz"
    path.write_bytes(CONTENT)
    assert fetch(path) == fetch(str(path)) == fetch(os.fsencode(path)) == path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch("~/vit.npz", sha256=SHA.upper(), size=len(CONTENT)) == path
    assert is_cached("~/vit.npz") and not is_cached("~/other.npz")
    assert refusal(path, sha256="0" * 64) == f"{path} has SHA-256 {SHA}; expected {'0' * 64}"
    assert refusal(path, size=3) == f"{path} has 3000000 bytes; expected 3"


@by_table("source", ["none.npz", "", "~nobody-of-that-name/x.npz", "a\0b"])
def test_a_path_without_a_file_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal(source) == f"no such checkpoint file: {source!r}"
    assert not is_cached(source)


def test_a_folder_is_its_weights(tmp_path):
    names = "model.keras, model.safetensors, model.safetensors.index.json, pytorch_model.bin, "
    names += "open_clip_model.safetensors, open_clip_pytorch_model.bin"
    assert refusal(tmp_path).endswith(f"is a folder without {names}; give the checkpoint file")
    assert not is_cached(tmp_path)
    for name in ("pytorch_model.bin", "model.safetensors", "model.keras"):  # the last is preferred
        (tmp_path / name).write_bytes(b"weights")
        assert fetch(tmp_path) == tmp_path / name
    assert is_cached(tmp_path)


@pytest.mark.parametrize(
    "own, caches, expected",
    [
        ("~/own", "/caches", "/home/me/own"),
        ("", "/caches", "/caches/keras_vit"),
        ("", "", "/home/me/.cache/keras_vit"),
    ],
)
def test_the_environment_chooses_the_cache(own, caches, expected, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("KERAS_VIT_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", caches)
    assert cache_folder() == pathlib.Path(expected)


# The web -----------------------------------------------------------------------------------------


def test_a_file_is_downloaded_once_and_then_needs_no_server(folder):
    with serving(Server()) as server:
        server.answers[NPZ] = file(CONTENT)
        source = f"{server.url}{NPZ}"
        assert not is_cached(source)
        path = fetch(source, sha256=SHA, size=len(CONTENT))
        assert path.read_bytes() == CONTENT
        assert (path.name, path.parent.parent) == ("vit.npz", folder)
    assert is_cached(source) and is_cached(source.replace("http", "HTTP", 1))
    assert fetch(source) == fetch(source, sha256=SHA) == path
    assert files_in(folder) == ["vit.npz"]


@pytest.mark.parametrize("path", ["/..%2F..%2Fevil.npz", "/", "/%00", "/.lock", f"/{'a' * 300}.npz"])
def test_each_url_has_its_own_folder_in_the_cache(path, server, folder):
    for url, content in {path: b"content", f"{path}?v=2": b"other"}.items():
        server.answers[url] = file(content)
        found = fetch(server.url + url)
        assert found.parent.parent == folder and found.resolve() == found
        assert found.read_bytes() == content


def test_an_interrupted_download_is_resumed(server, folder):
    def less_than_requested(handler):
        bounds = f"bytes {PART}-{2 * PART - 1}/{len(CONTENT)}"
        handler.answer(206, CONTENT[PART : 2 * PART], ETag='"1"', Content_Range=bounds)

    server.answers[NPZ] = [file(CONTENT, until=PART), less_than_requested, file(CONTENT)]
    assert fetch(server.url + NPZ).read_bytes() == CONTENT
    assert server.ranges(NPZ) == [None, f"bytes={PART}-", f"bytes={2 * PART}-"]
    assert files_in(folder) == ["vit.npz"]


@pytest.mark.parametrize(
    "content, options, requests",
    [
        (CONTENT, {"ranges": False}, 2),
        (OTHER, {}, 3),  # The length differs.
        (CONTENT[::-1], {"tag": '"2"'}, 3),
        (OTHER[:900_000], {"tag": '"2"'}, 3),  # status 416
        (CONTENT, {"packed": True}, 3),
    ],
    ids=["no ranges", "same tag", "same length", "shorter", "packed"],
)
def test_another_version_or_no_range_restarts_the_download(content, options, requests, server, folder):
    server.answers[NPZ] = [file(CONTENT, until=PART), file(content, **options)]
    assert fetch(server.url + NPZ).read_bytes() == content
    assert server.ranges(NPZ) == [None, f"bytes={PART}-", None][:requests]
    assert files_in(folder) == ["vit.npz"]


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_without_a_strong_etag_nothing_is_resumed_or_kept(tag, server, folder):
    server.answers[NPZ] = [file(CONTENT, tag=tag, until=PART), file(OTHER, tag=tag)]
    assert fetch(server.url + NPZ).read_bytes() == OTHER
    assert server.ranges(NPZ) == [None, None]
    server.answers["/b.npz"] = file(CONTENT, tag=tag, until=1000)
    assert "the request failed (" in refusal(f"{server.url}/b.npz")
    assert files_in(folder) == ["vit.npz"]


@pytest.mark.parametrize("state", [None, "{", '["x", "1"]', '[5, "a"]'])
def test_a_later_call_resumes_unless_the_state_is_damaged(state, server, folder):
    server.answers[NPZ] = file(CONTENT, until=PART)
    message = refusal(server.url + NPZ)
    assert message.startswith(f"{server.url}{NPZ}: the request failed (")
    assert "in 3 attempts" in message and "(the next attempt resumes)" in message
    assert files_in(folder) == ["vit.npz.part", "vit.npz.part.state"]
    assert not is_cached(server.url + NPZ)
    if state is not None:
        next(folder.rglob("*.state")).write_text(state)
    server.answers[NPZ] = file(CONTENT)
    server.seen.clear()
    assert fetch(server.url + NPZ).read_bytes() == CONTENT
    assert server.ranges(NPZ) == [f"bytes={PART}-" if state is None else None]
    assert files_in(folder) == ["vit.npz"]


def test_of_two_that_ask_at_once_one_downloads(server):
    server.answers[NPZ] = lambda handler: (time.sleep(0.2), file(CONTENT)(handler))
    results = []
    threads = [threading.Thread(target=lambda: results.append(fetch(server.url + NPZ))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() == CONTENT for path in results] == [True, True]
    assert server.ranges(NPZ) == [None]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sha256": "0" * 64}, f"the file from {{}} has SHA-256 {SHA}; expected {'0' * 64}"),
        ({"size": 3_000_001}, "the file from {} has 3000000 bytes; expected 3000001"),
        ({"size": 5}, "{} has more than 5 bytes"),
    ],
)
def test_a_wrong_file_is_refused_and_removed(options, message, server, folder):
    server.answers[NPZ] = file(CONTENT)
    assert refusal(server.url + NPZ, **options) == message.format(server.url + NPZ)
    assert files_in(folder) == []
    assert fetch(server.url + NPZ).read_bytes() == CONTENT


def test_a_cached_file_is_checked_again_and_the_message_says_where_it_is(server):
    server.answers[NPZ] = file(CONTENT)
    path = fetch(server.url + NPZ)
    path.write_bytes(CONTENT[:-1] + b"x")
    advice = f"; remove that file to download it from {server.url}{NPZ} again"
    message = refusal(server.url + NPZ, sha256=SHA)
    assert message.startswith(f"{path} has SHA-256 ") and message.endswith(f"; expected {SHA}{advice}")
    assert len(server.ranges(NPZ)) == 1 and path.exists()


FAILED = "the request failed ("


@pytest.mark.parametrize(
    "answer, message, tries",
    [
        (status(403), "the server answered 403: check the URL, or log in there", 1),
        (status(404), "the server answered 404: no such file; check the URL", 1),
        (status(204), "the server answered 204, not with a file", 1),
        (status(500), "the server answered 500, in 3 attempts; check the URL and the connection", 3),
        (status(302, Location="ftp://x/y"), "the request failed (InvalidSchema)", 1),
        (status(200, Content_Type="text/html; charset=utf-8"), "answered with a web page, not with a", 1),
        (without_length(CONTENT), "does not say how long the file is; give its size in bytes", 1),
        (lambda handler: handler.hang_up(), f"{FAILED}ConnectionError), in 3 attempts", 3),
        (chunked(CONTENT, end=False), f"{FAILED}ChunkedEncodingError), in 3 attempts", 3),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_answer_without_the_file_is_refused_in_one_line(answer, message, tries, server, folder):
    server.answers[NPZ] = answer
    refused = refusal(server.url + NPZ)
    assert refused.startswith(f"{server.url}{NPZ}: ") and message in refused
    assert len(server.ranges(NPZ)) == tries
    assert files_in(folder) == []


def test_a_redirect_is_followed_and_its_body_is_not_read(server):
    sent = []

    def endless(handler):
        handler.answer(302, Location="/b.npz", Content_Length=1 << 40)
        while True:
            sent.append(handler.wfile.write(bytes(1 << 20)))

    server.answers |= {NPZ: endless, "/b.npz": file(CONTENT)}
    path = fetch(server.url + NPZ)
    assert (path.name, path.read_bytes()) == ("vit.npz", CONTENT)
    assert sum(sent) < 1 << 24
    assert {headers["Accept-Encoding"] for _, _, headers in server.seen} == {"identity"}


@pytest.fixture
def web(server, monkeypatch):
    """The server answers for every host; a list of the URL and the credentials of each request."""
    send, asked = requests.adapters.HTTPAdapter.send, []

    def answered_here(adapter, request, **options):
        url = request.url
        asked.append((url, request.headers.get("Authorization")))
        request.url = server.url + urllib.parse.urlsplit(url).path
        response = send(adapter, request, **options)
        request.url = response.url = url
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", answered_here)
    return asked


def test_plain_http_needs_trust_or_a_digest_except_on_this_machine(server, web):
    server.answers[NPZ] = file(CONTENT)
    for source in (f"http://host{NPZ}", f"http://10.0.0.1{NPZ}", f"HTTP://127.0.0.1.host:80{NPZ}"):
        assert "is not encrypted, and anyone on the way can change the file; use https://" in refusal(source)
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
    ],
)
def test_each_redirect_is_checked_like_the_first_url(source, target, options, message, server, web):
    server.answers |= {NPZ: status(302, Location=f"{target}/b.npz"), "/b.npz": file(CONTENT)}
    if message:
        assert message in refusal(source + NPZ, **options)
        assert [url for url, _ in web if "b.npz" in url] == []
    else:
        assert fetch(source + NPZ, **options).read_bytes() == CONTENT


@pytest.fixture
def netrc(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_credentials_of_netrc_are_sent_encrypted_only_and_after_those_of_the_url(server, web, netrc):
    server.answers |= {path: file(CONTENT) for path in ("/1", "/2", "/3", "/4")}
    fetch("https://host/1")
    fetch("https://you:own@host/2")
    fetch("http://host/3", trust=True)
    fetch("http://127.0.0.1/4")
    basic = ["Basic " + base64.b64encode(pair).decode() for pair in (b"me:secret", b"you:own")]
    assert [authorization for _, authorization in web] == [*basic, None, None]


@pytest.mark.parametrize(
    "target, kept",
    [("/b.npz", True), ("https://host:444/b.npz", False), ("https://they:theirs@other/b.npz", False)],
)
def test_credentials_are_sent_to_the_first_server_only(target, kept, server, web, netrc):
    server.answers |= {NPZ: status(302, Location=target), "/b.npz": file(CONTENT)}
    for source in ("https://me:own@host", "https://host"):
        web.clear()
        fetch(f"{source}{NPZ}")
        (_, first), (_, second) = web[:2]
        assert first.startswith("Basic ")
        assert second == (first if kept else None)


def test_an_answer_may_come_in_chunks_packed_or_to_the_end_of_the_connection(server):
    def packed(handler):
        handler.answer(200, gzip.compress(CONTENT, 1), Content_Encoding="gzip", ETag='"1"')

    server.answers |= {"/1": chunked(CONTENT), "/2": packed, "/3": without_length(CONTENT)}
    for path in server.answers:
        size = len(CONTENT) if path == "/3" else None
        assert fetch(server.url + path, size=size).read_bytes() == CONTENT
    server.answers["/4"] = without_length(CONTENT[:-1])
    assert "has 2999999 bytes; expected 3000000" in refusal(f"{server.url}/4", size=3_000_000)


def test_a_server_that_hangs_is_asked_again(server, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    waiting = threading.Event()
    server.answers[NPZ] = [file(CONTENT, until=2 * PART, hang=waiting), file(CONTENT)]
    assert fetch(server.url + NPZ).read_bytes() == CONTENT
    waiting.set()
    assert server.ranges(NPZ)[-1] is not None, "what had arrived was kept"


@pytest.mark.parametrize(
    "source, problem",
    [
        ("https://", "https://: the request failed (InvalidURL); check the URL"),
        ("http://[::1/a.npz", "'http://[::1/a.npz' is not a URL: Invalid IPv6 URL"),
        ("http://127.0.0.1:1/vit.npz", "http://127.0.0.1:1/vit.npz: the request failed (ConnectionError)"),
    ],
)
def test_a_url_without_a_server_is_refused_and_nothing_is_kept(source, problem, folder):
    message = refusal(source)
    assert message.startswith(problem) and "resumes" not in message
    assert files_in(folder) == []


def test_secrets_of_a_url_are_not_shown(server):
    url = server.url.replace("//", "//me:hunter2@") + f"{NPZ}?signature=hunter3#hunter4"
    message = refusal(url)
    assert f"{server.url}{NPZ}?…: the server answered 404" in message and "hunter" not in message
    server.answers[f"{NPZ}?signature=hunter3"] = file(CONTENT)
    assert "hunter" not in refusal(url, sha256="0" * 64)
    assert server.seen[-1][2]["Authorization"].startswith("Basic ")


def test_a_cache_that_cannot_be_written_is_named(server, tmp_path, monkeypatch):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "a file"))
    with pytest.raises(OSError, match="a file"):
        fetch(server.url + NPZ)


# Sidecars


def test_the_sidecar_of_the_same_query_is_kept_next_to_the_weights(server, folder):
    server.answers |= {f"{NPZ}?v=1": file(CONTENT), f"{JSON}?v=1": file(b'{"classes": ["a"]}')}
    path = fetch(f"{server.url}{NPZ}?v=1")
    assert json.loads(path.with_suffix(".json").read_text()) == {"classes": ["a"]}
    assert files_in(folder) == ["vit.json", "vit.npz"]


@pytest.mark.parametrize(
    "answer",
    [
        status(404),
        *(file(content) for content in (b'{"a": ', b"\xff\xfe", b"[" * 100_000)),
        *(status(200, Content_Type="text/html"), chunked(b"[", b" " * (1 << 24), b"]")),
    ],
    ids=["404", "half", "binary", "deep", "html", "huge"],
)
def test_weights_may_have_no_valid_sidecar(answer, server, folder):
    server.answers |= {NPZ: file(CONTENT), JSON: answer}
    for _ in range(2):
        assert fetch(server.url + NPZ).read_bytes() == CONTENT
    assert files_in(folder) == ["vit.npz"]
    assert len(server.ranges(JSON)) == 1


@pytest.mark.parametrize("path", ["/model", "/vit.json"])
def test_a_sidecar_has_none(path, server):
    server.answers[path] = file(b"[]")
    fetch(server.url + path)
    assert [seen for _, seen, _ in server.seen] == [path]


def test_a_sidecar_that_is_unavailable_now_is_not_skipped_for_ever(server, folder):
    server.answers |= {NPZ: file(CONTENT), JSON: status(503)}
    assert f"{JSON}: the server answered 503" in refusal(server.url + NPZ)
    assert files_in(folder) == ["vit.npz.part", "vit.npz.part.state"]
    server.answers[JSON] = file(b"{}")
    assert fetch(server.url + NPZ).read_bytes() == CONTENT
    assert len(server.ranges(NPZ)) == 1, "the complete file was kept"
    assert files_in(folder) == ["vit.json", "vit.npz"]


# Hugging Face ------------------------------------------------------------------------------------

COMMIT, OLDER = "a" * 40, "b" * 40
CLIP = ("open_clip_model.safetensors", "open_clip_config.json")
OLDER_CLIP = ("open_clip_pytorch_model.bin", CLIP[1])
FILES = {"model.safetensors": b"weights", "config.json": b"{}", "preprocessor_config.json": b"[]"}
FILES["processor_config.json"] = b"{}"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with two repositories."""
    with asked_hub(tmp_path / "hub", monkeypatch) as server:
        old = (OLDER, {"old/vit.npz": b"old", "old/vit.json": b"{}"})
        versions = {"main": (COMMIT, FILES), COMMIT: (COMMIT, FILES), "v1": old, OLDER: old, "a%2Fb": old}
        torch = (COMMIT, {"pytorch_model.bin": b"pickle", "other.txt": b"x"})
        server.repositories |= {"org/vit": versions, "org/torch": {"main": torch, COMMIT: torch}}
        for name, files in (("clip", CLIP), ("older", OLDER_CLIP)):
            clip = (COMMIT, dict.fromkeys(files, b"{}"))
            server.repositories[f"org/{name}"] = {"main": clip, COMMIT: clip}
        yield server


def test_a_repository_is_its_weights_and_their_sidecars(hub):
    assert not is_cached("hf://org/vit")
    path = fetch("hf://org/vit", size=7, sha256=hashlib.sha256(b"weights").hexdigest())
    assert path.parts[-3:] == ("snapshots", COMMIT, "model.safetensors")
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == FILES
    assert all(f"/{COMMIT}/" in asked for _, asked, _ in hub.seen if "config" in asked), "another version's"
    assert is_cached("hf://org/vit") and is_cached(f"hf://org/vit@{COMMIT}/model.safetensors")
    assert not is_cached("hf://org/vit/pytorch_model.bin") and not is_cached("hf://org/vit@v1")
    assert refusal("hf://org/vit", size=5) == f"{path} has 7 bytes; expected 5"


@by_table(
    "source, names",
    [
        ("HF://org/torch/", ("pytorch_model.bin",)),
        ("hf://org/clip", CLIP),
        ("hf://org/clip/open_clip_model.safetensors", CLIP),
        ("hf://org/older", OLDER_CLIP),
        (f"hf://org/older/{OLDER_CLIP[0]}", OLDER_CLIP),
        *((f"hf://org/vit@{at}/old/vit.npz", ("vit.npz", "vit.json")) for at in ("v1", OLDER, "a%2Fb")),
    ],
)
def test_the_weights_of_a_repository_come_with_their_sidecars(hub, source, names):
    path = fetch(source)
    assert path.name == names[0] and is_cached(source)
    assert {p.name for p in path.parent.iterdir()} == {*names}


@pytest.mark.parametrize("source", ["hf://org/torch", "hf://org/vit@v1/old/vit.npz"])
def test_the_cache_needs_no_hub(hub, source, monkeypatch):
    path = fetch(source)
    hub.seen.clear()
    assert fetch(source) == path and hub.seen == []
    go_offline(monkeypatch)
    assert fetch(source) == path
    assert is_cached(source)
    message = refusal("hf://org/other")
    assert message.startswith("hf://org/other: it is not in ") and "HF_HUB_OFFLINE" in message


def go_offline(monkeypatch):
    from huggingface_hub import close_session, constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()


@pytest.mark.parametrize("through", ["a closed port", "a proxy", "no name server"])
def test_an_offline_machine_refuses_a_name_at_once(through, tmp_path, monkeypatch, capfd):
    from huggingface_hub import constants

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}"
        if through == "a proxy":
            monkeypatch.setenv("http_proxy", dead)
        endpoint = dead if through == "a closed port" else "http://hub.invalid"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        start = time.monotonic()
        message = refusal("hf://org/other")
    assert time.monotonic() - start < 3
    assert "it is not in" in message and f"did not send it (no connection to {endpoint}" in message
    assert capfd.readouterr().err == ""  # no lines about attempts


def test_a_file_that_another_tool_cached_is_used_with_a_warning(hub):
    from huggingface_hub import hf_hub_download

    path = hf_hub_download("org/vit", "model.safetensors")
    hub.problems["org/vit"] = (503, "")
    with pytest.warns(UserWarning, match="hf://org/vit: config.json could not be requested, and is ignored"):
        assert fetch("hf://org/vit") == pathlib.Path(path)


@pytest.mark.parametrize(
    "source, message",
    [
        ("hf://org/none", "HUB has no such repository, or a private one; check the name, or log in"),
        ("hf://org/gated", "the repository is gated; request access at HUB/org/gated and log in ('hf auth"),
        ("hf://org/down", "it is not in FOLDER, and HUB did not send it (Server error '500 Internal"),
        ("hf://org/vit@v9", "404 Client Error. Revision Not Found for url: "),
        (
            "hf://org/vit@v1",
            "the repository has no model.safetensors or model.safetensors.index.json or pytorch_model.bin or "
            "open_clip_model.safetensors or open_clip_pytorch_model.bin;",
        ),
        (f"hf://org/vit@{OLDER}/old", "the repository has no old; name a file"),
        ("hf://org/vit/../vit.npz", "Invalid filename '../vit.npz'"),
        ("hf://org/v--t", "Cannot have -- or .. in repo_id"),
    ],
)
def test_what_the_hub_does_not_give_is_refused_in_one_line(hub, source, message, tmp_path):
    hub.problems |= {"org/gated": (403, "GatedRepo"), "org/down": (500, "")}
    message = message.replace("HUB", hub.url).replace("FOLDER", str(tmp_path / "hub"))
    fetch(f"hf://org/vit@{OLDER}/old/vit.npz")
    assert refusal(source).startswith(f"{source}: {message}")
    assert [path.name for path in (tmp_path / "hub").glob("*/snapshots/*")] == [OLDER]


def test_a_name_is_searched_on_the_hub_and_the_refusal_says_so(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^'a/none' is .*; hf://a/none: {hub.url} has no such"):
        read_checkpoint("a/none")
    with pytest.raises(ValueError, match="^hf://google/vit-base-patch16-224: .* has no such repository"):
        read_checkpoint("google/vit-base-patch16-224")


@pytest.mark.parametrize("source", ["hf://vit", "hf://org/vit@", "hf:///vit"])
def test_what_names_no_repository_is_refused(source):
    assert "expected hf://org/repo, hf://org/repo@revision or either with /path/to/file" in refusal(source)


# Google Cloud ------------------------------------------------------------------------------------

GS = "gs://somebody/a/vit.npz"


@pytest.fixture
def cloud(monkeypatch, tmp_path):
    """The content of Google Cloud: dict of URLs to contents, or to errors."""
    import tensorflow as tf

    held, stat, copy = {}, tf.io.gfile.stat, tf.io.gfile.copy

    def local(url):
        content = held.get(url, tf.errors.NotFoundError(None, None, f"{url} was\n not found"))
        if isinstance(content, Exception):
            raise content
        path = tmp_path / "remote"
        path.write_bytes(content)
        return str(path)

    monkeypatch.setattr(tf.io.gfile, "stat", lambda url: stat(local(url)))
    monkeypatch.setattr(tf.io.gfile, "copy", lambda url, *path, **how: copy(local(url), *path, **how))
    return held


def test_a_file_is_copied_from_google_cloud(cloud, folder):
    cloud |= {GS: CONTENT, "gs://somebody/a/vit.json": b"{}"}
    assert not is_cached(GS)
    path = fetch(GS, sha256=SHA, size=len(CONTENT))
    assert path.read_bytes() == CONTENT
    assert files_in(folder) == ["vit.json", "vit.npz"]
    cloud.clear()
    assert fetch(GS) == path and is_cached(GS)


def test_a_wrong_file_from_google_cloud_is_refused_and_removed(cloud, folder, monkeypatch):
    import tensorflow as tf

    cloud[GS] = CONTENT
    assert refusal(GS, size=5) == f"{GS} has more than 5 bytes"
    assert refusal(GS, sha256="0" * 64) == f"the file from {GS} has SHA-256 {SHA}; expected {'0' * 64}"
    monkeypatch.setattr(tf.io.gfile, "copy", lambda url, path, **how: path.write_bytes(CONTENT[:7]))
    assert refusal(GS) == f"{GS}: received 7 of 3000000 bytes; try again"
    assert "vit.npz" not in files_in(folder)


@pytest.mark.parametrize("url", [GS, "gs://vit_models/augreg/vit.npz"])
def test_what_google_cloud_does_not_give_is_refused_in_one_line(cloud, folder, url):
    import tensorflow as tf

    assert refusal(url).startswith(f"{url} cannot be read: {url} was not found; ")
    cloud[url] = tf.errors.PermissionDeniedError(None, None, "HTTP response code 403\nwith body …")
    message = refusal(url)
    assert message.startswith(f"{url} cannot be read: HTTP response code 403 with body …; ")
    assert ("since February 2026" in message) == (url != GS)
    assert files_in(folder) == []


def test_a_sidecar_in_google_cloud_has_a_bound(cloud, folder, monkeypatch):
    monkeypatch.setattr(download, "LARGEST_SIDECAR", 3)
    cloud |= {GS: CONTENT, "gs://somebody/a/vit.json": b"[1,2]"}
    fetch(GS)
    assert files_in(folder) == ["vit.npz"]
