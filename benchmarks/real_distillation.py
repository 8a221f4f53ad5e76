"""A small student taught by the trained model on crops of photographs; a part of real.py."""

import pathlib
import tempfile

import numpy as np
from distillation import interval

SEEDS = 0, 1, 2
SIDE, TRAIN, TEST = 112, 40, 20  # pixels, and crops of each photograph
STEPS, BATCH, DTYPE = 200, 32, "mixed_bfloat16"
TITLE = "Distillation"
TEXT = f"""\
Ti/14 is taught the features of S/14 for {STEPS} steps of {BATCH} crops, without labels, by the recipe
`distill_features` in `{DTYPE}`. A logistic regression on the class token then learns {TRAIN} crops of
each of the 16 photographs, and is measured on {TEST} of their other halves, at {SIDE} pixels. Each seed
has its own crops. Shared neighbors are the fraction of the 10 most similar test crops of a crop that are the
same by the teacher and by the model. The cosine is that of the student's and the teacher's class tokens of
crops that are held out from training. Colors and textures tell these photographs apart, so the accuracy and
the neighbors of random weights are as good: only the cosine shows what the student learned."""
COLUMNS = "model", "weights", "accuracy, %", "of each seed", "shared neighbors, %", "cosine"
MODELS = "S/14, the teacher", "Ti/14, taught", "Ti/14, random weights"


def rows():
    """A row for each of MODELS."""
    found = {name: [] for name in MODELS}
    for seed in SEEDS:
        for name, numbers in zip(MODELS, _measured(seed)):
            print(f"{name}, seed {seed}: {numbers}", flush=True)
            found[name].append(numbers)
    lines = []
    for name, of_seeds in found.items():
        weights, accuracies, shared, cosines = zip(*of_seeds)
        mean, half = interval(accuracies)
        seeds = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies)
        cosine = "" if None in cosines else f"{np.mean(cosines):.3f}"
        row = name, f"{weights[0]:,}", f"{mean:.1f} ± {half:.1f}", seeds, f"{np.mean(shared):.0f}", cosine
        lines.append(row)
    return lines


def _measured(seed):
    """The weights, the accuracy and the shared neighbors in percent, and the cosine of each of MODELS."""
    import keras
    from made import trained

    import keras_vit
    from keras_vit.evaluation.nearest import neighbor_difference

    keras.utils.set_random_seed(seed)
    train, test = (
        trained.crops(part, count, SIDE, seed) for part, count in (("train", TRAIN), ("test", TEST))
    )
    teacher = keras_vit.from_pretrained(trained.weights_folder(), image_size=SIDE)
    random = keras_vit.VisionTransformer.from_variant("Ti/14", image_size=SIDE, num_classes=None)
    with tempfile.TemporaryDirectory() as folder:
        taught, cosine = _taught(pathlib.Path(folder), train, test, seed)
    expected = None
    for model, its_cosine in ((teacher, 1.0), (taught, cosine), (random, None)):
        vectors = [features(model, images) for images, _ in (train, test)]
        expected = vectors[1] if expected is None else expected
        shared = 1 - float(neighbor_difference(expected, vectors[1]).mean())
        accuracy = probe_accuracy(vectors, (train[1], test[1]))
        yield model.count_params(), 100 * accuracy, 100 * shared, its_cosine


def _taught(folder, train, test, seed):
    """A student that learned the features of the trained model, and its cosine to that on held-out crops."""
    from made import trained

    import keras_vit
    from keras_vit.training import RunConfig, find_recipe
    from keras_vit.training import train as run

    crops = trained.write_crops(folder / "crops", train=train, test=test)
    options = {"method": "features", "teacher_size": (SIDE, SIDE), "teacher_dtype": DTYPE}
    recipe = find_recipe("distill_features").with_changes(
        **{"total_steps": STEPS, "warmup_steps": STEPS // 10, "eval_every": STEPS, "checkpoint_every": STEPS},
        **{
            "batch_size": BATCH,
            "base_lr": 1e-3,
            "mixup": 0.0,
            "crop_area": None,
            "flip": False,
            "dtype": DTYPE,
        },
        seed=seed,
        distillation=options,
    )
    config = RunConfig(
        **{
            "dataset": f"folder:{crops}",
            "recipe": recipe,
            "model": "Ti/14",
            "image_size": (SIDE, SIDE),
        },
        **{"objective": "distill", "teachers": (trained.weights_folder(),)},
    )
    workdir, _ = run(config, folder / "run")
    return keras_vit.from_pretrained(workdir.path), workdir.metrics()[-1]["val_image_cosine"]


def features(model, images):
    """The representation of images: float32 (images, width)."""
    return model.feature_extractor(["representation"]).predict(model.preprocessing(images), verbose=0)[
        "representation"
    ]


def probe_accuracy(vectors, labels):
    """The accuracy on the second of two parts of a logistic regression that learned the first one."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=2000).fit(vectors[0], labels[0]).score(vectors[1], labels[1])
