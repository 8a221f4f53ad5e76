"""Folders of images and boxes: COCO, YOLO, Pascal VOC and `metadata.jsonl`."""

import collections
import functools
import os

from keras_vit.data.files import (
    file_headers,
    images_among,
    left_out,
    paths_of,
    refuse_unreadable,
    refuse_wrong,
)
from keras_vit.data.folder_splits import folder_splits, split_fields
from keras_vit.data.samples import Samples
from keras_vit.labels.box_rows import encode_boxes
from keras_vit.messages import listed
from keras_vit.tasks.detection.coco import read_coco
from keras_vit.tasks.detection.labeled import BoxFiles
from keras_vit.tasks.detection.metadata import METADATA, OBJECTS, read_metadata
from keras_vit.tasks.detection.stored_boxes import box_class_names, checked_rows
from keras_vit.tasks.detection.voc import read_voc
from keras_vit.tasks.detection.yolo import read_yolo

READERS = (read_metadata, read_coco, read_voc, read_yolo)
LAYOUT = (
    "COCO's JSON files with images, annotations and categories; YOLO's data.yaml with images/ and labels/; "
    f"Pascal VOC's XML files; or {METADATA} with {OBJECTS}"
)


def load_box_folder(root, files, *, on_bad_image="fail", seed=0):
    """Load a folder of images with the boxes of objects in them.

    Args:
        root: The folder, a pathlib.Path, with images anywhere below it and one of

            * COCO: one or several JSON files with `images`, `annotations` and `categories`, anywhere; the
              split of each is that of its folder, as in `valid/_annotations.coco.json` (Roboflow), or in its
              name, as in `annotations/instances_val2017.json`. The areas are those of the annotations, and
              `iscrowd` makes a crowd.
            * YOLO: `data.yaml` (or another `.yaml` file there) with `names`, and for `images/…/NAME.jpg` a
              text file `labels/…/NAME.txt` with lines "class x y width height", in fractions, and key points
              where there is `kpt_shape`. An image without a file has no objects. `train`, `val` and `test`
              are folders of images, text files that name images, or lists of these.
            * Pascal VOC: XML files with the names of the images beside them or in `Annotations`, with the
              splits of `ImageSets/Main` (train, val, trainval, test); `difficult` objects count as crowds.
            * `metadata.jsonl` of Hugging Face's ImageFolder, in a folder above the images: on each line
              `file_name` and `objects` with `bbox`, a list of [left, top, width, height], and `category` or
              `categories`.

            Where these state no split, the folder of an image does. An image that several of them have is
            one sample with all objects. Names of classes are in these files; of categories that are numbers,
            `classes.txt` has a name per line.
        files: As for `visible_files`.
        on_bad_image: As for `load_dataset`; it is for images that cannot be read and for wrong boxes.
        seed: Of the split.

    Returns:
        (the paths of the files that are used, fields of a `Dataset`).

    Raises:
        ValueError: for another layout; a label file that cannot be read; an image that is missing, cannot be
            read or has another size than its file of labels says; an image in two splits; a box without a
            class, with its sides in the wrong order, outside of its image, or that is there twice.

    Example:
        >>> from PIL import Image
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
    if not any(image.objects for image in labeled):
        raise ValueError(f"no boxes in {os.fspath(root)!r}; expected {LAYOUT}")
    names = names or _names_of(root, labeled)
    numbers = {name: number for number, name in enumerate(names)}

    def label_of(image, size):
        rows, reasons = checked_rows(image.objects, size, numbers, image.are_fractions)
        return encode_boxes(rows), reasons

    splits, stated_by, bad, is_turned = labels_of_splits(root, labeled, on_bad_image, label_of)
    samples = {split: Samples((*labels,), (*labels.values(),), is_turned) for split, labels in splits.items()}
    fields = {"class_names": names, **split_fields(samples, stated_by, seed), "bad_images": bad}
    return used | {image.path for image in labeled}, fields


def labels_of_splits(root, labeled, on_bad_image, label_of, noun="box(es)"):
    """The labels of images with objects, by split.

    Args:
        root: The folder, a pathlib.Path.
        labeled: `LabeledImage`s, perhaps several of an image.
        on_bad_image: As for `load_box_folder`.
        label_of: A function from the `LabeledImage` of all objects of an image, and its (width, height), as
            its orientation shows it, to its label, None of one that is left out, and a list of what is wrong.
        noun: Of what is wrong, for messages.

    Returns:
        (by split a dict from the paths of images to their labels; by split the files that state it; dict from
        the paths of bad images to the reason; whether an image has another orientation than it is stored in).

    Raises:
        ValueError: as `load_box_folder`.
    """
    sizes, bad, is_turned = _read_sizes(labeled, on_bad_image)
    splits, stated_by, wrong = collections.defaultdict(dict), collections.defaultdict(list), {}
    for image in _joined(root, labeled):
        stated_by[image.split] += image.stated_by
        if image.path in sizes:
            label, reasons = label_of(image, sizes[image.path])
            if reasons:
                wrong[image.path] = reasons
            elif label is not None:
                splits[image.split][image.path] = label
    bad |= refuse_wrong(wrong, on_bad_image, noun)
    if "train" not in splits:
        has = listed(sorted(splits)) or "none"
        raise ValueError(f"{os.fspath(root)!r} has no images to train on; it has {has}{left_out(bad)}")
    return splits, stated_by, bad, is_turned


def _read_sizes(labeled, on_bad_image):
    """The sizes of images by path, the reasons by path of others, and whether one is turned."""
    paths = [*dict.fromkeys(image.path for image in labeled)]
    headers = file_headers(paths, decode=on_bad_image == "skip")
    headers = {path: header for path, header in zip(paths, headers) if header}
    sizes = {path: header.size for path, header in headers.items()}
    bad = refuse_unreadable([path for path in paths if path not in sizes], on_bad_image)
    _refuse_other_sizes([image for image in labeled if image.path in sizes], sizes)
    return sizes, bad, any(header.orientation > 1 for header in headers.values())


def _read(root, files):
    """The paths of the label files, the `LabeledImage`s, and the names of the classes or None."""
    folder = box_files(root, files)
    return read_one([functools.partial(reader, folder) for reader in READERS], folder) or (set(), [], None)


def read_one(readers, folder):
    """What the first function returns that finds files in its format; None without such files.

    Args:
        readers: Functions without arguments; each returns (the paths of the label files, `LabeledImage`s, …),
            or None.
        folder: The `BoxFiles`.

    Raises:
        ValueError: as the functions, and if files in two formats have objects.
    """
    readers = iter(readers)
    first = next((read for reader in readers if (read := reader())), None)
    for reader in readers:
        try:
            second = reader()
        except ValueError:  # of files that are not used
            continue
        if second and all(any(image.objects for image in read[1]) for read in (first, second)):
            used = " and in ".join(listed(sorted(map(folder.relative, read[0]))) for read in (first, second))
            raise ValueError(
                f"{os.fspath(folder.root)!r} has labels in two formats, in {used}; keep one of them"
            )
    return first


def box_files(root, files):
    """The `BoxFiles` of a folder.

    Args:
        root, files: See `load_box_folder`.
    """
    by_suffix = collections.defaultdict(list)
    for path in paths_of(root, files):
        by_suffix[os.path.splitext(path)[1].lower()].append(path)
    return BoxFiles(root, by_suffix, [*paths_of(root, images_among(files))])


def _joined(root, labeled):
    """One `LabeledImage` for each image, with its split and with the objects of all its entries.

    Args:
        root: The folder, a pathlib.Path.
        labeled: `LabeledImage`s, whose objects have `sides` and a `name`.

    Raises:
        ValueError: for an image in two splits, or with other boxes of a class in another file.
    """
    unstated = folder_splits(root, [image.path for image in labeled if image.split is None])
    images = {}
    for image in labeled:
        if image.split is None:
            split, stated_by = unstated[image.path]
            image.split, image.stated_by = split or "train", (stated_by,) if split else ()
        first = images.setdefault(image.path, image)
        if first.split != image.split:
            by = " and ".join(listed(entry.stated_by) or "default" for entry in (first, image))
            raise ValueError(
                f"{image.path!r} is in {first.split} and in {image.split} (by {by}); an image is in one split"
            )
        if first is not image:
            _refuse_other_boxes(first, image)
            known = {(item.sides, item.name) for item in first.objects}
            first.objects += [item for item in image.objects if (item.sides, item.name) not in known]
    return images.values()


def _refuse_other_boxes(first, second):
    """Raise ValueError if two files have other boxes of one class in an image, as versions of labels do."""
    boxes, other_boxes = collections.defaultdict(set), collections.defaultdict(set)
    for image, by_class in ((first, boxes), (second, other_boxes)):
        for item in image.objects:
            by_class[item.name].add(item.sides)
    for name in boxes.keys() & other_boxes.keys() if first.labels != second.labels else ():
        if not (boxes[name] <= other_boxes[name] or boxes[name] >= other_boxes[name]):
            raise ValueError(
                f"{first.path!r} has other boxes of {name!r} in {first.labels!r} than in {second.labels!r}; "
                "keep one of these files"
            )


def _refuse_other_sizes(labeled, sizes):
    """Raise ValueError for images of another size than their labels say.

    Args:
        labeled: `LabeledImage`s.
        sizes: The (width, height) of images by path.
    """
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
    names = {item.name for image in labeled for item in image.objects}
    if names and all(isinstance(name, int) for name in names):
        lines = box_class_names(root, max(names) + 1)
        for image in labeled:
            for item in image.objects:
                item.name = lines[item.name] if item.name >= 0 else item.name
        return lines
    return tuple(sorted(map(str, names)))


def hint(root, files):
    """Advice for a folder that has boxes; None for another one.

    Args:
        root, files: As for `load_box_folder`.
    """
    try:
        labeled = _read(root, files)[1]
    except ValueError:
        return None
    has_boxes = any(image.objects for image in labeled)
    return "boxes found: --recipe detect, or task='detection'" if has_boxes else None
