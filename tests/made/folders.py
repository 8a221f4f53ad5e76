"""Folders of small images, as a user's data set would be."""

import json

import numpy as np
from PIL import Image

BROKEN = b"\x89PNG\r\n\x1a\n and then something else"


def picture(label, number, size=(32, 32)):
    """Noise, another for each number and brighter for each label: (height, width, 3), uint8."""
    rng = np.random.default_rng([label, number])
    return rng.integers(0, 100, (*size, 3), "uint8") + np.uint8(70 * label)


def write_classes(root, names=("cat", "dog"), count=10, suffix=".png"):
    """Write `count` images into a folder for each name; the folder of these folders."""
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.fromarray(picture(label, number)).save(root / name / f"{number:02d}{suffix}")
    return root


def write_masks(root, count=10, size=(32, 24), classes=3, suffix=".png", below=""):
    """Write `images` and `masks` with blocks of classes; the folder."""
    for number in range(count):
        rng = np.random.default_rng([count, number])
        mask = rng.integers(0, classes, (size[0] // 4, size[1] // 4), "uint8").repeat(4, 0).repeat(4, 1)
        image = np.uint8(40 * mask[..., np.newaxis] + rng.integers(0, 30, (*size, 3)))
        for kind, pixels, end in (("images", image, suffix), ("masks", mask, ".png")):
            path = root / kind / below / f"{number:02d}{end}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    return root


def write_boxes(root, count=10, size=(16, 24)):
    """Images with one or two bright rectangles, and YOLO's files with their boxes."""
    rng = np.random.default_rng(count)
    for name in ("images", "labels"):
        (root / name).mkdir(parents=True)
    (root / "data.yaml").write_text("names: [red, green]")
    for number in range(count):
        pixels, lines = np.zeros((*size, 3), "uint8"), []
        for channel in range(1 + number % 2):
            height, width = rng.integers(4, 9, 2)
            top, left = rng.integers(0, np.array(size) - (height, width))
            pixels[top : top + height, left : left + width, channel] = 255
            box = (
                (left + width / 2) / size[1],
                (top + height / 2) / size[0],
                width / size[1],
                height / size[0],
            )
            lines.append(" ".join(map(str, (channel, *box))))
        Image.fromarray(pixels).save(root / "images" / f"{number:02}.png")
        (root / "labels" / f"{number:02}.txt").write_text("\n".join(lines))
    return root


def write_depths(root, count=10, size=(16, 24)):
    """Images whose brightness falls with the distance of each pixel, and the distances, some missing."""
    rng = np.random.default_rng(count)
    for name in ("images", "depths"):
        (root / name).mkdir(parents=True)
    for number in range(count):
        ends = rng.uniform(1, 8, 2)
        distances = np.linspace(*ends, size[1], dtype="float32") * np.ones((size[0], 1), "float32")
        brightness = np.uint8(255 / (1 + distances))
        distances[rng.random(size) < 0.1] = np.nan
        Image.fromarray(np.repeat(brightness[..., np.newaxis], 3, axis=2)).save(
            root / "images" / f"{number:02}.png"
        )
        np.save(root / "depths" / f"{number:02}.npy", distances)
    return root


def write_keypoints(root, count=10, size=(24, 32)):
    """Images of a bright rectangle with a red and a green corner above, and COCO's file of the corners."""
    rng, images, annotations = np.random.default_rng(count), [], []
    (root / "images").mkdir(parents=True)
    for number in range(count):
        height, width = rng.integers(8, 14, 2).tolist()
        top, left = (int(rng.integers(0, side - extent)) for side, extent in zip(size, (height, width)))
        pixels = rng.integers(0, 40, (*size, 3), "uint8")
        pixels[top : top + height, left : left + width] = 200
        pixels[top, left], pixels[top, left + width - 1] = (255, 0, 0), (0, 255, 0)
        file = f"{number:02}.png"
        Image.fromarray(pixels).save(root / "images" / file)
        images.append({"id": number, "file_name": file, "width": size[1], "height": size[0]})
        points = [left, top, 2, left + width - 1, top, 2, left + width // 2, top + height - 1, 1]
        points[6:] = [0, 0, 0] if number % 3 == 2 else points[6:]
        own = {"id": number, "image_id": number, "category_id": 1, "keypoints": points, "iscrowd": 0}
        box = {"bbox": [left, top, width, height], "area": height * width - 5}
        annotations.append({**own, **box, "num_keypoints": sum(mark > 0 for mark in points[2::3])})
    category = {"id": 1, "name": "box", "keypoints": ["left_top", "right_top", "foot"], "skeleton": [[1, 2]]}
    content = {"images": images, "annotations": annotations, "categories": [category]}
    (root / "labels.json").write_text(json.dumps(content))
    return root


def write_broken(path):
    """Write a file that says it is a PNG and is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(BROKEN)
    return path


def write_table(root, *lines, images=()):
    """Write a folder with `labels.csv` of these lines and images of these names; the folder."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    for number, name in enumerate(images):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(0, number)).save(root / name)
    return root


def write_captions(root, count=12, size=(16, 16), table="metadata.csv", captions=2):
    """Write images of two brightnesses and a table with captions of each; the folder."""
    root.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        Image.fromarray(picture(number % 2, number, size)).save(root / f"{number:02d}.png")
        words = f"{('dark', 'bright')[number % 2]} {number}"
        rows += [(f"{number:02d}.png", f"{start} {words}") for start in ("a photo of", "some")[:captions]]
    if table.endswith(".csv"):
        lines = ["file_name,text", *(",".join(row) for row in rows)]
    else:
        lines = [json.dumps(dict(zip(("file_name", "text"), row))) for row in rows]
    (root / table).write_text("\n".join(lines) + "\n")
    return root
