"""Training on digits without labels before 100 labels, and the step of MAE; writes PRETRAINING.md.

    python benchmarks/pretraining.py [--methods mae dino] [--seeds 0 1] [--workdir runs]

A method is a list of commands, which run for each seed: they train without the labels of the 1,302 training
digits, and then measure the test accuracy of a classifier that learns from 100 labels. PRETRAINING.json keeps
earlier results of other methods and seeds. The steps are of S/16 at 224 pixels, each in a process of its own,
and `sampling` is of iGPT.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import resource
import shlex
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from harness import measure
from machine import circumstances
from report import machine_text, table, update
from systems import declare_torchvision

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "PRETRAINING.json"
DECODER = 256, 2, 8  # channels, blocks, heads
BATCH, STEPS = 16, 3
STEP = f"""S/16, 224 pixels, {BATCH} images, float32, AdamW, TensorFlow's graphs without XLA. MAE masks 75 %
of the patches, and its decoder has 256 channels and 2 blocks: 7 % of the encoder's work for each
token (the paper: below 10 %). The memory is the most that the process has had."""

ROUNDS = 5
SAMPLED = {  # sizes, and the images of a sample
    "16×16 pixels, 6 blocks of 64 channels, 1 image": (
        {"image_size": 16, "hidden_size": 64, "num_layers": 6, "mlp_dim": 256, "num_heads": 4},
        1,
    ),
    "32×32 pixels, 8 blocks of 512 channels, 1 image": (
        {"image_size": 32, "hidden_size": 512, "num_layers": 8, "mlp_dim": 2048, "num_heads": 8},
        1,
    ),
    "32×32 pixels, 8 blocks of 512 channels, 8 images": (
        {"image_size": 32, "hidden_size": 512, "num_layers": 8, "mlp_dim": 2048, "num_heads": 8},
        8,
    ),
}
SAMPLING = """Images of iGPT with 512 colors, pixel by pixel, in float32, with the keys and values of earlier
pixels in a cache. The first sample compiles; `seconds` are medians of the others."""

# The braces are doubled, since `run` formats the commands.
SIZES = (
    "{{'patch_size': 2, 'hidden_size': 96, 'num_layers': 2, 'mlp_dim': 192, 'num_heads': 6, "
    "'pooling': 'gap'}}"
)
ENCODER = f'--image_size 16 --set "model={SIZES}"'
TUNE = (
    "finetune --recipe digits --dataset digits --total_steps 300 --batch_size 50 --set base_lr=0.001 "
    "--set train_samples=100 --set eval_every=300"
)
FROM = f"{TUNE} --weights {{run}} --workdir {{run}}-tuned"
IGPT = "pretrain --objective igpt --recipe digits_igpt --dataset digits --workdir {run}"
METHODS = {
    "random weights": [f"{TUNE} {ENCODER} --workdir {{run}}"],
    "masked_patch": [
        f"pretrain --objective masked_patch --recipe digits --dataset digits {ENCODER} --total_steps 1200 "
        "--set base_lr=0.002 --set weight_decay=0.05 --set label_smoothing=0.0 --set eval_every=1200 "
        "--workdir {run}",
        FROM,
    ],
    "mae": [
        "pretrain --objective mae --recipe digits_mae --dataset digits --workdir {run}",
        FROM,
    ],
    "igpt 1 step": [f"{IGPT} --total_steps 1", FROM],  # a palette, and random weights
    "igpt": [
        IGPT,
        "probe --model {run} --dataset digits --json {run}/all_labels.json",
        "probe --model {run} --dataset digits --shots 10 --seeds {seed} --json {run}/found.json",
        FROM,
    ],
    "dino": [
        "pretrain --objective dino --recipe digits_dino --dataset digits --workdir {run}",
        "fewshot --model {run} --dataset digits --neighbors 20 --shots 10 --seeds {seed} "
        "--json {run}/found.json",
    ],
}


def run(text, seed, folder):
    """Run a command for a seed; return its result, and its seconds of processor time."""
    text += " --seed {seed}" if "--workdir" in text else ""
    words = shlex.split(text.format(run=folder, seed=seed))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "_keras_vit_cli", *words], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    options = dict(zip(words, words[1:]))
    written = pathlib.Path(options.get("--json") or f"{options['--workdir']}/result.json")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(written.read_text()), seconds


def measure_method(method, seed, folder):
    """The test accuracies, and the seconds of processor time, of each command of a method."""
    path = pathlib.Path(folder, f"{method.replace(' ', '_')}-{seed}")
    found, seconds = zip(*(run(text, seed, path) for text in METHODS[method]))
    return {"accuracy": [_accuracy(each) for each in found], "seconds": [round(each) for each in seconds]}


def _accuracy(found):
    """A list of the test accuracy that a command has written, of several blocks, or of none."""
    accuracy = found.get("accuracy")
    if accuracy is None:
        return [found["test_accuracy"]] if "test_accuracy" in found else []
    rows = accuracy.values() if isinstance(accuracy, dict) else accuracy  # of one number of shots, or blocks
    return [of_seed for (of_seed,) in rows]


def step(mae):
    """Seconds of processor time of a training step, and the most memory, in bytes."""
    import keras

    from keras_vit import MaskedAutoencoder, VisionTransformer
    from keras_vit.training import AdamW

    encoder = VisionTransformer.from_variant("S/16", num_classes=None if mae else 1000)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(BATCH, 224, 224, 3)).astype("float32"), np.zeros(BATCH, "int32")
    model, loss = encoder, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if mae:
        model, loss = MaskedAutoencoder(encoder, *DECODER), None
        x = {"images": x, "order": np.stack([rng.permutation(196) for _ in range(BATCH)])}
    model.compile(AdamW(1e-3), loss)
    model.train_on_batch(x, y)
    start = time.process_time()
    for _ in range(STEPS):
        model.train_on_batch(x, y)
    seconds = (time.process_time() - start) / STEPS
    return {"seconds": seconds, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def sampling():
    """For each case of `SAMPLED`, by system the seconds of each sample, interleaved in one process."""
    from keras_vit import ImageGPT

    found = {}
    for case, (sizes, images) in SAMPLED.items():
        model = ImageGPT({**sizes, "palette": 512, "causal": True, "patch_size": 1, "pooling": "gap"})
        systems = {"keras_vit": functools.partial(model.sample, images), **_transformers(sizes, images)}
        found[case] = {name: [] for name in systems}
        for _ in range(ROUNDS):
            for name, sample in systems.items():
                start = time.perf_counter()
                sample()
                found[case][name].append(time.perf_counter() - start)
    return found


def _transformers(sizes, images):
    """A function that samples with transformers' model of these sizes and its cache, if it is installed."""
    try:
        declare_torchvision()
        import torch
        import transformers
    except ImportError:
        return {}
    pixels = sizes["image_size"] ** 2
    config = transformers.ImageGPTConfig(
        vocab_size=513,
        n_positions=pixels,
        n_embd=sizes["hidden_size"],
        n_layer=sizes["num_layers"],
        n_head=sizes["num_heads"],
        n_inner=sizes["mlp_dim"],
    )
    model = transformers.ImageGPTForCausalImageModeling(config).eval()
    start = torch.full((images, 1), 512)
    options = {"max_new_tokens": pixels, "min_new_tokens": pixels, "do_sample": True, "top_k": 0}

    def sample():
        with torch.inference_mode():
            model.generate(start, pad_token_id=0, use_cache=True, **options)

    return {"transformers": sample}


def save(section, entries):
    """Put entries into a section of PRETRAINING.json, and write PRETRAINING.md."""
    update(FILE, section, entries)
    update(FILE, "machine", {"text": machine_text(circumstances())})
    FILE.with_suffix(".md").write_text(text_of(json.loads(FILE.read_text())))


def text_of(found):
    """The text of PRETRAINING.md."""
    rows, commands = [], []
    for method, texts in METHODS.items():
        if method not in found:
            continue
        accuracy, seconds = _by_seed(found[method])
        rows.append(
            (
                method,
                " + ".join(f"{each:.0f}" for each in seconds.mean(axis=0)),
                f"{accuracy.mean():.1f}",
                ", ".join(f"{each:.1f}" for each in accuracy),
            )
        )
        folder = f"runs/{method.replace(' ', '_')}"
        commands += [f"# {method}", *(f"keras-vit {text.format(run=folder, seed=0)}" for text in texts)]
    parts = [
        "# Training without labels",
        "`python benchmarks/pretraining.py`",
        "## 100 labeled digits",
        "Accuracy on 355 test digits of a classifier that learns from 100 labels, after training on\n"
        "1,302 digits without labels. Seconds of processor time: of pre-training, and of the classifier.",
        table(("method", "seconds", "accuracy, %", "of each seed"), rows),
        "The commands of seed 0:",
        "```bash\n" + "\n".join(commands) + "\n```",
    ]
    if "igpt" in found:
        of_seeds = found["igpt"].values()
        lines = [
            (
                labels,
                *np.mean([100 * np.array(seed["accuracy"][command]) for seed in of_seeds], axis=0).round(1),
            )
            for command, labels in ((1, "all labels"), (2, "100 labels"))
        ]
        parts += ["Linear probes of the blocks of `igpt`:", table(("", *range(len(lines[0]) - 1)), lines)]
    if len(found.get("step", {})) == 2:
        parts += ["## A training step", STEP, _step_table(**found["step"])]
    if "sampling" in found:
        parts += ["## Sampling", SAMPLING, _sampling_table(found["sampling"])]
    return "\n\n".join([*parts, found["machine"]["text"]]) + "\n"


def _by_seed(seeds):
    """Accuracy of the last command in % (seeds,), and seconds (seeds, commands)."""
    rows = [seeds[seed] for seed in sorted(seeds)]
    accuracy = [100 * row["accuracy"][-1][0] for row in rows]
    return np.array(accuracy), np.array([row["seconds"] for row in rows])


def _step_table(supervised, mae):
    lines = [
        (name, f"{each['seconds']:.2f} s", f"{each['memory'] / 1e9:.2f} GB")
        for name, each in (("supervised", supervised), ("masked autoencoder", mae))
    ]
    seconds, memory = (mae[key] / supervised[key] for key in ("seconds", "memory"))
    lines.append(("ratio", f"{seconds:.2f}", f"{memory:.2f}"))
    return table(("", "processor time", "memory"), lines)


def _sampling_table(found):
    lines = []
    for case, systems in found.items():
        medians = {name: np.median(seconds[1:]) for name, seconds in systems.items()}
        for name, seconds in systems.items():
            ratio = medians[name] / medians["keras_vit"]
            lines.append((case, name, f"{seconds[0]:.2f} s", f"{medians[name]:.2f} s", f"{ratio:.2f}"))
    return table(("model", "system", "first", "seconds", "time ÷ keras_vit's"), lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    choices = [*METHODS, "step", "sampling"]
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
        for name in ("supervised", "mae"):
            save("step", {name: measure("pretraining.step", mae=name == "mae")})
    if "sampling" in args.methods:
        save("sampling", measure("pretraining.sampling"))
    print(FILE.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
