"""Data sets of the Hugging Face Hub, in Parquet or tar files."""

import concurrent.futures
import json
import pathlib
import re

from keras_vit.data.files import SPLIT_NAMES
from keras_vit.data.shard_files import split_of
from keras_vit.data.sources.parquet import load_parquet
from keras_vit.data.sources.webdataset import load_webdataset
from keras_vit.http_requests import connection_problem
from keras_vit.messages import listed, one_line
from keras_vit.writing import atomic_write

LOADERS = {".parquet": load_parquet, ".tar": load_webdataset}
DOWNLOADS = 8  # at a time
CONVERTED = "refs/convert/parquet"  # the branch in which the Hub stores other formats as Parquet


def load_hf(argument, **options):
    """Load a data set of the Hub, which is downloaded to the cache of huggingface_hub.

    Its files are those of the `configs` in its README; else its Parquet or tar files, of which a folder may
    be a configuration; else the Parquet files to which the Hub has converted it.

    Args:
        argument: ORG/NAME[@REVISION][/CONFIG].
        options: As for `load_parquet` or `load_webdataset`.

    Returns:
        As these; the `version` is the commit.

    Raises:
        ValueError: if there is no such data set, revision or configuration, it has no Parquet and no tar
            files, it cannot be downloaded, or as of these.

    Example:
        >>> parse_name("org/birds@v2/small")
        ('org/birds', 'v2', 'small')

    Source: https://huggingface.co/docs/hub/datasets-manual-configuration.
    """
    repo, revision, config = parse_name(argument)
    try:
        commit, names = _files(repo, revision)
        splits = _listed_splits(_configs(repo, commit, names), names, config) or _found_splits(names, config)
        if not splits:
            commit, names = _converted(repo, names)
            splits = _converted_splits(names, config)
        suffixes = {pathlib.PurePath(name).suffix for name in splits}
        if len(suffixes) != 1 or not suffixes <= {*LOADERS}:
            raise ValueError(f"expected .parquet or .tar files; got {listed(sorted(suffixes))}")
        paths = _download(repo, commit, splits)
    except Exception as error:  # The library raises many kinds.
        raise ValueError(one_line(f"hf:{argument}: {error}")) from error
    loaded = LOADERS[suffixes.pop()](dict(zip(paths, splits.values())), **options)
    return loaded | {"version": f"{repo}@{commit}"}


def parse_name(argument):
    """(ORG/NAME, the revision, the configuration or None) of ORG/NAME[@REVISION][/CONFIG]."""
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.+))?", argument)
    if match is None:
        raise ValueError(f"expected hf:ORG/NAME[@REVISION][/CONFIG]; got {'hf:' + argument!r}")
    return match[1], match[2] or "main", match[3]


def _files(repo, revision):
    """The commit of a revision and the names of its files; the last ones known if the Hub does not answer."""
    from huggingface_hub import HfApi, constants

    folder = pathlib.Path(constants.HF_HUB_CACHE, f"datasets--{repo.replace('/', '--')}", "keras_vit")
    listing = folder / f"{revision.replace('/', '--')}.json"
    problem = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else connection_problem(constants.ENDPOINT)
    if problem is None:
        info = HfApi().dataset_info(repo, revision=revision)
        names = [file.rfilename for file in info.siblings]
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(listing, json.dumps([info.sha, names]))
        return info.sha, names
    if not listing.is_file():
        raise FileNotFoundError(f"{problem}, and {constants.HF_HUB_CACHE} does not have {revision} of it")
    return json.loads(listing.read_text())


def _converted(repo, names):
    """As `_files`, of the branch with Parquet files."""
    from huggingface_hub import errors

    try:
        return _files(repo, CONVERTED)
    except (errors.RevisionNotFoundError, FileNotFoundError):
        suffixes = sorted({pathlib.PurePath(name).suffix for name in names} - {""})
        raise ValueError(
            f"no Parquet and no tar files; it has files of {listed(suffixes) or 'no kind'}"
        ) from None


def _configs(repo, commit, names):
    """The configurations in the README."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.repocard import metadata_load

    if "README.md" not in names:
        return []
    path = hf_hub_download(repo, "README.md", repo_type="dataset", revision=commit)
    configs = (metadata_load(path) or {}).get("configs") or []
    return [config for config in configs if "data_files" in config]


def _listed_splits(configs, names, config):
    """The split of each file of a configuration in the README."""
    from huggingface_hub.utils import filter_repo_objects

    if not configs:
        return {}
    files = _files_of(configs, config)
    if isinstance(files, str) or (isinstance(files, list) and isinstance(files[0], str)):
        files = [{"split": None, "path": files}]
    elif isinstance(files, dict):
        files = [{"split": split, "path": path} for split, path in files.items()]
    splits = {}
    for entry in files:
        for name in filter_repo_objects(names, allow_patterns=entry["path"]):
            split = entry["split"] and SPLIT_NAMES.get(entry["split"])
            if split or entry["split"] is None:
                splits[name] = split or split_of(f"./{name}", ".")
    return splits


def _files_of(configs, config):
    """The `data_files` of a configuration, or for None of the default one."""
    by_name = {row["config_name"]: row for row in configs}
    default = [name for name, row in by_name.items() if row.get("default") or name == "default"]
    if config is None and (default or len(by_name) == 1):
        config = (default or [*by_name])[0]
    if config not in by_name:
        raise ValueError(f"expected one of the configurations {listed(by_name, 20)}; got {config or 'none'}")
    return by_name[config]["data_files"]


def _found_splits(names, config):
    """The split of each Parquet or tar file in the folder of a configuration, or in `data`, or anywhere."""
    for folder in (f"./{config}",) if config else ("./data", "."):
        inside = [name for name in names if f"./{name}".startswith(f"{folder}/")]
        if shards := sorted(name for name in inside if pathlib.PurePath(name).suffix in LOADERS):
            return {name: split_of(f"./{name}", folder) for name in shards}
    return {}


def _converted_splits(names, config):
    """As `_found_splits`, of the branch with a folder for each configuration and split."""
    configs = sorted({name.partition("/")[0] for name in names if "/" in name})
    config = config or (configs[0] if len(configs) == 1 else "default")
    if config not in configs:
        raise ValueError(f"expected one of the configurations {listed(configs, 20)}; got {config}")
    if any("/partial-" in name for name in names):
        raise ValueError("the Hub has converted only the first part to Parquet")
    return _found_splits(names, config)


def _download(repo, commit, names):
    """The paths of files in the cache."""
    from huggingface_hub import hf_hub_download

    with concurrent.futures.ThreadPoolExecutor(DOWNLOADS) as pool:
        return [
            *pool.map(lambda name: hf_hub_download(repo, name, repo_type="dataset", revision=commit), names)
        ]
