"""The Visual Task Adaptation Benchmark with 1,000 samples a task: 800 to train on, 200 to validate."""

import collections

import tensorflow as tf

from keras_vit.data.tfds import image_feature, label_feature, parser, prepared, samples

Task = collections.namedtuple("Task", "data_set validation test label", defaults=("label",))
# Where the 200 and the test samples begin: a split and a percentage of it.
OWN, HELD = ("validation", 0), ("train", 90)
TEST, LAST_FIFTH, LAST_TENTH = ("test", 0), ("train", 80), ("train", 90)

TASKS = {
    "caltech101": Task("caltech101", HELD, TEST),
    "cifar100": Task("cifar100", HELD, TEST),
    "dtd": Task("dtd", OWN, TEST),
    "oxford_flowers102": Task("oxford_flowers102", OWN, TEST),
    "oxford_iiit_pet": Task("oxford_iiit_pet", ("train", 80), TEST),
    "sun397": Task("sun397/tfds", OWN, TEST),
    "svhn": Task("svhn_cropped", HELD, TEST),
    "patch_camelyon": Task("patch_camelyon", OWN, TEST),
    "eurosat": Task("eurosat/rgb", ("train", 60), LAST_FIFTH),
    "resisc45": Task("resisc45", ("train", 60), LAST_FIFTH),
    "diabetic_retinopathy": Task("diabetic_retinopathy_detection/btgraham-300", OWN, TEST),
    "clevr_count": Task("clevr", HELD, OWN, "count"),
    "clevr_distance": Task("clevr", HELD, OWN, "closest_object"),
    "dmlab": Task("dmlab", OWN, TEST),
    "dsprites_location": Task("dsprites", ("train", 80), LAST_TENTH, "label_x_position"),
    "dsprites_orientation": Task("dsprites", ("train", 80), LAST_TENTH, "label_orientation"),
    "kitti_distance": Task("kitti", OWN, TEST, "closest_vehicle"),
    "smallnorb_azimuth": Task("smallnorb", TEST, ("test", 50), "label_azimuth"),
    "smallnorb_elevation": Task("smallnorb", TEST, ("test", 50), "label_elevation"),
}
DSPRITES_CLASSES = 16  # neighbouring positions and angles together


def load_vtab(name, data_dir=None):
    """The class names and the splits of a task of VTAB-1k.

    Args:
        name: One of `TASKS`.
        data_dir: As in `load_dataset`.

    Returns:
        The class names; samples by split: 800 of "train", 200 of "validation", and all of "test"; and the
        data set's name with its version.

    Raises:
        ValueError: for an unknown task, and as `load_tfds`.

    Example:
        >>> TASKS["svhn"]
        Task(data_set='svhn_cropped', validation=('train', 90), test=('test', 0), label='label')

    Source: `train800`, `val200` and `test` of each data set in google-research/task_adaptation, and its
    labels; it pins versions, this takes the one at hand.
    """
    if name not in TASKS:
        raise ValueError(f"VTAB task {name!r} is unknown; choose one of {', '.join(TASKS)}")
    task = TASKS[name]
    builder = prepared(task.data_set, data_dir)
    wanted, read_label, class_names = LABELS.get(task.label, _class_label)(builder, task)
    image = image_feature(builder)
    whiten = {"read_image": _times_255} if task.data_set == "dsprites" else {}
    parse = parser(builder, (image, wanted), image, lambda example: read_label(example[wanted]), **whiten)
    validation, test = (_begin(builder, *place) for place in (task.validation, task.test))
    plan = {
        "train": "train[:800]",
        "validation": f"{task.validation[0]}[{validation}:{validation + 200}]",
        "test": f"{task.test[0]}[{test}:]",
    }
    splits = {split: samples(builder, part, parse) for split, part in plan.items()}
    return class_names, splits, builder.info.full_name


def _begin(builder, split, percent):
    if split not in builder.info.splits:
        raise ValueError(
            f"{builder.info.full_name!r} has no {split!r}; it has {', '.join(builder.info.splits)}"
        )
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
    """How many of the bounds the smallest distance exceeds."""
    return tf.reduce_sum(tf.cast(tf.constant(bounds) < tf.reduce_min(distances), tf.int32))


def _names(bounds):
    return tuple(f"{low:g} to {high:g}" for low, high in zip((0, *bounds), (*bounds, float("inf"))))


LABELS = {"count": _count, "closest_object": _closest_object, "closest_vehicle": _closest_vehicle}


def _times_255(encoded):
    """Pictures of zeros and ones as black and white."""
    return tf.io.encode_png(tf.io.decode_png(encoded) * 255)
