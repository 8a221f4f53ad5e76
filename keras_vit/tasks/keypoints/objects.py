"""The boxes of the objects whose keypoints `predict` estimates: of a detector, or of a file."""

import csv
import io
import os
import pathlib

import numpy as np

from keras_vit.cli.images import shown_names
from keras_vit.messages import listed
from keras_vit.tasks.detection.box_files import READERS, read_box_file
from keras_vit.tasks.detection.detecting import Detections
from keras_vit.tasks.detection.scores import MAX_DETECTIONS, distinct
from keras_vit.tasks.task import names_or_indices

LEAST = 0.3  # the least score of an object of a detector
OVERLAP = 0.7  # the largest IoU of two objects of a detector


def is_box_file(source):
    """Whether a source of boxes is a file of boxes, by its suffix.

    >>> is_box_file("found.coco.json"), is_box_file("detector.keras")
    (True, False)
    """
    return pathlib.PurePath(source).suffix.lower() in READERS and "://" not in source


def boxes_of_file(path, paths, names=None, least=None, iou=None):
    """A function from paths, their images and a largest number to the `Detections` in each image.

    The score of an object is 1 where the file has none.

    Args:
        path: Of a file that `box_files.read_box_file` reads.
        paths: Of all images, of which the file has to know at least one; where it lists images, all.
        names: Of the classes whose objects are used; None for all.
        least: The least score of an object; None for any.
        iou: The largest IoU of two objects; None for any.

    Raises:
        ValueError: for a file without such boxes; by the function, for an image of another size than in
            the file, or a box outside of its image.
    """
    file = read_box_file(path)
    shown = dict(zip(paths, shown_names(paths)))
    file.check_images(shown.values())
    used = None if names is None else _numbers(names, file.names, os.fspath(path))

    def find(batch, images, top):
        boxes = (file.of(shown[image_path], image.shape[:2]) for image_path, image in zip(batch, images))
        return [_chosen(Detections(*objects), used, least or 0, iou, top) for objects in boxes]

    return find


def boxes_of_detector(detector, source, names=None, least=None, iou=None):
    """A function from paths, their images and a largest number to the `Detections` in each image.

    Args:
        detector: A live or an exported `ObjectDetector`.
        source: Its name, for messages.
        names: Of the classes whose objects are used; None for all. For a detector of any words, the words.
        least: The least score of an object; None: 0.3.
        iou: The largest IoU of two objects; None: 0.7.

    Raises:
        ValueError: for another model, or a class that it does not have.
    """
    if not hasattr(detector, "detect"):
        raise ValueError(f"--objects: expected a detector or a file of boxes; {source!r} is another model")
    if getattr(detector, "needs_texts", False):
        if names is None:
            raise ValueError(f"{source!r} detects what texts say; give them by --object_classes")
        from keras_vit.cli.labels import with_labels

        detector = with_labels(detector, _quoted(names), None)
    known = names_or_indices(detector.class_names, detector.num_classes)
    used = None if names is None else _numbers(names, known, source)
    least, iou = LEAST if least is None else least, OVERLAP if iou is None else iou

    def find(batch, images, top):
        detections = detector.detect(images, least, max(top, MAX_DETECTIONS))
        return [_chosen(objects, used, least, iou, top) for objects in detections]

    return find


def _quoted(names):
    """Names as --labels takes them.

    >>> _quoted(["cat", "black, white"])
    'cat,"black, white"'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()


def _numbers(names, known, source):
    """The numbers of named classes."""
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"expected --object_classes of {source!r}: {listed([*known])}; got {missing[0]!r}")
    return [number for number, name in enumerate(known) if name in names]


def _chosen(objects, classes, least, iou, top):
    """The `Detections` of some classes with a score and few overlaps, at most `top`."""
    is_chosen = objects.scores >= least
    if classes is not None:
        is_chosen &= np.isin(objects.classes, classes)
    order = np.flatnonzero(is_chosen)
    order = order[np.argsort(-objects.scores[order], kind="stable")][: top if iou is None else None]
    objects = Detections(*(values[order] for values in objects))
    return objects if iou is None else distinct(objects, iou, top)


def open_boxes(args, paths):
    """The function of `boxes_of_file` or `boxes_of_detector` for the arguments of `predict`."""
    chosen = {"names": args.object_classes, "least": args.object_score, "iou": args.iou}
    if is_box_file(args.objects):
        return boxes_of_file(args.objects, paths, **chosen)
    from keras_vit.cli.predict import FEW, run_eagerly
    from keras_vit.cli.source import open_model

    detector = open_model(args.objects, args.trust, kind="stored")
    if len(paths) <= FEW:
        run_eagerly(detector)
    return boxes_of_detector(detector, args.objects, **chosen)
