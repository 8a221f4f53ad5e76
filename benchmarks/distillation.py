"""Small students of digits with and without teachers, and the step of a teacher; writes DISTILLATION.md.

    python benchmarks/distillation.py [--methods "100 labels" step] [--seeds 0 1] [--workdir runs]

A method is a list of commands, which run for each seed. The student has 4 × 4 patches of 16 × 16 pixels and
48 channels. DISTILLATION.json keeps earlier results of other methods and seeds. The steps are of S/16 taught
by B/16 at 224 pixels, in one process, interleaved.
"""

import argparse
import contextlib
import json
import os
import pathlib
import resource
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from harness import measure
from machine import circumstances
from pretraining import run
from report import machine_text, table, update

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "DISTILLATION.json"
BATCH, ROUNDS = 8, 5
STEP = f"""S/16 taught by the outputs of B/16 at 224 pixels, {BATCH} images, float32, AdamW, TensorFlow's
graphs without XLA; medians of {ROUNDS} rounds, interleaved. The ratio is the time of the taught step by the
sum of the teacher's forward pass and 1.05 times the plain step."""

DATA = "--recipe digits --dataset digits --set eval_every=1200"


def sizes(patch_size, hidden_size, num_heads):
    """The options of a model of digits; the braces are doubled, since `run` formats the commands."""
    options = {"patch_size": patch_size, "hidden_size": hidden_size, "num_layers": 2}
    options |= {"mlp_dim": 2 * hidden_size, "num_heads": num_heads, "pooling": "gap"}
    return f'--image_size 16 --set "model={{{options}}}"'


STUDENT = sizes(4, 48, 3)
TAUGHT = f"{DATA} --set label_smoothing=0 {STUDENT}"
METHODS = {
    "the teacher, 1,302 labels": [f"finetune {DATA} {sizes(2, 96, 6)} --workdir {{run}}/teacher"],
    "100 labels": [f"finetune {DATA} {STUDENT} --set train_samples=100 --workdir {{run}}/few"],
    "1,302 labels": [f"finetune {DATA} {STUDENT} --workdir {{run}}/all"],
    "teacher, 100 images": [
        f"finetune {TAUGHT} --set train_samples=100 --teacher {{run}}/teacher --workdir {{run}}/taught_100"
    ],
    "teacher, 1,302 images": [
        f"pretrain --objective distill {TAUGHT} --teacher {{run}}/teacher --workdir {{run}}/taught"
    ],
    "features of MAE, 100 labels": [
        "pretrain --objective mae --recipe digits_mae --dataset digits --workdir {run}/mae",
        f"pretrain --objective distill {TAUGHT} --teacher {{run}}/mae --workdir {{run}}/features "
        "--set \"distillation={{'method': 'features'}}\"",
        f"finetune {DATA} --set train_samples=100 --weights {{run}}/features --workdir {{run}}/tuned",
    ],
}


def measure_method(method, seed, folder):
    """The test accuracy after the last command, and the seconds of processor time of each."""
    path = pathlib.Path(folder, str(seed))
    records, seconds = zip(*(run(text, seed, path) for text in METHODS[method]))
    return {"accuracy": records[-1]["test_accuracy"], "seconds": [round(each) for each in seconds]}


def step():
    """Seconds of a plain step, the teacher's forward pass and a taught step, and the peaks of memory."""
    import keras

    import keras_vit
    from keras_vit.training import AdamW, DistillationLoss

    rng = np.random.default_rng(0)
    images = rng.normal(size=(BATCH, 224, 224, 3)).astype("float32")
    labels = np.zeros(BATCH, "int32")

    def student():
        return keras_vit.VisionTransformer.from_variant("S/16", num_classes=1000)

    teacher = keras_vit.VisionTransformer.from_variant("B/16", num_classes=1000)
    plain, taught = student(), keras_vit.DistillationModel(student(), [teacher])
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain.compile(AdamW(1e-3), cross_entropy, jit_compile=False)
    taught.compile(AdamW(1e-3), DistillationLoss(), jit_compile=False)
    systems = {
        "plain step": lambda: plain.train_on_batch(images, labels),
        "forward pass of the teacher": lambda: teacher.predict_on_batch(images),
        "taught step": lambda: taught.train_on_batch(images, labels),
    }
    found, memory = {name: [] for name in systems}, {}
    for name, compute in systems.items():
        compute()
        compute()
        memory[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for _ in range(ROUNDS):
        for name, compute in systems.items():
            start = time.perf_counter()
            compute()
            found[name].append(time.perf_counter() - start)
    return {"seconds": found, "memory": memory}


def save(section, entries):
    """Put entries into a section of DISTILLATION.json, and write DISTILLATION.md."""
    update(FILE, section, entries)
    update(FILE, "machine", {"text": machine_text(circumstances())})
    FILE.with_suffix(".md").write_text(text_of(json.loads(FILE.read_text())))


def interval(values):
    """The mean of numbers and half the width of its 95 % interval, by Student's t."""
    from scipy import stats

    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return np.mean(values), half if len(values) > 1 else float("nan")


def text_of(found):
    """The text of DISTILLATION.md."""
    rows, commands = [], []
    for method, texts in METHODS.items():
        if method not in found:
            continue
        of_seeds = [found[method][seed] for seed in sorted(found[method])]
        accuracy = [100 * each["accuracy"] for each in of_seeds]
        mean, half = interval(accuracy)
        seconds = np.mean([each["seconds"] for each in of_seeds], axis=0)
        rows.append(
            (
                method,
                " + ".join(f"{each:.0f}" for each in seconds),
                f"{mean:.1f} ± {half:.1f}",
                ", ".join(f"{each:.1f}" for each in accuracy),
            )
        )
        commands += [f"# {method}", *(f"keras-vit {text.format(run='runs', seed=0)}" for text in texts)]
    parts = [
        "# Distillation",
        "`python benchmarks/distillation.py`",
        "## Digits",
        "Accuracy on 355 test digits of a small student, with the 95 % interval of the mean over the seeds.\n"
        "Seconds of processor time of each command. MAE has seen the 1,302 images without labels.",
        table(("learns from", "seconds", "accuracy, %", "of each seed"), rows),
        "The commands of seed 0:",
        "```bash\n" + "\n".join(commands) + "\n```",
    ]
    if "step" in found:
        seconds = {name: np.median(values) for name, values in found["step"]["seconds"].items()}
        memory = found["step"]["memory"]
        lines = [(name, f"{value:.2f} s", f"{memory[name] / 1e9:.2f} GB") for name, value in seconds.items()]
        plain, forward, taught = seconds.values()
        lines.append(("ratio", f"{taught / (forward + 1.05 * plain):.2f}", ""))
        parts += ["## The step of a teacher", STEP, table(("", "time", "peak so far"), lines)]
    return "\n\n".join([*parts, found["machine"]["text"]]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    choices = [*METHODS, "step"]
    parser.add_argument("--methods", nargs="+", choices=choices, default=choices)
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5))
    parser.add_argument("--workdir", help="folder of the runs (default: a temporary one)")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = args.workdir or stack.enter_context(tempfile.TemporaryDirectory())
        for seed in args.seeds:
            for method in filter(args.methods.__contains__, METHODS):
                found = measure_method(method, seed, folder)
                save(method, {str(seed): found})
                print(f"{method}, seed {seed}: {found}", flush=True)
    if "step" in args.methods:
        save("step", measure("distillation.step"))
    print(FILE.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
