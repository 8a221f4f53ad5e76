"""What a run does on SIGTERM, by which clusters announce that they take a machine away."""

import contextlib
import signal
import sys
import threading
import time

import keras

STATUS = 128 + signal.SIGTERM
PATIENCE = 30  # seconds that the workers wait for the first one, which writes the checkpoint


@contextlib.contextmanager
def sigterm_noted():
    """Within, SIGTERM does not end the process.

    Yields:
        A list of the times at which SIGTERM has come, as `time.monotonic` counts them. It stays empty in
        threads other than the main one, which cannot handle signals.

    Example:
        >>> with sigterm_noted() as times:
        ...     signal.raise_signal(signal.SIGTERM)
        >>> len(times)
        1
    """
    times = []
    if threading.current_thread() is not threading.main_thread():
        yield times
        return
    before = signal.signal(signal.SIGTERM, lambda *_: times.append(time.monotonic()))
    try:
        yield times
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: a handler that is not Python's


def stop(what):
    """End the process as SIGTERM would, with a line that says what has been done before."""
    print(f"SIGTERM: {what}; the same command continues the run", file=sys.stderr, flush=True)
    raise SystemExit(STATUS)


class LeaveAfterFirstWorker(keras.callbacks.Callback):
    """Keeps a worker that has got SIGTERM in the run until the first worker has left it.

    Every step needs all workers. The first worker writes a checkpoint when it gets SIGTERM and ends, so that
    the next step fails in the others. A worker that alone has got SIGTERM ends after `PATIENCE`.

    Args:
        times: What `sigterm_noted` yields.
    """

    def __init__(self, times):
        super().__init__()
        self.times = times

    def on_train_batch_end(self, batch, logs=None):
        if self.times and time.monotonic() - self.times[0] > PATIENCE:
            stop("the first worker goes on, so no checkpoint is written")
