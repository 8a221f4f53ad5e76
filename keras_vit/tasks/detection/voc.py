"""Pascal VOC's XML files, and its lists of images."""

import os
import pathlib
import xml.etree.ElementTree

from keras_vit.data.files import SPLIT_NAMES, read_text
from keras_vit.data.folder_splits import folder_splits
from keras_vit.messages import listed
from keras_vit.tasks.detection.labeled import LabeledImage, size_of_labels
from keras_vit.tasks.detection.stored_boxes import StoredObject, class_of, is_crowd, numbers_of

LISTS, TRAINVAL = ("Main", "ImageSets"), "trainval"


def read_voc(folder):
    """The images of Pascal VOC's files.

    Args, Returns, Raises: See `coco.read_coco`; the names of the classes are None.
    """
    annotations = {path: content for path in folder.paths[".xml"] if (content := _content(path)) is not None}
    if not annotations:
        return None
    used, lists = {*annotations}, {}
    for base, files in _lists(folder.paths[".txt"]).items():
        used |= {*files.values()}
        stems = {_stem(path): path for path in annotations if path.startswith(os.path.join(base, ""))}
        lists |= _listed(files, stems, folder)
        unlisted = {*stems.values()} - lists.keys()
        used -= unlisted
        annotations = {path: content for path, content in annotations.items() if path not in unlisted}
    unlisted = folder_splits(folder.root, [path for path in annotations if path not in lists])
    labeled = []
    for path, annotation in annotations.items():
        split, *stated_by = lists.get(path) or unlisted[path]
        name = (annotation.findtext("filename") or "").strip()
        file = folder.find(name or _stem(path), path, split, path, stem=_stem(path))
        where = f"{path}, size"
        size = size_of_labels(*(_text(annotation, f"size/{side}") for side in ("width", "height")), where)
        objects = [
            _object(element, f"{path}, object {number}")
            for number, element in enumerate(annotation.findall("object"))
        ]
        labeled.append(LabeledImage(path, file, objects, split, tuple(stated_by if split else ()), size))
    objects = [item for image in labeled for item in image.objects]
    # The first pixel is 1, and the last one belongs to the box. Tools that write a 0 count edges from 0.
    if all(min(item.sides[:2]) >= 1 for item in objects):
        for item in objects:
            left, top, *opposite = item.sides
            item.sides = left - 1, top - 1, *opposite
    return used, labeled, None


def _content(path):
    """The root of an XML file of annotations; None for other XML files."""
    try:
        content = xml.etree.ElementTree.fromstring(pathlib.Path(path).read_bytes())  # in its own encoding
    except (OSError, ValueError, LookupError, xml.etree.ElementTree.ParseError) as error:
        raise ValueError(f"{path!r} is not a readable XML file: {error}") from None
    return content if content.tag == "annotation" else None


def _lists(paths):
    """By folder with `ImageSets`, the path of each list of a split; those in `Main` come first."""
    lists = {}
    for path in paths:
        above, name = os.path.split(path)
        stem = os.path.splitext(name)[0].lower()
        if os.path.basename(above) in LISTS and (stem in SPLIT_NAMES or stem == TRAINVAL):
            is_main = os.path.basename(above) == "Main"
            base = os.path.dirname(os.path.dirname(above)) if is_main else os.path.dirname(above)
            lists.setdefault(base, {}).setdefault(is_main, {})[stem] = path
    return {base: by_place.get(True) or by_place[False] for base, by_place in lists.items()}


def _listed(files, stems, folder):
    """By annotation, its split and the list that has it.

    Args:
        files: The paths of the lists by their names.
        stems: The paths of the annotations by the names of images.
        folder: The `BoxFiles`.

    Raises:
        ValueError: for an image in two lists of different splits, or in trainval and in neither of both.
    """
    named = {name: _lines(path, stems) for name, path in files.items()}
    trainval, splits = named.pop(TRAINVAL, ()), {}
    for name, paths in named.items():
        for path in paths:
            first = splits.setdefault(path, (SPLIT_NAMES[name], files[name]))
            if first[0] != SPLIT_NAMES[name]:
                raise ValueError(f"{files[name]}: {_stem(path)!r} is in {first[1]}, too")
    # Where there is one of train and val, the other one is the rest of trainval.
    missing = [split for split in ("train", "validation") if split not in map(SPLIT_NAMES.get, named)]
    for path in trainval:
        split, file = splits.setdefault(path, (missing[0] if missing else "", files[TRAINVAL]))
        if split in ("test", ""):
            is_where = f"is in {file}, too" if split else "is neither in train nor in val"
            raise ValueError(f"{files[TRAINVAL]}: {_stem(path)!r} {is_where}")
    return {path: (split, folder.relative(file)) for path, (split, file) in splits.items()}


def _lines(path, stems):
    """The annotations of the images that a list names, one on each line."""
    names = [line.strip() for line in read_text(pathlib.Path(path)).splitlines() if line.strip()]
    paths = [stems.get(name) or stems.get(_stem(name)) for name in names]
    if None in paths:
        missing = [name for name, annotation in zip(names, paths) if annotation is None]
        raise ValueError(f"{path}: {len(missing)} image(s) have no XML file: {listed(missing)}")
    return dict.fromkeys(paths)


def _object(content, where):
    sides = numbers_of(
        [content.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")], 4, where
    )
    name = class_of(_text(content, "name"), where, "the name of a class")
    return StoredObject(where, tuple(sides), name, is_crowd(_text(content, "difficult"), where))


def _text(content, place):
    return (content.findtext(place) or "").strip()


def _stem(path):
    return os.path.splitext(os.path.basename(path))[0]
