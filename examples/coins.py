"""Coins on scikit-image's photograph as a small data set of boxes, to check that a detector learns.

    pip install scikit-image
    python examples/coins.py coins
    keras-vit finetune --dataset folder:coins …

Training images are tiles of the left half of the photograph, test images are tiles of the right one: no pixel
is in both. The boxes are those of regions that a watershed finds, as scikit-image's guide does ("Comparing
edge-based and region-based segmentation"), not of a person. A coin of which a tile shows less than half is a
crowd, which is neither trained on nor scored.
"""

import argparse
import json
import pathlib

import numpy as np
from PIL import Image
from scipy import ndimage
from skimage import data, filters, measure, segmentation

TILE = 128  # pixels
DARK, BRIGHT = 30, 150  # certainly no coin, and certainly one
SMALLEST = 500  # pixels of a coin
# The left side of each half, the distance of its tiles, and its folder.
HALVES = {"train": (0, 16), "test": (192, 32)}
VISIBLE = 0.5


def coins(photograph):
    """Return the number of each pixel's coin, from 1; 0 for the background."""
    markers = np.where(photograph > BRIGHT, 2, np.where(photograph < DARK, 1, 0))
    is_coin = segmentation.watershed(filters.sobel(photograph), markers) == 2
    regions, count = ndimage.label(ndimage.binary_fill_holes(is_coin))
    sizes = np.bincount(regions.ravel(), minlength=count + 1)
    return np.where(sizes[regions] >= SMALLEST, regions, 0)


def boxes_of(regions, window):
    """Return (left, top, width, height, area, is_crowd) of the coins in a window, in its pixels."""
    whole = np.bincount(regions.ravel())
    boxes = []
    for region in measure.regionprops(regions[window]):
        top, left, bottom, right = region.bbox
        is_crowd = region.area < VISIBLE * whole[region.label]
        boxes.append((left, top, right - left, bottom - top, int(region.area), int(is_crowd)))
    return boxes


def main(folder):
    photograph = data.coins()
    regions, half = coins(photograph), photograph.shape[1] // 2
    for split, (start, step) in HALVES.items():
        root = pathlib.Path(folder, split)
        root.mkdir(parents=True)
        images, annotations = [], []
        for top in range(0, photograph.shape[0] - TILE + 1, step):
            for left in range(start, start + half - TILE + 1, step):
                window = slice(top, top + TILE), slice(left, left + TILE)
                name = f"{top:03}_{left:03}.png"
                Image.fromarray(photograph[window]).convert("RGB").save(root / name)
                images.append({"id": len(images), "file_name": name, "width": TILE, "height": TILE})
                for *bbox, area, is_crowd in boxes_of(regions, window):
                    own = {"id": len(annotations), "image_id": images[-1]["id"], "category_id": 1}
                    annotations.append({**own, "bbox": bbox, "area": area, "iscrowd": is_crowd})
        categories = [{"id": 1, "name": "coin"}]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / "_annotations.coco.json").write_text(json.dumps(content))
        print(f"{split}: {len(images)} images with {len(annotations)} boxes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    main(parser.parse_args().folder)
