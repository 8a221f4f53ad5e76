"""Folders of keypoints in the files of COCO, of YOLO, and in `metadata.jsonl`."""

import json
import re

import numpy as np
import pytest
from made.folders import write_keypoints
from made.tables import by_table
from PIL import Image

from keras_vit.data import load_dataset
from keras_vit.data.statistics import describe
from keras_vit.tasks.keypoints.labels import AREA, BOX_ROWS, WHOLE

WIDTH, HEIGHT = 32, 16
NAMES = ["nose", "left_eye", "right_eye"]
# Two objects: (left, top, width, height), area, and by pixels from edge to edge x, y and visibility.
OBJECTS = [
    ((2, 4, 8, 6), 40, [(4.5, 5.5, 2), (3.5, 4.5, 1), (6.5, 4.5, 2)]),
    ((16, 2, 8, 12), 50, [(20.5, 7.5, 2), (0, 0, 0), (22.5, 4.5, 2)]),
]
CATEGORY = {"id": 3, "name": "face", "keypoints": NAMES, "skeleton": [[1, 2], [1, 3]]}


def write_images(root, count=12):
    (root / "images").mkdir(parents=True)
    for number in range(count):
        pixels = np.full((HEIGHT, WIDTH, 3), 10 * number, "uint8")
        Image.fromarray(pixels).save(root / "images" / f"{number:02}.png")
    return [f"{number:02}.png" for number in range(count)]


def of_coco(points):
    """Points by pixels of which the first one is at 0, as flat lists."""
    return [number for x, y, mark in points for number in ((x - 0.5, y - 0.5, mark) if mark else (0, 0, 0))]


def coco(**changes):
    files = [f"{number:02}.png" for number in range(12)]
    images = [{"id": n, "file_name": file, "width": WIDTH, "height": HEIGHT} for n, file in enumerate(files)]
    annotations = [
        {
            **{"id": 2 * n + k, "image_id": n, "category_id": 3, "bbox": [*box], "area": area},
            **{"keypoints": of_coco(points), "num_keypoints": sum(mark > 0 for *_, mark in points)},
        }
        for n in range(12)
        for k, (box, area, points) in enumerate(OBJECTS)
    ]
    return {"images": images, "annotations": annotations, "categories": [CATEGORY]} | changes


def write_coco(root, **changes):
    write_images(root)
    (root / "labels.json").write_text(json.dumps(coco(**changes)))


def yolo_line(box, points, size=3):
    left, top, width, height = box
    numbers = [(left + width / 2) / WIDTH, (top + height / 2) / HEIGHT, width / WIDTH, height / HEIGHT]
    numbers += [n for x, y, mark in points for n in (x / WIDTH, y / HEIGHT, mark)[:size]]
    return " ".join(map(str, (0, *numbers)))


def write_yolo(root, size=3, config="flip_idx: [0, 2, 1]\nkpt_names:\n  0: [nose, left_eye, right_eye]\n"):
    (root / "labels").mkdir(parents=True)
    for file in write_images(root):
        lines = [yolo_line(box, points, size) for box, _, points in OBJECTS]
        (root / "labels" / f"{file[:2]}.txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text(f"names: [face]\nkpt_shape: [3, {size}]\n{config}")


def write_metadata(root, with_boxes=True):
    lines = []
    for file in write_images(root):
        objects = [
            {"bbox": [*box], "area": area, "keypoints": np.reshape(of_coco(points), (-1, 3)).tolist()}
            for box, area, points in OBJECTS
        ]
        objects = objects if with_boxes else [{"keypoints": objects[0]["keypoints"]}]
        lines.append(json.dumps({"file_name": f"images/{file}", "objects": objects}))
    (root / "metadata.jsonl").write_text("\n".join(lines))
    (root / "keypoints.json").write_text(json.dumps({"names": NAMES, "skeleton": [[0, 1], [0, 2]]}))


def load(root, **options):
    return load_dataset(f"folder:{root}", task="keypoints", **options)


def in_pixels(label):
    """The box (left, top, width, height), the area and the points of a label, in pixels."""
    corners = label[:BOX_ROWS, :2] * (WIDTH, HEIGHT)
    points = label[BOX_ROWS:, :3] * (WIDTH, HEIGHT, 1)
    area = label[0, AREA] * WIDTH * HEIGHT
    return (*corners[0], *(corners[1] - corners[0])), area, points


WRITERS = {"COCO": write_coco, "YOLO": write_yolo, "metadata": write_metadata}


@by_table("layout", WRITERS)
def test_every_layout_has_the_same_points(layout, tmp_path):
    WRITERS[layout](tmp_path)
    data = load(tmp_path)
    assert data.class_names == tuple(NAMES) and sum(map(len, data.splits.values())) == 24
    samples = data.split("train")
    assert samples.label_values["flip_index"] == [0, 2, 1]
    assert samples.label_values.get("skeleton") == (None if layout == "YOLO" else [[0, 1], [0, 2]])
    for (box, area, points), (_, label) in zip(OBJECTS, samples):
        found_box, found_area, found = in_pixels(label)
        np.testing.assert_allclose(found_box, box)
        # YOLO has no areas: 0.53 of the box, as in Ultralytics.
        assert found_area == pytest.approx(0.53 * box[2] * box[3] if layout == "YOLO" else area)
        np.testing.assert_allclose(found, points)


def test_the_objects_of_an_image_are_in_one_split(tmp_path):
    write_coco(tmp_path)
    splits = load(tmp_path).splits
    images = {split: {*samples.images} for split, samples in splits.items()}
    assert all(len(samples) == 2 * len(images[split]) for split, samples in splits.items())
    assert sum(map(len, images.values())) == 12


def test_an_object_without_a_box_is_the_whole_image(tmp_path):
    write_metadata(tmp_path, with_boxes=False)
    _, label = load(tmp_path).split("train")[0]
    assert label[0, WHOLE] == 1 and label[:2, :2].tolist() == [[0, 0], [1, 1]]


def test_points_of_two_numbers_are_visible_unless_they_are_at_0(tmp_path):
    write_yolo(tmp_path, size=2)
    samples = load(tmp_path).split("train")
    assert samples[0][1][BOX_ROWS:, 2].tolist() == [2, 2, 2]
    assert samples[1][1][BOX_ROWS:, 2].tolist() == [2, 0, 2]


def test_crowds_and_objects_without_labels_are_left_out(tmp_path):
    rows = coco()["annotations"]
    rows[0]["iscrowd"], rows[3]["keypoints"] = 1, [0] * 9
    write_coco(tmp_path, annotations=rows)
    assert sum(map(len, load(tmp_path).splits.values())) == 22


def test_an_image_with_one_object_needs_no_box(tmp_path):
    """Its crowds are left out, too, and an area of 0 is none."""
    rows = [row for row in coco()["annotations"] if row["id"] % 2 == 0]
    for row in rows:
        del row["bbox"]
        row["area"] = 0
    rows[3]["iscrowd"] = 1
    write_coco(tmp_path, annotations=rows)
    data = load(tmp_path)
    assert sum(map(len, data.splits.values())) == 11
    _, label = data.split("train")[0]
    assert label[0].tolist() == [0, 0, 0.53, 1]


def test_a_category_of_other_points_may_be_without_annotations(tmp_path):
    """With annotations, the settings have to name the points."""
    with_second_category(tmp_path / "unused", category_id=3)
    assert load(tmp_path / "unused").class_names == tuple(NAMES)
    with_second_category(tmp_path / "used")
    (tmp_path / "used" / "keypoints.json").write_text('{"names": ["x", "y", "z"]}')
    data = load(tmp_path / "used")
    assert data.class_names == ("x", "y", "z") and data.split("train").reader.skeleton == ((0, 1), (0, 2))


def test_a_file_without_annotations_has_the_names_of_its_categories(tmp_path):
    write_coco(tmp_path)
    empty = {"images": [], "annotations": [], "categories": [CATEGORY]}
    (tmp_path / "empty.json").write_text(json.dumps(empty))
    assert load(tmp_path).class_names == tuple(NAMES)


def test_labels_of_coco_may_be_in_keypoints_json(tmp_path):
    write_coco(tmp_path)
    (tmp_path / "labels.json").rename(tmp_path / "keypoints.json")
    assert load(tmp_path).class_names == tuple(NAMES)


@by_table("size, numbers, marks", [(3, "0.7 0 2", [2, 0, 2]), (2, "0.5 -0.1 0", [2, 0, 0])])
def test_marks_of_yolo_may_be_scores_and_places_below_0(size, numbers, marks, tmp_path):
    numbers = numbers.split()
    if size == 3:
        points = [number for mark in numbers for number in ("0.5", "0.5", mark)]
    else:
        points = [number for place in numbers for number in (place, place)]
    write_yolo(tmp_path, size=size)
    for path in (tmp_path / "labels").iterdir():
        path.write_text(" ".join(["0 0.5 0.5 0.5 0.5", *points]))
    assert load(tmp_path).split("train")[0][1][BOX_ROWS:, 2].tolist() == marks


def test_names_and_pairs_of_the_settings_come_first(tmp_path):
    write_yolo(tmp_path, config="flip_idx: [0, 2, 1]")
    assert load(tmp_path).class_names == ("0", "1", "2")
    (tmp_path / "keypoints.json").write_text('{"names": ["a", "b", "c"], "flip_index": [1, 0, 2]}')
    data = load(tmp_path)
    assert data.class_names == ("a", "b", "c") and data.split("train").reader.flip_index == (1, 0, 2)
    assert data.split("train")[0][1][BOX_ROWS:, 3].tolist() == [1, 0, 2]


def changed(**values):
    """A writer of COCO's file in which an annotation has other values."""
    rows = coco()["annotations"]
    rows[5] |= values
    return lambda root: write_coco(root, annotations=[{k: v for k, v in r.items() if v != ""} for r in rows])


def with_category(**values):
    return lambda root: write_coco(root, categories=[CATEGORY | values])


def with_file(name, text):
    """A writer of YOLO's files in which one has another text."""

    def write(root):
        write_yolo(root)
        (root / name).write_text(text)

    return write


def with_line(line):
    return with_file("labels/03.txt", line)


def with_yaml(text):
    return with_file("data.yaml", f"names: [a]\n{text}")


def with_settings(text):
    return with_file("keypoints.json", text)


def with_objects(objects):
    def write(root):
        write_images(root)
        (root / "metadata.jsonl").write_text(json.dumps({"file_name": "images/00.png", "objects": objects}))

    return write


def with_second_category(root, **values):
    rows = coco()["annotations"]
    rows[5] |= {"category_id": 4, **values}
    other = {**CATEGORY, "id": 4, "keypoints": ["a", "b", "c"], "skeleton": []}
    write_coco(root, annotations=rows, categories=[CATEGORY, other])


LINE = yolo_line(OBJECTS[0][0], OBJECTS[0][2])
COUNT = "expected x, y and visibility of 3 keypoints, 9 numbers; got"
LEFT_OUT = "1 object(s) are wrong: .*"
OUTSIDE = changed(keypoints=[99, 1, 2] * 3)
WRONG = [
    # A file of COCO.
    (changed(keypoints=[1, 1, 2] * 4), f"annotation 5: {COUNT} 12 values"),
    (changed(keypoints="1 1 2"), f"annotation 5: {COUNT} '1 1 2'"),
    (changed(keypoints=["a"] * 9), f"annotation 5: {COUNT} ['a', 'a'"),
    (changed(keypoints=[1, 1, 3] * 3), "annotation 5: expected a visibility of 0, 1 or 2 .*; got 3"),
    (OUTSIDE, f"{LEFT_OUT}keypoint outside of its image of "),
    (changed(bbox=""), f"{LEFT_OUT}annotation 5 (without a box, beside others in"),
    (changed(bbox=[1, 1, 0, 5]), f"{LEFT_OUT}annotation 5 (a box without an extent)"),
    (changed(bbox=[30, 1, 30, 5]), f"{LEFT_OUT}outside of its image of 32×16"),
    (with_category(keypoints=["a", 1, "c"]), "category 0: expected keypoints, a list of names; got "),
    (with_category(keypoints=["a", "a", "c"]), "expected 1 to 1000 different names of keypoi"),
    (with_category(skeleton=[[1, 2, 3]]), "category 0: expected a skeleton of pairs of numbers"),
    (with_category(skeleton=[[1, 4]]), "expected a skeleton of pairs of numbers below 3; got"),
    (with_second_category, "category 1: expected the keypoints of all .*, or names in keypoints.json; got "),
    # A file of YOLO.
    (with_line("0 0.5 0.5 0.2 0.2"), "03.txt, line 1: expected a class, a box of 4 numbers and"),
    (with_line(LINE.replace("0.25", "x", 1)), "03.txt, line 1: expected 13 numbers of a box; got"),
    (with_line(f"{LINE[:-1]}5"), "03.txt, line 1: expected a visibility of 0, 1 or 2 .*; got 5"),
    (with_yaml("kpt_shape: [3, 4]"), "data.yaml: expected kpt_shape of a number of points, and 2 or 3; got"),
    (with_yaml("kpt_shape: [3, 3]\nflip_idx: [0, 1]"), "flip_idx: expected 3 numbers, one for each keypoint"),
    (with_yaml("kpt_shape: [3, 3]\nflip_idx: [1, 2, 0]"), "point the mirror image of its own; got (1, 2, 0)"),
    (with_yaml("kpt_shape: [3, 3]\nkpt_names: {0: [a, b]}"), "kpt_names: expected 3 names of keypoints, the"),
    # keypoints.json.
    (with_settings('{"names": 5}'), "keypoints.json: expected 1 to 1000"),
    (with_settings('{"names": ["a"]}'), "expected kpt_shape of 1 points; got 3"),
    (with_settings('{"skeleton": ""}'), "expected a skeleton of pairs of numbers below 3; got ''"),
    (with_settings('{"skeletons": []}'), "of names, flip_index, skeleton, sigmas; got 'skeletons' (did you"),
    (with_settings('{"sigmas": [1, 2]}'), "expected 3 positive sigmas; got [1, 2]"),
    (with_settings("[1]"), "keypoints.json: expected an object; got list"),
    (with_settings("{"), "keypoints.json': expected JSON; got "),
    # metadata.jsonl.
    (with_file("metadata.jsonl", "[]"), "metadata.jsonl, line 1: expected file_name and objects; got"),
    (with_objects({"keypoints": [], "bbox": [1]}), "expected objects, a list of objects with keypoints; got"),
    (with_objects({"keypoints": [[1, 1, 2]] * 2}), "2 object(s) are wrong: .*line 1 (without a box, beside"),
]


@by_table("write, message", WRONG)
def test_wrong_labels_are_refused_in_a_line(write, message, tmp_path):
    write(tmp_path)
    pattern = ".*".join(re.escape(part) for part in message.split(".*"))
    with pytest.raises(ValueError, match=pattern) as refused:
        load(tmp_path)
    assert "\n" not in str(refused.value)


def test_images_with_wrong_objects_can_be_left_out(tmp_path):
    OUTSIDE(tmp_path)
    data = load(tmp_path, on_bad_image="skip")
    assert sum(map(len, data.splits.values())) == 22
    [reason] = data.bad_images.values()
    assert "outside of its image" in reason


def test_a_folder_without_keypoints_is_refused(tmp_path):
    write_images(tmp_path)
    with pytest.raises(ValueError, match="no keypoints in .*; expected COCO's JSON files"):
        load(tmp_path)


def test_keypoints_are_found_where_classes_are_asked_for(tmp_path):
    write_keypoints(tmp_path)
    with pytest.raises(ValueError, match="; keypoints found: --recipe keypoints"):
        load_dataset(f"folder:{tmp_path}")


def test_an_image_turned_by_its_exif_data_has_the_points_as_it_is_shown(tmp_path):
    write_coco(tmp_path)
    rows = [row for row in coco()["annotations"] if row["image_id"] < 3]
    for number in range(3):
        pixels, exif = np.zeros((WIDTH, HEIGHT, 3), "uint8"), Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number:02}.png", exif=exif)
    (tmp_path / "labels.json").write_text(json.dumps(coco(annotations=rows)))
    samples = load(tmp_path, seed=None).split("train")
    assert samples.exif and len(samples) == 6
    np.testing.assert_allclose(in_pixels(samples[0][1])[2], OBJECTS[0][2])


def test_yolos_boxes_are_read_from_pose_rows_only_with_their_shape(tmp_path):
    write_yolo(tmp_path)
    boxes = load_dataset(f"folder:{tmp_path}", task="detection").split("train")[0][1]
    np.testing.assert_allclose(boxes[0, :4], [2 / WIDTH, 4 / HEIGHT, 10 / WIDTH, 10 / HEIGHT])
    (tmp_path / "data.yaml").write_text("names: [face]\n")
    for path in (tmp_path / "labels").iterdir():
        path.write_text(yolo_line(OBJECTS[0][0], [*OBJECTS[0][2], (1, 1, 2)]))
    with pytest.raises(ValueError, match="got a box and 4 key points, for which data.yaml needs a kpt_shape"):
        load_dataset(f"folder:{tmp_path}", task="detection")


def test_an_image_with_several_objects_is_not_stored_twice(tmp_path):
    write_coco(tmp_path)
    (tmp_path / "images/00.png").write_bytes((tmp_path / "images/01.png").read_bytes())
    found = describe(load_dataset(f"folder:{tmp_path}", task="keypoints", seed=None))
    assert found["doubled"] == [[f"train: {tmp_path}/images/{name}" for name in ("00.png", "01.png")]]
