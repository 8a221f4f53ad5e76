"""Time this package and its peers on an NVIDIA GPU, in bfloat16; writes GPU.json and GPU.md.

    KERAS_BACKEND=jax python benchmarks/gpu_speed.py --cases "classifier B/16 224 training-64" --rounds 3

Each system runs in its own process. The processes of a case take turns, and share the GPU's memory. Cases
that are not run keep their earlier measurements. Without a GPU, --output with another folder is a trial.
"""

import argparse
import dataclasses
import json
import os
import pathlib

from gpu import report
from harness import HERE, measure
from machine import accelerator, installed, peak_rates
from report import update
from speed import about, parse_case, run_case, title
from systems import PLAIN, RECIPES, SYSTEMS, Case

BATCHES = {  # model, variant and image size → batches of inference and of training
    "classifier S/16 224": (512, 256),
    "classifier B/16 224": (512, 128),
    "classifier S/14 518": (64, 32),
    "classifier B/14 518": (64, 16),
    "detector S/16 512": (64, 16),
    "depth S/14 518": (32, 8),
}
CASES = [
    f"{name} {task}-{batch}"
    for name, batches in BATCHES.items()
    for task, batch in zip(("inference", "training"), batches)
]
PEERS = ("timm compiled", "transformers compiled")
PEERS += ("transformers' YOLOS compiled", "transformers' Depth Anything compiled")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=CASES, help='such as "depth S/14 518 training-8"')
    parser.add_argument("--systems", nargs="+", default=("keras_vit JAX", PLAIN, *PEERS), choices=SYSTEMS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peak", action=argparse.BooleanOptionalAction, default=True, help="time matmuls")
    parser.add_argument("--output", type=pathlib.Path, default=HERE, help="folder of GPU.*")
    args = parser.parse_args()
    args.threads, cases = None, [gpu_case(text) for text in args.cases]
    os.environ["KERAS_BACKEND"] = "jax"
    if not accelerator() and args.output.resolve() == HERE:
        raise SystemExit(
            "gpu_speed.py: expected an NVIDIA GPU; got none, and without --output another folder"
        )
    found = measure("gpu_speed.devices")
    if accelerator() and found["jax"] != "gpu":
        raise SystemExit(
            f'gpu_speed.py: expected JAX with CUDA (.venv/bin/pip install "jax[cuda12]"); got {found["jax"]}'
        )
    without_cuda = accelerator() and found["torch"] == "cpu"
    absent = [name for name in args.systems if without_cuda and SYSTEMS[name].backend == "torch"]
    args.systems = [name for name in args.systems if name not in absent]
    # torch without CUDA would take hours for the matrices of a GPU.
    peak = peak_rates(libraries=["JAX"] if without_cuda else ["JAX", "torch"]) if args.peak else None
    results = args.output / "GPU.json"
    for case in cases:
        entry = about(case, gflops(case), peak)
        entry["systems"] = run_case(case, args, args.output)
        entry["systems"] |= {
            name: {"missing": ["torch with CUDA"]} for name in absent if SYSTEMS[name].takes(case)
        }
        update(results, "cases", {title(str(case)): entry})
    text = report({"programs": {}, "notes": [], **json.loads(results.read_text())})
    (args.output / "GPU.md").write_text(text)
    print(text)


def gpu_case(text):
    """The case that a text names, such as "classifier S/16 224 training-256"."""
    try:
        model, variant, size, words = text.split()
        case = dataclasses.replace(
            parse_case(variant, f"{words}-bfloat16"), image_size=int(size), model=model
        )
    except ValueError:
        case = None
    if case is None or model not in RECIPES or case.image_size < 1:
        raise SystemExit(f"gpu_speed.py: expected a case such as {CASES[0]!r}; got {text!r}")
    return case


def gflops(case):
    """GFLOPs per image, of a detector or a depth estimator from its traced program."""
    if case.model == "classifier":
        return case.gflops
    forward = measure("gpu_speed.forward_gflops", case=dataclasses.asdict(case))["gflops"]
    return forward * (3 if case.task == "training" else 1)


# In a process of `harness.py` -------------------------------------------------------------------


def devices():
    """The platforms on which JAX and torch compute; None of torch where it is not installed."""
    import jax

    device = None
    if installed("torch"):
        import torch

        device = "gpu" if torch.cuda.is_available() else "cpu"
    return {"jax": jax.devices()[0].platform, "torch": device}


def forward_gflops(case):
    """GFLOPs of the matmuls and convolutions of an image, without cuDNN's attention, which hides its own."""
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    import jax
    from systems import keras_model

    from keras_vit.training.plan import jaxpr_flops

    case = Case(**{**case, "batch": 1})
    model, (images, _) = keras_model(case), case.data()
    traced = jax.make_jaxpr(lambda images: model(images, training=False))(images)
    return {"gflops": jaxpr_flops(traced.jaxpr) / 1e9}


if __name__ == "__main__":
    main()
