import dataclasses
import math

import numpy as np
import pytest
from made.tables import by_table

from keras_vit import rules

ACCEPTED = {
    "an int": (rules.integer(), [0, -3], [True, 1.0, "1", None]),
    "a positive int": (rules.integer(1), [1], [0, True]),
    "an int of at least 0": (rules.integer(0), [0, 7], [-1]),
    "a number": (rules.number(), [0, -1.5, np.float32(2)], [True, "1", None, math.nan, math.inf]),
    "a number in [0, 1)": (rules.number(0, below=1), [0, 0.5], [-0.1, 1, 1.0]),
    "a number in (0, 1]": (rules.number(above=0, high=1), [1e-9, 1], [0, 1.1]),
    "a number above 0": (rules.number(above=0), [0.1], [0]),
    "one of 'a', None": (rules.one_of(("a", None)), ["a", None], ["b", ["a"]]),
    "True or False": (rules.boolean, [True, False], [0, 1, None]),
    "a str or None": (rules.optional(rules.text), ["", None], [1]),
    "a tuple of length 2, each item an int": (rules.items(rules.integer(), 2), [(1, 2), [1, 2]], [(1,), 12]),
}


@by_table("words", ACCEPTED)
def test_a_rule_accepts_what_its_words_say(words):
    rule, accepted, refused = ACCEPTED[words]
    assert rule.words == words
    assert [rule.check("x", value) for value in accepted] == accepted
    for value in refused:
        with pytest.raises(ValueError) as error:
            rule.check("x", value)
        assert str(error.value) == f"x must be {words}; got {value!r}"


def test_the_fields_of_a_dataclass_are_checked_by_their_rules():
    @dataclasses.dataclass
    class Options:
        free: object = None
        rate: float = rules.field(rules.number(0, 1), "A probability.", default=0.5)

    rules.check_fields(Options())
    with pytest.raises(ValueError, match=r"rate must be a number in \[0, 1\]; got 2"):
        rules.check_fields(Options(rate=2))
    assert dataclasses.fields(Options)[1].metadata["doc"] == "A probability."
