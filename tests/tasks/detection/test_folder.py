import json
import re

import numpy as np
import pytest
from made.box_folders import (
    HEIGHT,
    NAMES,
    OBJECTS,
    WIDTH,
    WRITERS,
    changed,
    coco,
    load,
    objects_of,
    write_coco,
    write_images,
    write_metadata,
    write_roboflow,
    write_voc,
    write_yolo,
)
from made.damage import damage_pixels
from made.sampling import some
from made.tables import by_table
from PIL import Image

from keras_vit.data import load_dataset
from keras_vit.data.batches import box_batches, training_batches
from keras_vit.data.files import UNDECODABLE
from keras_vit.preprocessing import Preprocessing
from keras_vit.tasks.detection.detecting import Detections
from keras_vit.tasks.detection.scores import detection_scores, predictions_of


@by_table("layout", WRITERS)
def test_every_layout_has_the_same_boxes(layout, tmp_path):
    WRITERS[layout](tmp_path)
    data = load(tmp_path, seed=None)
    assert data.class_names == NAMES and [*data.splits] == ["train"] and not data.ignored_files
    assert objects_of(data.split("train")) == dict(enumerate(OBJECTS))
    part = 2 if layout == "COCO" else 1  # whose areas are those of the objects, not of the boxes
    for _, rows in data.split("train"):
        areas = (rows[:, 2] - rows[:, 0]) * (rows[:, 3] - rows[:, 1])
        np.testing.assert_allclose(rows[:, 6], areas / part, rtol=1e-5)
        assert not rows[:, 5].any()


@by_table("write", [*WRITERS.values(), write_roboflow])
def test_boxes_are_found_where_classes_are_asked_for(write, tmp_path):
    write(tmp_path)
    with pytest.raises(ValueError, match="; boxes found: --recipe detect, or task='detection'$"):
        load_dataset(tmp_path)


def test_the_masks_of_voc_are_no_class(tmp_path):
    write_voc(tmp_path)
    write_images(tmp_path / "SegmentationClass")
    with pytest.raises(ValueError, match="has the folders of Pascal VOC, which are no classes; boxes found"):
        load_dataset(tmp_path)


def test_splits_are_held_out_where_there_are_none(tmp_path):
    write_coco(tmp_path)
    sizes = {split: len(samples) for split, samples in load(tmp_path).splits.items()}
    assert sizes == {"train": 9, "validation": 1, "test": 2}


def test_roboflow_has_a_file_for_each_split_and_a_category_above_all(tmp_path):
    write_roboflow(tmp_path)
    data = load(tmp_path)
    assert data.class_names == NAMES
    assert {split: objects_of(of) for split, of in data.splits.items()} == dict.fromkeys(
        ("train", "validation", "test"), dict(enumerate(OBJECTS))
    )


def test_the_splits_of_yolo_are_folders(tmp_path):
    write_yolo(tmp_path / "train")
    write_yolo(tmp_path / "valid")
    for split in ("train", "valid"):
        (tmp_path / split / "data.yaml").rename(tmp_path / "data.yaml")
    data = load(tmp_path, seed=None)
    assert {split: len(of) for split, of in data.splits.items()} == {"train": 12, "validation": 12}


def test_polygons_of_yolo_are_in_boxes(tmp_path):
    write_yolo(tmp_path)
    (tmp_path / "labels/00.txt").write_text("1 0.1 0.1 0.5 0.1 0.5 0.6")
    assert objects_of(load(tmp_path, seed=None).split("train"))[0] == [("dog", 4, 2, 20, 12)]


def test_difficult_objects_do_not_count(tmp_path):
    write_voc(tmp_path, difficult=1)
    assert all(rows[:, 5].all() for _, rows in load(tmp_path, seed=None).split("train"))


def test_numbers_of_categories_are_named_by_classes_txt(tmp_path):
    write_metadata(tmp_path)
    file = tmp_path / "train/metadata.jsonl"
    file.write_text(file.read_text().replace('"cat"', "0").replace('"dog"', "1"))
    assert load(tmp_path).class_names == ("0", "1")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    assert load(tmp_path).class_names == NAMES


@by_table(
    "layout, file, text, message",
    [
        ("YOLO", "data.yaml", "nc: 2", "expected names, a list of the classes or one by number"),
        ("YOLO", "data.yaml", "names: [", "data.yaml' is not a readable YAML file"),
        ("VOC", "Annotations/00.xml", "<annotation>", "00.xml' is not a readable XML file"),
        (
            "COCO",
            "annotations/instances_train2017.json",
            '{"images": [',
            "train2017.json': expected JSON; got",
        ),
        (
            "metadata.jsonl",
            "train/metadata.jsonl",
            '{"file_name": "a"}',
            "line 1: expected file_name and obj",
        ),
        ("metadata.jsonl", "train/metadata.jsonl", "{", "line 1: expected JSON; got Expecting property name"),
    ],
)
def test_files_that_cannot_be_read_are_refused(layout, file, text, message, tmp_path):
    WRITERS[layout](tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        load(tmp_path)


def test_labels_of_two_forms_are_refused(tmp_path):
    write_yolo(tmp_path)
    (tmp_path / "found.coco.json").write_text(json.dumps(coco(annotations=[])))
    with pytest.raises(ValueError, match=f"^no boxes in '{tmp_path}'"):
        load(tmp_path)
    (tmp_path / "found.coco.json").write_text(json.dumps(coco(objects=[[("cat", 1, 2, 3, 4)]] * 12)))
    message = "labels in two formats, in found.coco.json and in data.yaml, labels/"
    with pytest.raises(ValueError, match=message):
        load(tmp_path)
    (tmp_path / "data.yaml").write_text("learning_rate: 0.1")
    assert load(tmp_path).class_names == NAMES


def test_images_with_wrong_boxes_can_be_left_out(tmp_path):
    write_coco(tmp_path, **changed(annotations={"bbox": [4, 2, 38, 10]}))
    with pytest.raises(ValueError, match="1 box.*; mend them or give --on_bad_image skip, which leaves out"):
        load(tmp_path)
    data = load(tmp_path, on_bad_image="skip", seed=None)
    assert len(data.split("train")) == 11
    [(bad, reason)] = data.bad_images.items()
    assert bad == f"{tmp_path}/images/00.png" and "(outside of its image of 40×20 pixels: " in reason
    write_coco(
        tmp_path, categories=[{"id": 1, "name": "cat"}], images=coco()["images"][:1], objects=OBJECTS[:1]
    )
    with pytest.raises(
        ValueError, match=r"it has none; left out: .*/00.png \(.*, annotation 0 \(unknown class"
    ):
        load(tmp_path, on_bad_image="skip")


def test_images_that_cannot_be_read_are_refused(tmp_path):
    write_coco(tmp_path)
    (tmp_path / "images/02.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"1 image\(s\) cannot be read: .*/02.png; remove them or give --on"):
        load(tmp_path)
    bad = [f"{tmp_path}/images/02.png", damage_pixels(tmp_path / "images/03.png")]
    data = load(tmp_path, on_bad_image="skip", seed=None)
    assert len(data.split("train")) == 10 and data.bad_images == dict.fromkeys(bad, UNDECODABLE)
    with pytest.raises(ValueError, match="on_bad_image='keep' is for images without boxes"):
        load(tmp_path, on_bad_image="keep")


def test_a_folder_without_boxes_is_refused(tmp_path):
    write_images(tmp_path)
    with pytest.raises(ValueError, match="^no boxes in .*; expected COCO's JSON files with images, anno"):
        load(tmp_path)


def test_boxes_that_are_rounded_over_the_edge_are_cut_where_they_are_trained_on(tmp_path):
    write_coco(tmp_path, **changed(annotations={"bbox": [-0.4, 2, 40.9, 10]}))
    samples = load(tmp_path, seed=None).split("train").take([0])
    assert objects_of(samples)[0] == [("dog", -0.4, 2, 40.5, 12)]
    [(_, [trained])] = training_batches(samples, Preprocessing(8), 1, seed=0, steps=1).as_numpy_iterator()
    np.testing.assert_allclose(trained[0, :4], [0, 0.1, 1, 0.6], atol=1e-6)


@pytest.mark.parametrize("side", some([2, 3], 2))
def test_a_box_without_extent_counts_but_is_not_trained_on(side, tmp_path):
    """As some in COCO's own files, which its evaluation counts as objects that nothing finds."""
    box = [4, 2, 16, 10]
    box[side] = 0
    content = coco()
    content["annotations"][1] |= {"bbox": box, "image_id": 100}
    write_coco(tmp_path, **content)
    samples = load(tmp_path, seed=None).split("train").take([0])
    assert len(samples[0][1]) == 2
    [(_, [trained])] = training_batches(samples, Preprocessing(8), 1, seed=0, steps=1).as_numpy_iterator()
    assert (trained[:, 4] >= 0).sum() == 1


@pytest.mark.slow
@pytest.mark.parametrize("size", [(427, 640), (49, 50), (333, 500)])
def test_pixels_are_those_of_the_file_where_they_are_scored(size, tmp_path):
    """An object of exactly 32 × 32 pixels is small and medium; an IoU of exactly 0.5 is enough."""
    box = [17, 9, 32, 32]
    Image.fromarray(np.zeros((*size, 3), "uint8")).save(tmp_path / "a.png")
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": box, "area": 1024}
    content = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [annotation]}
    (tmp_path / "a.json").write_text(json.dumps({**content, "categories": [{"id": 1, "name": "cat"}]}))
    samples = load(tmp_path, seed=None).split("train")
    [(_, boxes, _, sizes)] = box_batches(samples, Preprocessing(8), 1).as_numpy_iterator()
    half = Detections(np.float32([[17, 9, 49, 25]]), np.float32([0.9]), np.array([0]))
    scores = detection_scores(predictions_of([half], boxes, sizes, 1))
    assert scores["ap50"] == pytest.approx(1) and scores["ap75"] == 0
    assert scores["ap_small"] == scores["ap_medium"] == pytest.approx(0.1) and scores["ap_large"] is None


def test_images_turned_by_their_exif_data_have_the_boxes_as_they_are_shown(tmp_path):
    write_coco(tmp_path, objects=[[("cat", 0, 0, 20, 10)]] * 12)
    kinds = ("PNG", "JPEG", "WEBP", "TIFF", "AVIF")
    for number, kind in enumerate(kinds):
        exif = Image.Exif()  # from which Pillow removes the orientation of an AVIF
        exif[0x0112] = 6
        Image.new("RGB", (HEIGHT, WIDTH)).save(tmp_path / f"images/{number:02}.png", kind, exif=exif)
    samples = load(tmp_path, seed=None).split("train")
    assert samples.exif
    for number, kind in enumerate(kinds):
        assert samples[number][1][0, :4].tolist() == [0, 0, 0.5, 0.5], kind
