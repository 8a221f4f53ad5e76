import pyarrow
import pytest
from made.tables import by_table

from keras_vit.search.conditions import matching

TABLE = pyarrow.table(
    {
        "path": ["a/1.png", "a/2.png", "b/3=4.png", None],
        "width": pyarrow.array([10, 20, 30, None], pyarrow.int32()),
        "score": [0.5, 1.5, 2.5, None],
        "labels": [[1], [2], [3], None],
        "hash": pyarrow.array([2**53 + 1, 2**64 - 1, 5, None], pyarrow.uint64()),
        "id": pyarrow.array([2**53 + 1, -(2**63), 5, None], pyarrow.int64()),
    }
)


@by_table(
    "condition, rows",
    [
        ("width=20", [1]),
        ("width != 20", [0, 2]),
        ("width<20", [0]),
        ("width<=20", [0, 1]),
        ("width>20", [2]),
        ("width>=20", [1, 2]),
        ("score>1.25", [1, 2]),
        ("path=b/3=4.png", [2]),
        ("path==b/3=4.png", [2]),
        ("width == 20", [1]),
        ("id=9007199254740993", [0]),
        ("id=9007199254740992", []),
        ("id>9007199254740992", [0]),
        ("id<5.5", [1, 2]),
        ("id>=-1e30", [0, 1, 2]),
        (f"id<{10**400}", [0, 1, 2]),
        ("hash=18446744073709551615", [1]),
        ("hash!=5", [0, 1]),
        ("hash>-1", [0, 1, 2]),
        (f"score<{10**400}", [0, 1, 2]),
        ("score=1.5e0", [1]),
        ("path~^a/", [0, 1]),
        ("path~3=", [2]),
    ],
)
def test_a_condition_compares_a_column(condition, rows):
    assert [row for row, fits in enumerate(matching(TABLE, [condition])) if fits] == rows


def test_all_conditions_hold():
    assert matching(TABLE, ["path~a/", "width>10"]).tolist() == [False, True, False, False]
    assert matching(TABLE, "width>10").tolist() == [False, True, True, False]


@by_table(
    "condition, message",
    [
        ("width", "expected a condition such as label=3 or path~2024; got 'width'"),
        ("height=3", "no column 'height'; the index has path, width, score, labels, hash, id"),
        ("width=wide", "expected a number in 'width=wide'"),
        ("width~3", "the operator ~ is for texts; the column 'width' has numbers"),
        ("path~(", "expected a regular expression in 'path~"),
        ("labels=3", "the column 'labels' has values of type list<.*>, which are not compared"),
    ],
)
def test_a_wrong_condition_is_refused(condition, message):
    with pytest.raises(ValueError, match=message):
        matching(TABLE, [condition])
