"""Middlebury's motorcycle as a small data set of keypoints, to check that a keypoint estimator learns.

    pip install scikit-image
    python examples/landmarks.py landmarks
    keras-vit finetune --recipe keypoints --dataset folder:landmarks …

scikit-image includes the two photographs of this stereo pair at a quarter of their size, with the disparity
of the left one's pixels as a structured light scanner measured it. `LANDMARKS` are places on the left
photograph; the disparity says where the right one shows them. Training images are affine maps of the left
photograph, test images those of the right one: another camera took it from 19 cm further right.

Source: Scharstein et al. 2014, "High-resolution stereo datasets with subpixel-accurate ground truth".
"""

import argparse
import json
import pathlib

import numpy as np
from PIL import Image
from skimage import data, transform

LANDMARKS = {  # x, y: the center of a pixel
    **{"tail_light": (103, 209), "rear_signal": (155, 233), "exhaust_tip": (177, 312)},
    **{"side_badge": (310, 286), "engine_cover": (368, 336), "stand": (330, 432)},
    **{"tank_badge": (424, 201), "grip": (360, 167), "front_signal": (474, 187)},
    **{"headlamp": (541, 159), "far_signal": (572, 130), "front_hub": (583, 374)},
}
SKELETON = (
    *(("tail_light", "rear_signal"), ("rear_signal", "exhaust_tip"), ("exhaust_tip", "engine_cover")),
    *(("engine_cover", "side_badge"), ("side_badge", "tank_badge"), ("tank_badge", "grip")),
    *(("tank_badge", "front_signal"), ("front_signal", "headlamp"), ("headlamp", "far_signal")),
    *(("front_signal", "front_hub"), ("engine_cover", "stand")),
)
SIDE = 160  # pixels of an image
IMAGES = {"train": 400, "test": 100}
SCALES, DEGREES, SHEAR = (0.2, 0.4), 25, 0.2  # pixels by pixels of the photograph
MARGIN = 0.1  # of the box around the landmarks, on each side


def landmarks(disparity):
    """Return the landmarks of the left and of the right photograph, (landmarks, 2) each."""
    left = np.array([*LANDMARKS.values()], "float64")
    windows = [disparity[y - 2 : y + 3, x - 2 : x + 3] for x, y in LANDMARKS.values()]
    shifts = [np.median(window[np.isfinite(window)]) for window in windows]
    return left, left - np.stack([shifts, np.zeros(len(shifts))], 1)


def random_map(rng, points):
    """Return an affine map that moves a place near the landmarks' center to the middle of an image."""
    angle, shear = np.deg2rad(rng.uniform(-DEGREES, DEGREES)), rng.uniform(-SHEAR, SHEAR)
    linear = transform.AffineTransform(scale=rng.uniform(*SCALES), rotation=angle, shear=shear)
    center = (points.min(0) + points.max(0)) / 2 + rng.normal(scale=40, size=2)
    offset = (SIDE - 1) / 2 - linear(center)[0]
    return linear + transform.AffineTransform(translation=offset)


def annotation(points):
    """Return the box and the keypoints of an image, as COCO has them."""
    is_inside = ((points >= 0) & (points <= SIDE - 1)).all(1)
    seen = points[is_inside]
    margin = MARGIN * (seen.max(0) - seen.min(0))
    corner = np.clip(seen.min(0) - margin, 0, SIDE)
    sides = np.clip(seen.max(0) + margin, 0, SIDE) - corner
    triples = np.concatenate([points, np.full((len(points), 1), 2)], 1) * is_inside[:, None]
    return {"bbox": [*corner, *sides], "area": sides.prod(), "keypoints": [*triples.flat]}


def main(folder):
    *photographs, disparity = data.stereo_motorcycle()
    names = [*LANDMARKS]
    lines = [[names.index(start) + 1, names.index(end) + 1] for start, end in SKELETON]
    category = {"id": 1, "name": "motorcycle", "keypoints": names, "skeleton": lines}
    for seed, (split, photograph, points) in enumerate(zip(IMAGES, photographs, landmarks(disparity))):
        root = pathlib.Path(folder) / split
        root.mkdir(parents=True)
        rng, images, annotations = np.random.default_rng(seed), [], []
        for number in range(IMAGES[split]):
            moved = random_map(rng, points)
            pixels = transform.warp(photograph, moved.inverse, output_shape=(SIDE, SIDE), order=1)
            name = f"{number:03}.png"
            Image.fromarray((255 * pixels).round().astype("uint8")).save(root / name)
            images.append({"id": number, "file_name": name, "width": SIDE, "height": SIDE})
            about = {"id": number, "image_id": number, "category_id": 1, "iscrowd": 0}
            annotations.append(about | annotation(moved(points)))
        content = {"images": images, "annotations": annotations, "categories": [category]}
        (root / "_annotations.coco.json").write_text(json.dumps(content))
        print(f"{split}: {len(images)} images")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    main(parser.parse_args().folder)
