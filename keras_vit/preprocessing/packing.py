"""Images of any aspect ratio as a fixed number of patches, as models with `max_num_patches` read them."""

import math

import numpy as np

EPSILON = 1e-5  # of the search for the largest scale
LARGEST_SCALE = 100.0


def packed_size(height, width, patch_size, max_num_patches):
    """(height, width) to which an image is resized: at the largest scale whose patches are few enough.

    Each side is rounded up to a multiple of the patch's, so that the aspect ratio changes a little.

    Args:
        height, width: The image's own.
        patch_size: (height, width) of a patch.
        max_num_patches: The most patches of an image.

    Example:
        >>> packed_size(480, 640, (16, 16), 256), packed_size(10, 9000, (16, 16), 256)
        ((224, 288), (16, 4096))

    Source: `_get_image_size_for_seq` of `big_vision/pp/proj/image_text/ops_naflex.py`; transformers'
    `get_image_size_for_max_num_patches` computes the same in float64, as this.
    """

    def size_at(scale):
        # The order of the operations is theirs: another one rounds up at other scales.
        sides = zip((height, width), patch_size)
        return tuple(max(math.ceil(side * scale / patch), 1) * patch for side, patch in sides)

    low, high = EPSILON / 10, LARGEST_SCALE
    while high - low >= EPSILON:
        scale = (low + high) / 2
        rows, columns = (side // patch for side, patch in zip(size_at(scale), patch_size))
        low, high = (scale, high) if rows * columns <= max_num_patches else (low, scale)
    return size_at(low)


def packed(images, patch_size, max_num_patches, channels):
    """Pack images whose sides the patch divides.

    Args:
        images: List of float32 arrays (height, width, channels), each of at most `max_num_patches` patches.
        patch_size: (height, width) of a patch.
        max_num_patches: The number of patches of each image with padding, which is 0.
        channels: Of an image.

    Returns:
        dict of `patches`, float32 (images, max_num_patches, patch height · patch width · channels), those
        of an image row by row, then padding; and `grids`, int32 (images, 2), their rows and columns.

    Example:
        >>> batch = packed([np.ones((8, 24, 3)), np.ones((16, 16, 3))], (8, 8), 5, channels=3)
        >>> batch["patches"].shape, batch["grids"].tolist(), batch["patches"][..., 0].sum(axis=1).tolist()
        ((2, 5, 192), [[1, 3], [2, 2]], [3.0, 4.0])
    """
    height, width = patch_size
    patches = np.zeros((len(images), max_num_patches, height * width * channels), "float32")
    grids = np.zeros((len(images), 2), "int32")
    for image, row, grid in zip(images, patches, grids):
        rows, columns = grid[:] = image.shape[0] // height, image.shape[1] // width
        cells = image.reshape(rows, height, columns, width, channels).swapaxes(1, 2)
        row[: rows * columns] = cells.reshape(rows * columns, -1)
    return {"patches": patches, "grids": grids}
