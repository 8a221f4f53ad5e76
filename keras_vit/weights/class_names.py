"""The names of the classes that published checkpoints tell apart."""

import functools
import pathlib

# A list's name is its file's: one class a line in the order of the logits, behind lines of #.
LISTS = ("imagenet_1k",)


def class_names(name):
    """The names of a model's classes, in the order of the logits.

    The list "imagenet_1k" has every WordNet 3.0 lemma of a class, the usual one first. One name occurs
    twice: "crane" is the bird (134) and the machine (517).

    Args:
        name: "imagenet_1k", or the path of a text file with one name a line; empty lines and lines
            that start with # are left out.

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


@functools.cache
def _list(name):
    return _names_in(pathlib.Path(__file__).with_name(f"{name}.txt"))


def _names_in(file):
    lines = map(str.strip, file.read_text(encoding="utf-8").splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))
