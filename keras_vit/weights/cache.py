"""An address to a file in the cache: received, checked, and only then given its name."""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import posixpath
import re
import urllib.parse

from keras_vit.weights.download import (
    PIECE,
    Refused,
    arrived,
    check_encrypted,
    discard,
    download,
    one_line,
    progress,
    shown,
    what_to_do,
)

LARGEST_SIDECAR = 1 << 24  # bytes


def cache_folder():
    """Where downloads from the web and from Google Cloud are kept.

    Returns:
        pathlib.Path: $KERAS_VIT_CACHE, else $XDG_CACHE_HOME/keras_vit, else ~/.cache/keras_vit. It
        need not exist.

    Raises:
        ValueError: if none is set and there is no home folder.

    Example:
        >>> cache_folder().is_absolute()
        True
    """
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = pathlib.Path(os.environ.get("KERAS_VIT_CACHE") or pathlib.Path(caches, "keras_vit"))
    try:
        return folder.expanduser().absolute()
    except RuntimeError:
        raise ValueError(f"{folder}: there is no home folder; set KERAS_VIT_CACHE to a folder") from None


def cached_path(url):
    """Where an address is kept: under its own name, in a folder of its own."""
    try:
        name = urllib.parse.unquote(posixpath.basename(urllib.parse.urlsplit(url).path))
    except ValueError as error:
        raise ValueError(f"{url!r} is no address: {error}") from None
    name = re.sub(r"[^\w.+=-]+", "_", name, flags=re.ASCII)[-100:].lstrip(".") or "file"
    address = urllib.parse.urldefrag(url).url
    return cache_folder() / hashlib.sha256(address.encode(errors="replace")).hexdigest()[:16] / name


def from_address(url, sha256, size, trust):
    """The cached file of a web or Google Cloud address, received where it is not here yet.

    A plain `http://` address needs a digest or trust, whether its file is cached or not.
    """
    from filelock import FileLock

    path = cached_path(url)
    trust = trust or sha256 is not None
    check_encrypted(url, trust)
    receive = _copy_from_cloud if url.startswith("gs://") else functools.partial(download, trust=trust)
    if not path.is_file():
        try:
            locks = cache_folder() / ".locks"
            locks.mkdir(parents=True, exist_ok=True)
            with FileLock(locks / path.parent.name):
                if not path.is_file():  # else another process had the lock, and has it by now
                    _keep(url, path, receive, sha256, size)
                    return path
        except OSError as error:
            raise ValueError(
                f"{shown(url)} cannot be kept in {cache_folder()}: {one_line(error)}; make room or set "
                "KERAS_VIT_CACHE to a folder that can be written"
            ) from error
    check(path, sha256, size, str(path), f"; remove that file to download it from {shown(url)} again")
    return path


def _keep(url, path, receive, sha256, size):
    """Receive, check, and only then give the file its name."""
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        receive(url, part, size=size)
        try:
            check(part, sha256, size, f"what came from {shown(url)}")
        except ValueError:
            discard(part)
            raise
        _keep_sidecar(url, path, receive)
        os.replace(part, path)
        discard(part)
    except BaseException:
        if not arrived(part):
            discard(part)
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # if nothing lies in it
        raise


def _keep_sidecar(url, path, receive):
    """`NAME.json` beside `NAME.npz`, if there is one."""
    address = urllib.parse.urlsplit(url)
    stem, extension = posixpath.splitext(address.path)
    sidecar = path.with_suffix(".json")
    if not extension or sidecar == path:
        return
    part = sidecar.with_name(f"{sidecar.name}.part")
    try:
        receive(address._replace(path=f"{stem}.json").geturl(), part, largest=LARGEST_SIDECAR)
        json.loads(part.read_bytes())
        os.replace(part, sidecar)
    except (Refused, json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        pass
    finally:
        discard(part)


def _copy_from_cloud(url, part, *, size=None, largest=None):
    """Fill a file with what a `gs://` address holds."""
    try:
        import tensorflow as tf
    except ImportError:
        raise ValueError(
            f"{url}: it is TensorFlow that reads gs://; install it, or give the path of a local file"
        ) from None
    discard(part)
    try:
        total = tf.io.gfile.stat(url).length
        if size not in (None, total):
            raise ValueError(f"{url} has {total} bytes; wanted {size}")
        if largest is not None and total > largest:
            raise Refused(f"{url}: more than {largest} bytes")
        with tf.io.gfile.GFile(url, "rb") as remote, open(part, "wb") as file:
            with progress(part.stem, total) as bar:
                while piece := remote.read(PIECE):
                    file.write(piece)
                    bar.update(len(piece))
            os.fsync(file.fileno())
        if part.stat().st_size != total:
            raise ValueError(f"{url}: received {part.stat().st_size} of {total} bytes; try again")
    except tf.errors.NotFoundError:
        raise Refused(f"{url}: Google Cloud has no such file; check the address") from None
    except (tf.errors.PermissionDeniedError, tf.errors.UnauthenticatedError):
        raise Refused(f"{url}: Google Cloud answered 401 or 403: {what_to_do(url)}") from None
    except tf.errors.OpError as error:
        raise ValueError(
            f"{url} cannot be read: {one_line(error.message)}; check the address and the connection, or give "
            "the path of a local file"
        ) from None


def check(path, sha256, size, name, advice=""):
    """Raise ValueError unless the file is the one that was wanted."""
    if size is not None and (got := path.stat().st_size) != size:
        raise ValueError(f"{name} has {got} bytes; wanted {size}{advice}")
    if sha256 is not None:
        with open(path, "rb") as file:
            got = hashlib.file_digest(file, "sha256").hexdigest()
        if got != sha256.lower():
            raise ValueError(f"{name} has SHA-256 {got}; wanted {sha256.lower()}{advice}")
