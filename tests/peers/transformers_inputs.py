"""Images for the processors and models of transformers."""

import numpy as np
import torch
from PIL import Image


def smooth(rows, columns, height, width, seed=0):
    """An enlarged random image, whose pixels stay within a byte after another bicubic resize."""
    small = np.random.default_rng(seed).integers(64, 192, (rows, columns, 3), "uint8")
    return np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def naflex_inputs(images, patch=8, padding=0):
    """What transformers' SigLIP 2 for any size calls with images, and padding patches after each."""
    batch, grid = len(images), (images.shape[1] // patch, images.shape[2] // patch)
    patches = images.reshape(batch, grid[0], patch, grid[1], patch, -1).swapaxes(2, 3)
    patches = np.pad(patches.reshape(batch, grid[0] * grid[1], -1), ((0, 0), (0, padding), (0, 0)))
    return {
        "pixel_values": torch.tensor(patches),
        "pixel_attention_mask": torch.tensor([[1] * grid[0] * grid[1] + [0] * padding] * batch),
        "spatial_shapes": torch.tensor([grid] * batch),
    }
