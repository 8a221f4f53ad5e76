"""Masked autoencoding of digits before fine-tuning on 100 labels, and the cost of its step; writes MAE.md.

    python benchmarks/mae.py [--seeds 5]

For each seed an encoder trains on all training digits without their labels, by the recipe `digits_mae`. Then
two models train on the same 100 labels with the same recipe, one from that encoder and one from random
weights. The steps are of S/16 at 224 pixels, each in a process of its own.
"""

import argparse
import multiprocessing
import os
import pathlib
import platform
import resource
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from masked_patch import measure

from keras_vit import MaskedAutoencoder, VisionTransformer
from keras_vit.training import RECIPES, AdamW

BATCH, STEPS = 16, 3
DECODER = 256, 2, 8  # channels, blocks, heads


def step(mae, found):
    """Put (seconds of processor time, bytes of memory at most) of a training step into a queue."""
    encoder = VisionTransformer.from_variant("S/16", num_classes=None if mae else 1000)
    x, y = (
        np.random.default_rng(0).normal(size=(BATCH, 224, 224, 3)).astype("float32"),
        np.zeros(BATCH, "int32"),
    )
    model, loss = encoder, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if mae:
        model, loss = MaskedAutoencoder(encoder, *DECODER), None
        x = {
            "images": x,
            "order": np.stack([np.random.default_rng(i).permutation(196) for i in range(BATCH)]),
        }
    model.compile(AdamW(1e-3), loss)
    model.train_on_batch(x, y)
    start = time.process_time()
    for _ in range(STEPS):
        model.train_on_batch(x, y)
    seconds = (time.process_time() - start) / STEPS
    found.put((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def steps():
    """What `step` finds for MAE and for the supervised model of the same encoder."""
    context, found = multiprocessing.get_context("spawn"), []
    for mae in (True, False):
        queue = context.Queue()
        process = context.Process(target=step, args=(mae, queue))
        process.start()
        found.append(queue.get())
        process.join()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    (mae, mae_bytes), (whole, whole_bytes) = steps()
    print(f"a step: {mae:.2f} s, supervised {whole:.2f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for seed in seeds:
            rows.append(measure(seed, pathlib.Path(folder), RECIPES["digits_mae"], "mae"))
            print(
                f"seed {seed}: {rows[-1][0]:.4f} from random weights, {rows[-1][1]:.4f} pretrained",
                flush=True,
            )
    lines = [
        "# Masked autoencoders",
        "",
        "`python benchmarks/mae.py`",
        "",
        "## 100 labelled digits",
        "",
        "Accuracy on 355 test digits after 300 steps on 100 labels; the encoder had the 2,000 steps of the",
        "recipe `digits_mae` on 1302 digits without labels.",
        "",
        "| seed | random weights | pretrained |",
        "|---|---|---|",
        *(f"| {seed} | {a:.4f} | {b:.4f} |" for seed, (a, b) in zip(seeds, rows)),
        "| mean | {:.4f} | {:.4f} |".format(*np.mean(rows, axis=0)),
        "",
        "## A training step",
        "",
        f"S/16, 224 pixels, {BATCH} images, float32, AdamW, TensorFlow's graphs without XLA. MAE masks 75 %",
        "of the patches, and its decoder has 256 channels and 2 blocks: 7 % of the encoder's work for each",
        "token (the paper: below 10 %). The memory is the most that the process has had.",
        "",
        "| | processor time | memory |",
        "|---|---|---|",
        f"| supervised | {whole:.2f} s | {whole_bytes / 1e9:.2f} GB |",
        f"| masked autoencoder | {mae:.2f} s | {mae_bytes / 1e9:.2f} GB |",
        f"| ratio | {mae / whole:.2f} | {mae_bytes / whole_bytes:.2f} |",
        "",
        f"Python {platform.python_version()}, TensorFlow {tf.__version__}, Keras {keras.__version__}, "
        f"{os.cpu_count()} logical processors.",
    ]
    pathlib.Path(__file__).with_name("MAE.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
