"""Rules for values: each is a condition in words and as a function, with one form of error message."""

import dataclasses
import math
import numbers
import os
from collections.abc import Callable, Sequence
from typing import Any

from keras_vit.messages import did_you_mean


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a value must be.

    Args:
        words: The condition, as it follows "must be" in a message.
        accepts: A function that returns whether a value meets the condition.
        choices: The values that it accepts if they are few, of which a message suggests one.
    """

    words: str
    accepts: Callable[[Any], bool]
    choices: tuple = ()

    def check(self, name, value):
        """Return the value, or raise ValueError with its name.

        >>> integer(at_least=1).check("batch_size", 0)
        Traceback (most recent call last):
        ValueError: batch_size must be a positive int; got 0
        """
        if not self.accepts(value):
            hint = did_you_mean(value, self.choices)
            raise ValueError(f"{name} must be {self.words}; got {value!r}{hint}")
        return value


boolean = Rule("True or False", lambda value: isinstance(value, bool))
text = Rule("a str", lambda value: isinstance(value, str))
path = Rule("a str or a path", lambda value: isinstance(value, str | bytes | os.PathLike))


def integer(at_least=None):
    """An int, which True and False are not.

    >>> integer(at_least=0).words
    'an int of at least 0'
    """
    condition = {None: "an int", 1: "a positive int"}.get(at_least, f"an int of at least {at_least}")

    def accepts(value):
        is_int = isinstance(value, int) and not isinstance(value, bool)
        return is_int and (at_least is None or value >= at_least)

    return Rule(condition, accepts)


def number(low=-math.inf, high=math.inf, *, above=-math.inf, below=math.inf):
    """A finite number of `low` to `high`, both included, and between `above` and `below`, both excluded.

    >>> number(0, below=1).words, number(above=0).words, number(0).words
    ('a number in [0, 1)', 'a number above 0', 'a number of at least 0')
    """
    first, last = (above, "(") if above > low else (low, "["), (below, ")") if below < high else (high, "]")
    if last[0] < math.inf:
        condition = f"a number in {first[1]}{first[0]}, {last[0]}{last[1]}"
    elif first[0] > -math.inf:
        condition = f"a number {'above' if first[1] == '(' else 'of at least'} {first[0]}"
    else:
        condition = "a number"

    def accepts(value):
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return is_number and -math.inf < value < math.inf and low <= value <= high and above < value < below

    return Rule(condition, accepts)


def one_of(choices):
    """One of several values.

    >>> one_of(("sgd", "adamw")).check("optimizer", "adam")
    Traceback (most recent call last):
    ValueError: optimizer must be one of 'sgd', 'adamw'; got 'adam' (did you mean 'adamw'?)
    """
    choices = tuple(choices)
    return Rule(f"one of {', '.join(map(repr, choices))}", lambda value: value in choices, choices)


def items(rule, length=None):
    """A tuple or list whose items all obey a rule.

    >>> items(integer(), 2).words
    'a tuple of length 2, each item an int'
    """
    size = "" if length is None else f" of length {length}"

    def accepts(value):
        fits = isinstance(value, tuple | list) and (length is None or len(value) == length)
        return fits and all(map(rule.accepts, value))

    return Rule(f"a tuple{size}, each item {rule.words}", accepts)


_FRACTIONS = items(number(above=0, high=1), 2)
area = Rule("(smallest, largest) in (0, 1]", lambda value: _FRACTIONS.accepts(value) and value[0] <= value[1])


def optional(rule):
    """None, or what another rule accepts.

    >>> optional(integer(at_least=1)).words
    'a positive int or None'
    """
    return Rule(f"{rule.words} or None", lambda value: value is None or rule.accepts(value), rule.choices)


def _is_size(value):
    values = (value, value) if isinstance(value, numbers.Integral) else value
    return (
        isinstance(values, Sequence)
        and len(values) == 2
        and all(isinstance(side, numbers.Integral) and side > 0 for side in values)
    )


SIZE = Rule("a positive int or a pair (height, width)", _is_size)


def pair(size: Any, name: str) -> tuple[int, int]:
    """`size` as (height, width): an int stands for a square.

    >>> pair(16, "patch_size"), pair((8, 16), "patch_size")
    ((16, 16), (8, 16))
    """
    SIZE.check(name, size)
    height, width = (size, size) if isinstance(size, numbers.Integral) else size
    return int(height), int(width)


def optional_pair(size: Any, name: str) -> tuple[int, int] | None:
    """As `pair`, or None.

    >>> optional_pair(16, "window"), optional_pair(None, "window")
    ((16, 16), None)
    """
    return None if size is None else pair(size, name)


def check_utf8(paths):
    """Raise ValueError for a path that is not UTF-8, which neither tensors nor Parquet files hold.

    >>> check_utf8(["a.png", os.fsdecode(b"caf\\xe9.png")])
    Traceback (most recent call last):
    ValueError: expected paths in UTF-8; got 'caf\\udce9.png': rename it
    """
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise ValueError(f"expected paths in UTF-8; got {path!r}: rename it") from None


def check_divisible(size, patch_size):
    """Raise ValueError unless the patch divides the (height, width) of its input."""
    for side, patch in zip(size, patch_size, strict=True):
        if side is not None and side % patch:
            raise ValueError(
                f"a grid of {size[0]}×{size[1]} (the image, or the stem's output) is not divisible by the "
                f"patch of {patch_size[0]}×{patch_size[1]}"
            )


def field(rule, doc="", **options):
    """A dataclass field whose metadata hold its rule and a line of documentation.

    Args:
        rule: What `check_fields` checks.
        doc: A line of documentation.
        **options: As for `dataclasses.field`, such as `default`.
    """
    return dataclasses.field(metadata={"rule": rule, "doc": doc}, **options)


def check_fields(instance):
    """Raise ValueError for the first field of a dataclass instance whose value breaks its rule."""
    for each in dataclasses.fields(instance):
        if "rule" in each.metadata:
            each.metadata["rule"].check(each.name, getattr(instance, each.name))
