import json

import numpy as np
import pytest
from made.box_folders import OBJECTS, coco, write_coco
from made.damage import damage_pixels
from made.folders import write_boxes, write_classes, write_masks
from made.shards import structs, write_parquet
from PIL import Image


@pytest.fixture
def folder(tmp_path):
    return write_classes(tmp_path / "in", count=12)


@pytest.mark.slow
def test_show_prints_a_table_and_draws_images(folder, keras_vit, tmp_path):
    options = ("--dataset", f"folder:{folder}", "--sheet", tmp_path / "sheet.png")
    lines = keras_vit("data", "show", *options).stdout.splitlines()
    assert lines[0] == "2 classes (cat, dog): 18 train, 2 validation, 4 test; validation and test held out"
    assert lines[2].split() == ["split", "images", "read", "formats", "width", "height", "bytes"]
    assert lines[3].split()[:6] == ["train", "18", "18", "PNG", "32–32", "32–32"]
    assert lines[7:] == [
        "train: 9 (cat) to 9 (cat) images per class",
        "validation: 1 (cat) to 1 (cat) images per class",
        "test: 2 (cat) to 2 (cat) images per class",
    ]
    value = json.loads(keras_vit("data", "show", *options[:2], "--json", "-").stdout)
    assert value["splits"]["test"]["images"] == 4


def colored(path):
    """The fraction of a picture's pixels that are not gray."""
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return np.mean(picture.max(-1) - picture.min(-1) > 60)


def test_a_sheet_has_the_colors_of_the_images(keras_vit, tmp_path):
    for name, color in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(8):
            Image.new("RGB", (50, 40), color).save(tmp_path / "in" / name / f"{number}.png")
    keras_vit("data", "show", "--dataset", f"folder:{tmp_path}/in", "--sheet", tmp_path / "sheet.png")
    assert colored(tmp_path / "sheet.png") > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_a_sheet_has_the_labels_of_the_images(task, keras_vit, tmp_path):
    write_coco(tmp_path / "in", **coco()) if task == "detection" else write_masks(tmp_path / "in")
    for file in (tmp_path / "in" / "images").iterdir():
        with Image.open(file) as image:
            size = image.size
        Image.new("L", size, 100).save(file)
    data = "--dataset", f"folder:{tmp_path}/in", "--task", task
    keras_vit("data", "show", *data, "--sheet", tmp_path / "sheet.png")
    assert 0.001 < colored(tmp_path / "sheet.png") < 0.9


def test_show_counts_the_objects_of_each_class(keras_vit, tmp_path):
    content = coco()
    content["annotations"][0]["iscrowd"] = 1
    write_coco(tmp_path, **content)
    options = ("--dataset", tmp_path, "--task", "detection")
    lines = keras_vit("data", "show", *options).stdout.splitlines()
    titles = " ".join(f"{split} objects {split} images" for split in ("train", "validation", "test"))
    [start] = [number for number, line in enumerate(lines) if " ".join(line.split()) == f"class {titles}"]
    rows = {name: [*map(int, row)] for name, *row in map(str.split, lines[start + 1 : start + 3])}
    assert {name: sum(row[::2]) for name, row in rows.items()} == {"cat": 4, "dog": 7}
    value = json.loads(keras_vit("data", "show", *options, "--json", "-").stdout)["splits"]
    for number, split in enumerate(value):
        assert value[split]["objects"] == {n: row[2 * number : 2 * number + 2] for n, row in rows.items()}
    assert sum(of["crowds"] for of in value.values()) == 1 and sum(of["empty"] for of in value.values()) == 4
    train = value["train"]
    [line] = [line for line in lines if line.startswith("train: a box covers ")]
    least, middle, largest = (f"{100 * area:.2g} %" for area in train["box_areas"])
    assert line.endswith(f" {least} to {largest} of its image, half of them at most {middle}")
    assert 0 < train["box_areas"][0] <= train["box_areas"][1] <= train["box_areas"][2] <= 1
    assert train["source"] == "from annotations/instances_train2017.json"
    assert f"train: {train['crowds']} crowd(s), {train['empty']} image(s) without objects" in lines


def test_show_counts_the_images_with_more_objects_than_a_step_takes(keras_vit, tmp_path):
    many = [("cat", left, top, left + 3, top + 3) for left in range(30) for top in range(4)]
    write_coco(tmp_path, **coco(objects=[many, *OBJECTS[1:]]))
    printed = keras_vit("data", "show", "--dataset", tmp_path, "--task", "detection").stdout
    assert ": 1 image(s) with more than 100 objects, up to 120: a training step draws 100 of them" in printed


@pytest.mark.parametrize("action", [("show",), ("write", "--output", "shards")])
def test_images_that_cannot_be_read_are_left_out_if_asked(action, folder, keras_vit, refused, tmp_path):
    (folder / "cat" / "00.png").write_bytes(b"no image")
    action = [str(tmp_path / word) if word == "shards" else word for word in action]
    command = ("data", *action, "--dataset", f"folder:{folder}")
    refused(command, "00.png", "give --on_bad_image skip")
    assert "1 unreadable image skipped (" in keras_vit(*command, "--on_bad_image", "skip").stdout


def test_show_names_what_may_be_wrong(keras_vit, tmp_path):
    columns = {"image": structs([*range(20), *range(20)]), "label": [0] * 20 + [1] * 20}
    file = write_parquet(tmp_path / "train.parquet", columns)
    printed = keras_vit("data", "show", "--dataset", f"parquet:{file}").stdout
    assert "train: the images are sorted by class: 1 follow one of another class, 15 in a random" in printed
    assert "20 images are stored more than once, the first: train: " in printed


def test_check_names_damaged_images_and_masks(folder, keras_vit, tmp_path):
    name = ("--dataset", f"folder:{folder}")
    assert keras_vit("data", "check", *name).stdout == "24 images checked, 0 images or masks damaged\n"
    damage_pixels(folder / "dog" / "07.png")
    printed = keras_vit("data", "check", *name, status=1).stdout.splitlines()
    assert printed == [
        f"{folder}/dog/07.png: it cannot be decoded",
        "24 images checked, 1 images or masks damaged",
    ]
    tar = tmp_path / "out"
    keras_vit("data", "write", *name, "--output", tar)  # It copies images without decoding them.
    options = ("--dataset", f"webdataset:{tar}", "--json", "-")
    [(place, reason)] = json.loads(keras_vit("data", "check", *options, status=1).stdout)["damaged"]
    assert place.startswith(f"{tar}/") and place.endswith(".png") and "not a readable image" in reason


def test_check_decodes_images_with_boxes_and_says_what_is_wrong_with_boxes(keras_vit, tmp_path):
    boxes = write_boxes(tmp_path, 12)
    image = damage_pixels(boxes / "images" / "03.png")
    (boxes / "labels" / "05.txt").write_text("0 0.5 0.5 2 2")
    name = ("--dataset", f"folder:{boxes}", "--task", "detection")
    lines = keras_vit("data", "check", *name, status=1).stdout.splitlines()
    assert lines[0] == f"{image}: it cannot be decoded"
    assert lines[1].startswith(f"{boxes}/images/05.png: ")
    assert "(outside of its image of 24×16 pixels: " in lines[1]
    assert lines[2] == "12 images checked, 2 images or masks damaged"


def test_write_says_how_its_files_are_read(keras_vit, tmp_path):
    masks = write_masks(tmp_path / "masks")
    task = ("--task", "segmentation")
    options = ("--dataset", f"folder:{masks}", *task, "--output", tmp_path / "out", "--format", "parquet")
    printed = keras_vit("data", "write", *options, "--images_per_shard", 4).stdout
    assert printed.splitlines()[1] == f"4 files in {tmp_path}/out: --dataset parquet:{tmp_path}/out"
    shown = keras_vit("data", "show", "--dataset", f"parquet:{tmp_path}/out", *task).stdout
    assert shown.startswith("3 classes (0, 1, 2): 7 train, 1 validation, 2 test")
    assert "is not empty; choose another folder" in keras_vit("data", "write", *options, status=2).stderr
