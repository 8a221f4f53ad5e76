"""Folders of images with boxes in each layout."""

import json
import re

import numpy as np
from PIL import Image

from keras_vit.data import load_dataset

NAMES = ("cat", "dog")
WIDTH, HEIGHT = 40, 20
# For each image the class, and left, top, right and bottom in pixels, of its objects.
OBJECTS = [[("dog", 4, 2, 20, 12)], [], [("cat", 0, 0, 40, 20), ("dog", 10, 5, 30, 15)]] * 4


def write_images(folder, suffix=".png"):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(OBJECTS)):
        pixels = np.full((HEIGHT, WIDTH, 3), number, "uint8")
        Image.fromarray(pixels).save(folder / f"{number:02}{suffix}")


def coco(names=NAMES, objects=OBJECTS, path="{}", **changes):
    """The content of a COCO file; of the categories, ids are not in order and have gaps."""
    ids = {name: 90 - 7 * number for number, name in enumerate(names)}
    images, annotations = [], []
    for number, own in enumerate(objects):
        file = path.format(f"{number:02}.png")
        images.append({"id": 100 + number, "file_name": file, "width": WIDTH, "height": HEIGHT})
        for name, left, top, right, bottom in own:
            box = [left, top, right - left, bottom - top]
            annotation = {"image_id": 100 + number, "category_id": ids[name], "bbox": box, "iscrowd": 0}
            annotations.append({"id": len(annotations), "area": box[2] * box[3] / 2, **annotation})
    categories = [{"id": ids[name], "name": name} for name in names]
    return {"images": images, "annotations": annotations, "categories": categories, **changes}


def changed(**values):
    """The content of a COCO file in which the first row of some lists has other values."""
    content = coco()
    for key, row in values.items():
        content[key][0].update(row)
    return content


def write_coco(root, folder="images", file="annotations/instances_train2017.json", **changes):
    write_images(root / folder)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(json.dumps(coco(**changes)))


def write_roboflow(root):
    for split in ("train", "valid", "test"):
        write_coco(root, split, f"{split}/_annotations.coco.json", names=("animals", *NAMES))
        content = json.loads((root / split / "_annotations.coco.json").read_text())
        for category in content["categories"][1:]:
            category["supercategory"] = "animals"
        (root / split / "_annotations.coco.json").write_text(json.dumps(content))


def write_yolo(root, names="names:\n  0: cat\n  1: dog\n"):
    write_images(root / "images")
    (root / "labels").mkdir()
    (root / "data.yaml").write_text(names)
    for number, objects in enumerate(OBJECTS):
        lines = [
            f"{NAMES.index(name)} {(x + right) / 2 / WIDTH} {(y + bottom) / 2 / HEIGHT} "
            f"{(right - x) / WIDTH} {(bottom - y) / HEIGHT}"
            for name, x, y, right, bottom in objects
        ]
        if lines:
            (root / "labels" / f"{number:02}.txt").write_text("\n".join(lines))


def write_metadata(root):
    write_images(root / "train")
    rows = []
    for number, objects in enumerate(OBJECTS):
        boxes = [[left, top, right - left, bottom - top] for _, left, top, right, bottom in objects]
        found = {"bbox": boxes, "category": [name for name, *_ in objects]}
        rows.append(json.dumps({"file_name": f"{number:02}.png", "objects": found}))
    (root / "train" / "metadata.jsonl").write_text("\n".join(rows))


def write_voc(root, difficult=0):
    write_images(root / "JPEGImages", ".jpg")
    (root / "Annotations").mkdir()
    for number, objects in enumerate(OBJECTS):
        parts = "".join(
            f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox><xmin>{left + 1}</xmin>"
            f"<ymin>{top + 1}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
            for name, left, top, right, bottom in objects
        )
        size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
        text = f"<annotation><filename>{number:02}.jpg</filename>{size}{parts}</annotation>"
        (root / "Annotations" / f"{number:02}.xml").write_text(text)


WRITERS = {"COCO": write_coco, "YOLO": write_yolo, "metadata.jsonl": write_metadata, "VOC": write_voc}


def load(root, **options):
    return load_dataset(f"folder:{root}", task="detection", **options)


def objects_of(samples):
    """The objects of samples by the number of the image, which is its color."""
    found = {}
    for index, (_, rows) in enumerate(samples):
        number = int(re.search(r"(\d+)\.\w+$", samples.images[index])[1])
        sides = np.round(rows[:, :4] * ([WIDTH, HEIGHT] * 2), 3).tolist()
        found[number] = [(NAMES[int(row[4])], *side) for row, side in zip(rows, sides)]
    return found
