import argparse
import errno
import io
import json
from unittest.mock import Mock

import pytest
from made.disks import largest_file

from keras_vit.cli.report import report, text_table


@pytest.mark.parametrize(
    "rows, expected",
    [
        ([("a", 1), ("long", 100)], "name  count\na         1\nlong    100"),
        ([("a", 1.5), ("b", 10)], "name  count\na       1.5\nb        10"),
        ([("a", "1"), ("b", "long text")], "name  count\na     1\nb     long text"),
        ([(1, "x")], "name  count\n   1  x"),
    ],
)
def test_columns_are_aligned_numbers_to_the_right(rows, expected):
    assert text_table(rows, ("name", "count")) == expected


def test_control_characters_are_escaped():
    assert text_table([("\x1b[2Ja\n", 1)], ("name", "count")) == "name        count\n\\x1b[2Ja\\n      1"


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_a_report_is_printed_as_asked_and_written_as_json(as_json, written, capsys, tmp_path):
    value, file = {"accuracy": 0.5, "bad": ["ä.png"]}, tmp_path / "found.json"
    report(argparse.Namespace(json=as_json, output=file if written else None), value, "half")
    printed = capsys.readouterr().out
    assert json.loads(printed) == value if as_json else printed == "half\n"
    assert file.exists() == written
    assert not written or json.loads(file.read_text()) == value


def test_a_report_is_printed_before_its_file_fails_and_written_after_the_printing_fails(
    capsys, tmp_path, monkeypatch
):
    with pytest.raises(OSError, match="found.json' cannot be written: File too large"), largest_file(5):
        report(argparse.Namespace(json=False, output=tmp_path / "found.json"), {"accuracy": 0.5}, "half")
    assert capsys.readouterr().out == "half\n" and not [*tmp_path.iterdir()]
    full = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(full, "flush", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    monkeypatch.setattr("sys.stdout", full)
    with pytest.raises(OSError, match="No space left on device: 'standard output'"):
        report(argparse.Namespace(json=False, output=tmp_path / "found.json"), {"accuracy": 0.5}, "half")
    assert json.loads((tmp_path / "found.json").read_text()) == {"accuracy": 0.5}
