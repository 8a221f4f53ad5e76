"""Time this package on this machine; print a table and write it to RESULTS.md.

Figures of one run are comparable with each other only, so each is given as a ratio to the first of
its group as well.
"""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

from machine import processor

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

ROUNDS = 5
STARTS = {
    "import keras": "import keras",
    "import keras_vit": "import keras_vit; keras_vit.VisionTransformer",
    "keras-vit --help": "import keras_vit_cli; keras_vit_cli.parser().format_help()",
}


def main():
    rows = [*_starts(), *_models()]
    text = _report(rows)
    print(text)
    pathlib.Path(__file__).with_name("RESULTS.md").write_text(text)


def _starts():
    """Seconds of a fresh process, in interleaved rounds."""
    seconds = {name: [] for name in STARTS}
    for _ in range(ROUNDS):
        for name, code in STARTS.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - begin)
    return _rows("start, s", seconds)


def _models():
    """Milliseconds an image of S/16 and B/16, in interleaved rounds."""
    import numpy as np
    import tensorflow as tf

    import keras_vit
    from keras_vit.training import compile_model

    images = {n: np.random.default_rng(0).random((n, 224, 224, 3), "float32") for n in (1, 16)}
    labels = np.zeros(16, "int32")
    jobs = {}
    for variant in ("S/16", "B/16"):
        model = keras_vit.VisionTransformer.from_variant(variant, num_classes=1000)
        compile_model(model, "finetune")
        for batch, x in images.items():
            for name, xla in (("graph", False), ("XLA", True)):
                compiled = tf.function(model, jit_compile=xla, reduce_retracing=True)
                jobs[f"{variant} inference, batch {batch}, {name}"] = (compiled, (tf.constant(x),), batch)
        step = lambda x, y, model=model: model.train_on_batch(x, y)  # noqa: E731
        jobs[f"{variant} training step, batch 16"] = (step, (images[16], labels), 16)
    milliseconds = {name: [] for name in jobs}
    for measured in range(-1, ROUNDS):  # the first round warms up
        for name, (job, arguments, batch) in jobs.items():
            begin = time.perf_counter()
            job(*arguments)
            if measured >= 0:
                milliseconds[name].append((time.perf_counter() - begin) * 1e3 / batch)
    return _rows("ms an image", milliseconds)


def _rows(unit, measured):
    medians = {name: statistics.median(values) for name, values in measured.items()}
    first = next(iter(medians.values()))
    return [(name, unit, value, value / first) for name, value in medians.items()]


def _report(rows):
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("keras_vit", "keras", "tensorflow")
    )
    lines = [
        "# Benchmarks",
        "",
        f"`make benchmark`, {datetime.date.today()}: {versions}, Python {platform.python_version()}, "
        f"{processor()}, {os.cpu_count()} cores. Medians of {ROUNDS} interleaved rounds; the ratio is to "
        "the first row of the same unit. Only ratios within one run mean something.",
        "",
        "| what | unit | median | ratio |",
        "|---|---|---|---|",
        *(f"| {name} | {unit} | {value:.3g} | {ratio:.2f} |" for name, unit, value, ratio in rows),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
