import json

import numpy as np
import pytest
from made.scripts import script
from PIL import Image

from keras_vit.data import load_dataset
from keras_vit.training import RunConfig, find_recipe
from keras_vit.training.run import train

pytest.importorskip("skimage", reason="scikit-image is not installed; see requirements-peers.txt")
MODEL = {
    **{"image_size": 128, "patch_size": 16, "hidden_size": 96, "num_layers": 4, "mlp_dim": 192},
    **{"num_heads": 3, "rotary": "axial", "pooling": "gap"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("example") / "coins"
    script("examples/coins.py").main(root)
    return root


def test_the_halves_are_apart_and_their_boxes_are_around_bright_pixels(folder):
    data = load_dataset(f"folder:{folder}", task="detection")
    assert data.class_names == ("coin",) and {*data.splits} == {"train", "validation", "test"}
    tiles = {split: [*folder.glob(f"{split}/*.png")] for split in ("train", "test")}
    assert {split: len(of) for split, of in tiles.items()} == {"train": 55, "test": 18}
    lefts = {split: {int(path.stem.split("_")[1]) for path in of} for split, of in tiles.items()}
    assert max(lefts["train"]) + 128 <= 192 <= min(lefts["test"])
    content = json.loads((folder / "test" / "_annotations.coco.json").read_text())
    assert {annotation["iscrowd"] for annotation in content["annotations"]} == {0, 1}
    for annotation in content["annotations"]:
        name = content["images"][annotation["image_id"]]["file_name"]
        left, top, width, height = annotation["bbox"]
        pixels = np.asarray(Image.open(folder / "test" / name).convert("L"))
        assert annotation["iscrowd"] or pixels[top : top + height, left : left + width].mean() > pixels.mean()


@pytest.mark.slow
def test_a_detector_finds_coins_of_the_other_half(folder, tmp_path):
    plain = {"layer_decay": 1.0, "stochastic_depth_rate": 0.0, "ema": 0.99, "eval_every": 250}
    recipe = find_recipe("detect").with_changes(total_steps=500, warmup_steps=100, base_lr=1e-3, **plain)
    config = RunConfig(f"folder:{folder}", recipe, MODEL, image_size=(128, 128))
    _, record = train(config, tmp_path / "run", verbose=0)
    assert record["test_ap50"] >= 0.7
