"""The progress of long loops: a bar in a terminal, and lines elsewhere, as in notebooks and files of logs."""

import sys
import time

from tqdm import tqdm

BAR_AFTER = 2  # seconds
LINE_EVERY = 30  # seconds


class Progress(tqdm):
    """A `tqdm` that appears after two seconds in a terminal, and is a line each half minute elsewhere.

    Args:
        steps: What is iterated over, or None with `update`.
        doing: What is done, the beginning of the bar or the line.
        **options: Of `tqdm`, such as `total` and `unit`, the name of one step.

    Example:
        >>> [step**2 for step in Progress(range(3), "squaring", unit="number")]
        [0, 1, 4]
    """

    def __init__(self, steps=None, doing=None, **options):
        self.has_bar = sys.stderr.isatty()
        seconds = {"delay": BAR_AFTER} if self.has_bar else {"delay": LINE_EVERY, "mininterval": LINE_EVERY}
        super().__init__(steps, doing, **seconds, **options)

    def display(self, msg=None, pos=None):
        if self.has_bar:
            return super().display(msg, pos)
        left = ""
        if self.total:
            seconds = (time.time() - self.start_t) / max(self.n - self.initial, 1) * (self.total - self.n)
            left = f" of {self.total:,}, {self.format_interval(seconds)} left"
        print(f"{self.desc.removesuffix(': ')}: {self.unit} {self.n:,}{left}", file=sys.stderr, flush=True)

    def note(self, line):
        """Write a line about a step above the bar, and elsewhere once the loop has had time for a line."""
        if self.has_bar:
            self.write(line, file=sys.stderr)
        elif time.time() - self.start_t >= LINE_EVERY:
            print(line, file=sys.stderr, flush=True)

    def close(self):
        if not self.has_bar:
            self.leave, self.last_print_t = True, float("-inf")  # The lines stay as they are.
        super().close()
