"""What a data set has: classes, sizes and formats of images, and images that are damaged or stored twice."""

import collections
import hashlib

import numpy as np

from keras_vit.data.chunked_records import class_changes
from keras_vit.data.damage import of_each
from keras_vit.data.decoding.model_input import check_image
from keras_vit.labels import label_kind
from keras_vit.messages import one_line
from keras_vit.preprocessing.image_files import image_header


def describe(dataset, images=None):
    """Describe a data set; the contents of its images are read, but not decoded.

    Args:
        dataset: A `Dataset`.
        images: About how many images of each split are read; None: all.

    Returns:
        dict of JSON values: `name`, `task`, `version`, `class_names` and `splits`. By split, `images` is the
        number of images, `order` the name of their order in training, and `source` where they come from, as
        "held out", or None where that is not known. Where labels are classes and known, `by_class` is the
        number of images by class, and `class_changes` the number of images that follow one of another class,
        with its mean over all orders. Where labels are boxes, `objects` has by class [the objects, the images
        that have some], without crowds, and `box_areas` are the [smallest, median, largest] fraction of an
        image in a box; `crowds` is their number, and `empty` that of images without objects; `many_objects`
        are the number of images with more objects than a training step takes, and the most in one. `read` is
        the number of images that were read; they have the `formats`, and the [smallest, median, largest]
        `bytes`, `width` and `height`, as they are stored. `damaged` has the [place, reason] of images without
        a readable header, `doubled` the places of images with equal bytes, in one split or several.

    Example:
        >>> from keras_vit.data.statistics import describe
        >>> described = describe(load_dataset("digits"), images=100)
        >>> described["splits"]["test"]["width"], len(described["splits"]["test"]["by_class"])
        ([8, 8, 8], 10)
    """
    places, damaged = collections.defaultdict(list), []
    splits = {split: _describe_split(dataset, split, images, places, damaged) for split in dataset.splits}
    # An image with several objects is one place, of several samples.
    doubled = [[*dict.fromkeys(place() for place in same)] for same in places.values() if len(same) > 1]
    return {
        "name": dataset.name,
        "task": dataset.task,
        "version": dataset.version,
        "class_names": list(dataset.class_names),
        "splits": splits,
        "damaged": [*damaged, *map(list, dataset.bad_images.items())],
        "doubled": [same for same in doubled if len(same) > 1],
    }


def _describe_split(dataset, split, images, places, damaged):
    samples, formats, numbers = dataset.split(split), collections.Counter(), []
    every = 1 if images is None else max(len(samples) // images, 1)
    for place, found in of_each(samples, _header, "reading images", every):
        if isinstance(found, str):
            damaged.append([place(), found])
        elif found is not None:
            digest, image_format, *of_image = found
            places[digest].append(lambda place=place: f"{split}: {place()}")
            formats[image_format] += 1
            numbers.append(of_image)
    described = {
        "images": len(samples),
        "order": samples.order,
        "source": dataset.split_sources.get(split),
        "read": len(numbers),
        "formats": dict(formats.most_common()),
    }
    for name, values in zip(("bytes", "width", "height"), zip(*numbers)):
        described[name] = [int(np.quantile(values, part, method="nearest")) for part in (0, 0.5, 1)]
    is_class = label_kind(dataset.task).is_class_id and dataset.captions(split) is None
    if is_class and samples.labels is not None and dataset.class_names:
        counts = np.bincount(samples.labels, minlength=len(dataset.class_names))
        described["by_class"] = dict(zip(dataset.class_names, counts.tolist()))
        described["class_changes"] = class_changes(samples.labels)
    if samples.labels is not None:
        described |= label_kind(dataset.task).counts(samples.labels, dataset.class_names)
    return described


def _header(read, decode):
    """(digest, format, bytes, width, height) of an image; of a damaged one the reason, of a mask None."""
    if decode is not check_image:
        return None
    try:
        content = read()
        image_format, size = image_header(content)
    except (OSError, ValueError) as error:
        return one_line(getattr(error, "strerror", None) or error)
    return hashlib.blake2b(content, digest_size=16).digest(), image_format, len(content), *size
