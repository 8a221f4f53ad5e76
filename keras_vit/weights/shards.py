"""A checkpoint in several safetensors files, which an index such as `model.safetensors.index.json` lists."""

import re

from keras_vit.messages import listed
from keras_vit.weights.json_files import read_json

INDEX = "model.safetensors.index.json"
_NAME = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)


def is_index(path):
    """Whether this is the path of an index; its content is checked by `shards_of`."""
    return path.suffix == ".json"


def shards_of(path):
    """The files that an index lists: dict from their paths to the keys that each holds.

    Raises:
        ValueError: if it is no index, or a file is not in the same folder.

    Source: `weight_map` of transformers' `save_pretrained`.
    """
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ValueError("it is JSON without the weight_map of an index")
    shards = {}
    for key, name in files.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"the index lists {name!r}; expected the name of a safetensors file next to it")
        shards.setdefault(path.with_name(name), set()).add(key)
    return shards


def read_shards(path, read):
    """The arrays of all files of an index, by key.

    Args:
        path: pathlib.Path of the index.
        read: Function from the path of a file to a dict of its arrays.

    Raises:
        ValueError: if a file does not hold the arrays that the index lists for it.
    """
    arrays = {}
    for shard, expected in shards_of(path).items():
        numbers = read(shard)
        if wrong := numbers.keys() ^ expected:
            raise ValueError(f"{shard.name} and the index differ in {listed(sorted(wrong))}")
        arrays |= numbers
    return arrays


def stored_size(path):
    """The size in bytes of a file, or of all files of an index."""
    files = shards_of(path) if is_index(path) else [path]
    return sum(file.stat().st_size for file in files)
