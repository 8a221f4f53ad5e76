"""Class names and prompts, and whether two names mean the same class."""

from __future__ import annotations

import collections
import functools
import os
import pathlib

from keras_vit.rules import one_of, path

# Files of one class per line, in the order of the logits, after comment lines that start with #.
LISTS = ("imagenet_1k", "imagenet_1k_synsets", "imagenet_1k_clip")
PROMPTS = ("clip_80", "clip_7")


def class_names(name: str) -> tuple[str, ...]:
    """The class names of a model, in the order of the logits.

    The list "imagenet_1k" has all WordNet 3.0 lemmas of a class, the usual one first. "crane" occurs
    twice: the bird (134) and the machine (517). "imagenet_1k_synsets" has the synset ids, which are also the
    names of the image folders. "imagenet_1k_clip" has the names by which CLIP's authors classify, two of them
    twice: "missile" (657, 744) and "sunglasses" (836, 837).

    Args:
        name: "imagenet_1k", "imagenet_1k_synsets" or "imagenet_1k_clip", or the path of a text file with one
            name a line; empty lines and lines that start with # are skipped.

    Returns:
        tuple of str.

    Raises:
        ValueError: if there is no such list or file, or it holds no names.

    Example:
        >>> names = class_names("imagenet_1k")
        >>> len(names), names[281]
        (1000, 'tabby, tabby cat')

    Source: ILSVRC 2012's synsets in sorted order and WordNet 3.0's lemmas, as timm 1.0.31 has both;
    `notebooks/Prompt_Engineering_for_ImageNet.ipynb` of openai/CLIP.
    """
    if name in LISTS:
        return _list(name)
    file = pathlib.Path(os.fsdecode(path.check("names", name))).expanduser()
    if not file.is_file():
        raise ValueError(f"expected {', '.join(LISTS)} or a text file of class names; got {str(name)!r}")
    try:
        names = _names_in(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(file)!r} is not a readable text file: {error}") from None
    if not names:
        raise ValueError(f"{str(file)!r} holds no class names; expected one per line")
    return names


def prompt_templates(name: str) -> tuple[str, ...]:
    """The templates by which CLIP's authors classify ImageNet, with {} for the name of a class.

    Args:
        name: "clip_80", or "clip_7" for the best seven of these.

    Returns:
        tuple of str.

    Example:
        >>> len(prompt_templates("clip_80")), prompt_templates("clip_7")[0]
        (80, 'itap of a {}.')

    Source: `notebooks/Prompt_Engineering_for_ImageNet.ipynb` of openai/CLIP; Radford et al. 2021 (CLIP),
    section 3.1.4.
    """
    return _list(f"prompts_{one_of(PROMPTS).check('prompts', name)}")


def is_same_class(name, other):
    """Whether two names mean the same class: they are equal, or name the same synset of ImageNet-1k.

    A synset may be named by its id, its entry in "imagenet_1k", or some of its lemmas.

    >>> is_same_class("n01440764", "tench, Tinca tinca"), is_same_class("n01440764", "Tench")
    (True, True)
    >>> is_same_class("n01440764", "goldfish"), is_same_class("cat", "dog")
    (False, False)
    """
    return name == other or not _synsets_of(name).isdisjoint(_synsets_of(other))


def _synsets_of(name):
    """The ids of the synsets that a name may mean."""
    known = _synsets_by_name()
    if name in known:  # an entry may share a lemma with another synset
        return known[name]
    return {synset for lemma in _lemmas(name) for synset in known.get((lemma,), ())}


@functools.cache
def _synsets_by_name():
    """The ids of synsets by id, by entry of "imagenet_1k", and by (lemma,)."""
    synsets = collections.defaultdict(set)
    for synset, entry in zip(_list("imagenet_1k_synsets"), _list("imagenet_1k")):
        for key in (synset, entry, *((lemma,) for lemma in _lemmas(entry))):
            synsets[key].add(synset)
    return dict(synsets)


def _lemmas(name):
    return [lemma.strip().replace("_", " ").lower() for lemma in name.split(",")]


@functools.cache
def _list(name):
    return _names_in(pathlib.Path(__file__).with_name(f"{name}.txt"))


def _names_in(file):
    lines = map(str.strip, file.read_text(encoding="utf-8-sig").splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))
