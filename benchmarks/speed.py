"""Time this package against what a user would otherwise pick, side by side; writes RESULTS.md.

    python benchmarks/speed.py --variants S/16 --cases inference-1-float32 --rounds 3

Every contender is a process (contenders.py). Those of a case are asked in turn for a few steps each, so that
all meet the same machine in the same state. Cases that are not run keep the numbers that they have.
"""

import argparse
import contextlib
import functools
import itertools
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time

import contenders
from contenders import CONTENDERS, Case
from machine import accelerator, ceiling, circumstances, installed
from report import update, write_report

HERE = pathlib.Path(__file__).resolve().parent
VARIANTS = ("S/16", "B/16")
CASES = tuple(  # task, batch, precision
    f"{work}-{precision}"
    for precision in ("float32", "bfloat16")
    for work in ("inference-1", "inference-16", "training-16")
)
SECONDS, LEAST = 90, 3  # a case's rounds end after so long, but not before there are so many
PATIENCE = 600  # seconds that an answer may take
START_ROUNDS = 5
_TORCH = "import contenders; contenders.declare_torchvision(); "
STARTS = {  # name → the modules it needs, and code
    "import keras": (("keras",), "import keras"),
    "import keras_vit": (("keras_vit",), "import keras_vit; keras_vit.VisionTransformer"),
    "keras-vit --help": (("_keras_vit_cli",), "import _keras_vit_cli; _keras_vit_cli.parser().format_help()"),
    "import keras_hub's ViT": (("keras_hub",), "from keras_hub.models import ViTImageClassifier"),
    "import transformers' ViT": (
        ("transformers", "torch"),
        _TORCH + "from transformers import ViTForImageClassification",
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--variants", nargs="+", default=VARIANTS, help="such as L/16")
    parser.add_argument("--cases", nargs="*", default=CASES, help="such as training-64-bfloat16")
    parser.add_argument("--contenders", nargs="+", default=usual(), choices=CONTENDERS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="cores for each contender; all without it")
    parser.add_argument("--starts", action=argparse.BooleanOptionalAction, default=True, help="time imports")
    parser.add_argument("--add", nargs="+", default=(), type=pathlib.Path, help="RESULTS.json of other runs")
    parser.add_argument("--output", type=pathlib.Path, default=HERE, help="folder of RESULTS.*")
    args = parser.parse_args()
    cases = [_case(variant, words) for variant in args.variants for words in args.cases]
    results = args.output / "RESULTS.json"
    for path in args.add:
        for section, found in json.loads(path.read_text()).items():
            update(results, section, found)
    if args.starts:
        update(results, "starts", {named("starts"): circumstances() | {"seconds": starts()}})
    best = ceiling(args.threads) if cases else None
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            found = circumstances(args.threads) | {"ceiling": best, "gflops": case.gflops, "task": case.task}
            found |= {"precision": case.precision, "batch": case.batch, "image_size": case.image_size}
            found["contenders"] = run_case(case, args, pathlib.Path(folder))
            update(results, "cases", {named(str(case)): found})
    print(write_report(args.output))


def usual():
    """Who takes part: with KERAS_BACKEND=jax no one who needs TensorFlow."""
    without = {"tensorflow", "runtime"} if os.environ.get("KERAS_BACKEND") == "jax" else {}
    return [name for name, contender in CONTENDERS.items() if contender.backend not in without]


def _case(variant, words):
    try:
        task, batch, precision = words.split("-")
        contenders.parse_variant(variant)
        wanted = task in ("inference", "training") and precision in ("float32", "bfloat16") and int(batch) > 0
    except ValueError as error:
        raise SystemExit(f"speed.py: {error}") from None
    if not wanted:
        raise SystemExit(f"speed.py: a case is such as training-16-float32; got {words!r}")
    return Case(variant, task, int(batch), precision)


def named(what):
    """With the accelerator's name, so that its numbers stand beside the processor's."""
    return f"{what} on {accelerator()}" if accelerator() else what


def run_case(case, args, folder):
    """name → what was measured of each contender, or the `error` or `missing` modules that kept it out."""
    names = [name for name in args.contenders if CONTENDERS[name].takes(case)]
    missing = {name: [m for m in CONTENDERS[name].modules if not installed(m)] for name in names}
    present = [name for name in names if not missing[name]]
    if any(CONTENDERS[name].backend == "runtime" for name in present):
        folder = _exported(case.variant, case.image_size, folder)
    threads = [f"--threads={args.threads}"] if args.threads else []
    commands = {
        name: [
            sys.executable,
            str(HERE / "contenders.py"),
            name,
            f"--folder={folder}",
            *case.options,
            *threads,
        ]
        for name in present
    }
    print(f"{case}: {', '.join(present)}", flush=True)
    found = interleaved(commands, args.rounds)
    return {name: found.get(name, {"missing": missing[name]}) for name in names}


@functools.cache
def _exported(variant, image_size, folder):
    folder = folder / f"{variant.replace('/', '-')}-{image_size}"
    folder.mkdir()
    command = [sys.executable, str(HERE / "contenders.py"), "export", f"--variant={variant}"]
    command += [f"--image_size={image_size}", f"--folder={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if not all((folder / file).exists() for file in contenders.FORMATS):
        print(done.stderr)
    return folder


# Rounds -----------------------------------------------------------------------------------------


class Ended(Exception):
    """A contender's process is no more; the message says why."""


def interleaved(commands, rounds, seconds=SECONDS):
    """Run contenders beside each other, one of them computing at a time.

    Args:
        commands: name → command of its process.
        rounds: How many times each is asked, unless the `seconds` for all are over.

    Returns:
        name → dict of `first` (seconds of its first step), `seconds` (a step, of each round) and `memory`
        (MiB), or of `error`.
    """
    found = {name: {"seconds": []} for name in commands}
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(_process(command)) for name, command in commands.items()}

        def ask(name, line):
            if "error" in found[name]:
                return {}
            try:
                return _answer(*processes[name], line)
            except Ended as error:
                print(f"  {name}: {error}", flush=True)
                processes[name][0].kill()
                found[name] = {"error": str(error)}
                return {}

        for name in commands:  # they build at the same time
            ask(name, None)
        for name in commands:
            found[name] |= (answer := ask(name, "warm"))
            if answer:
                print(f"  {name}: first step {answer['first']:.1f} s", flush=True)
        end = time.monotonic() + seconds
        for number in range(rounds):
            if number >= LEAST and time.monotonic() > end:
                break
            for name in list(commands)[:: 1 if number % 2 else -1]:  # no one always follows the same
                if answer := ask(name, "go"):
                    found[name]["seconds"].append(answer["seconds"])
                time.sleep(0.05)  # some libraries' threads wait busily for a while
        for name in commands:
            found[name] |= ask(name, "end")
    return found


@contextlib.contextmanager
def _process(command):
    """The process and the file of its complaints; what it compiles is kept for nobody after it."""
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryDirectory() as cache:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=HERE,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
        )
        try:
            yield process, log
        finally:
            process.kill()
            process.communicate()


def _answer(process, log, line):
    """What it says to a line, or without one of its own accord."""
    with contextlib.suppress(BrokenPipeError):
        if line:
            print(line, file=process.stdin, flush=True)
    if not select.select([process.stdout], [], [], PATIENCE)[0]:
        raise Ended(f"no answer in {PATIENCE} s")
    if answer := process.stdout.readline():
        return json.loads(answer)
    code = process.wait()
    log.seek(0)
    said = [text.strip() for text in log if _is_error(text)]
    raise Ended(said[-1][:300] if said else f"ended with exit status {code}")


def _is_error(text):
    """Whether a line of a traceback is its last: the class of the error and what it says."""
    name = text.partition(":")[0]
    return name[:1].isupper() and name.replace(".", "").isidentifier() or "Error" in name


# Starts -----------------------------------------------------------------------------------------


def starts():
    """name → seconds of fresh processes, in interleaved rounds."""
    seconds = {name: [] for name, (modules, _) in STARTS.items() if installed(*modules)}
    for _, name in itertools.product(range(START_ROUNDS), seconds):
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", STARTS[name][1]], capture_output=True, cwd=HERE)
        if done.returncode == 0:
            seconds[name].append(time.perf_counter() - begin)
    return {name: values for name, values in seconds.items() if values}


if __name__ == "__main__":
    main()
