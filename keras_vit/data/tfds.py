"""Data sets of TensorFlow Datasets: which splits, which image and which label, and how records are read."""

import os
import pathlib

import numpy as np
import tensorflow as tf

from keras_vit.data.samples import IndexedRecords, RecordFiles

SPLITS = ("train", "validation", "test")
# The presets of `big_vision/configs/transfer.py` and `vit_i21k.py` (ImageNet-21k has no test split).
PRESETS = {
    "cifar10": ("train[:98%]", "train[98%:]", "test"),
    "cifar100": ("train[:98%]", "train[98%:]", "test"),
    "imagenet2012": ("train[:99%]", "train[99%:]", "validation"),
    "imagenet21k": ("full[51200:]", "full[:51200]", "full[:51200]"),
    "oxford_iiit_pet": ("train[:90%]", "train[90%:]", "test"),
    "oxford_flowers102": ("train[:90%]", "train[90%:]", "test"),
}


def load_tfds(name, task="single_label", data_dir=None):
    """The class names and the splits of a data set of TensorFlow Datasets.

    Args:
        name: NAME[/config][:version].
        task: What is wanted of the labels, as in `load_dataset`.
        data_dir: The folder of prepared data sets, or None for TensorFlow Datasets' own. It need not know
            the name: NAME may be a folder there that holds a prepared data set.

    Returns:
        The class names, samples by split, and the data set's name with its version.

    Raises:
        ValueError: if the data set is neither there nor can be prepared, or has no such labels.

    Example:
        >>> PRESETS["imagenet2012"]
        ('train[:99%]', 'train[99%:]', 'validation')
    """
    builder = prepared(name, data_dir)
    image = image_feature(builder)
    label, read_label, class_names = label_feature(builder, task)
    parse = parser(builder, (image, label), image, lambda example: read_label(example[label]))
    plan = preset(builder)
    splits = {split: samples(builder, plan[split], parse) for split in SPLITS}
    return class_names, splits, builder.info.full_name


def prepared(name, data_dir=None):
    """The builder of a data set that lies on disk; what does not is downloaded.

    Raises:
        ValueError: if it is unknown or cannot be prepared.
    """
    import tensorflow_datasets as tfds

    if data_dir is not None:
        data_dir = os.fspath(pathlib.Path(data_dir).expanduser())
        folder = os.path.join(data_dir, name.replace(":", "/"))
        if os.path.isfile(os.path.join(folder, "dataset_info.json")):
            return tfds.builder_from_directory(folder)
    where = data_dir or "TensorFlow Datasets' own folder"
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except Exception as error:  # of a dozen kinds
        raise ValueError(
            f"data set 'tfds:{name}' is neither prepared in {where} nor known to TensorFlow Datasets "
            f"({_first_line(error)})"
        ) from error
    if not builder.info.splits:
        try:
            builder.download_and_prepare(file_format="array_record")
        except Exception as error:
            raise ValueError(
                f"data set 'tfds:{name}' is not prepared in {where} and could not be: "
                f"{type(error).__name__}: {_first_line(error)}"
            ) from error
    return builder


def _first_line(error):
    return (str(error).strip().splitlines() or ["no reason given"])[0]


def image_feature(builder):
    """The name of the images' feature.

    Raises:
        ValueError: if there is none, or images have neither 1, 3 nor 4 channels.
    """
    import tensorflow_datasets as tfds

    features = builder.info.features
    images = [key for key, feature in sorted(features.items()) if isinstance(feature, tfds.features.Image)]
    supervised = builder.info.supervised_keys or ("",)
    key = supervised[0] if supervised[0] in images else (images or [None])[0]
    if key is None:
        raise ValueError(
            f"{builder.info.full_name!r} has no images; its features are {', '.join(sorted(features))}"
        )
    shape, kind = features[key].shape, np.dtype(features[key].np_dtype).name
    if len(shape) != 3 or shape[-1] not in (None, 1, 3, 4) or kind not in ("uint8", "uint16"):
        raise ValueError(f"feature {key!r} of {builder.info.full_name!r} is no picture: {kind} {shape}")
    return key


def label_feature(builder, task):
    """Which feature holds the labels of a task, and how it becomes one.

    Returns:
        Its name, the function from its value to the label, and the names of the classes or numbers.

    Raises:
        ValueError: if no feature, or not just one, holds labels of that task.
    """
    found = {key: _task_of(feature) for key, feature in sorted(builder.info.features.items())}
    fitting = [key for key, own in found.items() if own == task]
    supervised = builder.info.supervised_keys or (None, None)
    if supervised[1] in fitting:
        fitting = [supervised[1]]
    if len(fitting) != 1:
        others = ", ".join(f"{key} ({own})" for key, own in found.items() if own) or "no labels"
        raise ValueError(
            f"task {task!r} needs one feature of such labels; {builder.info.full_name!r} has {others}"
        )
    (key,) = fitting
    feature = builder.info.features[key]
    if task == "single_label":
        return key, lambda label: tf.cast(label, tf.int32), tuple(feature.names)
    if task == "multi_label":
        classes = feature.feature.num_classes
        return key, lambda labels: _multi_hot(labels, classes), tuple(feature.feature.names)
    outputs = feature.shape[0] if feature.shape else 1
    names = (key,) if outputs == 1 else tuple(f"{key}_{i}" for i in range(outputs))
    return key, lambda number: tf.reshape(tf.cast(number, tf.float32), (outputs,)), names


def _task_of(feature):
    """The task whose labels a feature holds, or None."""
    import tensorflow_datasets as tfds

    if isinstance(feature, tfds.features.ClassLabel):
        return "single_label"
    if isinstance(feature, tfds.features.Sequence):
        return "multi_label" if isinstance(feature.feature, tfds.features.ClassLabel) else None
    if isinstance(feature, tfds.features.Tensor) and not isinstance(feature, tfds.features.Image):
        numbers = len(feature.shape) < 2 and None not in feature.shape
        return "regression" if numbers and np.dtype(feature.np_dtype).kind == "f" else None
    return None


def _multi_hot(labels, classes):
    return tf.minimum(tf.reduce_sum(tf.one_hot(labels, classes), axis=0), 1)


def preset(builder):
    """Which part of the data set each split is.

    The official presets where there is one. Otherwise the data set's own splits: without a test split it is
    the validation split, or the last fifth of the training split; without a validation split it is the last
    tenth of what remains for training. TensorFlow Datasets shuffles when it writes, so these are random.

    Returns:
        By split, what TensorFlow Datasets calls it.
    """
    if builder.info.name in PRESETS:
        return dict(zip(SPLITS, PRESETS[builder.info.name]))
    own = set(builder.info.splits)
    if "train" not in own and len(own) > 1:
        raise ValueError(f"{builder.info.full_name!r} has no train split; it has {', '.join(sorted(own))}")
    train = "train" if "train" in own else own.pop()
    if {"validation", "test"} <= own:
        return {split: split for split in SPLITS} | {"train": train}
    if own & {"validation", "test"}:
        test = "test" if "test" in own else "validation"
        return {"train": f"{train}[:90%]", "validation": f"{train}[90%:]", "test": test}
    return {"train": f"{train}[:72%]", "validation": f"{train}[72%:80%]", "test": f"{train}[80%:]"}


def parser(builder, wanted, image, read_label, read_image=lambda encoded: encoded):
    """The function from a record to (encoded image, label); the image is not decoded.

    Args:
        wanted: The features to read from a record.
        image: Which of them is the image.
        read_label: From an example, a dict of these features, to the label.
        read_image: What is to be done to the encoded image.
    """
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict({key: builder.info.features[key] for key in wanted})

    def parse(record):
        example = features.deserialize_example(record, decoders={image: tfds.decode.SkipDecoding()})
        return read_image(example[image]), read_label(example)

    return parse


def samples(builder, split, parse):
    """The samples of a part of a data set, such as "train[:98%]".

    Raises:
        ValueError: if there is no such part, it is empty, or its files are of another kind than ArrayRecord
            and TFRecord.
    """
    import tensorflow_datasets as tfds

    try:
        files = builder.info.splits[split].file_instructions
    except (ValueError, KeyError, AssertionError) as error:
        raise ValueError(
            f"{builder.info.full_name!r} has no {split!r}; it has {', '.join(builder.info.splits)}"
        ) from error
    if not files:
        raise ValueError(f"{split!r} of {builder.info.full_name!r} is empty")
    kind = builder.info.file_format
    if kind == tfds.core.FileFormat.ARRAY_RECORD:
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        return IndexedRecords(builder.as_data_source(split, deserialize_method=raw), parse)
    if kind == tfds.core.FileFormat.TFRECORD:
        return RecordFiles(tuple((os.fspath(f.filename), f.skip, f.take) for f in files), parse)
    raise ValueError(f"{builder.info.full_name!r} is stored as {kind.value}; wanted array_record or tfrecord")
