import signal

import pytest

from keras_vit.engine.preemption import note_sigterm


def test_the_second_ctrl_c_stops_at_once():
    with pytest.raises(KeyboardInterrupt), note_sigterm():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
