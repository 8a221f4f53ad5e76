import signal

import pytest

from keras_vit.engine.preemption import note_sigterm, stop


@pytest.mark.parametrize("number, ends", [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_the_first_signal_is_noted_and_ends_the_run_after_a_checkpoint(number, ends, capsys):
    with pytest.raises(ends) as stopped, note_sigterm() as times:
        signal.raise_signal(number)
        assert len(times) == 1
        stop("the checkpoint of step 5 is written")
    assert ends is KeyboardInterrupt or stopped.value.code == 143
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "stopped: the checkpoint of step 5 is written; the same command resumes the run"


def test_the_second_ctrl_c_stops_at_once():
    with pytest.raises(KeyboardInterrupt), note_sigterm():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
