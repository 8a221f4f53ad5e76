"""Keypoints from the trained model and from random weights; a part of real.py."""

import pathlib
import tempfile

import real_dense
from real_dense import COLUMNS as COLUMNS

TITLE = "Keypoints"
TEXT = f"""\
S/14 with the classic head learns twelve landmarks of a motorcycle (`examples/landmarks.py`) from random
affine maps of the left photograph of Middlebury's stereo pair, in steps of {real_dense.BATCH} images of 126
pixels, and is measured on affine maps of the right one. PCK is the fraction of the landmarks within 5 or
10 % of the longer side of the box. Trained weights learn at the recipe's rate with layer decay, and random
weights without it at a rate of 1e-3."""
STEPS = 60
MEASURES = "pck05", "pck10", "ap"
TASKS = {"keypoints": ("landmarks", 126, MEASURES, STEPS, {"stochastic_depth_rate": 0.0})}


def rows():
    """A row for each of MEASURES."""
    import landmarks

    with tempfile.TemporaryDirectory() as folder:
        landmarks.main(folder)
        return real_dense.measured(TASKS, {"landmarks": pathlib.Path(folder)})
