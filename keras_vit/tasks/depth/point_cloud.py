"""Points in space from depth maps, and their files."""

from __future__ import annotations

import os
import pathlib

import numpy as np

from keras_vit.writing import atomic_path


def point_cloud(
    depth: np.ndarray, camera_matrix: np.ndarray, image: np.ndarray | None = None, max_depth: float = np.inf
) -> tuple[np.ndarray, np.ndarray | None]:
    """The points that a camera without distortion sees at given depths.

    The point of the pixel in column u and row v at depth z is ((u − cx) · z / fx, (v − cy) · z / fy, z): x to
    the right, y down, z along the optical axis. (0, 0) is the center of the first pixel.

    Args:
        depth: Depths along the optical axis (height, width) or (height, width, 1), in any unit. Pixels with
            NaN, infinity, or a number that is not positive have no point.
        camera_matrix: (3, 3): [[fx, 0, cx], [0, fy, cy], [0, 0, 1]], in pixels of the depth map.
        image: The colors of the points, uint8 (height, width, 3), or None.
        max_depth: The largest depth that has a point, in the unit of the depths.

    Returns:
        (points, colors): float32 (points, 3) in the unit of the depths, in the order of rows; and uint8
        (points, 3), or None without an image.

    Raises:
        ValueError: for other shapes, or a camera matrix of another form.

    Example:
        >>> points, colors = point_cloud(np.full((2, 2), 3.0), [[1.5, 0, 0], [0, 1.5, 0], [0, 0, 1]])
        >>> points.tolist()
        [[0.0, 0.0, 3.0], [2.0, 0.0, 3.0], [0.0, 2.0, 3.0], [2.0, 2.0, 3.0]]

    Source: Hartley and Zisserman 2004, "Multiple View Geometry in Computer Vision", section 6.1.
    """
    depth, matrix = np.asarray(depth, "float64"), np.asarray(camera_matrix, "float64")
    depth = depth[..., 0] if depth.ndim == 3 and depth.shape[-1] == 1 else depth
    if depth.ndim != 2:
        raise ValueError(f"expected depth of shape (height, width) or (height, width, 1); got {depth.shape}")
    if image is not None and np.shape(image) != (*depth.shape, 3):
        raise ValueError(f"expected an image of shape {(*depth.shape, 3)}; got {np.shape(image)}")
    zeros = (0, 1), (1, 0), (2, 0), (2, 1)
    fits = matrix.shape == (3, 3) and np.isfinite(matrix).all() and not any(matrix[i] for i in zeros)
    if not (fits and matrix[0, 0] > 0 < matrix[1, 1] and matrix[2, 2] == 1):
        form = "[[fx, 0, cx], [0, fy, cy], [0, 0, 1]] with fx, fy > 0"
        raise ValueError(f"expected a camera_matrix {form}; got {matrix.tolist()}")
    rows, columns = np.nonzero((depth > 0) & (depth <= max_depth) & np.isfinite(depth))
    z = depth[rows, columns]
    (fx, _, cx), (_, fy, cy) = matrix[:2]
    points = np.stack([(columns - cx) * z / fx, (rows - cy) * z / fy, z], axis=-1)
    colors = None if image is None else np.asarray(image)[rows, columns]
    return points.astype("float32"), colors


def write_ply(
    path: str | os.PathLike[str],
    points: np.ndarray,
    colors: np.ndarray | None = None,
    overwrite: bool = False,
) -> pathlib.Path:
    """Write points as a PLY file, binary and little-endian, which programs for point clouds open.

    Args:
        path: File to write, ending in .ply.
        points: Floats (points, 3).
        colors: uint8 (points, 3), or None.
        overwrite: Whether the file may exist.

    Returns:
        pathlib.Path of the file.

    Raises:
        ValueError: for other shapes or types, another suffix, or a file that exists.
        OSError: if it cannot be written, as on a full disk. Nothing is left under its name then.

    Example:
        >>> file = write_ply("two.ply", np.zeros((2, 3)), np.full((2, 3), 255, "uint8"))
        >>> file.read_bytes().split(b"\\n")[2]
        b'element vertex 2'

    Source: Turk 1994, "The PLY Polygon File Format".
    """
    points = np.asarray(points)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"expected points of shape (points, 3); got {points.shape}")
    if colors is not None and (np.shape(colors) != points.shape or np.asarray(colors).dtype != np.uint8):
        got = f"{np.asarray(colors).dtype} of shape {np.shape(colors)}"
        raise ValueError(f"expected uint8 colors of shape {points.shape}; got {got}")
    path = pathlib.Path(path).expanduser()
    if path.suffix != ".ply":
        raise ValueError(f"the name of a point cloud must end in .ply; got {os.fspath(path)!r}")
    fields = [(name, "<f4", "float") for name in "xyz"]
    if colors is not None:
        fields += [(name, "u1", "uchar") for name in ("red", "green", "blue")]
    table = np.empty(len(points), [field[:2] for field in fields])
    columns = points.T if colors is None else [*points.T, *np.asarray(colors).T]
    for (name, *_), column in zip(fields, columns):
        table[name] = column
    properties = "".join(f"property {kind} {name}\n" for name, _, kind in fields)
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(points)}\n{properties}end_header\n"
    with atomic_path(path, overwrite=overwrite) as temporary:
        temporary.write_bytes(header.encode() + table.tobytes())
    return path
