"""Encoded images from the web."""

import re
import time

from keras_vit.preprocessing import bounds

TIMEOUT = 10  # seconds to connect, and between two pieces
LONGEST = 60  # seconds in all


def is_url(source):
    """Whether a source of an image is an `http://` or `https://` URL.

    >>> is_url("https://example.org/cat.jpg"), is_url("cat.jpg")
    (True, False)
    """
    return isinstance(source, str) and re.match("https?://", source, re.IGNORECASE) is not None


def download_image(url):
    """Return the content of a URL, which is not cached.

    Args:
        url: `http://` or `https://`. An image is data that only its own prediction depends on, so plain
            `http://` is accepted; a redirect from `https://` to `http://` is not.

    Returns:
        bytes, at most `MAX_BYTES`.

    Raises:
        ValueError: if the request fails, the server answers with an error or sends more bytes, or they take
            more than 60 seconds.

    Example:
        >>> download_image("https://example.org:port/cat.jpg")
        Traceback (most recent call last):
        ValueError: the request failed (InvalidURL)
    """
    from requests import exceptions  # which takes a tenth of a second to import

    from keras_vit.http_requests import Session, get, received

    content, end = bytearray(), time.monotonic() + LONGEST
    try:
        with Session() as session, get(session, url, 0, True, TIMEOUT) as response:
            if response.status_code != 200:
                raise ValueError(f"the server answered {response.status_code}")
            for piece in received(response, bounds.MAX_BYTES):
                content += piece
                if time.monotonic() > end:
                    raise ValueError(f"it takes more than {LONGEST} seconds")
    except exceptions.RequestException as error:  # Its message may repeat a URL with a password.
        raise ValueError(f"the request failed ({type(error).__name__})") from None
    return bytes(content)
