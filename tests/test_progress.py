import re
import time

import pytest

from keras_vit import progress
from keras_vit.progress import Progress


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY", 1e-9)
    monkeypatch.setattr(progress, "BAR_AFTER", 1e-9)


def test_a_line_says_how_far_a_loop_is_where_there_is_no_terminal(soon, capsys):
    assert [*Progress(range(3), "evaluating", unit="batch")] == [0, 1, 2]
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(re.fullmatch(r"evaluating: batch \d of 3, \d\d:\d\d left", line) for line in lines)


def test_steps_without_a_total_and_those_of_update_are_counted(soon, capsys):
    [*Progress(iter("ab"), "reading", unit="row")]
    with Progress(None, "predicting", total=1200, initial=1000, unit="image") as bar:
        time.sleep(0.01)
        bar.update(100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading: row 1"
    assert re.fullmatch(r"predicting: image 1,100 of 1,200, 00:00 left", lines[-1])


def test_a_note_is_written_on_terminals_and_in_long_loops(capsys, monkeypatch):
    def noted():
        with Progress(range(2), "exporting", unit="format") as bar:
            time.sleep(0.001)
            bar.note("tflite: verified")
        return capsys.readouterr().err

    assert noted() == ""
    monkeypatch.setattr(progress, "LINE_EVERY", 1e-9)
    assert noted().splitlines()[0] == "tflite: verified"
    monkeypatch.setattr(progress, "LINE_EVERY", 30)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert "tflite: verified\n" in noted()


def test_a_terminal_has_a_bar(soon, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    [*Progress(range(3), "evaluating", unit="batch", mininterval=0)]
    assert "100%|" in capsys.readouterr().err
