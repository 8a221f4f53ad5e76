"""The names of classes, and which of them mean one class."""

import collections
import functools
import pathlib

# A list's name is its file's: one class a line in the order of the logits, behind lines of #.
LISTS = ("imagenet_1k", "imagenet_1k_synsets")


def class_names(name):
    """The names of a model's classes, in the order of the logits.

    The list "imagenet_1k" has every WordNet 3.0 lemma of a class, the usual one first. One name occurs
    twice: "crane" is the bird (134) and the machine (517). "imagenet_1k_synsets" has the synsets' ids, as the
    folders of the images are named.

    Args:
        name: "imagenet_1k" or "imagenet_1k_synsets", or the path of a text file with one name a line;
            empty lines and lines that start with # are left out.

    Returns:
        tuple of str.

    Raises:
        ValueError: if there is no such list or file, or it holds no names.

    Example:
        >>> names = class_names("imagenet_1k")
        >>> len(names), names[281]
        (1000, 'tabby, tabby cat')

    Source: ILSVRC 2012's synsets in sorted order and WordNet 3.0's lemmas, as timm 1.0.31 has both.
    """
    if name in LISTS:
        return _list(name)
    file = pathlib.Path(name).expanduser()
    if not file.is_file():
        raise ValueError(f"class names {str(name)!r} are neither a text file nor one of {', '.join(LISTS)}")
    try:
        names = _names_in(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(file)!r} is no text file that can be read: {error}") from None
    if not names:
        raise ValueError(f"{str(file)!r} holds no class names; wanted one a line")
    return names


def is_same_class(name, other):
    """Whether two names mean one class: equal ones, or names of one synset of ImageNet-1k.

    A synset is named by its id, by its entry in "imagenet_1k", or by some of its lemmas.

    >>> is_same_class("n01440764", "tench, Tinca tinca"), is_same_class("n01440764", "Tench")
    (True, True)
    >>> is_same_class("n01440764", "goldfish"), is_same_class("cat", "dog")
    (False, False)
    """
    return name == other or not _synsets_of(name).isdisjoint(_synsets_of(other))


def _synsets_of(name):
    """The ids of the synsets that a name may mean."""
    known = _synsets_by_name()
    if name in known:  # an entry may share a lemma with another synset's
        return known[name]
    return {synset for lemma in _lemmas(name) for synset in known.get((lemma,), ())}


@functools.cache
def _synsets_by_name():
    """The ids of synsets by id, by entry of "imagenet_1k", and by (lemma,)."""
    found = collections.defaultdict(set)
    for synset, entry in zip(_list("imagenet_1k_synsets"), _list("imagenet_1k")):
        for key in (synset, entry, *((lemma,) for lemma in _lemmas(entry))):
            found[key].add(synset)
    return dict(found)


def _lemmas(name):
    return [lemma.strip().replace("_", " ").lower() for lemma in name.split(",")]


@functools.cache
def _list(name):
    return _names_in(pathlib.Path(__file__).with_name(f"{name}.txt"))


def _names_in(file):
    lines = map(str.strip, file.read_text(encoding="utf-8").splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))
