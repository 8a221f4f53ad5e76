import argparse
import json

import pytest

from keras_vit.cli.report import report, table, whole_file


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
    assert table(rows, ("name", "count")) == expected


def test_lines_have_no_spaces_at_their_end():
    assert all(line == line.rstrip() for line in table([("a", ""), ("", "")], ("one", "")).splitlines())


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_a_report_is_printed_as_asked_and_written_as_json(as_json, written, capsys, tmp_path):
    value, file = {"accuracy": 0.5, "bad": ["ä.png"]}, tmp_path / "found.json"
    report(argparse.Namespace(json=as_json, output=file if written else None), value, "half")
    printed = capsys.readouterr().out
    assert json.loads(printed) == value if as_json else printed == "half\n"
    assert file.exists() == written
    assert not written or json.loads(file.read_text()) == value


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    file = tmp_path / "found.csv"
    for content in ("ä\n", "newer\n"):
        with whole_file(file) as writing:
            writing.write(content)
        assert file.read_bytes() == content.encode()
    with pytest.raises(KeyboardInterrupt), whole_file(file) as writing:
        writing.write("half")
        raise KeyboardInterrupt
    assert file.read_text() == "newer\n" and [*tmp_path.iterdir()] == [file]
    message = f"no such folder for '{tmp_path}/none/found.csv'"
    with pytest.raises(ValueError, match=message), whole_file(tmp_path / "none" / "found.csv"):
        pass
