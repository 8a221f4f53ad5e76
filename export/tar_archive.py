"""SavedModels as `.tar.gz` archives, as TF Hub fetches them, and the local folder of any SavedModel."""

from __future__ import annotations

import gzip
import io
import os
import pathlib
import shutil
import tarfile
import urllib.parse
import zlib
from collections.abc import Iterable
from typing import BinaryIO

from filelock import FileLock

from keras_vit.data.tar_headers import TarEntry, read_headers
from keras_vit.export.formats import ARCHIVES
from keras_vit.messages import one_line, redact_url
from keras_vit.types import Path
from keras_vit.weights.array_files import check_unpacked_size
from keras_vit.weights.cache import cache_folder, file_sha256
from keras_vit.weights.fetch import fetch
from keras_vit.writing import atomic_path

PROGRAM = "saved_model.pb"  # the file by which a folder is a SavedModel
CHUNK = 1 << 20  # bytes
MAX_OVERHEAD = 1 << 20  # bytes of headers and padding: enough for 1,000 entries
# Of damaged files, and of entries of the same name.
_ERRORS = (
    *(ValueError, gzip.BadGzipFile, zlib.error, EOFError),
    *(FileExistsError, NotADirectoryError, IsADirectoryError),
)


def make_archive(saved_model: Path, path: Path) -> pathlib.Path:
    """Write a SavedModel as a `.tar.gz` that `hub.load` fetches from any web server.

    It has no names, times or owners of this machine. Folders come before their contents, since
    tensorflow_hub creates none by itself.

    Args:
        saved_model: Folder of a SavedModel; it becomes the archive's root.
        path: File to write, ending in .tar.gz; it must not exist.

    Returns:
        pathlib.Path of the archive.

    Raises:
        ValueError: if the file exists.
        OSError: if it cannot be written, as on a full disk. Nothing is left under its name then.

    Example:
        >>> folder = export_saved_model(model, "export/saved_model/1")
        >>> make_archive(folder, "export/vit.tar.gz").name
        'vit.tar.gz'

    Source: TF Hub's hosting guide.
    """
    root, path = (pathlib.Path(name).expanduser() for name in (saved_model, path))
    with atomic_path(path, overwrite=False) as temporary, open(temporary, "wb") as file:
        _pack(root, root.rglob("*"), file)
    return path


def pack_program(saved_model: Path, with_values: bool) -> bytes:
    """The graph and assets of a SavedModel as the bytes of a `.tar.gz`, which `extract_archive` unpacks.

    Args:
        saved_model: Folder of a SavedModel.
        with_values: Whether to include the values of its variables.

    Returns:
        bytes.

    Example:
        >>> folder = export_saved_model(model, "export/saved_model/1")
        >>> len(pack_program(folder, with_values=False)) < len(pack_program(folder, with_values=True))
        True
    """
    root, packed = pathlib.Path(saved_model), io.BytesIO()
    parts = {PROGRAM, "assets"} | ({"variables"} if with_values else set())
    _pack(root, [item for item in root.rglob("*") if item.relative_to(root).parts[0] in parts], packed)
    return packed.getvalue()


def _pack(root: pathlib.Path, items: Iterable[pathlib.Path], file: BinaryIO) -> None:
    """Write files and folders below `root` into a binary file."""
    with (
        gzip.GzipFile("", "wb", 6, file, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for item in sorted(items):
            entry = tarfile.TarInfo(item.relative_to(root).as_posix())
            if item.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            else:
                entry.size, entry.mode = item.stat().st_size, 0o644
                with item.open("rb") as content:
                    tar.addfile(entry, content)


def extract_archive(path: Path, folder: Path) -> pathlib.Path:
    """Unpack the `.tar.gz` of a SavedModel of any publisher.

    Args:
        path: The archive.
        folder: Folder to write; it must not exist.

    Returns:
        pathlib.Path of the folder.

    Raises:
        ValueError: if the folder exists, or the archive is damaged, is none, has no SavedModel at its
            root, or would write anything but plain files below the folder, or more than
            `keras_vit.weights.array_files.check_unpacked_size` accepts. Nothing is left then.
        OSError: if the archive cannot be read, or the folder cannot be written, as where the archive
            declares more bytes than are free.

    Example:
        >>> archive = make_archive(export_saved_model(model, "packed/1"), "packed/vit.tar.gz")
        >>> (extract_archive(archive, "unpacked") / "saved_model.pb").is_file()
        True
    """
    path, folder = (pathlib.Path(name).expanduser() for name in (path, folder))
    with open(path, "rb") as file, atomic_path(folder, overwrite=False) as temporary:
        temporary.mkdir()
        try:
            with gzip.GzipFile(fileobj=file) as stream:
                metered, total = _Metered(stream), 0
                for entry in read_headers(metered.read_at):
                    total += entry.size
                    _check(entry, total, path, temporary)
                    metered.left += entry.size
                    _extract(metered, entry, temporary / entry.name)
                while metered.read(CHUNK):  # gzip verifies its checksum at the end.
                    pass
            if not (temporary / PROGRAM).is_file():
                raise ValueError(f"no {PROGRAM} at its root")
        except _ERRORS as error:
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise ValueError(f"{os.fspath(path)!r} is no archive of a SavedModel ({reason})") from None
    return folder


class _Metered:
    """A stream that refuses to yield more than `MAX_OVERHEAD` bytes in addition to those added to `left`."""

    def __init__(self, stream: gzip.GzipFile) -> None:
        self.stream, self.left, self.place = stream, MAX_OVERHEAD, 0

    def read(self, size: int) -> bytes:
        content = self.stream.read(size)
        self.place += len(content)
        self.left -= len(content)
        if self.left < 0:
            raise ValueError(f"its headers and padding take more than {MAX_OVERHEAD:,} bytes")
        return content

    def read_at(self, first: int, size: int) -> bytes:
        self.read(first - self.place)
        return self.read(size)


def _check(entry: TarEntry, total: int, archive: pathlib.Path, folder: pathlib.Path) -> None:
    """Refuse an entry by its header: its name, type and size, and the total size so far."""
    name = pathlib.PurePosixPath(entry.name)
    if name.is_absolute() or ".." in name.parts or any(c in entry.name for c in "\\:\0"):
        raise ValueError(f"{entry.name!r} may lie outside of it")
    if not (entry.is_file or entry.is_folder):
        raise ValueError(f"{entry.name!r} is neither a plain file nor a folder")
    check_unpacked_size(total, archive.stat().st_size)
    free = shutil.disk_usage(folder).free
    if entry.size > free:
        raise OSError(f"{entry.name!r} has {entry.size:,} bytes, and {free:,} are free")


def _extract(stream: _Metered, entry: TarEntry, target: pathlib.Path) -> None:
    if entry.is_folder:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as file:
        left = entry.size
        while left:
            if not (content := stream.read(min(left, CHUNK))):
                raise ValueError(f"is cut off in {entry.name!r}")
            file.write(content)
            left -= len(content)


def saved_model_folder(source: Path, *, trust: bool = False, sha256: str | None = None) -> pathlib.Path:
    """The local folder of a SavedModel, downloaded and unpacked if needed.

    Downloads are kept in keras_vit's cache and not requested again, so a URL should contain a
    version. Archives are unpacked into the cache once for each content.

    Args:
        source: Folder of a SavedModel, of numbered versions of one (the largest is taken), of an export,
            or of a run with an export in its folder `export`; the path of a `.tar.gz`; or the URL of one:
            https://…, http://… or gs://…. A URL without .tar.gz or .tgz at its end is requested as TF Hub
            does, with `?tf-hub-format=compressed`.
        trust: Whether the publisher of a URL is trusted. A SavedModel is a program, whose graph may read and
            write files.
        sha256: Hexadecimal SHA-256 that the archive must have; None: any. It does not imply trust.

    Returns:
        pathlib.Path of a folder with `saved_model.pb`.

    Raises:
        ValueError: if there is no SavedModel, it cannot be downloaded, or its URL is not trusted.

    Example:
        >>> folder = export_saved_model(model, "versions/saved_model/2")
        >>> saved_model_folder("versions") == saved_model_folder(folder) == folder
        True
    """
    text = os.fspath(source)
    if "://" in text:
        if not trust:
            raise ValueError(
                f"{redact_url(text)} is a SavedModel: a program, whose graph may read and write files; if "
                "you trust its publisher, give trust=True (--trust); weights, .tflite and .onnx are data"
            )
        return _unpacked(fetch(_compressed(text), sha256=sha256, trust=True))
    path = pathlib.Path(text).expanduser()
    if sha256 is not None and path.is_dir():
        raise ValueError(f"sha256 is that of a file; {text!r} is a folder")
    if path.name.endswith(ARCHIVES) and path.is_file():
        return _unpacked(fetch(path, sha256=sha256))
    for folder in (path, path / "saved_model", path / "export/saved_model"):
        if (folder / PROGRAM).is_file():
            return folder
        versions = [file.parent for file in folder.glob(f"*/{PROGRAM}") if file.parent.name.isdecimal()]
        if versions:
            return max(versions, key=lambda version: int(version.name))
    problem = "holds no SavedModel" if path.exists() else "does not exist"
    raise ValueError(
        f"{text!r} {problem}; expected a folder with {PROGRAM}, as keras-vit export writes it, a .tar.gz of "
        "one, or its URL"
    )


def _compressed(url: str) -> str:
    """The URL in the form that TF Hub's hosts answer with an archive."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or parts.path.endswith(ARCHIVES):
        return url
    return parts._replace(query="&".join(filter(None, (parts.query, "tf-hub-format=compressed")))).geturl()


def _unpacked(archive: pathlib.Path) -> pathlib.Path:
    """An archive's folder in the cache, by its content; one process unpacks it while others wait."""
    key = file_sha256(archive)[:32]
    cache = cache_folder()
    folder = cache / "saved_models" / key
    if not folder.is_dir():
        locks = cache / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / key):
            if not folder.is_dir():
                extract_archive(archive, folder)
    return folder
