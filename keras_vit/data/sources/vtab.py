"""VTAB-1k: the Visual Task Adaptation Benchmark, with 800 training and 200 validation samples per task."""

import collections

import tensorflow as tf

from keras_vit.data.sources.tfds import image_feature, label_feature, parser, prepared, samples
from keras_vit.messages import did_you_mean

Task = collections.namedtuple("Task", "data_set validation test label", defaults=("label",))
# Where the validation and test samples begin: a split and a percentage of it.
VALIDATION, LAST_TENTH = ("validation", 0), ("train", 90)
TEST, LAST_FIFTH = ("test", 0), ("train", 80)

TASKS = {
    "caltech101": Task("caltech101", LAST_TENTH, TEST),
    "cifar100": Task("cifar100", LAST_TENTH, TEST),
    "dtd": Task("dtd", VALIDATION, TEST),
    "oxford_flowers102": Task("oxford_flowers102", VALIDATION, TEST),
    "oxford_iiit_pet": Task("oxford_iiit_pet", ("train", 80), TEST),
    "sun397": Task("sun397/tfds", VALIDATION, TEST),
    "svhn": Task("svhn_cropped", LAST_TENTH, TEST),
    "patch_camelyon": Task("patch_camelyon", VALIDATION, TEST),
    "eurosat": Task("eurosat/rgb", ("train", 60), LAST_FIFTH),
    "resisc45": Task("resisc45", ("train", 60), LAST_FIFTH),
    "diabetic_retinopathy": Task("diabetic_retinopathy_detection/btgraham-300", VALIDATION, TEST),
    "clevr_count": Task("clevr", LAST_TENTH, VALIDATION, "count"),
    "clevr_distance": Task("clevr", LAST_TENTH, VALIDATION, "closest_object"),
    "dmlab": Task("dmlab", VALIDATION, TEST),
    "dsprites_location": Task("dsprites", ("train", 80), LAST_TENTH, "label_x_position"),
    "dsprites_orientation": Task("dsprites", ("train", 80), LAST_TENTH, "label_orientation"),
    "kitti_distance": Task("kitti", VALIDATION, TEST, "closest_vehicle"),
    "smallnorb_azimuth": Task("smallnorb", TEST, ("test", 50), "label_azimuth"),
    "smallnorb_elevation": Task("smallnorb", TEST, ("test", 50), "label_elevation"),
}
DSPRITES_CLASSES = 16  # bins of positions and angles


def load_vtab(name, *, data_dir, **options):
    """Load a task of VTAB-1k.

    Args:
        name: One of `TASKS`.
        data_dir: As in `load_dataset`.

    Returns:
        dict of `class_names`, `splits` (800 training, 200 validation and all test samples) and `version`, as
        of `Dataset`.

    Raises:
        ValueError: for an unknown task, or as `load_tfds`.

    Example:
        >>> TASKS["svhn"]
        Task(data_set='svhn_cropped', validation=('train', 90), test=('test', 0), label='label')

    Source: `train800`, `val200` and `test` of each data set in google-research/task_adaptation, and its
    labels; it pins versions, this takes the installed one.
    """
    if name not in TASKS:
        hint = did_you_mean(name, TASKS)
        raise ValueError(f"VTAB task {name!r} is unknown{hint}; choose one of {', '.join(TASKS)}")
    task = TASKS[name]
    builder = prepared(task.data_set, data_dir)
    key, read_label, class_names = LABELS.get(task.label, _class_label)(builder, task)
    image = image_feature(builder)
    whiten = {"read_image": _times_255} if task.data_set == "dsprites" else {}
    parse = parser(builder, image, key, read_label, **whiten)
    validation, test = (_begin(builder, *place) for place in (task.validation, task.test))
    plan = {
        "train": "train[:800]",
        "validation": f"{task.validation[0]}[{validation}:{validation + 200}]",
        "test": f"{task.test[0]}[{test}:]",
    }
    splits = {split: samples(builder, part, parse) for split, part in plan.items()}
    return {"class_names": class_names, "splits": splits, "version": builder.info.full_name}


def _begin(builder, split, percent):
    return percent * builder.info.splits[split].num_examples // 100


def _class_label(builder, task):
    if task.label == "label":
        return label_feature(builder, "single_label")
    feature = builder.info.features[task.label]
    if task.data_set != "dsprites":
        return task.label, lambda label: tf.cast(label, tf.int32), tuple(feature.names)
    width = feature.num_classes / DSPRITES_CLASSES
    return (
        task.label,
        lambda label: tf.cast(tf.math.floordiv(tf.cast(label, tf.float32), width), tf.int32),
        tuple(str(number) for number in range(DSPRITES_CLASSES)),
    )


def _count(builder, task):
    """CLEVR's scenes have 3 to 10 objects."""
    return "objects", lambda objects: tf.size(objects["size"]) - 3, tuple(str(n) for n in range(3, 11))


def _closest_object(builder, task):
    bounds = (8.0, 8.5, 9.0, 9.5, 10.0)
    return "objects", lambda objects: _bin(objects["pixel_coords"][:, 2], bounds), _names(bounds)


def _closest_vehicle(builder, task):
    """The first three types are car, van and truck; without one, it is farther than any."""
    bounds = (8.0, 20.0, 999.0)

    def label(objects):
        distances = tf.boolean_mask(objects["location"][:, 2], objects["type"] < 3)
        return _bin(tf.concat([distances, [1000.0]], axis=0), bounds)

    return "objects", label, (*_names(bounds[:-1]), "none")


def _bin(distances, bounds):
    """The number of bounds that the smallest distance exceeds."""
    return tf.reduce_sum(tf.cast(tf.constant(bounds) < tf.reduce_min(distances), tf.int32))


def _names(bounds):
    return tuple(f"{low:g} to {high:g}" for low, high in zip((0, *bounds), (*bounds, float("inf"))))


LABELS = {"count": _count, "closest_object": _closest_object, "closest_vehicle": _closest_vehicle}


def _times_255(encoded):
    """Convert a picture of zeros and ones to black and white."""
    return tf.io.encode_png(tf.io.decode_png(encoded) * 255)
