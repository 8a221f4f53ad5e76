"""Subcommands with keypoint estimators: rows, COCO's JSON, drawn skeletons, reports, and refusals."""

import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from made.folders import write_broken, write_keypoints
from PIL import Image
from reference.comparing import randomize
from reference.small import SMALL

import keras_vit
from keras_vit.tasks.keypoints.pictures import skeleton_overlay
from keras_vit.tasks.keypoints.task import object_scores

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


def assert_points(found, points):
    """Check the points of a row's object against a model's, and return them."""
    rows = [[point[name] for name in ("x", "y", "score")] for point in found["points"]]
    np.testing.assert_allclose(rows, points, rtol=1e-5)
    return rows


def test_rows_coco_files_and_skeletons_have_the_points(json_of, live, model, photo, tmp_path):
    file, drawn = tmp_path / "found.coco.json", tmp_path / "drawn"
    [row] = json_of("predict", "--model", model, photo, "--output", file, "--boxes", drawn)
    [[points]] = live.estimate_keypoints(photo)
    [found] = row["keypoints"]
    assert [point["name"] for point in found["points"]] == [*NAMES] and {*found} == {"score", "points"}
    rows = assert_points(found, points)
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
    [found] = row["keypoints"]
    assert [point["name"] for point in found["points"]] == expected and 0 < len(expected) < 3


def test_the_flip_test_is_that_of_the_model(json_of, live, model, photo):
    [row] = json_of("predict", "--model", model, photo, "--flip_test")
    [[points]] = live.estimate_keypoints(photo, flip_test=True)
    assert_points(*row["keypoints"], points)
    assert np.abs(points - live.estimate_keypoints(photo)[0][0]).max() > 1e-3


@pytest.fixture(scope="module")
def photos(photo):
    """A second photograph, without objects, and a file of the boxes of two objects in the first one."""
    Image.fromarray(np.zeros((30, 40, 3), "uint8")).save(photo.with_name("empty.png"))
    images = [
        {"id": n, "file_name": name, "width": 40, "height": 30}
        for n, name in enumerate(("photo.png", "empty.png"))
    ]
    annotations = [
        {"image_id": 0, "category_id": 1, "bbox": [2, 3, 20, 20], "score": 0.5},
        {"image_id": 0, "category_id": 2, "bbox": [15, 5, 20, 22], "score": 0.25},
    ]
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    photo.with_name("boxes.json").write_text(json.dumps(content))
    return photo, photo.with_name("empty.png"), photo.with_name("boxes.json")


BOXES = [[2, 3, 22, 23], [15, 5, 35, 27]]


def test_each_object_of_a_file_of_boxes_has_points(json_of, keras_vit, live, model, photos, tmp_path):
    """In rows, in the drawn pictures and in COCO's JSON, which is again a file of boxes."""
    photo, empty, boxes = photos
    file, folders = tmp_path / "found.coco.json", (tmp_path / "drawn", tmp_path / "shown")
    given = "predict", "--model", model, photo, empty
    options = "--objects", boxes, "--output", file, "--boxes", folders[0], "--show", folders[1]
    first, second = json_of(*given, *options)
    [estimates] = live.estimate_keypoints(photo, [BOXES])
    assert second["keypoints"] == [] and len(first["keypoints"]) == 2
    for found, points, box, score in zip(first["keypoints"], estimates, BOXES, (0.5, 0.25)):
        assert_points(found, points)
        assert [found[side] for side in ("left", "top", "right", "bottom")] == box
        assert found["score"] == pytest.approx(score * object_scores(points[np.newaxis, :, 2])[0])
    with Image.open(photo) as image, Image.open(folders[0] / "photo.png") as picture:
        expected = skeleton_overlay(np.asarray(image), estimates, live.skeleton)
        np.testing.assert_array_equal(np.asarray(picture), expected)
    with Image.open(folders[1] / "photo.png") as picture:  # of an image that is enlarged seven times
        larger = np.asarray(Image.open(photo)).repeat(7, 0).repeat(7, 1)
        expected = skeleton_overlay(larger, estimates * (7, 7, 1), live.skeleton)
        np.testing.assert_array_equal(np.asarray(picture), expected)
    content = json.loads(file.read_text())
    assert [row["bbox"] for row in content["annotations"]] == [[2, 3, 20, 20], [15, 5, 20, 22]]
    again = json_of(*given, "--objects", file)
    points = [[one["points"] for row in rows for one in row["keypoints"]] for rows in (again, [first])]
    assert points[0] == points[1]
    lines = keras_vit(*given, "--objects", boxes, "--format", "csv").stdout.splitlines()
    assert lines[0] == "image,rank,class,score,x,y,object"
    assert [line[-1] for line in lines[1:]] == [*"111222"]
    table = keras_vit(*given, "--objects", boxes, "--object_classes", "dog").stdout
    assert table.count("left_top") == 1 and "none" in table.splitlines()[-1]


def test_the_objects_of_a_detector_have_points(json_of, live, model, photos, tmp_path):
    encoder = keras_vit.VisionTransformer(**{**SMALL, "num_classes": None, "num_layers": 1})
    detector = randomize(keras_vit.ObjectDetector(encoder, 2, class_names=("cat", "dog")))
    detector.save(tmp_path / "detector.keras")
    photo, *_ = photos
    options = "--objects", tmp_path / "detector.keras", "--object_score", "0.1", "--top", 3, "--iou", 1
    [row] = json_of("predict", "--model", model, photo, *options)
    [found] = detector.detect(photo, 0.1, top=3)
    [estimates] = live.estimate_keypoints(photo, [found.boxes])
    assert 1 < len(found.boxes) == len(row["keypoints"])
    for one, points in zip(row["keypoints"], estimates):
        np.testing.assert_allclose([point["x"] for point in one["points"]], points[:, 0], rtol=1e-3)


def test_bad_boxes_are_refused_before_anything_is_written(refused, model, photos, tmp_path):
    photo, empty, boxes = photos
    given = "predict", "--model", model, photo, "--boxes", tmp_path / "drawn"
    refused((*given, "--objects", model), "--objects: expected a detector or a file of boxes; ")
    refused((*given, "--objects", tmp_path / "none.json"), "no such file of boxes: ")
    refused((*given, "--object_score", "0.5"), "--object_classes and --object_score need --objects")
    refused((*given, "--objects", boxes, "--object_classes", "cow"), "cat, dog; got 'cow'")
    Image.fromarray(np.zeros((30, 80, 3), "uint8")).save(tmp_path / "photo.png")
    wrong = "predict", "--model", model, tmp_path / "photo.png", "--objects", boxes
    refused(wrong, "expected the image 'photo.png' of 40×30 pixels; got 80×30")
    other = tmp_path / "classifier.keras"
    keras_vit.VisionTransformer(**SMALL).save(other)
    words = "--objects need a model of the task 'keypoints'; this one's task is 'single_label'"
    refused(("predict", "--model", other, photo, "--objects", boxes), words)
    assert not (tmp_path / "drawn").exists()


def test_a_command_is_not_continued_with_other_boxes(refused, model, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_vit.cli.predict.FEW", 0)
    bad = write_broken(tmp_path / "empty.png")
    boxes = pathlib.Path(shutil.copy(photos[2], tmp_path))
    command = "predict", "--model", model, photos[0], bad, "--objects", boxes, "--output", tmp_path / "r.json"
    refused(command, "empty.png")
    boxes.write_text(boxes.read_text().replace("0.25", "0.75"))
    refused(command, "was begun with another --objects; remove it to begin again")


NEEDS = """
import sys, types, _keras_vit_cli
with _keras_vit_cli.without_keras():
    from keras_vit.cli.predict import needs_keras
    from keras_vit.tasks import prediction_folders
    names = "labels", "prompts", "maps", "boxes", "instances", "show", "object_classes", "object_score"
    for objects in (None, "found.json"):
        args = types.SimpleNamespace(**dict.fromkeys(names), model="model.tflite", objects=objects)
        args.flip_test = False
        assert needs_keras(args) is (objects is not None)
    args.objects = None
    assert [folder.row_arguments(args, []) for folder in prediction_folders()] == [{}] * 4
assert "keras" not in sys.modules
"""


def test_keras_is_imported_for_boxes_of_objects_alone():
    done = subprocess.run([sys.executable, "-c", NEEDS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_does_not_fit_is_refused(refused, model, photo, tmp_path):
    given = "predict", "--model", model, photo
    refused((*given, "--iou", "0.5"), "--iou is of boxes that overlap, which --objects gives; this one is")
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
    data = "--dataset", f"folder:{root}", "--task", "keypoints"
    keras_vit("data", "show", *data, "--sheet", tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert np.ptp(np.asarray(sheet)) > 0
