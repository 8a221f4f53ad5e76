"""Folders of small images, as a user's data set would be."""

import numpy as np
from PIL import Image

BROKEN = b"\x89PNG\r\n\x1a\n and then something else"


def picture(label, number, size=(32, 32)):
    """Noise, another for each number and brighter for each label: (height, width, 3), uint8."""
    rng = np.random.default_rng([label, number])
    return rng.integers(0, 100, (*size, 3), "uint8") + np.uint8(70 * label)


def write_classes(root, names=("cat", "dog"), count=10, suffix=".png"):
    """Write `count` images into a folder for each name; the folder of these folders."""
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(picture(label, number)).save(root / name / f"{number:02d}{suffix}")
    return root


def write_broken(path):
    """Write a file that says it is a PNG and is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(BROKEN)
    return path


def write_table(root, *lines, images=()):
    """Write a folder with `labels.csv` of these lines and images of these names; the folder."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    for number, name in enumerate(images):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(0, number)).save(root / name)
    return root
