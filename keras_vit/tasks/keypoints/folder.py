"""Folders of images and keypoints: COCO, YOLO and `metadata.jsonl`."""

import functools
import os

from keras_vit.data.folder_splits import split_fields
from keras_vit.data.samples import Samples
from keras_vit.tasks.detection.folder import box_files, labels_of_splits, read_one
from keras_vit.tasks.detection.metadata import METADATA
from keras_vit.tasks.keypoints.coco import read_coco
from keras_vit.tasks.keypoints.labels import encode
from keras_vit.tasks.keypoints.metadata import read_metadata
from keras_vit.tasks.keypoints.reader import SETTINGS, read_settings, settings_of
from keras_vit.tasks.keypoints.samples import KeypointSamples
from keras_vit.tasks.keypoints.stored_objects import checked_label
from keras_vit.tasks.keypoints.yolo import read_yolo_pose

READERS = (read_metadata, read_coco, read_yolo_pose)
LAYOUT = (
    "COCO's JSON files whose annotations have keypoints; YOLO's data.yaml with kpt_shape, images/ and "
    f"labels/; or {METADATA} with objects that have keypoints"
)


def load_keypoint_folder(root, files, *, on_bad_image="fail", seed=0):
    """Load a folder of images with the keypoints of objects in them, each of which is a sample.

    Args:
        root: The folder, a pathlib.Path, with images anywhere below it and one of

            * COCO: JSON files with `images`, `annotations` and `categories`, as for
              `keras_vit.tasks.detection.folder`, whose annotations have `bbox`, perhaps `area`, and
              `keypoints`: x, y and visibility of each, by pixels of which the first one is at 0. The names of
              the points and the skeleton are those of the category; several ones need the same.
            * YOLO: `data.yaml` with `names` and `kpt_shape`, the number of points and 2 or 3, perhaps
              `flip_idx` and `kpt_names`; for `images/…/NAME.jpg` a text file `labels/…/NAME.txt` with lines
              "class x y width height", then "x y visibility" or "x y" of each point, all in fractions. An
              object's area is 0.53 of its box, as in Ultralytics.
            * `metadata.jsonl` of Hugging Face's ImageFolder, in a folder above the images: on each line
              `file_name` and `objects` with `keypoints` and, as COCO has them, `bbox`, `area` and `iscrowd`.
              A single object of an image needs no `bbox`: it is the whole image.

            `keypoints.json` has any arguments of `reader.KeypointReader`, as {"names": [...], "skeleton":
            [[0, 1]]}, which come before those of the other files. Points that exchange their places in a
            mirrored image are those with left and right in their names, unless a file says so.
        files: As for `visible_files`.
        on_bad_image: As for `load_dataset`; it is for images that cannot be read and for wrong objects.
        seed: Of the split.

    Returns:
        (the paths of the files that are used, fields of a `Dataset`). Crowds, and objects of which no point
        has a label, are left out.

    Raises:
        ValueError: for another layout; a label file that cannot be read; an image that is missing, cannot be
            read or has another size than its file of labels says; an image in two splits; a point outside of
            its image, or a wrong box.

    Example:
        >>> (tmp / "labels").mkdir(), (tmp / "images").mkdir()
        (None, None)
        >>> _ = (tmp / "data.yaml").write_text("names: [cat]\\nkpt_shape: [1, 3]\\nkpt_names: [nose]")
        >>> for number in range(10):
        ...     keras.utils.save_img(tmp / "images" / f"{number}.png", np.zeros((8, 8, 3)))
        ...     _ = (tmp / "labels" / f"{number}.txt").write_text("0 0.5 0.5 0.25 0.5 0.5 0.25 2")
        >>> _, fields = load_keypoint_folder(tmp, keras_vit.data.files.visible_files(tmp))
        >>> fields["class_names"], fields["splits"]["test"][0][1][2:].tolist()
        (('nose',), [[0.5, 0.25, 2.0, 0.0]])
    """
    if on_bad_image == "keep":
        raise ValueError("on_bad_image='keep' is for images without keypoints, which are all read")
    used, labeled, known = _read(root, files)
    if not any(item.is_labeled for image in labeled for item in image.objects):
        raise ValueError(f"no keypoints in {os.fspath(root)!r}; expected {LAYOUT}")
    reader = read_settings(root, **known)
    labels_of = functools.partial(_labels_of, flip_index=reader.flip_index)
    splits, stated_by, bad, is_turned = labels_of_splits(root, labeled, on_bad_image, labels_of, "object(s)")
    # Images are held out, not objects, so that those of an image are in one split.
    images = {split: Samples((*paths,), (0,) * len(paths)) for split, paths in splits.items()}
    fields = split_fields(images, stated_by, seed)
    labels = {path: objects for images in splits.values() for path, objects in images.items()}
    fields["splits"] = {
        split: _samples({path: labels[path] for path in samples.images}, reader, is_turned)
        for split, samples in fields["splits"].items()
    }
    fields |= {"class_names": reader.names, "bad_images": bad}
    return used | {*(image.path for image in labeled), os.fspath(root / SETTINGS)}, fields


def _labels_of(image, size, flip_index):
    """The labels of the objects of a `LabeledImage`, None without one, and what is wrong with them."""
    objects = [item for item in image.objects if item.is_labeled]
    if len(objects) > 1 and (unboxed := [item.where for item in objects if item.box.sides is None]):
        return None, [f"{where} (without a box, beside others in its image)" for where in unboxed]
    checked = [checked_label(item, size, flip_index, image.are_fractions) for item in objects]
    reasons = [reason for _, reason in checked if reason]
    return None if reasons else [encode(label) for label, _ in checked] or None, reasons


def _samples(labels, reader, exif):
    """The `KeypointSamples` of dict from the paths of images to the labels of their objects."""
    pairs = [(path, label) for path, objects in labels.items() for label in objects]
    return KeypointSamples(*zip(*pairs) if pairs else ((), ()), reader, exif=exif)


def _read(root, files):
    """The paths of the label files, the `LabeledImage`s, and what is known of the points."""
    folder, settings = box_files(root, files), settings_of(root)
    readers = [functools.partial(reader, folder, settings) for reader in READERS]
    return read_one(readers, folder) or (set(), [], {})


def hint(root, files):
    """Advice for a folder that has keypoints; None for another one.

    Args:
        root, files: As for `load_keypoint_folder`.
    """
    try:
        labeled = _read(root, files)[1]
    except ValueError:
        return None
    has_keypoints = any(item.is_labeled for image in labeled for item in image.objects)
    return "keypoints found: --recipe keypoints, or task='keypoints'" if has_keypoints else None
