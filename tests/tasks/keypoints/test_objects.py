"""Boxes of objects for `predict`: of detectors, and of files in each form that is read."""

import json
import types

import numpy as np
import pytest
from made.tables import by_table

from keras_vit.cli.rows import FILES, write_rows
from keras_vit.tasks.detection.box_files import read_box_file
from keras_vit.tasks.detection.detecting import Detections
from keras_vit.tasks.keypoints.objects import boxes_of_detector, boxes_of_file

IMAGES = [np.zeros((30, 40, 3), "uint8")] * 2
PATHS = ["photos/a.png", "photos/b.png"]
FOUND = [
    {"name": "cat", "score": 0.5, "left": 1.0, "top": 2.0, "right": 11.0, "bottom": 22.0},
    {"name": "dog", "score": 0.75, "left": 20.0, "top": 2.0, "right": 30.0, "bottom": 12.0},
]
ROWS = [
    {"image": "photos/a.png", "width": 40, "height": 30, "objects": FOUND},
    {"image": "photos/b.png", "width": 40, "height": 30, "objects": []},
]
COCO = {
    "images": [{"id": 3, "file_name": "a.png", "width": 40, "height": 30}],
    "annotations": [{"id": 1, "image_id": 3, "category_id": 9, "bbox": [1, 2, 10, 20]}],
    "categories": [{"id": 9, "name": "cat"}],
}


def written(folder, content, name="found.json"):
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / name


def in_images(path, paths=PATHS, images=IMAGES, top=100, **options):
    return boxes_of_file(path, paths, **options)(paths, images, top)


@by_table("suffix", FILES)
def test_each_file_that_predict_writes_for_a_detector_is_read(suffix, tmp_path):
    """In the order of their scores, once of an image that is there twice; without objects there are none."""
    path = tmp_path / f"found.{suffix}"
    write_rows(path, suffix, [*ROWS, ROWS[0]], ["cat", "dog"] if suffix == "coco.json" else None)
    first, second = in_images(path)
    assert first.boxes.tolist() == [[20, 2, 30, 12], [1, 2, 11, 22]] and first.scores.tolist() == [0.75, 0.5]
    assert second.boxes.shape == (0, 4)
    assert {*read_box_file(path).names} == {"cat", "dog"}


@by_table("suffix", ["jsonl", "coco.json"])
def test_images_of_urls_that_differ_in_the_query_have_boxes_each(suffix, tmp_path):
    names = ["https://host/image?…", "https://host/image?…#2"]
    rows = [{**row, "image": name} for row, name in zip(ROWS, names)]
    path = tmp_path / f"found.{suffix}"
    write_rows(path, suffix, rows, ["cat", "dog"])
    objects = in_images(path, ["https://host/image?id=7", "https://host/image?id=5"])
    assert [len(of.boxes) for of in objects] == [2, 0]


def test_cocos_annotations_have_the_score_1_and_no_crowds(tmp_path):
    crowd = {**COCO["annotations"][0], "id": 2, "iscrowd": 1}
    path = written(tmp_path, {**COCO, "annotations": [*COCO["annotations"], crowd]})
    [found] = in_images(path, ["elsewhere/a.png"], IMAGES[:1])
    assert found.boxes.tolist() == [[1, 2, 11, 22]] and found.scores.tolist() == [1]


def test_results_of_coco_are_found_by_the_number_in_the_name_of_the_file(tmp_path):
    results = [
        {"image_id": 139, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5},
        {"image_id": "b", "category_id": 2, "bbox": [5, 6, 3, 4], "score": 0.25},
    ]
    path = written(tmp_path, results)
    first, second = in_images(path, ["x/000000000139.jpg", "b.png"])
    assert (first.boxes.tolist(), second.boxes.tolist()) == ([[1, 2, 4, 6]], [[5, 6, 8, 10]])
    [second] = in_images(path, ["b.png"], IMAGES[:1], names=["2"])
    assert len(second.boxes) == 1


def test_objects_are_chosen_by_class_score_overlap_and_number(tmp_path):
    near = {**FOUND[0], "score": 0.4, "bottom": 21.0}
    path = written(tmp_path, [{**ROWS[0], "objects": [*FOUND, near]}])

    def scores(**options):
        return in_images(path, PATHS[:1], IMAGES[:1], **options)[0].scores.tolist()

    assert scores() == [0.75, 0.5, 0.4]
    assert scores(names=["cat"]) == [0.5, 0.4]
    assert scores(least=0.5) == [0.75, 0.5]
    assert scores(iou=0.7) == [0.75, 0.5]
    assert scores(top=1) == [0.75]


def test_of_images_of_one_name_the_one_at_the_path_is_meant(tmp_path):
    images = [{"id": n, "file_name": f"{folder}/a.png"} for n, folder in enumerate("xy")]
    annotations = [{**COCO["annotations"][0], "image_id": 1}]
    path = written(tmp_path, {**COCO, "images": images, "annotations": annotations})
    assert len(in_images(path, ["y/a.png"], IMAGES[:1])[0].boxes) == 1
    assert len(in_images(path, ["x/a.png"], IMAGES[:1])[0].boxes) == 0
    with pytest.raises(ValueError, match="the boxes of 'a.png' in .*; got those of x/a.png, y/a.png$"):
        in_images(path, ["a.png"], IMAGES[:1])


def result(**changes):
    return [{"image_id": "a", "category_id": 1, "bbox": [1, 2, 3, 4], **changes}]


@by_table(
    "content, message",
    [
        ("{", "expected JSON; got "),
        ([], "expected COCO's JSON of images, annotations and categories, a list of COCO's results"),
        ({"a": 1}, r"got \['a'\]$"),
        ([{"image": "a.png", "classes": []}], r"got \['image', 'classes'\]$"),
        ({**COCO, "annotations": []}, "expected a box or more in .*; got none$"),
        ([{"image_id": 1, "bbox": [1, 2, 3, 4]}], "result 0: expected the key 'category_id'; got image_id"),
        (result(bbox=[1, 2, "x", 4]), "result 0: expected 4 numbers of a box; got "),
        (result(bbox=[1, 2, 0, 4]), "a box with a width and a height; got left, top, .* 1, 2, 1, 6$"),
        (result(score=-2), "result 0: expected a score from 0 on; got -2$"),
        ({**COCO, "images": []}, "annotation 0: expected the id of an image; got 3$"),
        (COCO, "expected the boxes of 'photos/b.png' in .*; got those of a.png$"),
        ([{**ROWS[0], "width": 80}, ROWS[1]], "the image 'photos/a.png' of 80×30 pixels; got 40×30$"),
        (result(bbox=[30, 2, 20, 4]), "in the image 'a' of 40×30 pixels; got left, .* 30, 2, 50, 6$"),
    ],
)
def test_bad_files_are_refused_in_one_line(content, message, tmp_path):
    path = written(tmp_path, content)
    with pytest.raises(ValueError, match=message) as caught:
        in_images(path)
    assert "\n" not in str(caught.value)


def test_tables_of_other_columns_and_missing_files_and_classes_are_refused(tmp_path):
    path = written(tmp_path, "image,rank,class,probability\na.png,1,cat,0.5\n", "found.csv")
    with pytest.raises(ValueError, match="row 1: expected the key 'left'; got image, rank, class, prob"):
        in_images(path)
    with pytest.raises(ValueError, match="^no such file of boxes: "):
        in_images(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="Parquet"):
        in_images(written(tmp_path, "PAR", "found.parquet"))
    path = written(tmp_path, ROWS)
    with pytest.raises(ValueError, match="^expected --object_classes of .*: cat, dog; got 'cow'$"):
        in_images(path, names=["cow"])


def test_a_csv_of_other_images_is_refused(tmp_path):
    text = "image,class,score,left,top,right,bottom\nc.png,cat,0.5,1,2,3,4\n"
    path = written(tmp_path, text, "found.csv")
    with pytest.raises(ValueError, match="^expected the boxes of 'photos/a.png' in .*; got those of c.png$"):
        in_images(path)


def test_a_detectors_objects_overlap_little():
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [20, 0, 30, 10]], "float32")
    one = Detections(boxes, np.array([0.9, 0.8, 0.7], "float32"), np.array([0, 1, 0]))
    asked = []

    def detect(images, threshold, top):
        asked.append((threshold, top))
        return [one] * len(images)

    detector = types.SimpleNamespace(detect=detect, class_names=None, num_classes=2)
    [found] = boxes_of_detector(detector, "m")(["a"], IMAGES[:1], 100)
    assert asked == [(0.3, 100)] and found.boxes.tolist() == boxes[[0, 2]].tolist()
    [found] = boxes_of_detector(detector, "m", names=["1"])(["a"], IMAGES[:1], 100)
    assert found.boxes.tolist() == boxes[1:2].tolist()
    [found] = boxes_of_detector(detector, "m", iou=0.95)(["a"], IMAGES[:1], 2)
    assert len(found.boxes) == 2
    boxes_of_detector(detector, "m")(["a"], IMAGES[:1], 150)
    assert asked[-1] == (0.3, 150)


def test_a_detector_of_any_words_gets_names_with_commas_whole():
    asked = []

    def with_labels(labels):
        asked.extend(labels)
        return types.SimpleNamespace(class_names=(*labels,), num_classes=len(labels), detect=None)

    tower = {"text": True, "text_preprocessing": True, "with_labels": with_labels}
    words = types.SimpleNamespace(detect=None, needs_texts=True, **tower)
    boxes_of_detector(words, "m", ["cat", "black, white"])
    assert asked == ["cat", "black, white"]


def test_other_models_and_detectors_of_any_words_need_more():
    with pytest.raises(ValueError, match="^--objects: expected a detector or a file of boxes; 'm' is"):
        boxes_of_detector(types.SimpleNamespace(classify=None), "m")
    words = types.SimpleNamespace(detect=None, needs_texts=True)
    with pytest.raises(ValueError, match="^'m' detects what texts say; give them by --object_classes$"):
        boxes_of_detector(words, "m")
