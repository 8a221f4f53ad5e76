"""YOLO's `data.yaml`, with a text file of boxes for each image."""

import os
import pathlib

from keras_vit.data.files import SPLIT_NAMES, read_text
from keras_vit.data.folder_splits import folder_splits
from keras_vit.messages import listed
from keras_vit.tasks.detection.labeled import LabeledImage, in_root
from keras_vit.tasks.detection.stored_boxes import StoredObject, numbers_of

IMAGES, LABELS = "images", "labels"
YAML = (".yaml", ".yml")
NOTHING = ("", "~", "null")  # of a key without a value


def read_yolo(folder, parse=None):
    """The images and the classes of YOLO's files.

    Without `train`, `val` or `test` in `data.yaml`, the images are those in folders `images`, and the names
    of folders state the splits; with some of these, they state the others.

    Args:
        folder: The `BoxFiles`.
        parse: A function from the words of a line, its place, the names of the classes and the `kpt_shape`
            of two ints, or None, to an object; None: to its `StoredObject`.

    Returns, Raises: See `coco.read_coco`.
    """
    contents, parse = contents_of(folder), parse or _object
    if not contents:
        return None
    configs = {path: content for path, content in contents.items() if "names" in content}
    if not configs:
        raise ValueError(f"{listed(contents)}: expected names, a list of the classes or one by number")
    read = [_config(folder, path, content) for path, content in configs.items()]
    if any(values != read[0] for values in read):
        raise ValueError(f"expected one file with names of classes and splits; got {listed(configs)}")
    names, points, sets = read[0]
    inside = [path for path in folder.images if IMAGES in folder.relative(path).split(os.sep)[:-1]]
    if sets is None:
        sets = dict.fromkeys(inside, (None, ()))
    else:
        sets |= _other_splits(folder, sets, [path for path in inside if path not in sets])
    used, labeled = {*configs}, []
    for path, (split, stated_by) in sets.items():
        label = _labels_of(path, folder)
        objects = []
        if os.path.isfile(label):
            used.add(label)
            for line, text in enumerate(read_text(pathlib.Path(label)).splitlines(), 1):
                if text.strip():
                    objects.append(parse(text.split(), f"{label}, line {line}", names, points))
        labeled.append(LabeledImage(label, path, objects, split, stated_by, are_fractions=True))
    lists = {file for _, files in sets.values() for file in files}
    used |= {path for path in folder.paths[".txt"] if folder.relative(path) in lists}
    return used, labeled, names


def contents_of(folder):
    """The mappings in the YAML files, by their paths.

    Args:
        folder: The `BoxFiles`.
    """
    return {path: _yaml(path) for suffix in YAML for path in folder.paths[suffix]}


def _config(folder, path, content):
    """The names of the classes, the numbers of key points after a box, and the images of splits."""
    return _names(content["names"], path), shape_of_points(content, path), _sets(folder, path, content)


def _other_splits(folder, sets, images):
    """As `_sets`, of images with labels in folders of splits that the config does not name."""
    named = {split for split, _ in sets.values()}
    stated = folder_splits(folder.root, images)
    labeled = {split for path, (split, _) in stated.items() if os.path.isfile(_labels_of(path, folder))}
    wanted = labeled - named - {None}
    return {path: (split, (name,)) for path, (split, name) in stated.items() if split in wanted}


def _yaml(path):
    """The mapping in a YAML file, whose scalars are texts; {} for another value.

    Texts as they are: `no` and 1.0 are names of classes.
    """
    import yaml

    class Loader(yaml.BaseLoader):
        def construct_mapping(self, node, deep=False):
            content = super().construct_mapping(node, deep)
            if len(content) < len(node.value):
                raise yaml.YAMLError("a key is there twice")
            return content

    try:
        content = yaml.load(read_text(pathlib.Path(path)), Loader)
    except (yaml.YAMLError, RecursionError) as error:
        reason = "values nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{path!r} is not a readable YAML file: {listed([reason])}") from None
    return content if isinstance(content, dict) else {}


def _names(names, where):
    """The names of the classes, a list or a dict by number."""
    if isinstance(names, dict):
        names = [names.get(str(number)) for number in range(len(names))]
    if not isinstance(names, list) or not names or not all(map(_is_text, names)):
        raise ValueError(f"{where}: expected names, a list of the classes or one by number")
    if len({*names}) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{where}: expected another name for each class; got twice {listed(twice)}")
    return tuple(names)


def shape_of_points(content, where):
    """The `kpt_shape`: the number of key points after a box, and of numbers for each; None without.

    Args:
        content: Of `data.yaml`, with texts in place of numbers.
        where: Its path, for messages.

    Raises:
        ValueError: for another value.

    Example:
        >>> shape_of_points({"kpt_shape": ["17", "3"]}, "data.yaml")
        (17, 3)
    """
    shape = content.get("kpt_shape")
    if shape is None:
        return None
    if not isinstance(shape, list) or [_is_text(n) and n.isdecimal() for n in shape] != [True, True]:
        raise ValueError(f"{where}: expected kpt_shape of two numbers; got another value")
    return int(shape[0]), int(shape[1])


def _is_text(value):
    return isinstance(value, str) and value not in NOTHING


def _sets(folder, config, content):
    """By image that `train`, `val` or `test` name, its split and what states it; None without these."""
    sets = {}
    keys = [key for key in content if key.lower() in SPLIT_NAMES and content[key] not in NOTHING]
    for key in keys:
        split, where = SPLIT_NAMES[key.lower()], f"{config}, {key}"
        for entry in content[key] if isinstance(content[key], list) else [content[key]]:
            for path, stated_by in _images_of(folder, config, content.get("path"), entry, where):
                first = sets.setdefault(path, (split, (stated_by,)))
                if first[0] != split:
                    raise ValueError(f"{where}: {path!r} is in {first[0]}, too; an image is in one split")
    return sets if keys else None


def _images_of(folder, config, above, entry, where):
    """Yield the images in a folder, or those that a text file names line by line, with the name of either."""
    base, root = os.path.dirname(config), os.fspath(folder.root)
    starts = (*([os.path.join(base, above)] if _is_text(above) else []), base, root)
    target = in_root(root, entry, starts, os.path.exists) if isinstance(entry, str) else None
    if target is None:
        got = repr(entry) if isinstance(entry, str) else "another value"
        raise ValueError(f"{where}: expected a folder or a list of images in {root!r}; got {got}")
    stated_by = folder.relative(target)
    if os.path.isdir(target):
        inside = "" if stated_by == os.curdir else os.path.join(target, "")
        paths = [path for path in folder.images if path.startswith(inside)]
        if not paths:
            raise ValueError(f"{where}: no images in {target!r}")
        yield from ((path, stated_by) for path in paths)
        return
    known = {*folder.images}
    for line, text in enumerate(read_text(pathlib.Path(target)).splitlines(), 1):
        if text.strip():
            path = in_root(root, text.strip(), (os.path.dirname(target), *starts), known.__contains__)
            if path is None:
                raise ValueError(
                    f"{target}, line {line}: expected an image in {root!r}; got {text.strip()!r}"
                )
            yield path, stated_by


def _labels_of(path, folder):
    """The path of the text file of an image: in `labels` in place of `images`, or beside it."""
    parts = folder.relative(os.path.splitext(path)[0] + ".txt").split(os.sep)
    if IMAGES in parts[:-1]:
        parts[len(parts) - 1 - parts[::-1].index(IMAGES)] = LABELS
    return os.path.join(folder.root, *parts)


def _class_name(word, names):
    """The name of the class of a number, of which 1.0 is 1; another word as it is, which is no class."""
    try:
        number = float(word)
    except ValueError:
        return word
    return names[int(number)] if number.is_integer() and 0 <= number < len(names) else word


def _refuse_points(numbers, where):
    """Raise ValueError for key points, each with a visibility, in place of the corners of a polygon."""
    marks = numbers[6::3]
    # A polygon has a corner or two at an edge, of which a coordinate is 0 or 1.
    if len(numbers) % 3 == 1 and {*marks} <= {0, 1, 2} and (2 in marks or len(marks) > 2):
        raise ValueError(
            f"{where}: expected a box, or the corners of a polygon; got a box and {len(marks)} key points, "
            "for which data.yaml needs a kpt_shape"
        )


def _object(words, where, names, points):
    """The `StoredObject` of a line: class x y width height, perhaps key points; or class and a polygon."""
    numbers = numbers_of(words[1:], max(len(words) - 1, 4), where)
    name = _class_name(words[0], names)
    if points is not None:
        count = points[0] * points[1]
        if len(numbers) != 4 + count:
            raise ValueError(
                f"{where}: expected a box of 4 numbers and {count} of key points; got {len(numbers)}"
            )
        numbers = numbers[:4]
    if len(numbers) > 4:
        _refuse_points(numbers, where)
        xs, ys = numbers[0::2], numbers[1::2]
        if len(numbers) % 2 or len(xs) < 3:
            raise ValueError(
                f"{where}: expected a box of 4 numbers, or the corners of a polygon; got {words}"
            )
        return StoredObject(where, (min(xs), min(ys), max(xs), max(ys)), name)
    x, y, width, height = numbers
    return StoredObject(where, (x - width / 2, y - height / 2, x + width / 2, y + height / 2), name)
