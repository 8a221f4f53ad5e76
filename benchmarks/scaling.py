"""Time and memory by image size, 224 to 1024 px, one image at a time; adds to RESULTS.md.

    python benchmarks/scaling.py --variants S/16 --precisions float32
    python benchmarks/scaling.py --task training --sizes 224 518 --systems keras_vit "keras_vit unrolled"

Each size of each system runs in its own process, to measure its peak memory; the processes of one model and
precision take turns. Source of the comparison: Dosovitskiy et al. 2021, figure 12.
"""

import argparse
import pathlib

from harness import HERE, interleaved
from machine import circumstances, installed
from report import update, write_report
from speed import VARIANTS, system_command, title
from systems import SYSTEMS, Case, cost

SIZES = (224, 384, 512, 1024)
USUAL = ("keras_vit", "transformers", "transformers compiled")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--variants", nargs="+", default=VARIANTS)
    parser.add_argument("--task", default="inference", choices=("inference", "training"))
    parser.add_argument("--precisions", nargs="+", default=("float32", "bfloat16"))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--systems", nargs="+", default=USUAL, choices=SYSTEMS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path, default=HERE, help="folder of RESULTS.*")
    args = parser.parse_args()
    names = [name for name in args.systems if installed(*SYSTEMS[name].modules)]
    for variant in args.variants:
        for precision in args.precisions:
            cases = {size: Case(variant, args.task, 1, precision, size) for size in args.sizes}
            name = f"{variant} {precision}" + ("" if args.task == "inference" else f" {args.task}")
            print(f"{name} at {args.sizes} px: {', '.join(names)}", flush=True)
            sizes = {
                size: {"gflops": case.gflops, "tokens": cost(variant, size)["tokens"]}
                for size, case in cases.items()
            }
            found = circumstances() | {"sizes": sizes}
            pairs = [(name, size) for name in names for size in cases]
            commands = {(name, size): system_command(name, cases[size]) for name, size in pairs}
            measured = interleaved(commands, args.rounds)
            found["systems"] = {x: {size: measured[x, size] for size in cases} for x in names}
            update(args.output / "RESULTS.json", "scaling", {title(name): found})
    print(write_report(args.output))


if __name__ == "__main__":
    main()
