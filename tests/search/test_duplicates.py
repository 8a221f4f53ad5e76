import numpy as np
import pyarrow
import pytest

from keras_vit.search import ImageIndex, duplicates, image_index, near_duplicates

SIZE = 16


@pytest.fixture
def index(tmp_path):
    """40 pictures, of which every fourth is almost the one before, and three are equal."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((40, SIZE))
    vectors[3::4] = vectors[2::4] + 0.05 * rng.standard_normal((10, SIZE))
    vectors[8] = vectors[4] = 2 * vectors[0]
    index = ImageIndex(tmp_path / "index", "model", "digest", SIZE)
    columns = {"label": pyarrow.array(np.arange(40) // 20)}
    index.add({f"/{i}": (None, None) for i in range(40)}, vectors, columns)
    return index


EXPECTED = [["/0", "/4", "/8"], *([f"/{i}", f"/{i + 1}"] for i in range(2, 40, 4))]


@pytest.mark.parametrize("engine", ["exact", "hnsw"])
def test_near_duplicates_are_one_group(engine, index, monkeypatch):
    monkeypatch.setattr(duplicates, "BLOCK", 7)
    monkeypatch.setattr(duplicates, "MOST_PAIRS", 2)
    monkeypatch.setattr(image_index, "EXACT_ROWS", 0)
    index.build(engine)
    found = near_duplicates(index, 0.9)
    assert [[path for path, _ in group] for group in found] == EXPECTED
    for group in found:
        (_, first), *others = group
        vectors = [index.vectors[int(path[1:])].astype("float64") for path, _ in group]
        cosines = [v @ vectors[0] / np.linalg.norm(v) / np.linalg.norm(vectors[0]) for v in vectors]
        assert first == pytest.approx(1, abs=2e-3) and [score for _, score in others] == pytest.approx(
            cosines[1:], abs=2e-3
        )


def test_only_images_that_are_there_and_meet_the_conditions(index):
    index.remove(["/4"])
    found = near_duplicates(index, 0.9, ["label=0"])
    assert [[path for path, _ in group] for group in found] == [["/0", "/8"], *EXPECTED[1:6]]


def test_a_graph_finds_the_partners_that_meet_the_conditions(tmp_path, monkeypatch):
    monkeypatch.setattr(image_index, "EXACT_ROWS", 0)
    rng, vectors = np.random.default_rng(0), np.zeros((600, SIZE))
    vectors[:, 0], vectors[300:, 1] = 1, 1000
    vectors += 1e-3 * rng.standard_normal(vectors.shape)
    vectors[[0, 1], 2] = 0.05, -0.05  # Each of these has nearer images, of the other label.
    index = ImageIndex(tmp_path / "index", "model", "digest", SIZE)
    label = pyarrow.array(np.arange(600) > 1)
    index.add({f"/{i}": (None, None) for i in range(600)}, vectors, {"label": label.cast("int64")})
    index.build("hnsw")
    assert [[path for path, _ in group] for group in near_duplicates(index, 0.99, ["label=0"])] == [
        ["/0", "/1"]
    ]


def test_a_chain_is_one_group_and_the_threshold_counts(tmp_path):
    index = ImageIndex(tmp_path / "index", "model", "digest", 2)
    angles = np.radians([0, 20, 40, 120])
    index.add({f"/{i}": (None, None) for i in range(4)}, np.stack([np.cos(angles), np.sin(angles)], 1))
    assert [[path for path, _ in group] for group in near_duplicates(index, 0.93)] == [["/0", "/1", "/2"]]
    assert near_duplicates(index, 0.97) == []
    ((_, (_, cosine), _),) = near_duplicates(index, 0.93)
    assert (cosine, index.query(np.array([1, 0]), 2)[1][1]) == (0.9397, 0.939658)


@pytest.mark.parametrize("engine", ["exact", "hnsw"])
def test_pictures_have_a_partner_at_the_threshold(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(image_index, "EXACT_ROWS", 0)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal(300) + 0.03 * rng.standard_normal((40, 300))
    vectors[[5, 9]] = vectors[[2, 3]]
    index = ImageIndex(tmp_path / "index", "model", "digest", 300)
    index.add({f"/{i}": (None, None) for i in range(40)}, vectors)
    index.build(engine)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    best = np.max(unit @ unit.T - 2 * np.eye(40), axis=1)
    for threshold in (*np.quantile(best, [0.1, 0.5, 0.9]), 1.0):
        groups = near_duplicates(index, threshold)
        listed = [best[int(path[1:])] for group in groups for path, _ in group]
        assert np.min(listed) > threshold - 2e-5 and len(listed) >= np.sum(best > threshold + 2e-5)
    assert [[path for path, _ in group] for group in groups] == [["/2", "/5"], ["/3", "/9"]]


def test_a_threshold_out_of_range_is_refused(index):
    with pytest.raises(ValueError, match="threshold"):
        near_duplicates(index, 1.5)
