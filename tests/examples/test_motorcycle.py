import numpy as np
import pytest
from made.scripts import script

from keras_vit.data import load_dataset

data = pytest.importorskip("skimage.data", reason="scikit-image is not installed; see requirements-peers.txt")
FOCAL_LENGTH, BASELINE, OFFSET = 994.978, 193.001, 31.086  # of its calibration: pixels, millimeters, pixels


def test_tiles_have_the_depths_of_their_pixels_and_the_halves_are_apart(tmp_path):
    root = tmp_path / "motorcycle"
    script("examples/motorcycle.py").main(root)
    dataset = load_dataset(f"folder:{root}", task="depth")
    paths = {split: [*(root / split / "images").iterdir()] for split in ("train", "test")}
    assert {split: len(files) for split, files in paths.items()} == {"train": 522, "test": 77}
    lefts = {split: {int(path.stem.split("_")[1]) for path in files} for split, files in paths.items()}
    assert max(lefts["train"]) + 160 <= min(lefts["test"])
    _, _, disparity = data.stereo_motorcycle()
    disparity = disparity[:160, 371:531]
    expected = BASELINE * FOCAL_LENGTH / (disparity + OFFSET) / 1000  # meters, 0 for an infinite disparity
    _, label = dataset.split("test")[0]
    found = np.nan_to_num(label[..., 0])
    np.testing.assert_array_equal(found > 0, np.isfinite(disparity))
    np.testing.assert_allclose(found, expected, atol=0.001)
