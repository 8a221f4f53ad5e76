"""Forms of this package next to those of transformers, for each case of a page."""

import argparse
import os
import tempfile

from harness import command, interleaved, measure
from machine import circumstances, installed
from report import update

OURS = ("keras_vit", "keras_vit graph", "keras_vit XLA")
EXPORTED = "keras_vit OpenVINO"
PEERS = ("transformers", "transformers compiled")


def measure_cases(module, description, cases, results):
    """Measure the cases that the command line names, and put what is found into a JSON file.

    Args:
        module: Name of a module with the functions `compare`, of a case's title and a folder, which writes
            transformers' model there and returns a difference of outputs, and `measure_system`, of a system's
            name, the title, the folder and the number of threads.
        description: The module's docstring, for --help.
        cases: dict by title.
        results: pathlib.Path of the JSON file.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=cases, choices=cases)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="cores for each system; by default all")
    args = parser.parse_args()
    if not installed("transformers", "torch"):
        raise SystemExit(f"{module}.py needs transformers and torch: requirements-peers.txt")
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}  # of the systems' processes
    for title in args.cases:
        with tempfile.TemporaryDirectory() as folder:
            difference = measure(f"{module}.compare", title=title, folder=folder)
            options = {"title": title, "folder": folder, "threads": args.threads}
            commands = {
                name: command(f"{module}.measure_system", name=name, **options)
                for name in (*OURS, EXPORTED, *PEERS)
            }
            found = circumstances(args.threads) | {"systems": interleaved(commands, args.rounds)}
            update(results, "cases", {title: found | {"difference": difference}})
