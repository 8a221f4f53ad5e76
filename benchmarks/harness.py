"""Measurements in separate processes, in interleaved rounds.

    python benchmarks/harness.py speed measure_system '{"name": "keras_vit", "case": {}}'

calls that function of that module. A dict that it returns is the answer, printed as JSON; a function that it
returns answers each further line of standard input, so that a parent can ask several processes in turn.
"""

import contextlib
import importlib
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
MIN_ROUNDS = 3
MAX_SECONDS = 90  # for all rounds
TIMEOUT = 600  # seconds for one answer
PAUSE = 0.05  # seconds for which some libraries' threads keep spinning after a step


class Failed(Exception):
    """A process ended without an answer; the message says why."""


def command(function, **options):
    """The command of a process that measures with `function`, given as "module.name"."""
    return [sys.executable, str(HERE / "harness.py"), *function.split("."), json.dumps(options)]


def measure(function, **options):
    """The one answer of a fresh process."""
    with _process(command(function, **options)) as ask:
        return ask()


def interleaved(commands, rounds):
    """Run several processes side by side, of which one computes at a time.

    Args:
        commands: name → command of its process.
        rounds: Number of measurements of each; fewer, but at least `MIN_ROUNDS`, after `MAX_SECONDS`.

    Returns:
        name → dict of `first` (seconds of the first step), `seconds` (per step, for each round) and
        `memory` (MiB), or of `error`.
    """
    found = {name: {"seconds": []} for name in commands}
    with contextlib.ExitStack() as stack:
        asks = {name: stack.enter_context(_process(command)) for name, command in commands.items()}

        def ask(name, line=None):
            if "error" in found[name]:
                return {}
            try:
                return asks[name](line)
            except Failed as error:
                print(f"  {name}: {error}", flush=True)
                found[name] = {"error": str(error)}
                return {}

        for name in commands:  # They build their models at the same time.
            ask(name)
        for name in commands:
            found[name] |= ask(name, "warm")
            if "first" in found[name]:
                print(f"  {name}: first step {found[name]['first']:.1f} s", flush=True)
        end = time.monotonic() + MAX_SECONDS
        for number in range(rounds):
            if number >= MIN_ROUNDS and time.monotonic() > end:
                break
            for name in list(commands)[:: 1 if number % 2 else -1]:  # No process always follows the same one.
                if answer := ask(name, "go"):
                    found[name]["seconds"].append(answer["seconds"])
                time.sleep(PAUSE)
        for name in commands:
            found[name] |= ask(name, "end")
    return found


@contextlib.contextmanager
def _process(command):
    """Start a process; a function that sends it a line, or None at first, and returns its answer."""
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}  # Nothing is compiled beforehand.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        process = subprocess.Popen(command, **pipes, cwd=HERE, env=environment)

        def ask(line=None):
            with contextlib.suppress(BrokenPipeError):
                if line:
                    print(line, file=process.stdin, flush=True)
            if not select.select([process.stdout], [], [], TIMEOUT)[0]:
                process.kill()
                raise Failed(f"no answer in {TIMEOUT} s")
            if answer := process.stdout.readline():
                return json.loads(answer)
            code = process.wait()
            log.seek(0)
            errors = [text.strip() for text in log if _is_error(text)]
            raise Failed(errors[-1][:300] if errors else f"ended with exit status {code}")

        try:
            yield ask
        finally:
            process.kill()
            process.communicate()


def _is_error(text):
    """Whether a line is the last one of a traceback, which names the error."""
    name = text.partition(":")[0]
    return name[:1].isupper() and name.replace(".", "").isidentifier() or "Error" in name


def main():
    module, function, options = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Libraries print to standard output, too.

    def answer(found):
        print(json.dumps(found), file=answers, flush=True)

    found = getattr(importlib.import_module(module), function)(**json.loads(options))
    if not callable(found):
        answer(found)
        return
    answer({"ready": True})
    for line in sys.stdin:
        answer(found(line.strip()))


if __name__ == "__main__":
    main()
