"""ReaL accuracy: ImageNet's validation images with all labels that are true of them."""

import json
import os
import pathlib
import re

import numpy as np


def read_real_labels(path):
    """The labels of a JSON file.

    Args:
        path: `real.json` (a list of class numbers for each image, in the order of the files'
            names), or an object of such lists by file name.

    Returns:
        dict of lists of class numbers; by file name, or by the number in ImageNet's file names, from 1.

    Raises:
        ValueError: if the file is missing or holds something else.

    Example:
        >>> _ = (tmp / "real.json").write_text("[[3], [], [1, 2]]")
        >>> read_real_labels(tmp / "real.json")
        {1: [3], 2: [], 3: [1, 2]}

    Source: Beyer et al. 2020 (arXiv 2006.07159), github.com/google-research/reassessed-imagenet.
    """
    try:
        held = json.loads(pathlib.Path(path).expanduser().read_text())
    except OSError as error:
        raise ValueError(f"cannot read {os.fspath(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)!r} is no JSON: {error}") from None
    labels = dict(enumerate(held, 1)) if isinstance(held, list) else held
    if not isinstance(labels, dict) or not labels:
        raise ValueError(
            f"{os.fspath(path)!r} must hold a list with the class numbers of each image, or an object of "
            f"these by file name; got {str(held)[:40]}"
        )
    for name, classes in labels.items():
        if not isinstance(classes, list) or not all(type(number) is int for number in classes):
            raise ValueError(f"{os.fspath(path)!r} has no list of class numbers for {name}; got {classes!r}")
    return labels


def real_labels_of(samples, labels):
    """The labels of a split's images, found by the images' file names.

    The order of the samples says nothing: a folder's images come class by class, and TFDS has an order
    of its own.

    Args:
        samples: A split of a `Dataset` whose images are files.
        labels: As `read_real_labels` returns them.

    Returns:
        A list of class numbers for each sample.

    Raises:
        ValueError: if the samples have no file names, or there are no labels for one.

    Example:
        >>> from keras_vit.data.datasets import Samples
        >>> samples = Samples(("2/ILSVRC2012_val_00000002.JPEG", "1/ILSVRC2012_val_00000001.JPEG"), (1, 0))
        >>> real_labels_of(samples, {1: [0], 2: [1, 5]})
        [[1, 5], [0]]
    """
    images = getattr(samples, "images", ())
    if not images or not all(isinstance(image, str) for image in images):
        raise ValueError(
            "ReaL labels are matched to images by their file names, and these samples have none; "
            "give folder:PATH with ImageNet's files"
        )
    names = [pathlib.PurePath(image).name for image in images]
    if 1 in labels:
        keys = [_number(name) for name in names]
    else:
        keys = names
    for name, key in zip(names, keys):
        if key not in labels:
            raise ValueError(f"there are ReaL labels of {len(labels)} images, but none of {name!r}")
    return [labels[key] for key in keys]


def _number(name):
    found = re.fullmatch(r"ILSVRC2012_val_(\d{8})\.\w+", name)
    if not found:
        raise ValueError(
            f"{name!r} is no ImageNet validation image, such as ILSVRC2012_val_00000001.JPEG, whose number "
            "says which ReaL labels are its; for other names give the labels as an object by file name"
        )
    return int(found[1])


def real_accuracy(predictions, labels):
    """The share of images whose best class is among their labels; images without labels do not count.

    Args:
        predictions: Predictions.
        labels: A list of class numbers for each sample, in the same order.

    Returns:
        dict of `real_samples`, the images that count, and `real_accuracy`.

    Raises:
        ValueError: if there are not as many lists as samples, a number is no class of the model, or no
            image has a label.

    Example:
        >>> from keras_vit.evaluation import predict
        >>> predictions = predict(model, load_dataset("digits").split("test"))
        >>> every_digit = [[*range(10)]] * 354 + [[]]
        >>> real_accuracy(predictions, every_digit)
        {'real_samples': 354, 'real_accuracy': 1.0}
    """
    best = predictions.best[:, 0].tolist()
    if len(labels) != len(best):
        raise ValueError(f"{len(best)} samples want as many lists of ReaL labels; got {len(labels)}")
    unknown = {n for numbers in labels for n in numbers if not 0 <= n < predictions.num_classes}
    if unknown:
        raise ValueError(
            f"a ReaL label is {min(unknown)}, but the model's classes are 0 to {predictions.num_classes - 1}"
        )
    hits = [said in numbers for said, numbers in zip(best, labels) if numbers]
    if not hits:
        raise ValueError(f"none of the {len(labels)} images has a ReaL label")
    return {"real_samples": len(hits), "real_accuracy": float(np.mean(hits))}
