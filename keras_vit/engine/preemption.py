"""Handling of SIGTERM, by which clusters announce that they take a machine away, and of Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import keras

STATUS = 128 + signal.SIGTERM
PATIENCE = 30  # seconds that the workers wait for the first one, which writes the checkpoint


@contextlib.contextmanager
def note_sigterm() -> Iterator[list[float]]:
    """Collect SIGTERM signals and the first Ctrl-C instead of ending the process.

    The second Ctrl-C raises KeyboardInterrupt at once. If the block ends by `stop` after a Ctrl-C, it raises
    KeyboardInterrupt, too.

    Yields:
        A list of the times of the signals, by `time.monotonic`. It stays empty in threads other than the main
        one, which cannot handle signals.

    Example:
        >>> with note_sigterm() as times:
        ...     signal.raise_signal(signal.SIGTERM)
        >>> len(times)
        1
    """
    times: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield times
        return
    interrupts: list[int] = []

    def note(number: int, frame: types.FrameType | None) -> None:
        if number == signal.SIGINT:
            if interrupts:
                raise KeyboardInterrupt
            interrupts.append(number)
            print(
                "stopping after a checkpoint at the next step; Ctrl-C again stops without it",
                file=sys.stderr,
                flush=True,
            )
        times.append(time.monotonic())

    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, note) for number in signals]
    try:
        yield times
    except SystemExit as stopped:
        if interrupts and stopped.code == STATUS:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in zip(signals, before):
            signal.signal(number, handler or signal.SIG_DFL)  # None is a handler outside Python.


def stop(reason: str) -> NoReturn:
    """End the process with SIGTERM's status and a line with the reason."""
    print(f"stopped: {reason}; the same command resumes the run", file=sys.stderr, flush=True)
    raise SystemExit(STATUS)


class LeaveAfterFirstWorker(keras.callbacks.Callback):
    """Keep a worker that got SIGTERM in the run until the first worker has left it.

    Every step needs all workers. On SIGTERM the first worker writes a checkpoint and exits, so that the next
    step fails in the others. A worker that is the only one to get SIGTERM exits after `PATIENCE`.

    Args:
        times: The list of `note_sigterm`.
    """

    def __init__(self, times: Sequence[float]) -> None:
        super().__init__()
        self.times = times

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self.times and time.monotonic() - self.times[0] > PATIENCE:
            stop("the first worker did not get it, so no checkpoint is written")
