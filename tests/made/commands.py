"""Fixtures that run commands, in this process or in one of their own."""

import contextlib
import io
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import types

import pytest

import _keras_vit_cli

SCRIPT = pathlib.Path(sys.executable).parent / "keras-vit"


@pytest.fixture(scope="session")
def script():
    """Run the installed console script as a process, as a user does."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_CPP")}

    def run(*arguments, cwd=None, pipe_to=None):
        command = [SCRIPT, *map(str, arguments)]
        if pipe_to:
            pipe = shlex.join(map(str, command))
            command = ["bash", "-c", f"{pipe} | {pipe_to}; exit ${{PIPESTATUS[0]}}"]
        return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)

    return run


@pytest.fixture(scope="session")
def keras_vit():
    """Run a command in this process, which saves the imports, to an exit status: stdout and stderr.

    The status None stands for any.
    """

    def run(*arguments, status=0):
        stdout = io.StringIO()
        with tempfile.TemporaryFile("w+") as stderr, contextlib.redirect_stdout(stdout):
            real = os.dup(2)  # to which C++ writes
            os.dup2(stderr.fileno(), 2)
            try:
                with contextlib.redirect_stderr(stderr):
                    ended = _keras_vit_cli.main([*map(str, arguments)])
            except SystemExit as stop:
                ended = stop.code
            finally:
                os.dup2(real, 2)
                os.close(real)
            stderr.seek(0)
            done = types.SimpleNamespace(returncode=ended, stdout=stdout.getvalue(), stderr=stderr.read())
            assert status in (None, ended), done
            return done

    return run


@pytest.fixture(scope="session")
def json_of(keras_vit):
    """The value that a command prints as JSON."""

    def value(command, *arguments):
        printing = ("--format", "json") if command == "predict" else ("--json", "-")
        return json.loads(keras_vit(command, *arguments, *printing).stdout)

    return value


@pytest.fixture(scope="session")
def refused(keras_vit):
    """Assert that a command is refused in one line with all the words; the line."""

    def check(command, *words):
        done = keras_vit(*command, status=2)
        (line,) = done.stderr.splitlines()
        assert line.startswith("keras-vit")
        for word in words:
            assert str(word) in line
        assert done.stdout == ""
        return line

    return check
