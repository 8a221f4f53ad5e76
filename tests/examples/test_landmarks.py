import numpy as np
import pytest
from made.scripts import script

from keras_vit.data import load_dataset

skimage = pytest.importorskip("skimage", reason="scikit-image is not installed; see requirements-peers.txt")


def test_landmarks_of_both_photographs_show_the_same_things():
    example, (left, right, disparity) = script("examples/landmarks.py"), skimage.data.stereo_motorcycle()
    places = np.stack(example.landmarks(disparity)).round().astype(int)
    windows = [
        np.stack([image[y - 4 : y + 5, x - 4 : x + 5].astype("float64").ravel() for x, y in points])
        for image, points in zip((left, right), places)
    ]
    correlations = np.corrcoef(*windows)[:12, 12:]
    assert list(correlations.argmax(1)) == [*range(12)] and np.median(np.diag(correlations)) > 0.9


def test_the_keypoints_move_with_the_photograph(tmp_path, monkeypatch):
    example = script("examples/landmarks.py")
    monkeypatch.setattr(example, "IMAGES", {"train": 10, "test": 4})
    example.main(tmp_path / "landmarks")
    dataset = load_dataset(f"folder:{tmp_path}/landmarks", task="keypoints")
    counts = {split: len(dataset.split(split)) for split in ("train", "validation", "test")}
    assert counts == {"train": 9, "validation": 1, "test": 4}
    _, _, disparity = skimage.data.stereo_motorcycle()
    _, right = example.landmarks(disparity)
    for _, label in dataset.split("test"):
        seen = label[2:, 2] > 0
        points = 160 * label[2:][seen, :2] - 0.5
        # Landmarks of an affine map are an affine function of those of the photograph.
        source = np.c_[right[seen], np.ones(seen.sum())]
        matrix, *_ = np.linalg.lstsq(source, points, rcond=None)
        np.testing.assert_allclose(source @ matrix, points, atol=1e-3)
        assert 0.2 <= np.sqrt(np.linalg.det(matrix[:2])) <= 0.41
