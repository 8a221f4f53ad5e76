"""Download a URL into the cache; an interrupted download is resumed."""

import contextlib
import ipaddress
import json
import os
import posixpath
import re
import time
import urllib.parse

import requests
from filelock import FileLock
from requests import exceptions
from requests.utils import get_auth_from_url, get_netrc_auth
from tqdm import tqdm

from keras_vit.messages import one_line
from keras_vit.weights.cache import LARGEST_SIDECAR, cache_folder, cached_path, check_file, redact_url

WAITS = (0, 1, 2, 4, 8)  # seconds before each attempt
TIMEOUT = 30  # seconds to connect, and between two chunks
CHUNK = 1 << 16  # bytes
RETRIED = {408, 429, 500, 502, 503, 504}
TRANSIENT = (exceptions.Timeout, exceptions.ConnectionError, exceptions.ChunkedEncodingError)
CLOSED_BUCKETS = re.compile(r"(gs://|https?://storage\.googleapis\.com/)(vit_models|big_vision)/")


class Refused(ValueError):
    """The server answers without the file: there is none, or not for this client."""


class _Retry(Exception):
    pass


def download(url, sha256, size, trust):
    """The cached file of a `http(s)://` or `gs://` URL, downloaded where it is missing.

    It gets its name in the cache only after all checks. `NAME.json` next to `NAME.npz` is downloaded with it.

    Args:
        url: URL.
        sha256, size, trust: As for `fetch`.

    Returns:
        pathlib.Path.

    Raises:
        ValueError: as `fetch`.

    Example:
        >>> download("https://example.org:port/model.npz", None, None, False)
        Traceback (most recent call last):
        ValueError: https://example.org:port/model.npz: the request failed (InvalidURL); check the URL
    """
    path = cached_path(url)
    trust = trust or sha256 is not None
    check_encrypted(url, trust)  # even where it is cached
    if not path.is_file():
        try:
            locks = cache_folder() / ".locks"
            locks.mkdir(parents=True, exist_ok=True)
            with FileLock(locks / path.parent.name):
                if not path.is_file():  # Another process may have downloaded it meanwhile.
                    _download(url, path, sha256, size, trust)
                    return path
        except OSError as error:
            raise ValueError(
                f"{redact_url(url)} cannot be kept in {cache_folder()}: {one_line(error)}; make room or set "
                "KERAS_VIT_CACHE to a folder that can be written"
            ) from error
    check_file(path, sha256, size, path, f"; remove that file to download it from {redact_url(url)} again")
    return path


def _download(url, path, sha256, size, trust):
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        _receive(url, part, trust, size)
        try:
            check_file(part, sha256, size, f"the file from {redact_url(url)}")
        except ValueError:
            _discard(part)
            raise
        _download_sidecar(url, path, trust)
        os.replace(part, path)
    finally:
        if path.is_file() or not _resumable(part):
            _discard(part)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # only if it is empty


def _download_sidecar(url, path, trust):
    """Download `NAME.json` for `NAME.npz`, if there is a valid one."""
    parts, sidecar = urllib.parse.urlsplit(url), path.with_suffix(".json")
    stem, extension = posixpath.splitext(parts.path)
    if not extension or sidecar == path:
        return
    part = sidecar.with_name(f"{sidecar.name}.part")
    try:
        _receive(parts._replace(path=f"{stem}.json").geturl(), part, trust, largest=LARGEST_SIDECAR)
        json.loads(part.read_bytes())
        os.replace(part, sidecar)
    except (Refused, json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        pass
    finally:
        _discard(part)


def _receive(url, part, trust, size=None, largest=None):
    """Fill `part` with the content of a URL, in several attempts.

    If they fail, `part` stays, and next to it `….state` with the length and version (ETag or date) of the
    server's file, so that the next call resumes. Bytes of different versions are never combined.

    Source: RFC 9110, sections 14.2 (Range) and 15.3.7 (206).
    """
    if url.startswith("gs://"):
        return _copy_from_cloud(url, part, largest)
    for wait in WAITS:
        time.sleep(wait)
        try:
            return _attempt(url, part, trust, size, largest)
        except _Retry as error:
            problem = str(error)
        except exceptions.RequestException as error:
            problem = f"the request failed ({type(error).__name__})"
            if isinstance(error, exceptions.SSLError) or not isinstance(error, TRANSIENT):
                raise ValueError(f"{redact_url(url)}: {problem}; check the URL") from None
    kept = " (the next attempt resumes)" if _resumable(part) else ""
    raise ValueError(
        f"{redact_url(url)}: {problem}, in {len(WAITS)} attempts; check the URL and the connection and try "
        f"again{kept}, or give the path of a local file"
    )


def _attempt(url, part, trust, size, largest):
    """Request the missing bytes and append them."""
    stored = _resumable(part)
    have = part.stat().st_size if stored else 0
    if stored and have == stored[0]:
        return
    headers = {"Accept-Encoding": "identity"}  # so that lengths and ranges are those of the file itself
    if have:
        headers["Range"] = f"bytes={have}-"
    options = {"headers": headers, "auth": _credentials(url), "timeout": TIMEOUT, "stream": True}
    with _Session(trust) as session, session.get(url, **options) as response:
        start, *version = _described(response)
        if not (have and response.status_code == 206 and (start, version) == (have, stored)):
            _discard(part)
            if have and response.status_code in (206, 416):
                raise _Retry("the server's file has changed")
            _check_response(response, url, size)
            if None not in version:
                _state(part).write_text(json.dumps(version))
        total = version[0]
        if size is not None and total not in (None, size):
            _discard(part)
            raise ValueError(f"{redact_url(url)}: the server's file has {total} bytes; expected {size}")
        with open(part, "ab") as file, _progress(part.stem, total, file.tell()) as bar:
            for chunk in response.iter_content(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
                if largest is not None and file.tell() > largest:
                    raise Refused(f"{redact_url(url)}: more than {largest} bytes")
            received = file.tell()
            os.fsync(file.fileno())
    if total is not None and received != total:
        raise _Retry(f"the connection failed after {received} of {total} bytes")


class _Session(requests.Session):
    """Check each redirect like the first URL, and send credentials to the first server only."""

    def __init__(self, trust):
        super().__init__()
        self.accepts_http = trust

    def get_redirect_target(self, response):
        target = super().get_redirect_target(response)
        if target is not None:
            response.close()  # Else its body, which may be endless, is read.
        return target

    def rebuild_auth(self, request, response):
        before, after = _origin(response.url), _origin(request.url)
        if before[0] == "https" != after[0]:
            urls = redact_url(response.url), redact_url(request.url)
            raise Refused("{}: the server redirects to {}, which is not encrypted".format(*urls))
        check_encrypted(request.url, self.accepts_http)
        if before != after:
            request.headers.pop("Authorization", None)


def _credentials(url):
    """Those of the URL, else over https:// those of .netrc."""
    own = get_auth_from_url(url)
    if any(own):
        return own
    found = get_netrc_auth(url) if url.startswith("https:") else None
    return found or (lambda request: request)  # With None, requests would read .netrc itself.


def _origin(url):
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2]


def check_encrypted(url, trust=False):
    """Refuse plain `http://` to another machine, where anyone on the way can change the file.

    Args:
        url: URL.
        trust: Whether to accept it: the caller trusts the network, or will check the file's digest.

    Raises:
        ValueError: if it is refused.

    Example:
        >>> check_encrypted("http://localhost/vit.npz")
        >>> check_encrypted("http://example.org/vit.npz", trust=True)
        >>> check_encrypted("http://example.org/vit.npz")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: http://example.org/vit.npz is not encrypted, ...
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "http" and not trust and not _is_loopback(parts.hostname):
        raise ValueError(
            f"{redact_url(url)} is not encrypted, and anyone on the way can change the file; use https://, "
            "give the file's sha256 (--sha256), or accept it with trust=True (--trust)"
        )


def _is_loopback(host):
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_response(response, url, size):
    """Raise unless the response holds a whole file."""
    status, headers = response.status_code, response.headers
    problem = f"the server answered {status}"
    if status in RETRIED:
        raise _Retry(problem)
    if status in (401, 403):
        problem += f": {access_advice(url)}"
    elif status in (404, 410):
        problem += ": no such file; check the URL"
    elif status != 200:
        problem += ", not with a file"
    elif headers.get("Content-Type", "").startswith("text/html"):
        problem = "the server answered with a web page, not with a checkpoint file"
    elif size is None and not headers.keys() & {"Content-Length", "Transfer-Encoding", "Content-Encoding"}:
        problem = "the server does not say how long the file is; give its size in bytes"
    else:
        return
    raise Refused(f"{redact_url(url)}: {problem}")


def _described(response):
    """(first byte of the response, length of the file, ETag or date); None for what cannot be known."""
    headers = response.headers
    if headers.get("Content-Encoding", "identity") != "identity":  # Its length and ETag are not the file's.
        return 0, None, None
    whole = f"bytes 0-0/{headers.get('Content-Length')}"
    bounds = re.match(r"bytes (\d+)-\d+/(\d+)$", headers.get("Content-Range", whole))
    tag = headers.get("ETag", "W/")
    version = headers.get("Last-Modified") if tag.startswith("W/") else tag  # W/ marks a weak one
    return *(map(int, bounds.groups()) if bounds else (0, None)), version


def _state(part):
    return part.with_name(f"{part.name}.state")


def _resumable(part):
    """[length, version] of the server's file if an earlier attempt left bytes of it, else None."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        total, version = json.loads(_state(part).read_text())
        if 0 < part.stat().st_size <= total:
            return [total, version]
    return None


def _discard(part):
    part.unlink(missing_ok=True)
    _state(part).unlink(missing_ok=True)


def _progress(name, total, have=0):
    """A progress bar on a terminal's standard error, after two seconds."""
    return tqdm(desc=name, total=total, initial=have, unit="B", unit_scale=True, delay=2, disable=None)


def _copy_from_cloud(url, part, largest):
    """Copy a `gs://` file by TensorFlow, with the caller's Google Cloud credentials."""
    import tensorflow as tf

    try:
        total = tf.io.gfile.stat(url).length
        if largest is not None and total > largest:
            raise Refused(f"{url}: more than {largest} bytes")
        with (
            tf.io.gfile.GFile(url, "rb") as remote,
            open(part, "wb") as file,
            _progress(part.stem, total) as bar,
        ):
            while chunk := remote.read(CHUNK):
                file.write(chunk)
                bar.update(len(chunk))
            received = file.tell()
            os.fsync(file.fileno())
    except tf.errors.OpError as error:
        missing = isinstance(error, tf.errors.NotFoundError)
        denied = isinstance(error, (tf.errors.PermissionDeniedError, tf.errors.UnauthenticatedError))
        advice = access_advice(url) if denied else "check the URL and the connection"
        kind = Refused if missing or denied else ValueError
        raise kind(f"{url} cannot be read: {one_line(error.message)}; {advice}") from None
    if received != total:
        raise ValueError(f"{url}: received {received} of {total} bytes; try again")


def access_advice(url):
    """What to do about a URL that answers 401 or 403."""
    if not CLOSED_BUCKETS.match(url):
        return "log in there, download the file and give its path, or check the URL"
    return (
        "this bucket has answered 401 or 403 to anonymous callers since February 2026 "
        "(google-research/vision_transformer issue 321); log in to Google Cloud "
        "(gcloud auth application-default login) with an account that may read it and use gs://…, or take "
        "the same weights from Hugging Face: run `keras-vit models` for names"
    )
