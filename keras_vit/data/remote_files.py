"""Files at URLs: which there are, what they are, and their download."""

import contextlib
import os
import time
import urllib.parse

import fsspec
from requests import exceptions

from keras_vit.http_requests import Refused, Session, check_encrypted, get, is_page, received
from keras_vit.messages import one_line, redact_url
from keras_vit.preprocessing.web_images import is_url as is_web

WAITS = (0, 1, 4)  # seconds before each attempt
TIMEOUT = 30  # seconds to connect, and between two pieces
LARGEST_UNKNOWN = 1 << 24  # bytes of a file of unknown size, such as one of class names beside shards


class Page(Refused):
    """The server answers with a page for people, such as of a login, in place of a file."""


def is_url(path):
    """Whether a path is a URL.

    >>> is_url("s3://bucket/a.tar"), is_url("/data/a.tar")
    (True, False)
    """
    return "://" in str(path)


def file_name(url):
    """The name of the file at a URL.

    >>> file_name("https://host/shards/a.tar?key=1")
    'a.tar'
    """
    return urllib.parse.urlsplit(url).path.rpartition("/")[2]


def urls_of(pattern, suffix):
    """The URLs of the files that a URL, of a file, a folder or a pattern with *, stands for.

    Args:
        pattern: `https://…`, or a URL of a file system of fsspec, such as `s3://…` or `gs://…`.
        suffix: Such as ".tar".

    Returns:
        list of str. Whether a file exists is not known.

    Raises:
        ValueError: if a folder or a pattern has no files with the suffix, the server cannot list files, or
            no package is installed for the protocol.
        OSError: if the files cannot be listed.

    Example:
        >>> (tmp / "a.tar").touch()
        >>> urls_of(f"file://{tmp}", ".tar") == urls_of(f"file://{tmp}/*.tar", ".tar") == [f"file://{tmp}/a.tar"]
        True

    Source: https://filesystem-spec.readthedocs.io.
    """
    shown = redact_url(pattern)
    if is_web(pattern):
        check_encrypted(pattern, trust=False)
        if "*" in pattern or not file_name(pattern).endswith(suffix):
            raise ValueError(
                f"{shown!r}: expected the name of a {suffix} file, or several as name-{{000..127}}{suffix}, "
                "because a web server does not list files"
            )
        return [pattern]
    try:
        system, path = fsspec.core.url_to_fs(pattern)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{shown!r} cannot be read: {one_line(error)}") from None

    def found():
        system.invalidate_cache()
        if "*" in path:
            return system.glob(path)
        return system.find(path) if system.isdir(path) else None

    names = _in_attempts(pattern, found)
    if names is None:
        return [pattern]
    names = [name for name in sorted(names) if name.endswith(suffix) and not file_name(name).startswith(".")]
    if not names:
        raise ValueError(f"no {suffix} files in {shown!r}")
    return [*map(system.unstrip_protocol, names)]


def described(url):
    """The size in bytes of the file at a URL, and a text that differs between versions of it.

    Raises:
        FileNotFoundError: if there is none.
        OSError: if it is not described, in several attempts.

    Example:
        >>> _ = (tmp / "a.tar").write_bytes(b"1234")
        >>> described(f"file://{tmp}/a.tar")[0]
        4
    """

    def of_web():
        with _response(url, "HEAD") as response:
            headers, shown = response.headers, redact_url(url)
            length = headers.get("Content-Length")
            if length is None:
                raise ValueError(f"{shown!r}: the server does not say how long the file is")
            if not length.isdecimal() or len(length) > 18:
                raise ValueError(f"{shown!r}: expected a number of bytes as Content-Length; got {length!r}")
            return int(length), headers.get("ETag") or headers.get("Last-Modified", "")

    def of_system():
        system, path = fsspec.core.url_to_fs(url)
        return system.info(path)["size"], system.ukey(path)

    return _in_attempts(url, of_web if is_web(url) else of_system)


def download(url, path, size=None):
    """Write the file at a URL to a path.

    Args:
        url: The URL.
        path: The path.
        size: The number of bytes of the file; None: any up to 16,777,216.

    Raises:
        OSError: as `described`, or if the file is shorter.
        ValueError: if the server sends a page in place of a file, more bytes, or too few in a time.

    Example:
        >>> _ = (tmp / "a.tar").write_bytes(b"1234")
        >>> download(f"file://{tmp}/a.tar", tmp / "b.tar", 4)
        >>> download(f"file://{tmp}/a.tar", tmp / "b.tar", 5)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        OSError: 'file:///.../a.tar' cannot be read: received 4 of 5 bytes, in 3 attempts
    """

    def receive():
        if is_web(url):
            with _response(url, "GET") as response, open(path, "wb") as file:
                for piece in received(response, LARGEST_UNKNOWN if size is None else size):
                    file.write(piece)
        else:
            system, name = fsspec.core.url_to_fs(url)
            system.get_file(name, os.fspath(path))
        length = os.path.getsize(path)
        if size not in (None, length):
            raise OSError(f"received {length} of {size} bytes")

    _in_attempts(url, receive)


@contextlib.contextmanager
def _response(url, method):
    """The response of a web server that has the file."""
    with Session() as session, get(session, url, 0, False, TIMEOUT, method) as response:
        if response.status_code in (404, 410):
            raise FileNotFoundError
        if response.status_code != 200:
            error_class = PermissionError if response.status_code in (401, 403) else OSError
            raise error_class(f"the server answered {response.status_code}")
        if is_page(response):
            raise Page(f"{redact_url(url)}: the server answered with a web page, not with a file")
        yield response


def _in_attempts(url, action):
    """The result of an action on a URL, which is tried again after errors that may not last."""
    shown = redact_url(url)
    for wait in WAITS:
        time.sleep(wait)
        try:
            return action()
        except exceptions.RequestException as error:  # Its text may contain credentials.
            problem = f"the request failed ({type(error).__name__})"
        except FileNotFoundError:
            raise FileNotFoundError(f"{shown!r} is missing") from None
        except PermissionError as error:
            raise PermissionError(f"{shown!r} cannot be read: {one_line(error)}") from None
        except ValueError:
            raise
        except Exception as error:  # File systems raise many kinds.
            problem = one_line(error)
    raise OSError(f"{shown!r} cannot be read: {problem}, in {len(WAITS)} attempts")
