"""A web address to a local file, going on where it broke off."""

import contextlib
import ipaddress
import json
import os
import re
import time
import urllib.parse

WAITS = (0, 1, 2, 4, 8)  # seconds before each try
CONNECT, READ = 10, 30  # seconds: to be connected, and without a byte
PIECE = 1 << 16  # bytes; what has come of a piece is lost with the connection
RETRIED = {408, 429, 500, 502, 503, 504}
CLOSED = tuple(
    f"{scheme}{bucket}/"
    for scheme in ("gs://", "https://storage.googleapis.com/", "http://storage.googleapis.com/")
    for bucket in ("vit_models", "big_vision")
)


class Refused(ValueError):
    """The other side answers, and what it answers is that there is no such file, or not for us."""


class _TryAgain(Exception):
    pass


def download(url, part, *, size=None, largest=None, trust=False):
    """Fill a file with what a web address holds, going on from what lies there already.

    Beside it lies `….state`: the whole length and the server's mark of this version, an ETag or a date.
    Both files stay where the connection is lost, so that the next call goes on. What the server holds
    now is never put after what it held before: with another mark, or without any, it begins anew.

    Args:
        url: `http://…` or `https://…`.
        part: pathlib.Path of the file to fill. The caller keeps others from it meanwhile.
        size: Bytes that the file must have; None: what the server says.
        largest: Bytes above which the file is refused; None: any.
        trust: Whether plain `http://` is accepted, as `check_encrypted` takes it.

    Raises:
        Refused: if the server answers that there is no such file, or none for this caller.
        ValueError: if it does not answer, or keeps breaking off.

    Example:
        >>> import pathlib
        >>> download("https://example.org:port/model.npz", pathlib.Path("model.npz.part"))
        Traceback (most recent call last):
        ValueError: https://example.org:port/model.npz: the request failed (InvalidURL); check the address

    Source: RFC 9110, sections 13.1.5 (If-Range), 14.2 (Range) and 15.3.7 (206).
    """
    from requests import exceptions

    for wait in WAITS:
        time.sleep(wait)
        try:
            return _receive(url, part, size, largest, trust)
        except _TryAgain as error:
            problem = str(error)
        except exceptions.SSLError:
            raise ValueError(f"{shown(url)}: the server's certificate cannot be verified") from None
        except exceptions.ConnectTimeout:
            problem = f"no connection within {CONNECT} s"
        except (exceptions.ConnectionError, exceptions.Timeout, exceptions.ChunkedEncodingError) as error:
            slow = isinstance(error, exceptions.Timeout) or "timed out" in str(error)
            broken = isinstance(error, exceptions.ChunkedEncodingError) or "aborted" in str(error)
            problem = f"no answer within {READ} s" if slow else f"{'lost' if broken else 'no'} connection"
        except exceptions.RequestException as error:
            problem = f"the request failed ({type(error).__name__}); check the address"
            raise ValueError(f"{shown(url)}: {problem}") from None
    kept = " (what has arrived is kept)" if arrived(part) else ""
    raise ValueError(
        f"{shown(url)}: {problem}, in {len(WAITS)} tries; check the address and the connection and try again"
        f"{kept}, or give the path of a local file"
    )


def _receive(url, part, size, largest, trust):
    """One try: ask for what is missing and write it."""
    import requests

    have, total, mark = arrived(part) or (0, None, None)
    if have and have == total:
        return
    headers = {"Accept-Encoding": "identity"}  # lengths and ranges of the file itself
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": mark}
    with requests.Session() as session, _answer(session, url, headers, trust) as response:
        if not (have and _goes_on(response, have, total, mark)):
            _refuse_bad_answer(response, url, part, have)
            have, total, mark = 0, *_whole(response, url, size)
            discard(part)
            if mark and total:
                _state(part).write_text(json.dumps({"total": total, "mark": mark}))
        if size is not None and total not in (None, size):
            discard(part)
            raise ValueError(f"{shown(url)}: the server's file has {total} bytes; wanted {size}")
        with open(part, "ab") as file, progress(part.stem, total, have) as bar:
            for piece in response.iter_content(PIECE):
                file.write(piece)
                bar.update(len(piece))
                if largest is not None and file.tell() > largest:
                    raise Refused(f"{shown(url)}: more than {largest} bytes")
            received = file.tell()
            os.fsync(file.fileno())
    if total is not None and received != total:
        raise _TryAgain(f"lost connection after {received} of {total} bytes")


def _answer(session, url, headers, trust):
    """The response at the end of the redirects, each of which is checked like the first address."""
    from requests import TooManyRedirects

    credentials = _credentials(url)
    for _ in range(session.max_redirects + 1):
        check_encrypted(url, trust)
        response = session.get(
            url,
            headers=headers,
            auth=credentials,
            timeout=(CONNECT, READ),
            stream=True,
            allow_redirects=False,
        )
        target = session.get_redirect_target(response)
        if target is None:
            return response
        response.close()
        target = urllib.parse.urljoin(url, target)
        if _origin(url)[0] == "https" != _origin(target)[0]:
            raise Refused(f"{shown(url)}: the server redirects to {shown(target)}, which is not encrypted")
        if _origin(url) != _origin(target):
            credentials = _anonymous
        url = target
    raise TooManyRedirects


def _credentials(url):
    """The address's own user and password, else those of .netrc, which are sent encrypted only."""
    from requests.utils import get_auth_from_url, get_netrc_auth

    own = get_auth_from_url(url)
    return own if any(own) else (url.startswith("https:") and get_netrc_auth(url)) or _anonymous


def _anonymous(request):
    return request  # With no `auth`, requests would look into .netrc itself.


def _origin(url):
    address = urllib.parse.urlsplit(url)
    return address.scheme, address.netloc.rpartition("@")[2]


def check_encrypted(url, trust=False):
    """Refuse plain `http://` to another machine, where anyone on the way can change the file.

    Args:
        url: An address.
        trust: Whether it is accepted: the caller trusts the way, or will check the file's digest.

    Raises:
        ValueError: if it is such an address.

    Example:
        >>> check_encrypted("http://localhost/vit.npz")
        >>> check_encrypted("http://example.org/vit.npz", trust=True)
        >>> check_encrypted("http://example.org/vit.npz")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: http://example.org/vit.npz is not encrypted, ...
    """
    address = urllib.parse.urlsplit(url)
    if address.scheme != "http" or trust or _is_loopback(address.hostname):
        return
    raise ValueError(
        f"{shown(url)} is not encrypted, and anyone on the way can change the file; use https://, give the "
        "file's sha256 (--sha256), or accept it with trust=True (--trust)"
    )


def _is_loopback(host):
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _state(part):
    return part.with_name(f"{part.name}.state")


def arrived(part):
    """What an earlier try left to go on from: bytes, length of the whole, mark; None: nothing."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        state = json.loads(_state(part).read_text())
        have, total, mark = part.stat().st_size, state["total"], state["mark"]
        if 0 < have <= total:
            return have, total, mark
    return None


def _goes_on(response, have, total, mark):
    """Whether the answer holds what comes after the bytes we have, of the same version."""
    bounds = re.match(r"bytes (\d+)-\d+/(\d+)$", response.headers.get("Content-Range", ""))
    same = _mark(response) in (mark, None)  # after If-Range a server may leave the date out
    if response.status_code != 206 or not (bounds and same and _is_plain(response)):
        return False
    return (have, total) == (int(bounds[1]), int(bounds[2]))


def _refuse_bad_answer(response, url, part, have):
    """Raise unless the answer is a whole file."""
    status = response.status_code
    if have and status in (206, 416):
        discard(part)
        raise _TryAgain("the server's file changed meanwhile")
    if status in RETRIED:
        raise _TryAgain(f"the server answered {status}")
    if status in (401, 403):
        raise Refused(f"{shown(url)}: the server answered {status}: {what_to_do(url)}")
    if status in (404, 410):
        raise Refused(f"{shown(url)}: the server answered {status}: no such file there; check the address")
    if status != 200:
        raise Refused(f"{shown(url)}: the server answered {status}, not with a file")
    if response.headers.get("Content-Type", "").startswith("text/html"):
        raise Refused(f"{shown(url)}: the server answered with a web page, not with a checkpoint file")


def _whole(response, url, size):
    """The length and the mark of the file in an answer of status 200; None where it has none."""
    if not _is_plain(response):
        return None, None  # what length it has is the packed one
    headers = response.headers
    length = headers.get("Content-Length", "")
    if length.isdecimal():
        return int(length), _mark(response)
    if size is None and headers.get("Transfer-Encoding") != "chunked":
        raise Refused(f"{shown(url)}: the server does not say how long the file is; give its size in bytes")
    return None, None


def _mark(response):
    tag = response.headers.get("ETag", "W/")
    return response.headers.get("Last-Modified") if tag.startswith("W/") else tag


def _is_plain(response):
    """Whether the bytes are the file's own, not packed for the way."""
    return response.headers.get("Content-Encoding", "identity") == "identity"


def discard(part):
    """Remove a partial file and what is known about it."""
    part.unlink(missing_ok=True)
    _state(part).unlink(missing_ok=True)


def progress(name, total, have=0):
    """A bar on standard error for what takes longer than two seconds, if someone may be looking."""
    from tqdm import tqdm

    return tqdm(desc=name, total=total, initial=have, unit="B", unit_scale=True, delay=2, disable=None)


def what_to_do(url):
    """What to do about an address that is not for everyone."""
    if not url.startswith(CLOSED):
        return "log in where it comes from, download the file and give its path, or check the address"
    return (
        "this bucket has answered 401 or 403 to anonymous callers since February 2026 "
        "(google-research/vision_transformer issue 321); log in to Google Cloud "
        "(gcloud auth application-default login) with an account that may read it and use gs://…, or take "
        "the same weights from Hugging Face: run `keras-vit models` for names"
    )


def shown(url):
    """The address without what is secret in it: a password, a signature."""
    address = urllib.parse.urlsplit(url)
    netloc, query = address.netloc.rpartition("@")[2], "…" if address.query else ""
    return one_line(address._replace(netloc=netloc, query=query, fragment="").geturl())


def one_line(text):
    return " ".join(str(text).split())
