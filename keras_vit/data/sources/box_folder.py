"""Folders of images and boxes: COCO, YOLO, Pascal VOC and `metadata.jsonl`."""

import collections
import dataclasses
import json
import os
import pathlib
import re
import xml.etree.ElementTree

from PIL import Image

from keras_vit.data.files import (
    CLASSES,
    IMAGE_SUFFIXES,
    SPLIT_NAMES,
    file_orientations,
    images_among,
    mapped,
    paths_of,
    read_text,
    refuse_unreadable,
)
from keras_vit.data.samples import Samples, hold_out_missing
from keras_vit.data.stored_boxes import StoredObject, checked_rows, numbers_of, objects_of, with_extent
from keras_vit.labels.boxes import encode_boxes
from keras_vit.messages import listed
from keras_vit.preprocessing.image_files import TRANSPOSED

METADATA, OBJECTS = "metadata.jsonl", "objects"
LAYOUT = (
    "COCO's JSON files with images, annotations and categories; YOLO's data.yaml with images/ and labels/; "
    f"Pascal VOC's XML files; or {METADATA} with {OBJECTS}"
)


@dataclasses.dataclass
class _Labeled:
    """An image and its objects.

    Args:
        split: The name of its split.
        path: Of the image.
        objects: A list of `StoredObject`.
        size: (width, height) by the file of labels; None if unknown.
        are_fractions: Whether the sides of the objects are fractions.
    """

    split: str
    path: str
    objects: list
    size: tuple[int, int] | None = None
    are_fractions: bool = False


def load_box_folder(root, files, *, on_bad_image="fail", seed=0):
    """Load a folder of images with the boxes of objects in them.

    Args:
        root: The folder, a pathlib.Path, with images anywhere below it and one of

            * COCO: one or several JSON files with `images`, `annotations` and `categories`, anywhere; the
              split of each is in its name or its folder's, as in `annotations/instances_val2017.json` or
              `valid/_annotations.coco.json` (Roboflow). The areas are those of the annotations, and `iscrowd`
              makes a crowd.
            * YOLO: `data.yaml` (or another `.yaml` file there) with `names`, and for `images/…/NAME.jpg` a
              text file `labels/…/NAME.txt` with lines "class x y width height", in fractions. An image
              without a file has no objects.
            * Pascal VOC: XML files with the names of the images beside them or in `Annotations`, with the
              splits of `ImageSets/Main`; `difficult` objects count as crowds.
            * `metadata.jsonl` of Hugging Face's ImageFolder, in the folder of the images or of a split: on
              each line `file_name` and `objects` with `bbox`, a list of [left, top, width, height], and
              `category` or `categories`.

            Names of classes are in these files; of categories that are numbers, `classes.txt` has a name per
            line.
        files: As of `visible_files`.
        on_bad_image: As of `load_dataset`; it is for images that cannot be read and for wrong boxes.
        seed: Of the split.

    Returns:
        (the paths of the files that are used, fields of a `Dataset`).

    Raises:
        ValueError: for another layout; a label file that cannot be read; an image that is missing, cannot be
            read or has another size than its file of labels says; a box without a class or an extent, with
            its sides in the wrong order, outside of its image, or that is there twice.

    Example:
        >>> (tmp / "labels").mkdir(), (tmp / "images").mkdir()
        (None, None)
        >>> _ = (tmp / "data.yaml").write_text("names: [cat, dog]")
        >>> for number in range(10):
        ...     Image.fromarray(np.zeros((8, 8), "uint8")).save(tmp / "images" / f"{number}.png")
        ...     _ = (tmp / "labels" / f"{number}.txt").write_text("1 0.5 0.5 0.25 0.5")
        >>> _, found = load_box_folder(tmp, keras_vit.data.files.visible_files(tmp))
        >>> found["class_names"], found["splits"]["test"][0][1].tolist()
        (('cat', 'dog'), [[0.375, 0.25, 0.625, 0.75, 1.0, 0.0, 0.125]])
    """
    if on_bad_image == "keep":
        raise ValueError("on_bad_image='keep' is for images without boxes, which are all read")
    used, labeled, names = _read(root, files)
    if not labeled:
        raise ValueError(f"no boxes in {os.fspath(root)!r}; expected {LAYOUT}")
    paths = [image.path for image in labeled]
    turns = dict(zip(paths, file_orientations(paths)))
    stored = dict(zip(paths, mapped(_size, paths, "reading sizes")))
    sizes = {
        path: stored[path][::-1] if turn >= TRANSPOSED else stored[path]
        for path, turn in turns.items()
        if turn and stored[path]
    }
    bad = [path for path in paths if path not in sizes]
    refuse_unreadable(bad, on_bad_image)
    readable = [image for image in labeled if image.path in sizes]
    _refuse_other_sizes(readable, sizes)
    names = names or _names_of(root, labeled)
    numbers = {name: number for number, name in enumerate(names)}
    splits, wrong = collections.defaultdict(lambda: ([], [])), []
    for image in readable:
        rows, reasons = checked_rows(image.objects, sizes[image.path], numbers, image.are_fractions)
        if reasons:
            wrong += reasons
            bad.append(image.path)
            continue
        of_split = splits[image.split]
        of_split[0].append(image.path)
        of_split[1].append(encode_boxes(rows))
    if wrong and on_bad_image != "skip":
        raise ValueError(
            f"{len(wrong)} box(es) are wrong: {listed(wrong)}; mend them or give --on_bad_image skip, which "
            "leaves out their images"
        )
    if "train" not in splits:
        raise ValueError(f"{os.fspath(root)!r} has no images to train on; it has {listed(sorted(splits))}")
    is_turned = any(turn and turn > 1 for turn in turns.values())
    samples = {split: Samples(*map(tuple, columns), exif=is_turned) for split, columns in splits.items()}
    fields = {"class_names": names, "splits": hold_out_missing(samples, seed), "bad_images": tuple(bad)}
    return used | {image.path for image in labeled}, fields


def _read(root, files):
    """(paths of the label files, list of `_Labeled`, names of the classes or None) of the first layout."""
    paths = [*paths_of(root, files)]
    images = _Images([*paths_of(root, images_among(files))])
    by_suffix = collections.defaultdict(list)
    for path in paths:
        by_suffix[os.path.splitext(path)[1].lower()].append(path)
    metadata = [path for path in by_suffix[".jsonl"] if os.path.basename(path) == METADATA]
    if metadata:
        return {*metadata}, [image for path in metadata for image in _of_metadata(root, path)], None
    if coco := {path: content for path in by_suffix[".json"] if (content := _coco(path))}:
        return {*coco}, *_of_coco(root, coco, images)
    if by_suffix[".xml"]:
        used, labeled = _of_voc(root, by_suffix[".xml"], by_suffix[".txt"], images)
        return used, labeled, None
    configs = [path for suffix in (".yaml", ".yml") for path in by_suffix[suffix]]
    if configs:
        return _of_yolo(root, configs, images)
    return set(), [], None


class _Images:
    """The images in a folder, by name."""

    def __init__(self, paths):
        self.paths = paths
        self.by_name = collections.defaultdict(list)
        for path in paths:
            self.by_name[os.path.basename(path)].append(path)

    def find(self, name, near, split, where):
        """The path of an image that a label file names; ValueError if there is none, or several.

        Args:
            name: Its name or the end of its path.
            near: The folder of the label file, whose own images come first.
            split: The split of the file, whose folders come next.
            where: The place of the name, for messages.
        """
        ending = "/" + pathlib.PurePosixPath(name.replace("\\", "/")).as_posix().lstrip("/")
        fits = [path for path in self.by_name[os.path.basename(ending)] if path.endswith(ending)]
        if len(fits) > 1:
            fits = [path for path in fits if os.path.dirname(path) == near] or fits
        if len(fits) > 1:
            fits = [path for path in fits if _split_of(path, near) == split] or fits
        if len(fits) != 1:
            others = f"several: {listed(fits)}" if fits else "none"
            raise ValueError(f"{where}: expected one image {name!r}; got {others}")
        return fits[0]


def _split_of(path, root):
    """The split in the names of a file and of its folders below the root; None if there is none.

    >>> _split_of("/a/train/annotations/instances_val2017.json", "/a"), _split_of("/a/valid/1.jpg", "/a")
    ('validation', 'validation')
    """
    parts = os.path.relpath(os.path.splitext(path)[0], root).split(os.sep)
    for part in reversed(parts):
        for word in reversed(re.findall(r"[a-z]+", part.lower())):
            if word in SPLIT_NAMES:
                return SPLIT_NAMES[word]
    return None


# COCO


def _coco(path):
    """The content of a JSON file if it is COCO's; None for other files."""
    with open(path, "rb") as file:
        head = file.read(2**16)
    if not head.lstrip().startswith(b"{"):
        return None
    try:
        content = json.loads(read_text(pathlib.Path(path)))
    except ValueError as error:
        if b'"images"' in head or b'"annotations"' in head:
            raise ValueError(f"{path!r} is not a readable JSON file: {error}") from None
        return None
    is_coco = isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys()
    return content if is_coco else None


def _of_coco(root, contents, images):
    """(list of `_Labeled`, names of the classes) of COCO's files."""
    labeled, names = [], {}
    for path, content in contents.items():
        categories = {}
        for number, category in enumerate(_list(content["categories"], f"{path}, categories")):
            where = f"{path}, category {number}"
            categories[_value(category, "id", where)] = str(_value(category, "name", where))
        names |= dict.fromkeys(categories.values())
        split = _split_of(path, root) or "train"
        by_id = {}
        for number, image in enumerate(_list(content["images"], f"{path}, images")):
            where = f"{path}, image {number}"
            file = images.find(str(_value(image, "file_name", where)), os.path.dirname(path), split, where)
            size = (image["width"], image["height"]) if {"width", "height"} <= image.keys() else None
            by_id[_value(image, "id", where)] = _Labeled(split, file, [], size)
        for number, annotation in enumerate(_list(content["annotations"], f"{path}, annotations")):
            where = f"{path}, annotation {annotation.get('id', number)}"
            image = by_id.get(_value(annotation, "image_id", where))
            if image is None:
                raise ValueError(f"{where}: expected the id of an image; got {annotation['image_id']!r}")
            sides = with_extent(_value(annotation, "bbox", where), where)
            name = categories.get(_value(annotation, "category_id", where), annotation["category_id"])
            crowd, area = bool(annotation.get("iscrowd", 0)), annotation.get("area")
            image.objects.append(StoredObject(where, sides, name, crowd, area))
        labeled += by_id.values()
    used = {one.name for image in labeled for one in image.objects}
    # Roboflow's files have a category above all others, which no object has.
    parents = {category.get("supercategory") for of in contents.values() for category in of["categories"]}
    return labeled, tuple(name for name in names if name in used or name not in parents)


def _list(value, where):
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ValueError(f"{where}: expected a list of objects; got {str(value)[:40]}")
    return value


def _value(row, key, where):
    if key not in row:
        raise ValueError(f"{where}: expected the key {key!r}; got {', '.join(row) or 'none'}")
    return row[key]


# metadata.jsonl


def _of_metadata(root, path):
    """The images of a `metadata.jsonl`."""
    folder, split = os.path.dirname(path), _split_of(os.path.dirname(path) + "/x", root) or "train"
    for line, text in enumerate(read_text(pathlib.Path(path)).splitlines(), 1):
        if not text.strip():
            continue
        where = f"{path}, line {line}"
        try:
            row = json.loads(text)
            objects, file = row[OBJECTS], os.path.join(folder, row["file_name"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{where}: expected file_name and {OBJECTS} with bbox and category; got {error!r}"
            ) from None
        if not os.path.isfile(file):
            raise ValueError(f"{where}: no such file: {row['file_name']!r}")
        objects = objects_of(objects, where)
        size = (row["width"], row["height"]) if {"width", "height"} <= row.keys() else None
        yield _Labeled(split, file, objects, size)


# Pascal VOC


def _of_voc(root, files, lists, images):
    """(paths of the label files, list of `_Labeled`) of Pascal VOC's files."""
    splits, used = {}, {*files}
    for path in lists:
        stem = os.path.splitext(os.path.basename(path))[0].lower()
        if os.path.basename(os.path.dirname(path)) == "Main" and stem in SPLIT_NAMES:
            splits |= dict.fromkeys(read_text(pathlib.Path(path)).split(), SPLIT_NAMES[stem])
            used.add(path)
    labeled = []
    for path in files:
        stem = os.path.splitext(os.path.basename(path))[0]
        if splits and stem not in splits:
            continue
        split = splits.get(stem) or _split_of(path, root) or "train"
        try:
            annotation = xml.etree.ElementTree.fromstring(read_text(pathlib.Path(path)))
        except xml.etree.ElementTree.ParseError as error:
            raise ValueError(f"{path!r} is not a readable XML file: {error}") from None
        if annotation.tag != "annotation":
            used.discard(path)
            continue
        name = annotation.findtext("filename") or ""
        if os.path.splitext(name)[0] != stem:  # Renamed files often keep the name of another.
            fits = [f"{stem}{suffix}" for suffix in IMAGE_SUFFIXES if f"{stem}{suffix}" in images.by_name]
            name = fits[0] if fits else name
        file = images.find(name, os.path.dirname(path), split, path)
        objects = []
        for number, one in enumerate(annotation.findall("object")):
            where = f"{path}, object {number}"
            texts = [one.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
            left, top, right, bottom = numbers_of(texts, 4, where)
            # The first pixel is 1, and the last one belongs to the box.
            sides = (left - 1, top - 1, right, bottom)
            is_difficult = (one.findtext("difficult") or "0").strip() == "1"
            objects.append(StoredObject(where, sides, (one.findtext("name") or "").strip(), is_difficult))
        size = [annotation.findtext(f"size/{side}") for side in ("width", "height")]
        known = all(text and text.strip().isdigit() and int(text) for text in size)
        labeled.append(_Labeled(split, file, objects, tuple(map(int, size)) if known else None))
    return used, labeled


# YOLO


def _of_yolo(root, configs, images):
    """(paths of the label files, list of `_Labeled`, names of the classes) of YOLO's files."""
    import yaml

    names, used = None, set()
    for path in configs:
        try:
            content = yaml.safe_load(read_text(pathlib.Path(path)))
        except yaml.YAMLError as error:
            raise ValueError(f"{path!r} is not a readable YAML file: {listed([str(error)])}") from None
        if isinstance(content, dict) and "names" in content:
            names, used = content["names"], {path}
            break
    if isinstance(names, dict):
        names = [names.get(number) for number in range(len(names))]
    if not isinstance(names, list) or not names or None in names:
        raise ValueError(f"{listed(configs)}: expected names, a list of the classes or one by number")
    names = tuple(map(str, names))
    labeled = []
    for path in images.paths:
        parts = os.path.relpath(path, root).split(os.sep)
        if "images" not in parts[:-1]:
            continue
        place = len(parts) - 1 - parts[::-1].index("images")
        parts[place] = "labels"
        label = os.path.join(root, os.path.splitext(os.path.join(*parts))[0] + ".txt")
        split = _split_of(path, root) if len(parts) > 2 else None
        objects = []
        if os.path.isfile(label):
            used.add(label)
            for line, text in enumerate(read_text(pathlib.Path(label)).splitlines(), 1):
                if text.strip():
                    objects.append(_yolo_object(text.split(), f"{label}, line {line}", names))
        labeled.append(_Labeled(split or "train", path, objects, are_fractions=True))
    return used, labeled, names


def _yolo_object(words, where, names):
    """The `StoredObject` of a line: class x y width height, or class and the corners of a polygon."""
    numbers = numbers_of(words[1:], max(len(words) - 1, 4), where)
    name = names[int(words[0])] if words[0].isdigit() and int(words[0]) < len(names) else words[0]
    if len(numbers) > 4:
        xs, ys = numbers[0::2], numbers[1::2]
        if len(numbers) % 2 or len(xs) < 3:
            raise ValueError(
                f"{where}: expected a box of 4 numbers, or the corners of a polygon; got {words}"
            )
        return StoredObject(where, (min(xs), min(ys), max(xs), max(ys)), name)
    x, y, width, height = numbers
    return StoredObject(where, (x - width / 2, y - height / 2, x + width / 2, y + height / 2), name)


# Checks


def _size(path):
    """The stored (width, height) of an image; None if it cannot be read."""
    try:
        with Image.open(path) as image:
            return image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def _refuse_other_sizes(labeled, sizes):
    """Raise ValueError for images of another size than their labels say."""
    wrong = [
        f"{image.path} ({_pixels(sizes[image.path])}, but {_pixels(image.size)} by its labels)"
        for image in labeled
        if image.size is not None and tuple(image.size) != tuple(sizes[image.path])
    ]
    if wrong:
        raise ValueError(f"{len(wrong)} image(s) have another size than their labels say: {listed(wrong)}")


def _pixels(size):
    return f"{size[0]}×{size[1]} pixels"


def _names_of(root, labeled):
    """The names of the classes: those of the objects, sorted, or for numbers the lines of `classes.txt`."""
    names = {one.name for image in labeled for one in image.objects}
    path = root / CLASSES
    if names and all(isinstance(name, int) for name in names):
        lines = [line.strip() for line in read_text(path).splitlines()] if path.is_file() else None
        lines = lines or [str(number) for number in range(max(names) + 1)]
        for image in labeled:
            for one in image.objects:
                one.name = lines[one.name] if 0 <= one.name < len(lines) else one.name
        return tuple(lines)
    return tuple(sorted(map(str, names)))
