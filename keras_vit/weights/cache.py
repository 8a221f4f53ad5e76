"""The names of downloads, and checks of a file against its digest and size."""

from __future__ import annotations

import hashlib
import posixpath
import re
import urllib.parse

from keras_vit.writing import cache_folder as cache_folder
from keras_vit.writing import file_sha256 as file_sha256

LARGEST_SIDECAR = 1 << 24  # bytes


def cached_path(url):
    """Path of a URL in the cache: its file name, in a folder named by a hash of the URL."""
    try:
        name = urllib.parse.unquote(posixpath.basename(urllib.parse.urlsplit(url).path))
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from None
    name = re.sub(r"[^\w.+=-]+", "_", name, flags=re.ASCII)[-100:].lstrip(".") or "file"
    key = urllib.parse.urldefrag(url).url.encode(errors="replace")
    return cache_folder() / hashlib.sha256(key).hexdigest()[:16] / name


def check_file(path, sha256, size, name, advice=""):
    """Raise ValueError unless a file has the expected size and SHA-256; None accepts any."""
    if size is not None and (actual := path.stat().st_size) != size:
        raise ValueError(f"{name} has {actual} bytes; expected {size}{advice}")
    if sha256 is not None:
        actual = file_sha256(path)
        if actual != sha256.lower():
            raise ValueError(f"{name} has SHA-256 {actual}; expected {sha256.lower()}{advice}")
