"""DINOv3 S/16 and EVA-02 S/14 at their real sizes: outputs and speed next to peers; writes FAMILIES.md.

    python benchmarks/families.py --models DINOv3-S/16 --sizes 512 --precisions float32 --rounds 7

All weights are random. timm's model is saved and loaded by this package, whose model is saved for
transformers where that has the family. Each system then runs in its own process, one image at a time, and the
processes of a table take turns. Tables that are not measured again keep their results.
"""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import statistics
import tempfile

from harness import HERE, command, interleaved, measure
from machine import circumstances, installed, use_cores
from report import machine_text, table, update
from systems import Case, declare_torchvision, keras_inference, policy, save_timm, timed, torch_step

from _keras_vit_cli import without_keras

with without_keras():  # as in systems.py
    from keras_vit.cli.options import image_size

MODELS = {  # variant → timm's name, whether transformers has it, and sizes in pixels
    "DINOv3-S/16": ("vit_small_patch16_dinov3", True, ("224", "336x448", "512")),
    "EVA-02-S/14": ("eva02_small_patch14_224", False, ("224", "336x448")),
}
OURS = ("keras_vit", "keras_vit graph", "keras_vit XLA")
TRANSFORMERS = ("transformers", "transformers compiled")
TIMM = ("timm", "timm compiled")
BOUND = 3e-6  # of the largest output
RESULTS = HERE / "FAMILIES.json"
INTRODUCTION = """\
`benchmarks/families.py` measures and writes this page. One image at a time, random weights, the class token
after the last norm. `keras_vit` is `predict_on_batch`; `graph` and `XLA` are `tf.function` without and with
`jit_compile`, `compiled` is `torch.compile`; bfloat16 means bfloat16 weights.

Speed ratio: the time of the faster of transformers' two forms (timm's, for a family that transformers lacks)
÷ the system's, medians of interleaved rounds; above 1 is faster. Only the rows of one table were measured
side by side."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--sizes", nargs="+", help="such as 512 or 336x448 (default: the model's sizes)")
    parser.add_argument("--precisions", nargs="*", default=("float32", "bfloat16"))
    parser.add_argument("--systems", nargs="+", default=(*OURS, *TRANSFORMERS, *TIMM), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="cores for each system; by default all")
    args = parser.parse_args()
    if not installed("timm", "transformers", "torch"):
        raise SystemExit("families.py needs timm, transformers and torch: requirements-peers.txt")
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}  # of the systems' processes
    for model in args.models:
        for size in args.sizes or MODELS[model][2]:
            with tempfile.TemporaryDirectory() as folder:
                found = measure("families.compare", model=model, size=size, folder=folder)
                update(RESULTS, "differences", {f"{model}, {size} px": found})
                for precision in args.precisions:
                    _time(args, model, size, precision, folder)
    write_report()


def _time(args, model, size, precision, folder):
    """Measure one table."""
    names = [name for name in args.systems if MODELS[model][1] or name not in TRANSFORMERS]
    case = dataclasses.asdict(Case(model, "inference", 1, precision, image_size(size)))
    title = f"{model}, {size} px, {precision}"
    print(f"{title}: {', '.join(names)}", flush=True)
    options = {"case": case, "folder": folder, "threads": args.threads}
    commands = {name: command("families.measure_system", name=name, **options) for name in names}
    found = circumstances(args.threads) | {"systems": interleaved(commands, args.rounds)}
    update(RESULTS, "cases", {title: found})


# In a process of `harness.py` -------------------------------------------------------------------


def compare(model, size, folder):
    """Write the folders "timm" and "transformers"; peer → largest difference ÷ its largest output."""
    import keras
    import numpy as np
    import torch

    folder, (timm_name, in_transformers, _) = pathlib.Path(folder), MODELS[model]
    case = Case(model, image_size=image_size(size))
    images, _ = case.data()
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    theirs = _timm(case, timm_name)
    _randomize(theirs)
    save_timm(theirs, folder / "timm")
    ours = _ours(case, folder)
    mine = keras.ops.convert_to_numpy(ours(images))
    with torch.no_grad():
        outputs = {"timm": theirs(pixels).numpy()}
        if in_transformers:
            from transformers import AutoModel

            import keras_vit

            keras_vit.save_weights(ours, folder / "transformers", "huggingface")
            outputs["transformers"] = AutoModel.from_pretrained(folder / "transformers")(pixels)
            outputs["transformers"] = outputs["transformers"].pooler_output.numpy()
    return {peer: float(np.abs(mine - y).max() / np.abs(y).max()) for peer, y in outputs.items()}


def _timm(case, name):
    declare_torchvision()
    import timm

    return timm.create_model(name, img_size=case.sides, num_classes=0, global_pool="token").eval()


def _randomize(model):
    """Weights of a trained model's magnitude: LayerScale's first ones would hide errors in the branches."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            matrix = parameter.ndim > 1 and parameter.shape[0] > 1
            parameter.copy_(noise * parameter[0].numel() ** -0.5 if matrix else parameter + 0.1 * noise)


def _ours(case, folder):
    import keras_vit

    grid = {"position_grid": [side // 14 for side in case.sides]} if "EVA" in case.variant else {}
    return keras_vit.from_pretrained(
        folder / "timm", image_size=case.sides, pooling="token", num_classes=0, dtype=policy(case), **grid
    )


def _transformers(case, folder):
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder / "transformers")


def measure_system(name, case, folder, threads=None):
    """Build a system from the stored weights; the function that times it."""
    use_cores(threads)
    case, folder = Case(**case), pathlib.Path(folder)
    if name in OURS:
        os.environ["KERAS_BACKEND"] = "tensorflow"
        model, images = _ours(case, folder), case.data()[0]
        if name == OURS[0]:
            return timed(lambda: model.predict_on_batch(images))
        return timed(keras_inference(model, case, name == "keras_vit XLA"))
    if name in TRANSFORMERS:
        build = functools.partial(_transformers, folder=folder)
    else:
        build = functools.partial(_timm, name=MODELS[case.variant][0])
    return timed(torch_step(case, folder, build, name.endswith("compiled")))


# The page ---------------------------------------------------------------------------------------


def ratios(found):
    """name → (median ms, lowest, highest, speed ratio or None) of each measured system of a table."""
    times = {n: [t * 1e3 for t in s["seconds"]] for n, s in found["systems"].items() if s.get("seconds")}
    peers = [statistics.median(times[n]) for n in TRANSFORMERS if n in times]
    peers = peers or [statistics.median(times[n]) for n in TIMM if n in times]
    best = min(peers, default=None)
    return {
        n: (statistics.median(t), min(t), max(t), best and best / statistics.median(t))
        for n, t in times.items()
    }


def report(results):
    """The text of FAMILIES.md."""
    differences = [
        (case, peer, f"{difference:.1e}")
        for case, found in results.get("differences", {}).items()
        for peer, difference in found.items()
    ]
    parts = ["# DINOv3 and EVA-02 at their real sizes", INTRODUCTION, "## Outputs"]
    parts += [f"Largest difference ÷ largest output, float32, same weights; the bound is {BOUND}."]
    parts += [table(("case", "peer", "difference"), differences)]
    for case, found in results.get("cases", {}).items():
        lines = [
            (name, *(f"{ms:.1f}" for ms in values), f"{ratio:.2f}" if ratio else "")
            for name, (*values, ratio) in ratios(found).items()
        ]
        failed = [f"{n}: `{s['error']}`" for n, s in found["systems"].items() if "error" in s]
        parts += [f"## {case}", f"{found['date']}: {machine_text(found)}"]
        parts += [table(("system", "ms", "lowest", "highest", "speed ratio"), lines), *failed]
    return "\n\n".join(parts) + "\n"


def write_report():
    text = report(json.loads(RESULTS.read_text()))
    (HERE / "FAMILIES.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
