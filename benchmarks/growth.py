"""How time and memory grow with the image: 224 to 1024 px, one image at a time; adds to RESULTS.md.

    python benchmarks/growth.py --variants S/16 --precisions float32

Each size of each contender is a process of its own, so that its peak memory is its own; all of a model and
precision are asked in turn. Source of the comparison: Dosovitskiy et al. 2021, figure 12.
"""

import argparse
import pathlib
import sys

from contenders import CONTENDERS, Case, cost
from machine import circumstances, installed
from report import update, write_report
from speed import HERE, VARIANTS, interleaved, named

SIZES = (224, 384, 512, 1024)
USUAL = ("keras_vit", "transformers", "transformers compiled")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--variants", nargs="+", default=VARIANTS)
    parser.add_argument("--precisions", nargs="+", default=("float32", "bfloat16"))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--contenders", nargs="+", default=USUAL, choices=CONTENDERS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path, default=HERE, help="folder of RESULTS.*")
    args = parser.parse_args()
    names = [name for name in args.contenders if installed(*CONTENDERS[name].modules)]
    for variant in args.variants:
        for precision in args.precisions:
            cases = {size: Case(variant, "inference", 1, precision, size) for size in args.sizes}
            print(f"{variant} {precision} at {args.sizes} px: {', '.join(names)}", flush=True)
            found = circumstances() | {
                "sizes": {
                    size: {"gflops": case.gflops, "tokens": cost(variant, size)["tokens"]}
                    for size, case in cases.items()
                }
            }
            measured = interleaved(
                {
                    (name, size): [sys.executable, str(HERE / "contenders.py"), name, *case.options]
                    for name in names
                    for size, case in cases.items()
                },
                args.rounds,
            )
            found["contenders"] = {name: {size: measured[name, size] for size in cases} for name in names}
            update(args.output / "RESULTS.json", "growth", {named(f"{variant} {precision}"): found})
    print(write_report(args.output))


if __name__ == "__main__":
    main()
