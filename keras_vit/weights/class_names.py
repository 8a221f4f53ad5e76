"""The names of the classes that published checkpoints tell apart."""

import functools
import pathlib

# A list's name is its file's: one class a line in the order of the logits, behind lines of #.
LISTS = ("imagenet_1k",)


@functools.cache
def class_names(name):
    """The names of a published list of classes, in the order of the logits.

    "imagenet_1k" has every WordNet 3.0 lemma of a class, the usual one first. One name occurs twice:
    "crane" is the bird (134) and the machine (517).

    Args:
        name: "imagenet_1k".

    Returns:
        tuple of str.

    Raises:
        ValueError: for a list that is not here; the message says which are.

    Example:
        >>> names = class_names("imagenet_1k")
        >>> len(names), names[281]
        (1000, 'tabby, tabby cat')

    Source: ILSVRC 2012's synsets in sorted order and WordNet 3.0's lemmas, as timm 1.0.31 has both.
    """
    if name not in LISTS:
        raise ValueError(f"class names {name!r} are unknown; there are {', '.join(map(repr, LISTS))}")
    text = pathlib.Path(__file__).with_name(f"{name}.txt").read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))
