"""Read the tokenizer of a checkpoint."""

from __future__ import annotations

import pathlib
from typing import Any

from keras_vit.preprocessing.text_preprocessing import (
    CONFIG,
    FAMILIES,
    TextPreprocessing,
    describe,
    read_config,
)
from keras_vit.types import Path
from keras_vit.weights.fetch import beside, fetch

_OF_NPZ = {"lit_bert": ".txt", "lit": ".model"}  # LiT-B16B_2.txt is next to LiT-B16B_2.npz


def read_text_preprocessing(
    source: Path, family: str | None = None, default: Any = None, **options: Any
) -> Any:
    """Read a checkpoint's `TextPreprocessing` from the tokenizer's files next to its weights.

    Args:
        source: As for `from_pretrained`: a folder, a file in it, `hf://org/repo[@revision]`; or the path or
            URL of a tokenizer's file itself.
        family, **options: As for `TextPreprocessing.from_files`.
        default: The family of a checkpoint without a `tokenizer_config.json` that names one, or None.

    Returns:
        TextPreprocessing; None if there are no such files, or the family is neither known nor given.

    Raises:
        ValueError: if a file cannot be read.

    Example:
        >>> _ = (tmp / "vocab.txt").write_text("[PAD]\\n[CLS]\\n[UNK]\\na\\ncat")
        >>> read_text_preprocessing(tmp, "lit_bert", length=5)("a cat").tolist()
        [[1, 3, 4, 0, 0]]
    """
    if pathlib.PurePath(source).suffix in (".model", ".txt") or str(source).endswith("tokenizer.json"):
        return TextPreprocessing.from_files(fetch(source), family, **options)
    find = beside(source)
    config = find(CONFIG)
    config = read_config(config.parent) if config else {}
    if family is None and describe(config) is None:
        family = default
    described = describe(config, family)
    if described is None:
        return None
    names, weights = described[1], pathlib.PurePath(source)
    if weights.suffix == ".npz" and family in _OF_NPZ:
        names = (weights.stem + _OF_NPZ[family], *names)
    path = next(filter(None, map(find, names)), None)
    if path is None:
        return None
    if path.name == "vocab.json":
        find("merges.txt")  # which is read with it
    return TextPreprocessing.from_files(path, family, **options)


def tokenizer_source(source):
    """The path or name, and the family or None, of PATH or PATH:FAMILY.

    >>> tokenizer_source("vocab.txt:lit_bert"), tokenizer_source("google/siglip-base-patch16-224")
    (('vocab.txt', 'lit_bert'), ('google/siglip-base-patch16-224', None))
    """
    path, _, family = source.rpartition(":")
    return (path, family) if family in FAMILIES else (source, None)
