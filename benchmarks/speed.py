"""Time this package and its peers side by side; writes RESULTS.md.

    python benchmarks/speed.py --variants S/16 --cases inference-1-float32 --rounds 3

Each system runs in its own process. The processes of a case take turns, so that other load affects all alike.
Cases that are not run keep their earlier measurements.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import systems
from harness import HERE, Failed, command, interleaved, measure
from machine import accelerator, circumstances, installed, peak_rates
from report import update, write_report
from systems import SYSTEMS, Case

VARIANTS = ("S/16", "B/16")
CASES = tuple(  # task, batch, precision
    f"{work}-{precision}"
    for precision in ("float32", "bfloat16")
    for work in ("inference-1", "inference-16", "training-16")
)
START_ROUNDS = 5
_TORCH = "import systems; systems.declare_torchvision(); "
STARTS = {  # name → the modules that it needs, and code
    "import keras": (("keras",), "import keras"),
    "import keras_vit": (("keras_vit",), "import keras_vit; keras_vit.VisionTransformer"),
    "keras-vit --help": (("_keras_vit_cli",), "import _keras_vit_cli; _keras_vit_cli.main(['--help'])"),
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
    parser.add_argument("--systems", nargs="+", default=usual(), choices=SYSTEMS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="cores for each system; by default all")
    parser.add_argument("--starts", action=argparse.BooleanOptionalAction, default=True, help="time imports")
    parser.add_argument("--output", type=pathlib.Path, default=HERE, help="folder of RESULTS.*")
    args = parser.parse_args()
    cases = [parse_case(variant, words) for variant in args.variants for words in args.cases]
    args.output.mkdir(parents=True, exist_ok=True)
    results = args.output / "RESULTS.json"
    if args.starts:
        update(results, "starts", {title("starts"): circumstances() | {"seconds": starts()}})
    peak = peak_rates(args.threads) if cases else None
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            found = about(case, case.gflops, peak, args.threads)
            found["systems"] = run_case(case, args, pathlib.Path(folder))
            update(results, "cases", {title(str(case)): found})
    print(write_report(args.output))


def usual():
    """The default systems: with KERAS_BACKEND=jax those that do not need TensorFlow."""
    without = {"tensorflow", "runtime"} if os.environ.get("KERAS_BACKEND") == "jax" else {}
    names = [name for name, system in SYSTEMS.items() if system.backend not in without]
    # The first is equal at 224 pixels, the second without a GPU.
    return [name for name in names if name not in ("keras_vit unrolled", systems.PLAIN)]


def about(case, gflops, peak, threads=None):
    """What is stored of a case beside the measurements."""
    found = circumstances(threads) | {"peak": peak, "gflops": gflops, "task": case.task}
    return found | {"precision": case.precision, "batch": case.batch, "image_size": case.image_size}


def parse_case(variant, words):
    try:
        task, batch, precision = words.split("-")
        systems.parse_variant(variant)
        known = task in ("inference", "training") and precision in ("float32", "bfloat16") and int(batch) > 0
    except ValueError as error:
        raise SystemExit(f"speed.py: {error}") from None
    if not known:
        raise SystemExit(f"speed.py: expected a case such as training-16-float32; got {words!r}")
    return Case(variant, task, int(batch), precision)


def title(name):
    """A name with the accelerator, whose results are kept apart from the processor's."""
    return f"{name} on {accelerator()}" if accelerator() else name


def system_command(name, case, **options):
    return command("systems.measure_system", name=name, case=dataclasses.asdict(case), **options)


def run_case(case, args, folder):
    """name → measurements of each system, or its `error` or its `missing` modules."""
    names = [name for name in args.systems if SYSTEMS[name].takes(case)]
    missing = {name: [m for m in SYSTEMS[name].modules if not installed(m)] for name in names}
    present = [name for name in names if not missing[name]]
    if any(SYSTEMS[name].backend == "runtime" for name in present):
        folder = exported(case.variant, case.image_size, folder)
    options = {"folder": str(folder), "threads": args.threads}
    print(f"{case}: {', '.join(present)}", flush=True)
    found = interleaved({name: system_command(name, case, **options) for name in present}, args.rounds)
    return {name: found.get(name, {"missing": missing[name]}) for name in names}


@functools.cache
def exported(variant, image_size, folder):
    folder = folder / f"{variant.replace('/', '-')}-{image_size}"
    folder.mkdir()
    with contextlib.suppress(Failed):  # The systems of the formats then fail one by one.
        measure("systems.measure_formats", variant=variant, image_size=image_size, folder=str(folder))
    return folder


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
