"""What machine a benchmark ran on."""

import pathlib
import platform


def processor():
    """The processor's name."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
