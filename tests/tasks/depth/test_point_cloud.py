"""Points of depth maps, and PLY files."""

import numpy as np
import pytest
from made.tables import by_table

from keras_vit.tasks.depth.point_cloud import point_cloud, write_ply

CAMERA = [[50.0, 0, 3.5], [0, 40.0, 2.0], [0, 0, 1]]


def test_points_are_seen_at_their_pixels(rng):
    depth = rng.uniform(1, 9, (5, 8))
    points, _ = point_cloud(depth, CAMERA)
    seen = points @ np.transpose(CAMERA)
    columns, rows = (seen[:, :2] / seen[:, 2:]).T
    expected = np.stack(np.meshgrid(range(8), range(5)))
    np.testing.assert_allclose([columns, rows], expected.reshape(2, -1), atol=1e-5)
    np.testing.assert_allclose(points[:, 2], depth.ravel(), rtol=1e-6)


def test_pixels_without_a_depth_have_no_point(rng):
    depth = np.float32([[1.0, np.nan, np.inf], [0.0, -2.0, 8.0]])[..., np.newaxis]
    image = rng.integers(0, 256, (2, 3, 3), "uint8")
    points, colors = point_cloud(depth, CAMERA, image)
    assert points[:, 2].tolist() == [1.0, 8.0]
    np.testing.assert_array_equal(colors, [image[0, 0], image[1, 2]])
    assert point_cloud(depth, CAMERA, max_depth=5)[0][:, 2].tolist() == [1.0]


def read_ply(path):
    header, _, rest = path.read_bytes().partition(b"end_header\n")
    words = [line.split() for line in header.decode().splitlines()]
    assert words[:2] == [["ply"], ["format", "binary_little_endian", "1.0"]]
    types = {"float": "<f4", "uchar": "u1"}
    table = np.frombuffer(rest, [(name, types[kind]) for what, kind, name in words[3:] if what == "property"])
    assert words[2] == ["element", "vertex", str(len(table))]
    return table


@pytest.mark.parametrize("has_colors", [False, True])
def test_a_file_holds_the_points(has_colors, rng, tmp_path):
    points = rng.normal(size=(7, 3)).astype("float32")
    colors = rng.integers(0, 256, (7, 3), "uint8") if has_colors else None
    table = read_ply(write_ply(tmp_path / "a.ply", points, colors))
    np.testing.assert_array_equal(np.stack([table[name] for name in "xyz"], -1), points)
    if has_colors:
        np.testing.assert_array_equal(np.stack([table[n] for n in ("red", "green", "blue")], -1), colors)
    with pytest.raises(ValueError, match="exists"):
        write_ply(tmp_path / "a.ply", points)


@by_table(
    "call, message",
    [
        (lambda: point_cloud(np.ones((2, 3, 2)), CAMERA), r"\(height, width, 1\); got \(2, 3, 2\)"),
        (lambda: point_cloud(np.ones((2, 3)), CAMERA, np.ones((3, 2, 3))), "an image of shape"),
        (lambda: point_cloud(np.ones((2, 3)), np.ones((3, 3))), "camera_matrix"),
        (lambda: point_cloud(np.ones((2, 3)), np.zeros((3, 3))), "fx, fy > 0"),
        (lambda: write_ply("a.ply", np.ones((2, 4))), r"points of shape \(points, 3\); got \(2, 4\)"),
        (lambda: write_ply("a.ply", np.ones((2, 3)), np.ones((2, 3))), "uint8 colors"),
        (lambda: write_ply("a.obj", np.ones((2, 3))), "must end in .ply; got 'a.obj'"),
    ],
    ids=range(7),
)
def test_other_arguments_are_refused(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        call()
    assert [*tmp_path.iterdir()] == []
