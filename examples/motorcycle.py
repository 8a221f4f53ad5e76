"""Middlebury's motorcycle as a small data set of depth, to check that a depth estimator learns.

    pip install scikit-image
    python examples/motorcycle.py motorcycle
    keras-vit finetune --recipe depth --dataset folder:motorcycle …

scikit-image includes the left image of this stereo pair at a quarter of its size, with the disparity of its
pixels as a structured light scanner measured it. Training images are tiles of the left half, test images are
tiles of the right one: no pixel is in both. Depths are stored in millimeters, as 16-bit PNG files; 0 is a
pixel without a measurement.

Source: Scharstein et al. 2014, "High-resolution stereo datasets with subpixel-accurate ground truth"; the
calibration is that of `skimage.data.stereo_motorcycle`.
"""

import argparse
import json
import pathlib

import numpy as np
from PIL import Image
from skimage import data

FOCAL_LENGTH, BASELINE, OFFSET = 994.978, 193.001, 31.086  # pixels, millimeters, pixels
TILE = 160  # pixels
# The left side of the tiles of each part, and the distance between them.
PARTS = {"train": (0, 12), "test": (371, 34)}


def depths(disparity):
    """Return the depth of each pixel in millimeters, uint16; 0 where no disparity was measured."""
    measured = np.isfinite(disparity)
    return np.where(
        measured, BASELINE * FOCAL_LENGTH / (np.where(measured, disparity, 0) + OFFSET), 0
    ).astype("uint16")


def main(folder):
    photograph, _, disparity = data.stereo_motorcycle()
    distances, half = depths(disparity), photograph.shape[1] // 2
    root = pathlib.Path(folder)
    for split, (start, step) in PARTS.items():
        for name in ("images", "depths"):
            (root / split / name).mkdir(parents=True)
        count = 0
        for top in range(0, photograph.shape[0] - TILE + 1, step):
            for left in range(start, start + half - TILE + 1, step):
                window = slice(top, top + TILE), slice(left, left + TILE)
                for name, pixels in (("images", photograph), ("depths", distances)):
                    Image.fromarray(pixels[window]).save(root / split / name / f"{top:03}_{left:03}.png")
                count += 1
        print(f"{split}: {count} images")
    (root / "depth.json").write_text(json.dumps({"quantity": "depth", "scale": 1000, "unit": "m"}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    main(parser.parse_args().folder)
