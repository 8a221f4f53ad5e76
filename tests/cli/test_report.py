import argparse
import errno
import io
import json
from unittest.mock import Mock

import pytest
from made.disks import largest_file
from made.tables import by_table

from keras_vit.cli.report import check_json, report, text_table


@by_table(
    "rows, expected",
    [
        ([("a", 1), ("long", 100)], "name  count\na         1\nlong    100"),
        ([("a", 1.5), ("b", 10)], "name  count\na       1.5\nb        10"),
        ([("a", "1"), ("b", "long text")], "name  count\na     1\nb     long text"),
        ([(1, "x")], "name  count\n   1  x"),
        ([("\x1b[2Ja\n", 1)], "name        count\n\\x1b[2Ja\\n      1"),
    ],
)
def test_columns_are_aligned_numbers_to_the_right_and_control_characters_escaped(rows, expected):
    assert text_table(rows, ("name", "count")) == expected


@pytest.mark.parametrize("name", [None, "-", "found.json"])
def test_a_report_is_printed_as_text_or_json_or_also_written(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    value = {"accuracy": 0.5, "bad": ["ä.png"]}
    check_json(argparse.Namespace(json=name))
    report(argparse.Namespace(json=name), value, "half")
    printed, written = capsys.readouterr().out, [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert json.loads(printed) == value if name == "-" else printed == "half\n"
    assert written == ([value] if name == "found.json" else [])


def test_a_report_is_printed_before_its_file_fails_and_written_after_the_printing_fails(
    capsys, tmp_path, monkeypatch
):
    with pytest.raises(OSError, match="found.json' cannot be written: File too large"), largest_file(5):
        report(argparse.Namespace(json=tmp_path / "found.json"), {"accuracy": 0.5}, "half")
    assert capsys.readouterr().out == "half\n" and not [*tmp_path.iterdir()]
    full = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(full, "flush", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    monkeypatch.setattr("sys.stdout", full)
    with pytest.raises(OSError, match="No space left on device: 'standard output'"):
        report(argparse.Namespace(json=tmp_path / "found.json"), {"accuracy": 0.5}, "half")
    assert json.loads((tmp_path / "found.json").read_text()) == {"accuracy": 0.5}
