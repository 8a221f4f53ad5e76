import contextlib
import io
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import types

import pytest
from made.folders import write_classes

import _keras_vit_cli

SCRIPT = pathlib.Path(sys.executable).parent / "keras-vit"


@pytest.fixture(scope="session")
def script():
    """The installed console script as a process of its own, as a user would start it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_CPP")}

    def run(*arguments, cwd=None, pipe_to=None):
        command = [SCRIPT, *map(str, arguments)]
        if pipe_to:
            pipe = shlex.join(map(str, command))
            command = ["bash", "-c", f"{pipe} | {pipe_to}; exit ${{PIPESTATUS[0]}}"]
        return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)

    return run


@pytest.fixture(scope="session")
def once(script):
    """The same for what other tests look at: with FULL the script, else in this process."""

    def run(*arguments):
        stdout = io.StringIO()
        with tempfile.TemporaryFile("w+") as said, contextlib.redirect_stdout(stdout):
            real = os.dup(2)  # to which C++ writes
            os.dup2(said.fileno(), 2)
            try:
                with contextlib.redirect_stderr(said):
                    status = _keras_vit_cli.main([*map(str, arguments)])
            finally:
                os.dup2(real, 2)
                os.close(real)
            said.seek(0)
            return types.SimpleNamespace(returncode=status, stdout=stdout.getvalue(), stderr=said.read())

    return script if "FULL" in os.environ else run


@pytest.fixture
def keras_vit(capfd):
    """In this process, which saves it the imports: returncode, stdout and stderr."""

    def run(*arguments):
        capfd.readouterr()
        try:
            status = _keras_vit_cli.main([*map(str, arguments)])
        except SystemExit as stop:
            status = stop.code
        stdout, stderr = capfd.readouterr()
        return types.SimpleNamespace(returncode=status, stdout=stdout, stderr=stderr)

    return run


@pytest.fixture(scope="session")
def refused():
    """Assert that a command was refused in one line that holds all the words."""

    def check(done, *words):
        assert done.returncode == 2, done
        (line,) = done.stderr.splitlines()
        assert line.startswith("keras-vit")
        for word in words:
            assert str(word) in line
        assert done.stdout == ""

    return check


@pytest.fixture(scope="session")
def weights(golden):
    return golden / "token.npz"


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A data set of two classes with 10 images each."""
    return write_classes(tmp_path_factory.mktemp("data") / "images")
