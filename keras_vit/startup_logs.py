"""What TensorFlow and LiteRT write to standard error when they start, which no user needs."""

import contextlib
import os
import re
import sys
import tempfile

STARTUP_LOGS = re.compile(
    r"I\d{4} |WARNING: All log messages before absl::InitializeLog|INFO: Created TensorFlow Lite "
    r"|To enable the following instructions|fully_quantize: "
    r"|W\d{4} .*(tf_tfl_flatbuffer_helpers|flatbuffer_export)\.cc"
)


@contextlib.contextmanager
def quiet_startup_logs(drop_on_error=False):
    """Remove the start-up logs of TensorFlow and LiteRT from standard error, also those written by C++.

    All other lines are written when the context ends.

    Args:
        drop_on_error: Whether to drop the other lines, too, if the context raises an exception, which
            repeats them.
    """
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException:
            if drop_on_error:
                captured.truncate(0)
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            captured.seek(0)
            lines = captured.read().decode(errors="replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not _is_startup_log(line)))


def _is_startup_log(line):
    if "failed call to cuInit" in line:  # an error only where there is a GPU that may be used
        return not os.path.exists("/dev/nvidiactl") or os.environ.get("CUDA_VISIBLE_DEVICES") == "-1"
    return STARTUP_LOGS.match(line) is not None
