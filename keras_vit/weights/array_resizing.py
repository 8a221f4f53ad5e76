"""Resize position tables, patch kernels and input channels.

Arrays of 16 bits become float32, so that a model in float32 gets no rounded values.
"""

import numpy as np

from keras_vit.layers import resize_position_grid
from keras_vit.lazy import LazyModule

flexible_patches = LazyModule("keras_vit.layers.flexible_patch_embedding")  # patches of another size


def resized_positions(table, old_grid, new_grid, interpolation="bilinear"):
    """Resize a position table to another grid; the rows of prefix tokens do not change.

    Args:
        table: (1, prefix + old rows · old columns, channels).
        old_grid, new_grid: (rows, columns).
        interpolation: As in `resize_position_grid`.

    Returns:
        Array (1, prefix + new rows · new columns, channels) of the table's type, or float32.

    Raises:
        ValueError: for "truncate" to a larger grid.

    Example:
        >>> resized_positions(np.zeros((1, 1 + 4, 8)), (2, 2), (3, 5)).shape
        (1, 16, 8)
    """
    if tuple(old_grid) == tuple(new_grid):
        return table
    table = _widened(table)
    size = old_grid[0] * old_grid[1]
    prefix, grid = table[:, :-size], table[0, -size:].reshape(*old_grid, -1)
    grid = resize_position_grid(grid, new_grid, interpolation)
    return np.concatenate([prefix, grid.reshape(1, -1, table.shape[-1])], axis=1)


def resized_relative_positions(table, old_grid, new_grid, interpolation="bilinear"):
    """Resize a table of relative positions to another grid; the rows of a class token do not change.

    Args:
        table: (offsets, heads), as in `RelativePositionBias`.
        old_grid, new_grid: (rows, columns) of the patches.
        interpolation: "bilinear_half_pixel" resizes the grid of offsets, as transformers does. With any other
            the offsets are interpolated linearly between points whose distances grow geometrically from the
            center, so that small offsets keep their values, as timm does. BEiT's authors interpolate by cubic
            splines between these points.

    Returns:
        Array (new offsets, heads) of the table's type, or float32.

    Example:
        >>> resized_relative_positions(np.zeros((9 + 3, 2)), (2, 2), (3, 4)).shape
        (38, 2)

    Source: `run_class_finetuning.py` of Bao et al. 2021 (BEiT), as timm's `resize_rel_pos_bias_table` has it.
    """
    if tuple(old_grid) == tuple(new_grid):
        return table
    table = _widened(table)
    sides = [2 * side - 1 for side in old_grid]
    offsets, prefix = table[: sides[0] * sides[1]], table[sides[0] * sides[1] :]
    offsets = offsets.reshape(*sides, -1)
    if interpolation == "bilinear_half_pixel":
        resized = resize_position_grid(offsets, [2 * side - 1 for side in new_grid], interpolation)
    else:
        by_row, by_column = (_geometric(*pair) for pair in zip(old_grid, new_grid))
        resized = np.einsum("ij,jkh,lk->ilh", by_row, offsets.astype("float64"), by_column)
    return np.concatenate([resized.reshape(-1, table.shape[-1]).astype(table.dtype), prefix])


def _geometric(old, new):
    """(2 new - 1, 2 old - 1) weights of linear interpolation between geometrically spaced points."""
    low, high = 1.01, 1.5
    while high - low > 1e-6:  # The old points shall reach as far as the new ones.
        ratio = (low + high) / 2
        if (1 - ratio ** (old - 1)) / (1 - ratio) > new - 1:
            high = ratio
        else:
            low = ratio
    distances = np.cumsum(ratio ** np.arange(old - 1))
    points = np.concatenate([-distances[::-1], [0], distances])
    return np.stack([np.interp(np.arange(1 - new, new), points, row) for row in np.eye(len(points))], axis=1)


def resized_patch_kernel(kernel, patch_size):
    """Resize a patch kernel, so that a resized patch has the same embedding.

    With the bilinear resize of a patch as the matrix B, the new kernel is the least-squares solution
    of (B x) · new = x · old for all patches x: new = pinv(Bᵀ) · old. It is exact for larger patches.
    Resizes do not compose: start from the stored kernel.

    Args:
        kernel: (height, width, channels, hidden size).
        patch_size: (height, width) of the new patch.

    Returns:
        Array (new height, new width, channels, hidden size) of the kernel's type, or float32.

    Example:
        >>> resized_patch_kernel(np.ones((8, 8, 3, 4), "float32"), (16, 16)).shape
        (16, 16, 3, 4)

    Source: Beyer et al. 2023 (FlexiViT, arXiv 2212.08013), section 3.4;
    `big_vision/models/proj/flexi/vit.py`.
    """
    # B is separable, and so is its pseudo-inverse.
    by_row, by_column = (
        flexible_patches.patch_resize_weights(*sides) for sides in zip(kernel.shape[:2], patch_size)
    )
    resized = np.einsum("ij,kl,jlcd->ikcd", by_row, by_column, kernel.astype("float64"), optimize=True)
    return resized.astype(_widened(kernel).dtype)


def adapted_channels(kernel, channels):
    """Adapt the first kernel to another number of image channels.

    For one channel the kernel is summed, so that a gray image has the output of its copy in all channels.
    More channels repeat the stored ones, scaled by the ratio of the counts.

    Args:
        kernel: (height, width, stored channels, filters).
        channels: Channels of the new images.

    Returns:
        Array (height, width, channels, filters) of the kernel's type, or float32.

    Example:
        >>> adapted_channels(np.ones((2, 2, 3, 5)), 1)[0, 0].ravel().tolist()
        [3.0, 3.0, 3.0, 3.0, 3.0]

    Source: timm's `adapt_input_conv`.
    """
    stored = kernel.shape[2]
    if channels == stored:
        return kernel
    kernel = _widened(kernel)
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    source = np.arange(channels) % stored
    return (kernel[:, :, source] * (stored / channels)).astype(kernel.dtype)


def _widened(array):
    return array.astype(np.result_type(array.dtype, "float32"))
