"""Objects that a model has found, as COCO JSON."""

import itertools
import json
import os
import pathlib

from keras_vit.cli.images import names_of


def coco_parts(results, names, folder):
    """The parts of the text of a COCO JSON file: `annotations` with a `score`, `images` and `categories`.

    Numbers count from 1, in the order of the images, of their objects and of the classes. Images below the
    folder of the file are named by their paths from there, others by the shortest ends of their paths that
    are unique; an image that is given twice is listed once. A box of zero width or height, and one of a box
    and a class that the image has with a higher score, are left out, since they find nothing.
    Of classes of one name, objects are of the first.

    Args:
        results: An iterator of what `cli.image_batches.predicted` yields for a detector.
        names: Of the classes.
        folder: Of the file.

    Example:
        >>> found = {"name": "cat", "score": 0.5, "left": 1.0, "top": 2.0, "right": 3.0, "bottom": 5.0}
        >>> result = {"image": "a/1.png", "width": 8, "height": 6, "objects": [found]}
        >>> content = json.loads("".join(coco_parts([result], ["dog", "cat"], "a")))
        >>> content["images"], content["categories"][1]
        ([{'id': 1, 'file_name': '1.png', 'width': 8, 'height': 6}], {'id': 2, 'name': 'cat'})
        >>> [annotation] = content["annotations"]
        >>> annotation["category_id"], annotation["bbox"], annotation["score"]
        (2, [1.0, 2.0, 2.0, 3.0], 0.5)

    Source: COCO's formats of data and of results (cocodataset.org, "Data format" and "Results format").
    """
    numbers = {name: number for number, name in reversed([*enumerate(names, 1)])}
    categories = [{"id": number, "name": name} for number, name in enumerate(names, 1)]

    def annotations(found):
        for category_id, box, score in _different(found["objects"], numbers):
            area = {"area": box[2] * box[3], "iscrowd": 0, "score": score}
            yield {"category_id": category_id, "bbox": box, **area}

    return parts_of_file(results, annotations, categories, folder)


def parts_of_file(results, annotations, categories, folder):
    """Yield the text of a COCO JSON file, in which an image that is given twice is listed once.

    Args:
        results: An iterator of what `cli.image_batches.predicted` yields.
        annotations: A function from a result to its annotations, dicts without `id` and `image_id`.
        categories: The list of dicts.
        folder: Of the file.
    """
    images, ids, before = {}, itertools.count(1), ""
    yield '{"annotations": ['
    for found in results:
        if found["image"] in images:
            continue
        images[found["image"]] = found["width"], found["height"]
        for annotation in annotations(found):
            annotation = {"id": next(ids), "image_id": len(images), **annotation}
            yield f"{before}\n{json.dumps(annotation, allow_nan=False)}"
            before = ","
    yield '\n],\n"images": ['
    files = _names_from(folder, [*images])
    for image_id, (file, (width, height)) in enumerate(zip(files, images.values()), 1):
        image = {"id": image_id, "file_name": file, "width": width, "height": height}
        yield f"{',' if image_id > 1 else ''}\n{json.dumps(image)}"
    yield f'\n],\n"categories": {json.dumps(categories)}}}\n'


def _names_from(folder, paths):
    """The paths from a folder if all are below it, otherwise their shortest ends that are unique."""
    inside = [os.path.relpath(path, folder) for path in paths]
    if any(name.startswith(os.pardir) or "://" in path for name, path in zip(inside, paths)):
        return names_of(paths)
    return [pathlib.PurePath(name).as_posix() for name in inside]


def _different(objects, numbers):
    """Yield (category, [left, top, width, height], score), without empty boxes and repeated ones."""
    seen = set()
    for one in objects:
        box = [one["left"], one["top"], one["right"] - one["left"], one["bottom"] - one["top"]]
        category_id = numbers[one["name"]]
        if min(box[2:]) > 0 and (key := (category_id, *box)) not in seen:
            seen.add(key)
            yield category_id, box, one["score"]
