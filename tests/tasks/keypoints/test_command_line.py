"""Subcommands with keypoint estimators: rows, COCO's JSON, drawn skeletons, reports, and refusals."""

import json

import numpy as np
import pytest
from made.folders import write_keypoints
from PIL import Image
from reference.comparing import randomize
from reference.small import SMALL

import keras_vit

pytestmark = pytest.mark.usefixtures("eager")
NAMES = ("left_top", "right_top", "foot")


@pytest.fixture(scope="module")
def live():
    encoder = keras_vit.VisionTransformer(**{**SMALL, "num_classes": None, "num_layers": 1})
    options = {"class_names": NAMES, "skeleton": ((0, 1), (1, 2)), "decoder_width": 4}
    return randomize(keras_vit.KeypointEstimator(encoder, 3, **options))


@pytest.fixture(scope="module")
def model(live, tmp_path_factory):
    path = tmp_path_factory.mktemp("points") / "model.keras"
    live.save(path)
    return path


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photos") / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), "uint8")).save(path)
    return path


def test_rows_coco_files_and_skeletons_have_the_points(json_of, live, model, photo, tmp_path):
    file, drawn = tmp_path / "found.coco.json", tmp_path / "drawn"
    [row] = json_of("predict", "--model", model, photo, "--output", file, "--boxes", drawn)
    [[points]] = live.estimate_keypoints(photo)
    assert [point["name"] for point in row["keypoints"]] == [*NAMES]
    rows = [[point[name] for name in ("x", "y", "score")] for point in row["keypoints"]]
    np.testing.assert_allclose(rows, points, rtol=1e-5)
    assert (row["width"], row["height"]) == (40, 30)
    content = json.loads(file.read_text())
    [annotation] = content["annotations"]
    expected = [number for x, y, _ in rows for number in (x - 0.5, y - 0.5, 2)]
    assert annotation["keypoints"] == pytest.approx(expected)
    assert content["images"] == [{"id": 1, "file_name": str(photo.name), "width": 40, "height": 30}]
    with Image.open(drawn / "photo.png") as picture:
        assert picture.size == (40, 30)


def test_points_of_low_scores_are_left_out(json_of, live, model, photo):
    [row] = json_of("predict", "--model", model, photo, "--threshold", "1.0")
    [[points]] = live.estimate_keypoints(photo)
    expected = [name for name, score in zip(NAMES, points[:, 2]) if score >= 1]
    assert [point["name"] for point in row["keypoints"]] == expected and 0 < len(expected) < 3


def test_a_table_of_csv_has_a_row_for_each_point(keras_vit, model, photo):
    lines = keras_vit("predict", "--model", model, photo, "--format", "csv").stdout.splitlines()
    assert lines[0] == "image,rank,class,score,x,y" and len(lines) == 4


def test_what_does_not_fit_is_refused(refused, model, photo, tmp_path):
    given = "predict", "--model", model, photo
    refused((*given, "--iou", "0.5"), "--iou is of boxes that overlap; this model estimates keypoints")
    refused((*given, "--maps", tmp_path / "m"), "need a model with outputs for each pixel")
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_inspect_draws_predictions_and_the_worst_objects(json_of, model, photo, tmp_path):
    root = write_keypoints(tmp_path / "corners", count=8)
    given = "--model", model, "--dataset", f"folder:{root}", "--split", "train"
    result = json_of("inspect", *given, "--image", photo, "--output", tmp_path / "inside")
    assert {"worst.png", "keypoints.png"} <= {*result["figures"]}
    assert "OKS" in (tmp_path / "inside" / "report.html").read_text()


@pytest.mark.slow
def test_a_sheet_shows_the_points(keras_vit, tmp_path):
    root = write_keypoints(tmp_path / "corners", count=8)
    keras_vit(
        "data",
        "show",
        "--dataset",
        f"folder:{root}",
        "--task",
        "keypoints",
        "--sheet",
        tmp_path / "sheet.png",
    )
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert np.ptp(np.asarray(sheet)) > 0
