"""Requests over HTTP: which redirects are followed, what must be encrypted, and who gets credentials."""

import time
import urllib.parse

import requests
import urllib3
from requests import exceptions
from requests.utils import get_auth_from_url, get_netrc_auth

from keras_vit.messages import redact_url

REDIRECTS = 30
CONNECT, ANSWER = 2, 10  # seconds until a server that is there is connected, and answers
CHUNK = 1 << 20  # bytes
SLOWEST, PATIENCE = 1 << 10, 30  # bytes per second, of whose time these seconds are waited for at the end


class Refused(ValueError):
    """The server answers without the file: there is none, or not for this client."""


class Session(requests.Session):
    def get_redirect_target(self, response):
        return None  # `get` follows redirects; requests would read their bodies, which may be endless.


def get(session, url, start, trust, timeout, method="GET"):
    """The response to a request for a file from a byte on, whose content is not read yet.

    Each redirect is checked like the first URL, and credentials are only sent to the first server.

    Args:
        session: `Session`.
        url: `http://` or `https://`.
        start: The first byte.
        trust: Whether to accept plain `http://` from another machine.
        timeout: Seconds to connect, and between two chunks.
        method: "GET", or "HEAD" for a response without content.

    Raises:
        ValueError: for a redirect that is refused.
        requests.exceptions.RequestException: if the request fails.
    """
    # Lengths and ranges then refer to the file itself; some servers refuse the name of requests.
    headers = {"Accept-Encoding": "identity", "User-Agent": "keras-vit"}
    if start:
        headers["Range"] = f"bytes={start}-"
    auth = _credentials(url)
    for _ in range(REDIRECTS):
        options = {"headers": headers, "auth": auth, "timeout": timeout}
        response = session.request(method, url, **options, stream=True, allow_redirects=False)
        if not response.is_redirect:
            return response
        target = urllib.parse.urljoin(url, response.headers["location"])
        response.close()
        before, after = _origin(url), _origin(target)
        if before[0] == "https" != after[0]:
            urls = redact_url(url), redact_url(target)
            raise Refused("{}: the server redirects to {}, which is not encrypted".format(*urls))
        check_encrypted(target, trust)
        if before != after:
            auth = _anonymous
        url = target
    raise exceptions.TooManyRedirects


def received(response, limit=None):
    """The content of a response in pieces, each as soon as it arrives.

    Args:
        response: That of `get`.
        limit: The largest number of bytes, such as those that the server has stated; None: any.

    Yields:
        bytes.

    Raises:
        Refused: if there are more bytes.
        ValueError: if after half a minute there are fewer than 1,024 bytes per second on the mean.
        requests.exceptions.RequestException: if the request fails.
    """
    total, begin, shown = 0, time.monotonic(), redact_url(response.url)
    try:
        while piece := response.raw.read1(CHUNK, decode_content=True):
            total += len(piece)
            if limit is not None and total > limit:
                raise Refused(f"{shown} has more than {limit} bytes")
            if time.monotonic() - begin > PATIENCE + total / SLOWEST:
                raise ValueError(
                    f"{shown}: expected {SLOWEST} bytes a second; the server has sent {total} in all"
                )
            yield piece
    except urllib3.exceptions.ProtocolError as error:
        raise exceptions.ChunkedEncodingError(error) from None
    except urllib3.exceptions.HTTPError as error:
        raise exceptions.ConnectionError(error) from None


def is_page(response):
    """Whether a response is a page for people, such as of a login, and no file."""
    return response.headers.get("Content-Type", "").startswith("text/html")


def _credentials(url):
    """The URL's own credentials, or over https:// the credentials in .netrc."""
    known = get_auth_from_url(url)
    if any(known):
        return known
    credentials = get_netrc_auth(url) if url.startswith("https:") else None
    return credentials or _anonymous


def _anonymous(request):
    return request  # With None instead of a function, requests would read .netrc itself.


def _origin(url):
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2]


def check_encrypted(url, trust):
    """Refuse plain `http://` to another machine, where anyone on the way can change the file."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "http" and not trust and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise ValueError(
            f"{redact_url(url)} is not encrypted, and anyone on the way can change the file; use https://, "
            "or of a model give the file's sha256 (--sha256) or accept it with trust=True (--trust)"
        )


def connection_problem(url):
    """Return why a server cannot be reached, in one line, or None if it answers.

    Args:
        url: `http://` or `https://`; any answer is one.
    """
    try:
        requests.head(url, timeout=(CONNECT, ANSWER), allow_redirects=False)
    except exceptions.SSLError:  # The server is there, and other programs may trust it.
        return None
    except exceptions.ConnectionError as error:
        proxy = " by its proxy" if isinstance(error, exceptions.ProxyError) else ""
        return f"no connection to {redact_url(url)}{proxy}"
    except exceptions.Timeout:
        return f"no answer of {redact_url(url)} in {ANSWER} seconds"
    except exceptions.RequestException as error:
        return f"the request failed ({type(error).__name__})"
    return None
