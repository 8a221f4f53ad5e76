"""A source to a local file: a path, or an address on Hugging Face, the web or Google Cloud."""

import contextlib
import logging
import os
import pathlib
import posixpath
import re
import urllib.parse
import warnings

from keras_vit.messages import listed
from keras_vit.weights.cache import cache_folder as cache_folder
from keras_vit.weights.cache import cached_path, check, from_address
from keras_vit.weights.download import one_line

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # as Hugging Face names them; the first is preferred
LOCAL_WEIGHTS = ("model.keras", *WEIGHTS)  # in a folder on this machine, a run's included
SIDECARS = ("config.json", "preprocessor_config.json")
KNOWN = "a path, hf://…, https://…, http://… or gs://…"
LOG_IN = "log in ('hf auth login', or HF_TOKEN) with an account that may read it"


def fetch(source, *, sha256=None, size=None, trust=False):
    """The local file that a source names, downloaded where need be.

    What is downloaded is kept and not asked for again: in Hugging Face's own cache, or in
    `cache_folder()`. A file that describes the weights is kept beside them where there is one:
    `config.json` and `preprocessor_config.json` of a repository, `NAME.json` for `NAME.npz`.

    Args:
        source: Path of a file, or of a folder that holds `model.keras` (a finished run),
            `model.safetensors` or `pytorch_model.bin`;
            `hf://org/repo[@revision][/file]`; `https://…`, `http://…`; `gs://bucket/file`, which
            TensorFlow reads with the caller's Google Cloud credentials.
        sha256: Hexadecimal SHA-256 that the file must have; None: any.
        size: Bytes that the file must have; None: any.
        trust: Whether plain `http://` is accepted from another machine without a digest. A redirect from
            `https://` to `http://` never is.

    Returns:
        pathlib.Path of an existing, whole file.

    Raises:
        ValueError: if there is no such file, it cannot be had, or it is not the one that was wanted.

    Example:
        >>> fetch("tests/golden/token.npz").name
        'token.npz'
        >>> fetch("ftp://host/vit.npz")
        Traceback (most recent call last):
        ValueError: 'ftp://host/vit.npz': ftp:// is unknown; wanted a path, hf://…, https://…, http://… or gs://…
    """
    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", str(sha256)):
        raise ValueError(f"sha256 must be 64 hexadecimal digits; got {sha256!r}")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
        raise ValueError(f"size must be a number of bytes; got {size!r}")
    scheme, text = _scheme(os.fsdecode(source))
    if scheme in ("http", "https", "gs"):
        return from_address(text, sha256, size, trust)
    path = _from_hub(text) if scheme == "hf" else _local(text)
    check(path, sha256, size, str(path))
    return path


def is_cached(source):
    """Whether `fetch` has the weights on this machine already; the network is not touched.

    Args:
        source: As for `fetch`.

    Returns:
        bool. Of a branch of a repository: whether the version known last is here.

    Raises:
        ValueError: if the source is none that `fetch` knows.

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
        return _in_hub_cache(*_repository(text)) is not None
    return cached_path(text).is_file()


def _scheme(text):
    """(scheme in small letters, the text with it); (None, the text) of a path."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return None, text
    if scheme.lower() not in ("hf", "http", "https", "gs"):
        raise ValueError(f"{text!r}: {scheme}:// is unknown; wanted {KNOWN}")
    return scheme.lower(), f"{scheme.lower()}://{rest}"


def _local(text):
    path = pathlib.Path(os.path.expanduser(text))
    if text and os.path.isdir(path):
        for name in LOCAL_WEIGHTS:
            if os.path.isfile(path / name):
                return path / name
        raise ValueError(f"{text!r} is a folder without {listed(LOCAL_WEIGHTS)}; give the checkpoint file")
    if not os.path.isfile(path):
        raise ValueError(f"no such checkpoint file: {text!r}")
    return path


# Hugging Face ------------------------------------------------------------------------------------


def _repository(text):
    """(repository, revision or None, the names of the file to look for in it)."""
    pattern = r"([^/@]+/[^/@]+)(?:@(refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/+(.*))?"
    match = re.fullmatch(pattern, text.partition("://")[2])
    if not match:
        raise ValueError(
            f"{text!r}: wanted hf://org/repo, hf://org/repo@revision or either with /path/to/file"
        )
    repo, revision, file = match.groups()
    names = (file.rstrip("/"),) if file else WEIGHTS
    return repo, revision and urllib.parse.unquote(revision), names


def _from_hub(text):
    """The weights in the cache of Hugging Face's library, and beside them what describes them."""
    from huggingface_hub import errors, try_to_load_from_cache

    repo, revision, names = _repository(text)
    retries = logging.getLogger("huggingface_hub.utils._http")  # which tells of each
    level = retries.level
    retries.setLevel(logging.ERROR)
    try:
        # Not asked for again, although a branch may have moved: the library would wait for an answer.
        found = _in_hub_cache(repo, revision, names[:1]) or _first_in_hub(repo, revision, names)
        if found is None:
            raise ValueError(f"the repository has no {' or '.join(names)}; name a file, as hf://{repo}/NAME")
        path, name = found
        folder, file = posixpath.split(name)
        commit = path.parents[name.count("/")].name
        for sidecar in SIDECARS if names is WEIGHTS else (*SIDECARS, f"{posixpath.splitext(file)[0]}.json"):
            other = posixpath.join(folder, sidecar)
            if try_to_load_from_cache(repo, other, revision=commit) is None:  # nor is known to be missing
                try:
                    _first_in_hub(repo, commit, (other,))
                except errors.LocalEntryNotFoundError:
                    warnings.warn(f"{text}: no answer whether it has {other}; going without", stacklevel=3)
                    break
    except Exception as error:  # the library raises many kinds
        raise ValueError(one_line(f"{text}: {_hub_problem(error, repo, revision)}")) from error
    finally:
        retries.setLevel(level)
    return path


def _first_in_hub(repo, revision, names):
    """The first of the files that the repository has, as (path in the cache, name); else None."""
    from huggingface_hub import errors, hf_hub_download

    for name in names:
        try:
            path = pathlib.Path(hf_hub_download(repo, name, revision=revision))
        except errors.LocalEntryNotFoundError:  # no answer
            if cached := _in_hub_cache(repo, revision, names):
                return cached
            raise
        except errors.EntryNotFoundError:
            continue
        if path.is_file():
            return path, name
    return None


def _in_hub_cache(repo, revision, names):
    """The first of the files that the cache holds, as (path, name); else None."""
    from huggingface_hub import try_to_load_from_cache

    for name in names:
        path = try_to_load_from_cache(repo, name, revision=revision)
        if isinstance(path, str):
            return pathlib.Path(path), name
    return None


def _hub_problem(error, repo, revision):
    """What went wrong, and what to do about it."""
    from huggingface_hub import constants, errors

    hub, cause = constants.ENDPOINT, error.__cause__
    response = getattr(error, "response", getattr(cause, "response", None))
    if isinstance(error, errors.GatedRepoError):
        return f"the repository is gated; ask for access at {hub}/{repo} and {LOG_IN}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{hub} has no such repository, or a private one; check the name, or {LOG_IN}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository has no revision {revision!r}; check the branch, tag or commit"
    if response is not None and response.status_code in (401, 403):
        return f"{hub} answered {response.status_code}; {LOG_IN}"
    if isinstance(error, errors.LocalEntryNotFoundError):
        if response is not None:
            what = f"{hub} answered {response.status_code}"
        elif isinstance(cause, errors.OfflineModeIsEnabled):
            what = "HF_HUB_OFFLINE is set"
        elif isinstance(cause, errors.FileMetadataError):
            what = f"{hub} does not answer as Hugging Face does"
        else:
            what = f"no answer from {hub}"
        return f"{what}, and it is not in {constants.HF_HUB_CACHE}; connect, or give the path of a local file"
    return f"{error}" if type(error) is ValueError else f"{type(error).__name__}: {error}"
