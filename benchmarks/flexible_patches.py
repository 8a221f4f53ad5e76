"""Accuracy over compute on scanned digits: one model for all patch sizes, one for each size, and one resized.

All have the steps of the recipe `digits_flexi`; the others have one patch size, and the last is that of the
recipe's own size, loaded at the others. It prints rows of a table:
`python benchmarks/flexible_patches.py FOLDER [SEED …]`.
"""

import pathlib
import sys
import time

import numpy as np

import keras_vit
from keras_vit.training import RunConfig, find_recipe
from keras_vit.training.run import train

RECIPE = find_recipe("digits_flexi")


def accuracy(path, samples, **options):
    model = keras_vit.from_pretrained(path, **options)
    return keras_vit.evaluation.evaluate(model, samples)["accuracy"]


def mega_flops(patch_size):
    """Multiplications and additions of the matmuls of an image, in millions."""
    m, tokens = RECIPE.model, (RECIPE.model["image_size"] // patch_size) ** 2
    width, pixels = m["hidden_size"], 3 * patch_size**2
    block = 4 * width**2 + 2 * tokens * width + 2 * width * m["mlp_dim"]
    return 2 * tokens * (pixels * width + m["num_layers"] * block) / 1e6


def timed(config, path):
    """The folder of a run, and its processor time in seconds."""
    began = time.process_time()
    workdir, _ = train(config, path, 0)
    return workdir.path, time.process_time() - began


def main(folder, seeds):
    found = {size: [] for size in RECIPE.patch_sizes}
    for seed in seeds:
        recipe = RECIPE.with_changes(seed=seed)
        samples = keras_vit.data.load_dataset("digits", seed=seed).split("test")
        flexible, seconds = timed(RunConfig("digits", recipe), folder / f"flexible-{seed}")
        print(f"seed {seed}, all sizes: {seconds:.0f} seconds of processor time", flush=True)
        own = {}
        for size in RECIPE.patch_sizes:
            of_size = recipe.with_changes(patch_sizes=None, model={**recipe.model, "patch_size": size})
            own[size], seconds = timed(RunConfig("digits", of_size), folder / f"{size}-{seed}")
            print(f"seed {seed}, size {size}: {seconds:.0f} seconds", flush=True)
        resize = {"position_resize": "bilinear_antialias"}
        for size in RECIPE.patch_sizes:
            row = accuracy(flexible, samples, patch_size=size), accuracy(own[size], samples)
            resized = accuracy(own[RECIPE.model["patch_size"]], samples, patch_size=size, **resize)
            found[size].append((*row, resized))
    for size, rows in found.items():
        cells = [" ".join(f"{100 * value:.1f}" for value in column) for column in zip(*rows)]
        means = [f"{100 * np.mean(column):.1f} ({cell})" for column, cell in zip(zip(*rows), cells)]
        patches = (RECIPE.model["image_size"] // size) ** 2
        print(f"| {size} | {patches} | {mega_flops(size):.1f} | {' | '.join(means)} |")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), [*map(int, sys.argv[2:])] or [0])
