"""Source → local file: a path, or a URL on Hugging Face, the web or Google Cloud."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import posixpath
import re
import urllib.parse
import warnings

from keras_vit.messages import listed, one_line, similar_path
from keras_vit.rules import integer, optional
from keras_vit.rules import path as path_rule
from keras_vit.types import Path
from keras_vit.weights.cache import cached_path, check_file
from keras_vit.weights.shards import INDEX, is_index, shards_of

# As Hugging Face and open_clip name them, the preferred first.
_OF_OPEN_CLIP = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
WEIGHTS = ("model.safetensors", INDEX, "pytorch_model.bin", *_OF_OPEN_CLIP)
LOCAL_WEIGHTS = ("model.keras", *WEIGHTS)  # in a local folder, such as that of a run
SIDECARS = ("config.json", "preprocessor_config.json", "processor_config.json")
SIDECARS_OF_OPEN_CLIP = ("open_clip_config.json",)
LOG_IN = "log in ('hf auth login', or HF_TOKEN) with an account that may read it"


def fetch(
    source: Path, *, sha256: str | None = None, size: int | None = None, trust: bool = False
) -> pathlib.Path:
    """Return the local file of a source, downloading it if necessary.

    Downloads are kept, in Hugging Face's own cache or in `cache_folder()`, and not requested again. The
    sidecars of the weights are kept next to them: `config.json`, `preprocessor_config.json` and
    `processor_config.json` of a repository, `NAME.json` of `NAME.npz`.

    Args:
        source: Path of a file, or of a folder that holds `model.keras` (a finished run),
            `model.safetensors`, its index `model.safetensors.index.json`, `pytorch_model.bin`,
            `open_clip_model.safetensors` or `open_clip_pytorch_model.bin`;
            `hf://org/repo[@revision][/file]`; `https://…`, `http://…`; `gs://bucket/file`, which
            TensorFlow reads with the caller's Google Cloud credentials.
        sha256: Expected SHA-256 of the file in hexadecimal; None: any.
        size: Expected size of the file in bytes; None: any.
        trust: Whether to accept plain `http://` from another machine without a digest. A redirect from
            `https://` to `http://` is always refused.

    Returns:
        pathlib.Path of an existing, complete file.

    Raises:
        ValueError: if there is no such file, it cannot be downloaded, or its digest or size differs.
        OSError: if the cache cannot be written. Set KERAS_VIT_CACHE to a folder that can.

    Example:
        >>> fetch("tests/golden/token.npz").name
        'token.npz'
        >>> fetch("ftp://host/vit.npz")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: 'ftp://host/vit.npz': ftp:// is unknown; expected a path, hf://…, https://…, http://… or gs://…
    """
    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", str(sha256)):
        raise ValueError(f"sha256 must be 64 hexadecimal digits; got {sha256!r}")
    optional(integer(at_least=0)).check("size", size)
    scheme, text = _scheme(os.fsdecode(path_rule.check("source", source)))
    if scheme in ("http", "https", "gs"):
        from keras_vit.weights.download import download  # imports what only downloads need

        return download(text, sha256, size, trust)
    path = _from_hub(text) if scheme == "hf" else _local(text)
    check_file(path, sha256, size, path)
    return path


def beside(source):
    """Return a function that finds the files next to a checkpoint's weights.

    Args:
        source: As for `fetch`.

    Returns:
        A function from a file's name to its local pathlib.Path, or None if there is none. All files of a
        repository are of one version; weights at another URL have no files next to them.

    Raises:
        ValueError: if the source has an unknown form; the function, if the repository cannot be read.

    Example:
        >>> beside("tests/golden/hf_vit")("config.json").name
        'config.json'
    """
    scheme, text = _scheme(os.fsdecode(source))
    if scheme is None:
        path = pathlib.Path(os.path.expanduser(text))
        folder = path if path.is_dir() else path.parent
        return lambda name: folder / name if (folder / name).is_file() else None
    if scheme != "hf":
        return lambda name: None
    repo, version, names = _repository(text)
    folder = posixpath.dirname(names[0])

    def find(name):
        nonlocal version
        name = posixpath.join(folder, name)
        try:
            path = _cached(repo, name, version) or _download(repo, name, version)
        except Exception as error:  # The library raises many kinds.
            raise ValueError(one_line(f"{text}: {_hub_problem(error, repo)}")) from error
        if path:
            version = path.parents[name.count("/")].name
        return path

    return find


def is_cached(source: Path) -> bool:
    """Return whether `fetch` needs no network for the weights of a source.

    Args:
        source: As for `fetch`.

    Returns:
        bool. Of a branch of a repository: whether the last known version is here.

    Raises:
        ValueError: if the source has an unknown form.

    Example:
        >>> is_cached("tests/golden/token.npz"), is_cached("https://example.org/never-asked-for.npz")
        (True, False)
    """
    scheme, text = _scheme(os.fsdecode(source))
    if scheme is None:
        with contextlib.suppress(ValueError):
            return _local(text).is_file()
        return False
    if scheme == "hf":
        repo, revision, names = _repository(text)
        return any(_is_whole(repo, name, revision) for name in names)
    return cached_path(text).is_file()


def _scheme(text):
    """(lowercase scheme, the text with it); (None, the text) of a path."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return None, text
    if scheme.lower() not in ("hf", "http", "https", "gs"):
        known = "a path, hf://…, https://…, http://… or gs://…"
        raise ValueError(f"{text!r}: {scheme}:// is unknown; expected {known}")
    return scheme.lower(), f"{scheme.lower()}://{rest}"


def _local(text):
    path = pathlib.Path(os.path.expanduser(text))
    if text and os.path.isdir(path):
        for name in LOCAL_WEIGHTS:
            if os.path.isfile(path / name):
                return path / name
        names = listed(LOCAL_WEIGHTS, most=6)
        raise ValueError(f"{text!r} is a folder without {names}; give the checkpoint file")
    if not os.path.isfile(path):
        raise ValueError(f"no such checkpoint file: {text!r}{similar_path(text)}")
    return path


def _repository(text):
    """(repository, revision or None, file names in order of preference)."""
    pattern = r"([^/@]+/[^/@]+)(?:@(refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/+(.*))?"
    match = re.fullmatch(pattern, text.partition("://")[2])
    if not match:
        raise ValueError(
            f"{text!r}: expected hf://org/repo, hf://org/repo@revision or either with /path/to/file"
        )
    repo, revision, file = match.groups()
    names = (file.rstrip("/"),) if file else WEIGHTS
    return repo, revision and urllib.parse.unquote(revision), names


def _from_hub(text):
    """The weights in Hugging Face's cache, and their sidecars next to them."""
    from huggingface_hub import errors, try_to_load_from_cache

    repo, revision, names = _repository(text)
    try:
        # The cache first: a branch may have moved, but the library would wait for an answer when offline.
        files = ((find(repo, name, revision), name) for find in (_cached, _download) for name in names)
        path, name = next((found for found in files if found[0]), (None, None))
        if path is None:
            raise ValueError(f"the repository has no {' or '.join(names)}; name a file, as hf://{repo}/NAME")
        commit = path.parents[name.count("/")].name
        folder, file = posixpath.split(name)
        for shard in _shards(path):
            shard = posixpath.join(folder, shard)
            if not (_cached(repo, shard, commit) or _download(repo, shard, commit)):
                raise ValueError(f"the repository has no {shard}, which {name} lists")
        sidecars = SIDECARS_OF_OPEN_CLIP if file in _OF_OPEN_CLIP else SIDECARS
        for sidecar in sidecars if names is WEIGHTS else (*sidecars, f"{posixpath.splitext(file)[0]}.json"):
            sidecar = posixpath.join(folder, sidecar)
            if try_to_load_from_cache(repo, sidecar, revision=commit) is None:  # nor known to be missing
                try:
                    _download(repo, sidecar, commit)
                except errors.LocalEntryNotFoundError:
                    warnings.warn(f"{text}: {sidecar} could not be requested, and is ignored", stacklevel=3)
                    break
    except Exception as error:  # The library raises many kinds.
        raise ValueError(one_line(f"{text}: {_hub_problem(error, repo)}")) from error
    return path


def _cached(repo, name, revision):
    """Path of a file in the cache, or None."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repo, name, revision=revision)
    return pathlib.Path(path) if isinstance(path, str) else None


def _is_whole(repo, name, revision):
    """Whether a file is in the cache, with the files that it lists if it is an index."""
    path = _cached(repo, name, revision)
    folder = posixpath.dirname(name)
    return path is not None and all(
        _cached(repo, posixpath.join(folder, shard), path.parents[name.count("/")].name)
        for shard in _shards(path)
    )


def _shards(path):
    """The names of the files that an index lists; none of another file."""
    return [shard.name for shard in shards_of(path)] if is_index(path) else []


def _download(repo, name, revision):
    """Path of a downloaded file of a repository, or None if there is no such file."""
    from huggingface_hub import constants, errors, hf_hub_download

    try:
        if not constants.HF_HUB_OFFLINE:
            _check_connection(constants.ENDPOINT)
        path = pathlib.Path(hf_hub_download(repo, name, revision=revision))
    except errors.LocalEntryNotFoundError:  # no answer; a subclass of the next one
        raise
    except errors.EntryNotFoundError:
        return None
    return path if path.is_file() else None


@functools.cache  # of a success
def _check_connection(endpoint):
    """Raise LocalEntryNotFoundError if a server cannot be reached, which the library tries for a minute."""
    from huggingface_hub import errors

    from keras_vit.http_requests import connection_problem

    if problem := connection_problem(endpoint):
        raise errors.LocalEntryNotFoundError(problem)


def _hub_problem(error, repo):
    """What went wrong, and what to do about it."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return f"the repository is gated; request access at {constants.ENDPOINT}/{repo} and {LOG_IN}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{constants.ENDPOINT} has no such repository, or a private one; check the name, or {LOG_IN}"
    if isinstance(error, errors.LocalEntryNotFoundError):
        cause = error.__cause__ or error
        return f"it is not in {constants.HF_HUB_CACHE}, and {constants.ENDPOINT} did not send it ({cause})"
    return str(error)
