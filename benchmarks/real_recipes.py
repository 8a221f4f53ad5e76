"""Fine-tuning the trained model by each recipe, beside its frozen features; a part of real.py."""

import pathlib
import tempfile

import numpy as np
from distillation import interval

SEEDS = 0, 1, 2
SIDE, TRAIN, TEST = 70, 10, 10  # pixels, and crops of each photograph
STEPS, BATCH = 40, 16
TITLE = "Fine-tuning"
TEXT = f"""\
S/14 learns {TRAIN} crops of each of the 16 photographs by runs of `keras_vit.training.train`, in {STEPS}
steps of {BATCH} crops at {SIDE} pixels, and is measured on {TEST} crops of their other halves. Each seed
has its own crops. `keras-vit finetune` chooses `probe_finetune` for these weights, and `finetune` for
weights that learned from labels. The frozen features are those of the class token, classified by scikit-
learn's logistic regression of the standardized features. Random weights are trained by `probe_finetune`
without its probe and without layer decay, at a rate of 1e-3."""
COLUMNS = "weights", "recipe", "accuracy, %", "of each seed"
RANDOM = {"probe_first": False, "layer_decay": None, "base_lr": 1e-3}
RUNS = {
    ("trained", "`probe_finetune`"): ("probe_finetune", {}),
    ("trained", "`linear_probe`"): ("linear_probe", {}),
    ("trained", "`finetune`"): ("finetune", {}),
    ("random", "AdamW"): ("probe_finetune", RANDOM),
}
FROZEN = "trained", "frozen, logistic regression"


def rows():
    """A row for the frozen features and for each of RUNS."""
    from made import trained

    found = {name: [] for name in (FROZEN, *RUNS)}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            crops = pathlib.Path(folder, f"crops_{seed}")
            parts = {"train": ("train", TRAIN, SIDE, seed), "test": ("test", TEST, SIDE, seed)}
            # It selects nothing: what is measured is the last step.
            parts["validation"] = "test", 1, SIDE, seed + len(SEEDS)
            parts = {name: trained.crops(*part) for name, part in parts.items()}
            trained.write_crops(crops, **parts)
            found[FROZEN].append(_frozen(parts["train"], parts["test"]))
        for name, (recipe, changes) in RUNS.items():
            found[name] = [_run(folder, name[0], recipe, changes, seed) for seed in SEEDS]
            print(name, found[name], flush=True)
    lines = []
    for name, accuracies in found.items():
        mean, half = interval(accuracies)
        lines.append((*name, f"{mean:.1f} ± {half:.1f}", ", ".join(f"{number:.1f}" for number in accuracies)))
    return lines


def _frozen(train, test):
    """The accuracy of a logistic regression on the frozen features, in percent."""
    from made import trained

    import keras_vit
    from keras_vit.evaluation import probe_vectors

    model = keras_vit.from_pretrained(trained.weights_folder(), image_size=SIDE)
    features = [model.predict(model.preprocessing(images), verbose=0) for images, _ in (train, test)]
    names = [*trained.PHOTOGRAPHS]
    return 100 * float(np.mean(probe_vectors(features[0], train[1], features[1], test[1], names)))


def _run(folder, weights, recipe, changes, seed):
    """The accuracy of a run, in percent."""
    from made import trained

    from keras_vit.training import RunConfig, find_recipe
    from keras_vit.training import train as run

    sizes = {"total_steps": STEPS, "batch_size": BATCH, "eval_every": STEPS, "checkpoint_every": STEPS}
    recipe = find_recipe(recipe).with_changes(**sizes, **changes, seed=seed)
    start = {"weights": trained.weights_folder()} if weights == "trained" else {"model": "S/14"}
    config = RunConfig(f"folder:{folder}/crops_{seed}", recipe, image_size=(SIDE, SIDE), **start)
    path = tempfile.mkdtemp(dir=folder)
    _, record = run(config, pathlib.Path(path, "run"), 0)
    return 100 * record["test_accuracy"]
