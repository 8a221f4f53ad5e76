"""A process that reads hostile input, with limited memory and time."""

import importlib
import json
import os
import pathlib
import resource
import select
import subprocess
import sys
import tempfile
import traceback
import tracemalloc

MEMORY = 2 << 30  # bytes of address space in addition to that after the import, and of a written file
SECONDS = 60  # of a call
SERVE = "from made.limited import serve; serve()"
TESTS = pathlib.Path(__file__).parent.parent


class Limited:
    """A process that calls the functions of a module; started again after it has died.

    Args:
        module: Name of the module. Its import is not limited, and its calls together take `MEMORY`.
    """

    def __init__(self, module):
        self.module, self.process = module, None

    def call(self, function, *arguments):
        """Call a function: ("accepted", its result), ("refused", message) or ("broke", how).

        Refused is a ValueError with one printable line; all other failures are "broke".

        Args:
            function: Name of the function.
            *arguments: JSON values.
        """
        if self.process is None:
            self._start()
        self.process.stdin.write(json.dumps([function, arguments]) + "\n")
        self.process.stdin.flush()
        if select.select([self.answers], [], [], SECONDS)[0]:
            line = self.answers.readline()
            if line:
                return tuple(json.loads(line))
            end = f"ended with status {self.process.wait()}"
        else:
            end = f"took more than {SECONDS} s"
        output = self.output.read_text(errors="replace")[-2000:]
        self.close()
        return "broke", f"the process {end}: {output}"

    def _start(self):
        self.output = pathlib.Path(tempfile.mkstemp(prefix="limited-")[1])
        reading, writing = os.pipe()
        environment = {**os.environ, "MALLOC_ARENA_MAX": "2", "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent)])
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, str(writing), self.module],
                **{"stdin": subprocess.PIPE, "stdout": output, "stderr": output, "text": True},
                **{"pass_fds": [writing], "env": environment},
            )
        os.close(writing)
        self.answers = os.fdopen(reading)
        assert json.loads(self.answers.readline()) == "ready"

    def close(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.answers.close()
            self.output.unlink()
            self.process = None


def serve():
    """What runs in the process: one call a line, one answer a line."""
    fd, module = sys.argv[1:]
    module = importlib.import_module(module)
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with os.fdopen(int(fd), "w") as answers:
        print(json.dumps("ready"), file=answers, flush=True)
        for line in sys.stdin:
            name, arguments = json.loads(line)
            try:
                answer = "accepted", getattr(module, name)(*arguments)
            except ValueError as error:
                is_one_line = type(error) is ValueError and str(error).isprintable()
                answer = ("refused", str(error)) if is_one_line else ("broke", traceback.format_exc())
            except BaseException:
                answer = "broke", traceback.format_exc()
            print(json.dumps(answer), file=answers, flush=True)


def peak_of(call):
    """The largest size in bytes of all of NumPy's arrays and Python's objects in a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
