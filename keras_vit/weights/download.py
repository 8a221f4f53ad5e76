"""Download a URL into the cache; an interrupted download is resumed."""

import contextlib
import json
import os
import posixpath
import re
import time
import urllib.parse

from filelock import FileLock
from requests import exceptions
from tqdm import tqdm

from keras_vit.http_requests import Refused, Session, check_encrypted, get, is_page, received
from keras_vit.messages import one_line, redact_url
from keras_vit.weights.cache import LARGEST_SIDECAR, cached_path, check_file
from keras_vit.writing import flush

WAITS = (0, 1, 2, 4, 8)  # seconds before each attempt
TIMEOUT = 30  # seconds to connect, and between two pieces
RETRIED = {408, 429, 500, 502, 503, 504}
TRANSIENT = (exceptions.Timeout, exceptions.ConnectionError, exceptions.ChunkedEncodingError)
CLOSED_BUCKETS = re.compile(r"(gs://|https?://storage\.googleapis\.com/)(vit_models|big_vision)/")


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
        ValueError, OSError: as `fetch`.

    Example:
        >>> download("https://example.org:port/model.npz", None, None, False)
        Traceback (most recent call last):
        ValueError: https://example.org:port/model.npz: the request failed (InvalidURL); check the URL
    """
    path = cached_path(url)
    trust = trust or sha256 is not None
    check_encrypted(url, trust)  # even where it is cached
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if not path.is_file():  # Another process may have downloaded it meanwhile.
                _download(url, path, sha256, size, trust)
                return path
    check_file(path, sha256, size, path, f"; remove that file to download it from {redact_url(url)} again")
    return path


def _download(url, path, sha256, size, trust):
    part = path.with_name(f"{path.name}.part")
    _receive(url, part, trust, size)
    try:
        check_file(part, sha256, size, f"the file from {redact_url(url)}")
    except ValueError:
        _discard(part)
        raise
    _download_sidecar(url, path, trust)
    flush(part)
    os.replace(part, path)
    _discard(part)


def _download_sidecar(url, path, trust):
    """Download `NAME.json` for `NAME.npz`, if there is a valid one."""
    parts, sidecar = urllib.parse.urlsplit(url), path.with_suffix(".json")
    stem, extension = posixpath.splitext(parts.path)
    if not extension or sidecar == path:
        return
    part = sidecar.with_name(f"{sidecar.name}.part")
    try:
        _receive(parts._replace(path=f"{stem}.json").geturl(), part, trust, LARGEST_SIDECAR)
        json.loads(part.read_bytes())
        os.replace(part, sidecar)
    except (Refused, json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        pass
    finally:
        _discard(part)


def _receive(url, part, trust, limit):
    """Fill `part` with the content of a URL, of at most `limit` bytes, in several attempts.

    If they fail, `part` stays, and next to it `….state` with the length and ETag of the server's file, so
    that the next call resumes. Bytes of different versions are never combined.
    """
    if url.startswith("gs://"):
        return _copy_from_cloud(url, part, limit)
    for wait in WAITS:
        time.sleep(wait)
        try:
            return _attempt(url, part, trust, limit)
        except _Retry as error:
            problem = str(error)
        except exceptions.RequestException as error:
            problem = f"the request failed ({type(error).__name__})"
            if isinstance(error, exceptions.SSLError) or not isinstance(error, TRANSIENT):
                raise ValueError(f"{redact_url(url)}: {problem}; check the URL") from None
    kept = " (the next attempt resumes)" if _resumable(part) else ""
    if not kept:
        _discard(part)
    raise ValueError(
        f"{redact_url(url)}: {problem}, in {len(WAITS)} attempts; check the URL and the connection and try "
        f"again{kept}, or give the path of a local file"
    )


def _attempt(url, part, trust, limit):
    """Request the missing bytes and append them.

    Source: RFC 9110, sections 14.2 (Range) and 15.3.7 (206).
    """
    stored = _resumable(part)
    have = part.stat().st_size if stored else 0
    if stored and have == stored[0]:
        return
    with Session() as session, get(session, url, have, trust, TIMEOUT) as response:
        start, *version = _described(response)
        if not (have and response.status_code == 206 and (start, version) == (have, stored)):
            _discard(part)
            if have and response.status_code in (206, 416):
                raise _Retry("the server's file has changed")
            _check_response(response, url, limit)
            if None not in version:
                _state(part).write_text(json.dumps(version))
        total = version[0]
        progress = {"total": total, "unit": "B", "unit_scale": True, "delay": 2, "disable": None}
        with open(part, "ab") as file, tqdm(desc=part.stem, initial=file.tell(), **progress) as bar:
            for piece in received(response):
                file.write(piece)
                bar.update(len(piece))
                if limit is not None and file.tell() > limit:
                    _discard(part)
                    raise Refused(f"{redact_url(url)} has more than {limit} bytes")
            length = file.tell()
    if total is not None and length != total:
        raise _Retry(f"the connection failed after {length} of {total} bytes")


def _check_response(response, url, limit):
    """Raise unless the response holds a whole file."""
    status, headers = response.status_code, response.headers
    problem = f"the server answered {status}"
    if status in RETRIED:
        raise _Retry(problem)
    if status in (401, 403):
        problem += f": {_access_advice(url)}"
    elif status in (404, 410):
        problem += ": no such file; check the URL"
    elif status != 200:
        problem += ", not with a file"
    elif is_page(response):
        problem = "the server answered with a web page, not with a checkpoint file"
    elif limit is None and not headers.keys() & {"Content-Length", "Transfer-Encoding", "Content-Encoding"}:
        problem = "the server does not say how long the file is; give its size in bytes"
    else:
        return
    raise Refused(f"{redact_url(url)}: {problem}")


def _described(response):
    """(first byte of the response, length of the file, strong ETag); None for what cannot be known."""
    headers = response.headers
    if headers.get("Content-Encoding", "identity") != "identity":  # Its length and ETag are not the file's.
        return 0, None, None
    whole = f"bytes 0-0/{headers.get('Content-Length')}"
    bounds = re.match(r"bytes (\d+)-\d+/(\d+)$", headers.get("Content-Range", whole))
    tag = headers.get("ETag", "W/")  # W/ marks a weak one.
    return *(map(int, bounds.groups()) if bounds else (0, None)), None if tag.startswith("W/") else tag


def _state(part):
    return part.with_name(f"{part.name}.state")


def _resumable(part):
    """[length, ETag] of the server's file if an earlier attempt left bytes of it, else None."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        total, tag = json.loads(_state(part).read_text())
        if 0 < part.stat().st_size <= total:
            return [total, tag]
    return None


def _discard(part):
    part.unlink(missing_ok=True)
    _state(part).unlink(missing_ok=True)


def _copy_from_cloud(url, part, limit):
    """Copy a `gs://` file by TensorFlow, with the caller's Google Cloud credentials."""
    import tensorflow as tf

    try:
        total = tf.io.gfile.stat(url).length
        if limit is not None and total > limit:
            raise Refused(f"{url} has more than {limit} bytes")
        tf.io.gfile.copy(url, part, overwrite=True)
    except tf.errors.OpError as error:
        final = (tf.errors.NotFoundError, tf.errors.PermissionDeniedError, tf.errors.UnauthenticatedError)
        error_class = Refused if isinstance(error, final) else ValueError
        raise error_class(f"{url} cannot be read: {one_line(error.message)}; {_access_advice(url)}") from None
    if part.stat().st_size != total:
        raise ValueError(f"{url}: received {part.stat().st_size} of {total} bytes; try again")


def _access_advice(url):
    if not CLOSED_BUCKETS.match(url):
        return "check the URL, or log in there, download the file and give its path"
    return (
        "this bucket has denied anonymous access since February 2026; use gs://… with an account that may "
        "read it (gcloud auth application-default login), or weights from Hugging Face (`keras-vit models`)"
    )
