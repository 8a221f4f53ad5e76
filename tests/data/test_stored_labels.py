import pytest
from made.tables import by_table

from keras_vit.data.stored_labels import label_maker, parse_numbers
from keras_vit.labels import label_kind


@by_table(
    "task, value, expected",
    [
        ("single_label", "1.0", 1),
        ("single_label", 2.0, 2),
        ("multi_label", "3.0 1", (3, 1)),
        ("regression", "1.5", (1.5,)),
    ],
)
def test_numbers_of_classes_may_be_written_as_floats(task, value, expected):
    assert parse_numbers(value, "a", label_kind(task)) == expected


NO_CLASS = ("1.5", 1.5, "nan", "inf", float("inf"), "1e400", "cat", True, None, [1, 2], "1 2")


@by_table(
    "task, noun, value",
    [
        *(("single_label", "an integer", value) for value in NO_CLASS),
        *(("multi_label", "numbers of classes", value) for value in ("-1", "1.5", [10**40])),
        *(("regression", "numbers", value) for value in ("nan", "-1e39", 1e300, [10**400], [])),
    ],
)
def test_other_values_are_no_labels(task, noun, value):
    with pytest.raises(ValueError, match=f"^a: expected {noun} as label; got "):
        parse_numbers(value, "a", label_kind(task))


def test_labels_of_several_classes_share_their_values(tmp_path):
    kind = label_kind("multi_label")
    _, label_of = label_maker(tmp_path, [(0, 2), (1,)], kind)
    rows = [label_of((0, 2)), label_of((1,)), tuple(map(kind.parse, ("0", "1.0", "0")))]
    assert rows == [(1.0, 0.0, 1.0), (0.0, 1.0, 0.0), (0.0, 1.0, 0.0)]
    assert len({id(value) for row in rows[:2] for value in row}) == 2
    assert kind.parse("0") is kind.parse("0.0")


@by_table("text", ["age\nheight\n", "age\n", "age\nage\n", "age\n\nheight\n", "a\nb\nc\n", "\n", ""])
def test_as_many_lines_as_targets_are_their_names(text, tmp_path):
    (tmp_path / "classes.txt").write_text(text)
    names, _ = label_maker(tmp_path, [(0.5, 1.0)], label_kind("regression"))
    assert names == (("age", "height") if text == "age\nheight\n" else ("target_0", "target_1"))
