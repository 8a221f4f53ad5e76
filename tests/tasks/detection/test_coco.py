import json
import re

import pytest
from made.box_folders import NAMES, OBJECTS, changed, coco, load, objects_of, write_coco, write_images
from made.tables import by_table


def write(root, **files):
    """Files of labels by their names, all about the same images."""
    write_images(root / "images")
    for name, content in files.items():
        (root / f"{name}.json").write_text(json.dumps(content))


def test_an_image_in_several_files_is_one_sample_with_the_objects_of_all(tmp_path):
    both = coco()
    cats = coco(names=("cat",), objects=[[one for one in own if one[0] == "cat"] for own in OBJECTS])
    write(tmp_path, instances_train=both, person_keypoints_train=cats, copy_train=both)
    data = load(tmp_path, seed=None)
    assert data.class_names == NAMES and objects_of(data.split("train")) == dict(enumerate(OBJECTS))


def test_files_of_one_class_each_are_joined(tmp_path):
    of_class = {name: [[one for one in own if one[0] == name] for own in OBJECTS] for name in NAMES}
    write(tmp_path, **{name: coco(objects=objects) for name, objects in of_class.items()})
    samples = load(tmp_path, seed=None).split("train")
    found = {number: sorted(own) for number, own in objects_of(samples).items()}
    assert found == {number: sorted(own) for number, own in enumerate(OBJECTS)}


@pytest.mark.parametrize(
    "path",
    ["{root}/images/{{}}", "../images/{{}}", "/of/another/machine/images/{{}}", r"C:\data\images\{{}}"],
)
def test_paths_out_of_the_folder_are_those_of_its_images(path, tmp_path, monkeypatch):
    write_coco(tmp_path, path=path.format(root=tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    for root in (tmp_path, tmp_path.name):
        samples = load(root, seed=None).split("train")
        assert objects_of(samples) == dict(enumerate(OBJECTS))


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first")])
def test_a_file_with_some_boxes_of_another_is_joined_with_it(names, tmp_path):
    more = [[*OBJECTS[0], ("dog", 30, 5, 35, 15)], *OBJECTS[1:]]
    write(tmp_path, **dict(zip(names, (coco(), coco(objects=more)))))
    assert objects_of(load(tmp_path, seed=None).split("train")) == dict(enumerate(more))


def test_two_versions_of_labels_are_refused(tmp_path):
    moved = coco()
    moved["annotations"][0]["bbox"][0] += 1
    write(tmp_path, first=coco(), second=moved)
    with pytest.raises(ValueError, match="00.png' has other boxes of 'dog' in '.*/first.json' than in '.*/s"):
        load(tmp_path)


def test_an_image_with_two_ids_is_one_sample(tmp_path):
    content = coco()
    content["images"].append({**content["images"][0], "id": 7})
    content["annotations"].append({**content["annotations"][0], "image_id": 7, "bbox": [0, 0, 10, 10]})
    write(tmp_path, labels=content)
    samples = load(tmp_path, seed=None).split("train")
    assert len(samples) == 12 and objects_of(samples)[0] == [*OBJECTS[0], ("dog", 0, 0, 10, 10)]


def test_an_image_in_two_splits_is_refused(tmp_path):
    write(tmp_path, instances_train=coco(), instances_val=coco(objects=OBJECTS[:2]))
    with pytest.raises(ValueError, match=r"00.png' is in train and in validation \(by instances_train.json"):
        load(tmp_path)


@pytest.mark.parametrize("images, labels", [("{}", "annotations/{}.json"), ("{}/images", "{}/labels/a.json")])
def test_splits_may_have_images_of_equal_names(images, labels, tmp_path):
    for split in ("train2017", "val2017"):
        write_coco(tmp_path, images.format(split), labels.format(split))
    data = load(tmp_path, seed=None)
    for split in ("train", "validation"):
        folder = f"/{split.replace('idation', '')}2017/"
        assert len(data.split(split)) == 12 and all(folder in path for path in data.split(split).images)


def test_the_folder_of_annotations_of_coco_is_read(tmp_path):
    images = coco()["images"]
    write_coco(tmp_path, "train2017")
    for name, row in {"panoptic": {"segments_info": []}, "captions": {"caption": "a cat"}}.items():
        content = {"images": images, "annotations": [{"image_id": 100, **row}]}
        content |= {"categories": [{"id": 1, "name": "cat"}]} if name == "panoptic" else {}
        (tmp_path / f"annotations/{name}_train2017.json").write_text(json.dumps(content))
    data = load(tmp_path, seed=None)
    assert len(data.split("train")) == 12 and len(data.ignored_files) == 2


def test_classes_of_one_name_are_one_class(tmp_path):
    content = coco()
    content["categories"].append({"id": 5, "name": "dog"})
    content["annotations"][0]["category_id"] = 5
    write(tmp_path, labels=content)
    data = load(tmp_path, seed=None)
    assert data.class_names == NAMES and objects_of(data.split("train")) == dict(enumerate(OBJECTS))


def test_a_class_whose_supercategory_is_itself_stays_a_class(tmp_path):
    content = coco()
    content["categories"].insert(0, {"id": 1, "name": "person", "supercategory": "person"})
    write(tmp_path, labels=content)
    assert load(tmp_path).class_names == ("person", *NAMES)


@by_table("value, expected", [("0", 0), ("false", 0), (None, 0), ("1", 1), (1.0, 1)])
def test_a_crowd_may_be_stated_as_text(value, expected, tmp_path):
    write(tmp_path, labels=changed(annotations={"iscrowd": value}))
    assert load(tmp_path, seed=None).split("train")[0][1][:, 5].tolist() == [expected]


@pytest.mark.parametrize("size", [{"width": None}, {"height": 0}, {"width": "40", "height": 20.0}])
def test_sizes_may_be_unknown_or_text(size, tmp_path):
    write(tmp_path, labels=changed(images=size))
    assert objects_of(load(tmp_path, seed=None).split("train")) == dict(enumerate(OBJECTS))


def more(key, **values):
    """The content of a file in which a list has its first row once more, with other values."""
    content = coco()
    content[key].insert(1, content[key][0] | values)
    return content


def without(key, name):
    """The content of a file in which the first row of a list lacks a value."""
    content = coco()
    del content[key][0][name]
    return content


NO_BOX = "LABELS, annotation 0: expected 4 numbers of a box; got "
SIZES = "1 image(s) have another size than their labels say: ROOT/images/00.png (40×20 pixels, but 41×20"


@by_table(
    "content, message",
    [
        (changed(images={"id": [1]}), "LABELS, image 0: expected an id; got a list"),
        (changed(images={"width": "wide"}), "image 0: expected a width and a height in pixels; got wide, 20"),
        (changed(images={"width": 41}), SIZES),
        (changed(images={"file_name": "99.png"}), "image 0: expected one image '99.png'; got none"),
        (without("images", "file_name"), "LABELS, image 0: expected the key 'file_name'; got "),
        (more("images"), "LABELS, image 1: expected an id of its own; got 100 twice"),
        (coco() | {"images": [1, 2]}, "LABELS, images: expected a list of objects; got [1, 2]"),
        (changed(categories={"name": [1]}), "LABELS, category 0: expected a name; got a list"),
        (without("categories", "name"), "LABELS, category 0: expected the key 'name'; got id"),
        (more("categories"), "LABELS, category 1: expected an id of its own; got 90 twice"),
        (changed(annotations={"category_id": {}}), "0: expected the number or name of a class; got a dict"),
        (changed(annotations={"category_id": 7}), "LABELS, annotation 0 (unknown class 7)"),
        (changed(annotations={"image_id": {}}), "annotation 0: expected the id of an image; got a dict"),
        (changed(annotations={"image_id": 7}), "LABELS, annotation 0: expected the id of an image; got 7"),
        (changed(annotations={"area": [1]}), "LABELS, annotation 0: expected an area; got [1]"),
        (changed(annotations={"area": float("inf")}), "annotation 0: expected an area from 0 on; got inf"),
        (
            changed(annotations={"iscrowd": "no"}),
            "expected 0 or 1 for whether an object is a crowd; got 'no'",
        ),
        (without("annotations", "bbox"), "LABELS, annotation 0: expected the key 'bbox'; got "),
        (changed(annotations={"bbox": "1234"}), f"{NO_BOX}'1234'"),
        (changed(annotations={"bbox": [4, 2, "x", 1]}), f"{NO_BOX}[4, 2, 'x'"),
        (changed(annotations={"bbox": [4, 2, float("inf"), 1]}), f"{NO_BOX}[4, 2, inf"),
        (changed(annotations={"bbox": [4, 2, 1, 1, 1]}), f"{NO_BOX}[4, 2, 1, 1, 1]"),
        (changed(annotations={"bbox": [1, 2, 3, 10**400]}), f"{NO_BOX}[1, 2, 3, 1000"),
        (
            changed(annotations={"bbox": [20, 12, -16, -10]}),
            "(sides in the wrong order: left, top, right, bot",
        ),
        (changed(annotations={"bbox": [4, 2, 38, 10]}), "(outside of its image of 40×20 pixels: left,"),
        (more("annotations"), "(the same box and class twice: left, top, right, bottom 4, 2, 20, 12)"),
    ],
)
def test_wrong_values_are_refused_with_their_place(content, message, tmp_path):
    write(tmp_path, labels=content)
    message = message.replace("LABELS", f"{tmp_path}/labels.json").replace("ROOT", str(tmp_path))
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_nested_deeply_is_refused_if_it_has_images(tmp_path):
    write(tmp_path, labels=coco())
    (tmp_path / "other.json").write_text('{"x": ' + "[" * 100_000)
    assert len(load(tmp_path).ignored_files) == 1
    (tmp_path / "other.json").write_text('{"images": ' + "[" * 100_000)
    with pytest.raises(ValueError, match="other.json': expected JSON; got values nested too deeply$"):
        load(tmp_path)
