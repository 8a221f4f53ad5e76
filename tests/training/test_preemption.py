import signal

import pytest

from keras_vit.training.preemption import note_sigterm, stop


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_first_signal_is_noted_and_determines_the_exit_status(number, status, capsys):
    with pytest.raises(SystemExit) as stopped, note_sigterm() as times:
        signal.raise_signal(number)
        assert len(times) == 1
        stop("the checkpoint of step 5 is written")
    assert stopped.value.code == status
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "stopped: the checkpoint of step 5 is written; the same command resumes the run"


def test_the_second_ctrl_c_stops_at_once():
    with pytest.raises(KeyboardInterrupt), note_sigterm():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
