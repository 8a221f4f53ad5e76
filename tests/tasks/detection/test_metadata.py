import json
import re

import pytest
from made.box_folders import load, write_images
from made.tables import by_table

OBJECTS = {"bbox": [[4, 2, 16, 10]], "category": ["cat"]}


def write(root, *rows):
    write_images(root)
    others = [{"file_name": f"{number:02}.png", "objects": OBJECTS} for number in range(len(rows), 12)]
    lines = [row if isinstance(row, str) else json.dumps(row) for row in (*rows, *others)]
    (root / "metadata.jsonl").write_text("\n".join(lines))


def test_a_name_of_json_has_any_separators_of_lines(tmp_path):
    row = {"file_name": "00.png", "objects": {**OBJECTS, "category": ["a\u2028b"]}}
    write(tmp_path, json.dumps(row, ensure_ascii=False))
    assert load(tmp_path).class_names == ("a\u2028b", "cat")


def row(file="00.png", **objects):
    return {"file_name": file, "objects": {**OBJECTS, **objects}}


@by_table(
    "line, message",
    [
        (row("../a.png"), "expected a file in 'ROOT'; got '../a.png'"),
        (row("/etc/a.png"), "expected a file in 'ROOT'; got '/etc"),
        (row("99.png"), "no such file: '99.png'"),
        ("[1]", "expected file_name and objects with bbox and category; got [1]"),
        (row(5), "expected file_name and objects with bbox and cat"),
        ("[" * 100_000, "expected JSON; got values nested too deeply"),
        (row(bbox=5), "expected bbox and category, a value of each object; got 5"),
        (row(area=[1, 2]), "expected area and category, a value of each object; got [1, 2]"),
        (row(category=[[1]]), "expected the number or name of a class; got a list"),
        (row(iscrowd=["no"]), "expected 0 or 1 for whether an object is a crowd; got 'no'"),
    ],
)
def test_wrong_lines_are_refused_with_their_place(line, message, tmp_path):
    write(tmp_path, line)
    message = f"{tmp_path}/metadata.jsonl, line 1: {message.replace('ROOT', str(tmp_path))}"
    with pytest.raises(ValueError, match=re.escape(message)):
        load(tmp_path)


def test_an_image_in_several_lines_is_one_sample_with_all_objects(tmp_path):
    rows = [{"file_name": "00.png", "objects": {**OBJECTS, "bbox": [[n, 2, 16, 10]]}} for n in (1, 2)]
    write(tmp_path, *rows, {"file_name": "01.png", "objects": OBJECTS})
    samples = load(tmp_path, seed=None).split("train")
    assert len(samples) == 11 and len(samples[0][1]) == 2


@pytest.mark.parametrize(
    "number, lines, message",
    [
        (99_999_999, None, "^expected numbers of classes below 1,000,000; got 99999999: number them from 0"),
        (1, "cat\ncat\n", "^expected the names of at least 2 classes, all different; got 2$"),
        (2, "cat\ndog\n", "^expected the names of at least 3 classes, all different; got 2$"),
    ],
)
def test_numbers_that_are_no_classes_are_refused(number, lines, message, tmp_path):
    write(tmp_path)
    path = tmp_path / "metadata.jsonl"
    path.write_text(path.read_text().replace('"cat"', str(number)))
    if lines:
        (tmp_path / "classes.txt").write_text(lines)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_numbers_of_classes_may_be_floats(tmp_path):
    write(tmp_path)
    path = tmp_path / "metadata.jsonl"
    path.write_text(path.read_text().replace('"cat"', "1.0"))
    assert load(tmp_path).class_names == ("0", "1")
