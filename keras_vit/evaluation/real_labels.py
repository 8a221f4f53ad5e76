"""ReaL accuracy: ImageNet's validation images with all their correct labels."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.types import Path

if TYPE_CHECKING:
    from keras_vit.data.samples import EncodedSamples
    from keras_vit.tasks.classes.single_label import Predictions


def read_real_labels(path: Path) -> dict[str, list[int]]:
    """Read ReaL labels from a JSON file.

    Args:
        path: `real.json` (a list of class indices for each image, in the order of the file names), or an
            object of such lists by file name.

    Returns:
        dict of lists of class indices; by file name, or by the number in ImageNet's file names, from 1.

    Raises:
        ValueError: if the file is missing or has other contents.

    Example:
        >>> _ = (tmp / "real.json").write_text("[[3], [], [1, 2]]")
        >>> read_real_labels(tmp / "real.json")
        {1: [3], 2: [], 3: [1, 2]}

    Source: Beyer et al. 2020 (arXiv 2006.07159), github.com/google-research/reassessed-imagenet.
    """
    file = repr(os.fspath(path))
    try:
        content = json.loads(pathlib.Path(path).expanduser().read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {file} as JSON: {getattr(error, 'strerror', error)}") from None
    labels = dict(enumerate(content, 1)) if isinstance(content, list) else content
    if not isinstance(labels, dict) or not labels:
        raise ValueError(
            f"{file}: expected a list of the class indices of each image, or an object of them by file "
            f"name; got {str(content)[:40]}"
        )
    for name, classes in labels.items():
        if not isinstance(classes, list) or not all(type(number) is int for number in classes):
            raise ValueError(f"expected a list of class indices for {name} in {file}; got {classes!r}")
    return labels


def real_labels_of(samples: EncodedSamples, labels: Mapping[str, Sequence[int]]) -> list[Sequence[int]]:
    """The ReaL labels of a split's images, by file name.

    The order of the samples does not identify them: a folder's images are sorted by class, and TFDS has
    another order.

    Args:
        samples: A split of a `Dataset` whose images are files.
        labels: As `read_real_labels` returns them.

    Returns:
        A list of class indices for each sample.

    Raises:
        ValueError: if the samples have no file names, or there are no labels for a file.

    Example:
        >>> from keras_vit.data.samples import Samples
        >>> samples = Samples(("2/ILSVRC2012_val_00000002.JPEG", "1/ILSVRC2012_val_00000001.JPEG"), (1, 0))
        >>> real_labels_of(samples, {1: [0], 2: [1, 5]})
        [[1, 5], [0]]
    """
    images = getattr(samples, "images", ())
    if not images or not all(isinstance(image, str) for image in images):
        raise ValueError(
            "ReaL labels need images with file names, which these samples lack; give folder:PATH with "
            "ImageNet's files"
        )
    names = [pathlib.PurePath(image).name for image in images]
    keys = [_number(name) for name in names] if 1 in labels else names
    for name, key in zip(names, keys):
        if key not in labels:
            raise ValueError(
                f"expected a ReaL label for {name!r}; got {len(labels)} for other file names, or for images "
                "with names like ILSVRC2012_val_00000001.JPEG"
            )
    return [labels[key] for key in keys]


def _number(name):
    match = re.fullmatch(r"ILSVRC2012_val_(\d{8})\.\w+", name)
    return match and int(match[1])


def real_accuracy(predictions: Predictions, labels: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The fraction of images whose predicted class is among their labels, over images that have labels.

    Args:
        predictions: Predictions.
        labels: A list of class indices for each sample, in the same order.

    Returns:
        dict of `real_samples`, the number of images with labels, and `real_accuracy`.

    Raises:
        ValueError: if the number of lists is not that of samples, an index is out of range, or no image has
            a label.

    Example:
        >>> from keras_vit.evaluation import predict
        >>> predictions = predict(model, load_dataset("digits").split("test"))
        >>> every_digit = [[*range(10)]] * 354 + [[]]
        >>> real_accuracy(predictions, every_digit)
        {'real_samples': 354, 'real_accuracy': 1.0}
    """
    best = predictions.best[:, 0].tolist()
    if len(labels) != len(best):
        raise ValueError(f"expected {len(best)} lists of ReaL labels, one per sample; got {len(labels)}")
    unknown = {i for ids in labels for i in ids if not 0 <= i < predictions.num_classes}
    if unknown:
        raise ValueError(
            f"expected ReaL labels below {predictions.num_classes}, the model's classes; got {min(unknown)}"
        )
    hits = [predicted in ids for predicted, ids in zip(best, labels) if ids]
    if not hits:
        raise ValueError(f"expected a ReaL label for at least one of the {len(labels)} images; got none")
    return {"real_samples": len(hits), "real_accuracy": float(np.mean(hits))}
