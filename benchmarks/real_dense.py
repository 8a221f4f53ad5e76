"""Dense tasks from the trained model and from random weights; a part of real.py."""

import json
import pathlib
import sys
import tempfile

from distillation import interval
from harness import HERE
from PIL import Image

sys.path.append(str(HERE.parent / "examples"))

SEEDS = 0, 1, 2
BATCH = 8
TITLE = "Segmentation, detection and depth"
TEXT = f"""\
S/14 with a head learns tiles of the left half of a photograph in steps of {BATCH} tiles, and is measured on
tiles of the right half: the photograph of coins (`examples/coins.py`, 126 pixels) and
Middlebury's motorcycle (`examples/motorcycle.py`, 154 pixels). The masks of coins are the regions that gave
the boxes. Trained weights learn at the recipe's rate with layer decay, and random weights without it at a
rate of 1e-3; `segment_linear` freezes both. The weights that `detect` averages have a decay of 0.9."""
COLUMNS = "recipe", "steps", "measure", "trained weights", "of each seed", "random weights", "of each seed"
RANDOM = {"layer_decay": None, "base_lr": 1e-3}
TASKS = {  # recipe → (data set, pixels, measures, steps, other changes)
    "segment_linear": ("masks", 126, ("mean_iou",), 60, {}),
    "detect": ("boxes", 126, ("ap", "ap50"), 150, {"ema": 0.9}),
    "depth": ("depths", 154, ("abs_rel", "a1"), 60, {}),
}


def rows():
    """A row for each measure of TASKS."""
    with tempfile.TemporaryDirectory() as folder:
        return measured(TASKS, write_data(pathlib.Path(folder)))


def measured(tasks, data):
    """A row for each measure of tasks as in TASKS; `data`: the folders by the names of data sets."""
    lines = []
    for recipe, (name, side, measures, steps, changes) in tasks.items():
        records = {}
        for weights, more in (("trained", {}), ("random", RANDOM)):
            sizes = {"total_steps": steps, "warmup_steps": steps // 10, **changes, **more}
            records[weights] = [_run(recipe, data[name], weights, side, sizes, seed) for seed in SEEDS]
        for measure in measures:
            cells = (_texts([record[f"test_{measure}"] for record in records[w]]) for w in records)
            texts = (text for pair in cells for text in pair)
            lines.append((f"`{recipe}`", steps, f"`{measure}`", *texts))
    return lines


def write_data(folder):
    """Write the tiles; their folders by the kind of label."""
    import coins
    import motorcycle
    import skimage.data

    coins.main(folder / "boxes")
    motorcycle.main(folder / "depths")
    is_coin = coins.coins(skimage.data.coins()) > 0
    for split in coins.HALVES:
        for kind in ("images", "masks"):
            (folder / "masks" / split / kind).mkdir(parents=True)
        content = json.loads((folder / "boxes" / split / "_annotations.coco.json").read_text())
        for name in (image["file_name"] for image in content["images"]):
            top, left = map(int, name.removesuffix(".png").split("_"))
            tile = is_coin[top : top + coins.TILE, left : left + coins.TILE].astype("uint8")
            Image.fromarray(tile).save(folder / "masks" / split / "masks" / name)
            (folder / "masks" / split / "images" / name).symlink_to(folder / "boxes" / split / name)
    (folder / "masks" / "classes.txt").write_text("background\ncoin\n")
    return {name: folder / name for name in ("masks", "boxes", "depths")}


def _run(recipe, data, weights, side, changes, seed):
    """The record of a run."""
    from made import trained

    from keras_vit.training import RunConfig, find_recipe, train

    steps = changes["total_steps"]
    every = {"batch_size": BATCH, "eval_every": steps, "checkpoint_every": steps}
    recipe = find_recipe(recipe).with_changes(**every, **changes, seed=seed)
    start = {"weights": trained.weights_folder()} if weights == "trained" else {"model": "S/14"}
    config = RunConfig(f"folder:{data}", recipe, image_size=(side, side), **start)
    with tempfile.TemporaryDirectory() as folder:
        _, record = train(config, pathlib.Path(folder, "run"), 0)
    scores = {name: value for name, value in record.items() if name.startswith("test_")}
    print(recipe.task, weights, seed, scores, flush=True)
    return record


def _texts(numbers):
    mean, half = interval(numbers)
    return f"{mean:.3f} ± {half:.3f}", ", ".join(f"{number:.3f}" for number in numbers)
