"""Training steps compiled for a GPU that is not there; writes GPU.json and GPU.md with gpu_speed.py.

    python benchmarks/gpu.py --topology gpu:a100 --image_size 1024 --images 8 [--plain] [--remat]

plans the step of a ViT as `keras-vit plan --extrapolate` does, with --plain without cuDNN's attention, and
adds it to the page. Needs the extra `gpu`.
"""

import argparse
import os

from harness import HERE
from report import add_program, case_sections, runs
from systems import plain_attention

RESULTS, PAGE = HERE / "GPU.json", HERE / "GPU.md"
MIB = 2**20
UNMEASURED = """\
# Speed on GPUs

No run has been measured yet. On a machine with an NVIDIA GPU, `make gpu` measures and writes this section."""
MEASURED = """\
# Speed on GPUs

`make gpu` measures and writes this section. Only the rows of one table were measured side by side, with a
process per system, in interleaved rounds: the processes share the GPU's memory. Weights and images are
random. Images are on the GPU, and outputs return to the host. `plain attention` is without cuDNN's fused
kernels, and stores its scores. `compiled` is `torch.compile`. YOLOS is another model of the detector's size.
This package trains by the recipes `finetune`, `detect` and `depth`, torch by SGD with momentum and clipping.

Speed ratio: the fastest peer's time ÷ the system's; above 1 is faster. Of peak: the model's FLOPs (of three
forward passes in training) ÷ the highest measured rate of large matmuls. Peak MiB: of the GPU's memory.
First: the first step, which compiles."""
TRIAL = (
    "# Trial without a GPU\n\nAll figures of speed and memory are of a processor; they tell nothing of GPUs."
)
INTRODUCTION = """\
# Training steps compiled for GPUs

`python benchmarks/gpu.py` compiles ahead of time, without a GPU. **All figures are the compiler's estimates,
which no run has confirmed; speed is not among them.** The memory is that of one GPU. It is extrapolated from
models of 2 and 4 blocks. "Plain" is attention that stores its scores, as all programs had it before.
"""
COLUMNS = {
    "attention": lambda row: row["attention"],
    "activations MiB": lambda row: f"{row['memory']['activations'] / MIB:,.0f}",
    "total MiB": lambda row: f"{row['memory']['total'] / MIB:,.0f}",
    "of MiB": lambda row: f"{row['memory']['available'] / MIB:,.0f}",
    "TFLOP": lambda row: f"{row['flops'] / 1e12:.2f}",
    "fusions": lambda row: row["kernels"].get("fusion", {"count": 0})["count"],
    "matmul calls": lambda row: counted(row, "cublas"),
    "cuDNN attention calls": lambda row: counted(row, "fmha"),
    "compile s": lambda row: f"{row['seconds']:.0f}",
}


def counted(row, word):
    return sum(kernel["count"] for name, kernel in row["kernels"].items() if word in name)


def measured(options):
    """The plan of a program."""
    from keras_vit.training.named_recipes import find_recipe
    from keras_vit.training.plan import plan

    if options.plain:
        plain_attention()
    recipe = find_recipe("finetune").with_changes(
        batch_size=options.images, dtype=options.dtype, remat=options.remat
    )
    size = (options.image_size, options.image_size)
    row = plan(options.variant, recipe, options.topology, image_size=size, extrapolate=True, report=print)
    return {**row, "attention": "cuDNN" if counted(row, "fmha") else "plain"}


def report(results):
    """The page."""
    cases = results.get("cases", {})
    heading = MEASURED if all(found["accelerator"] for found in cases.values()) else TRIAL
    speed = [heading, runs({"cases": cases}), *case_sections(cases)] if cases else [UNMEASURED]
    return "\n\n".join([*speed, _compiled(results)] if results["programs"] else speed)


def _compiled(results):
    lines = [INTRODUCTION, f"| program | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    used = {}
    for name, row in results["programs"].items():
        cells = " | ".join(str(column(row)) for column in COLUMNS.values())
        lines.append(f"| {name} | {cells} |")
        for package, version in row["versions"].items():
            used.setdefault(package, set()).add(version)
    listed = ", ".join(f"{name} {' and '.join(sorted(found))}" for name, found in used.items())
    return "\n".join([*lines, "", f"{listed}.", "", *results["notes"]]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--topology", default="gpu:a100")
    parser.add_argument("--variant", default="B/16")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--images", type=int, default=64, help="of all GPUs")
    parser.add_argument("--dtype", default="mixed_bfloat16")
    parser.add_argument("--remat", action="store_true", help="recompute blocks in the backward pass")
    parser.add_argument("--plain", action="store_true", help="attention without cuDNN's kernels")
    options = parser.parse_args()
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    row = measured(options)
    name = f"{options.variant}, {options.image_size} px, {options.images} images, {options.topology}, "
    name += options.dtype + ", remat" * options.remat + ", plain" * options.plain
    add_program(RESULTS, PAGE, name, row, report)


if __name__ == "__main__":
    main()
