"""Data sets of TensorFlow Datasets: their splits, images and labels, and how records are parsed."""

import os
import pathlib

import numpy as np
import tensorflow_datasets as tfds

from keras_vit.data.chunked_records import ChunkedRecords
from keras_vit.data.samples import SPLITS, IndexedRecords, record_reader
from keras_vit.tasks import label_storages

# The presets of `big_vision/configs/transfer.py` and `vit_i21k.py` (ImageNet-21k has no test split).
PRESETS = {
    "cifar10": ("train[:98%]", "train[98%:]", "test"),
    "cifar100": ("train[:98%]", "train[98%:]", "test"),
    "imagenet2012": ("train[:99%]", "train[99%:]", "validation"),
    "imagenet21k": ("full[51200:]", "full[:51200]", "full[:51200]"),
    "oxford_iiit_pet": ("train[:90%]", "train[90%:]", "test"),
    "oxford_flowers102": ("train[:90%]", "train[90%:]", "test"),
    "cityscapes": ("train[:90%]", "train[90%:]", "validation"),  # The labels of its test split are secret.
}


def load_tfds(name, *, task, data_dir, **options):
    """Load a data set of TensorFlow Datasets.

    Args:
        name: NAME[/config][:version], or the absolute path of a folder with a prepared data set, which has
            a `dataset_info.json`.
        task: The task of the labels, as of `load_dataset`.
        data_dir: The folder of prepared data sets, or None for that of TensorFlow Datasets. NAME may also be
            a folder in it that contains a prepared data set of any name.

    Returns:
        dict of `class_names`, `splits` and `version`, as of `Dataset`.

    Raises:
        ValueError: if the data set is missing and cannot be prepared, or has no such labels.

    Example:
        >>> PRESETS["imagenet2012"]
        ('train[:99%]', 'train[99%:]', 'validation')
    """
    builder = prepared(name, data_dir)
    image = image_feature(builder)
    label, read_label, class_names = label_feature(builder, task)
    parse = parser(builder, image, label, read_label)
    plan = preset(builder)
    splits = {split: samples(builder, part, parse, task) for split, part in plan.items()}
    return {"class_names": class_names, "splits": splits, "version": builder.info.full_name}


def prepared(name, data_dir):
    """The builder of a data set on disk, which is downloaded if necessary.

    Raises:
        ValueError: if it is unknown or cannot be prepared.
    """
    folder = pathlib.Path(name).expanduser()
    if folder.is_absolute():
        if not (folder / "dataset_info.json").is_file():
            raise ValueError(
                f"{os.fspath(folder)!r} holds no prepared data set; expected a folder with "
                "dataset_info.json, such as NAME/1.0.0"
            )
        return tfds.builder_from_directory(folder)
    if data_dir is not None:
        data_dir = os.fspath(pathlib.Path(data_dir).expanduser())
        folder = os.path.join(data_dir, name.replace(":", "/"))
        if os.path.isfile(os.path.join(folder, "dataset_info.json")):
            return tfds.builder_from_directory(folder)
    try:
        builder = tfds.builder(name, data_dir=data_dir)
        if not builder.info.splits:
            builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # TensorFlow Datasets raises a dozen types.
        reason = str(error).strip().partition("\n")[0]  # The rest may list all data sets.
        raise ValueError(
            f"data set 'tfds:{name}' is not prepared in {data_dir or 'the default folder'} and could not be: "
            f"{type(error).__name__}: {reason}"
        ) from error
    return builder


def image_feature(builder):
    """The name of the images' feature.

    Raises:
        ValueError: if there is none, or images have neither 1, 3 nor 4 channels.
    """
    features = builder.info.features
    storages = label_storages().values()
    images = [
        key
        for key, feature in sorted(features.items())
        if isinstance(feature, tfds.features.Image)
        and not any(storage.of_feature(builder.info.name, key, feature) for storage in storages)
    ]
    supervised = builder.info.supervised_keys or ("",)
    key = supervised[0] if supervised[0] in images else (images or [None])[0]
    if key is None:
        raise ValueError(
            f"{builder.info.full_name!r} has no images; its features are {', '.join(sorted(features))}"
        )
    shape, dtype = features[key].shape, np.dtype(features[key].np_dtype).name
    if len(shape) != 3 or shape[-1] not in (None, 1, 3, 4) or dtype not in ("uint8", "uint16"):
        raise ValueError(f"feature {key!r} of {builder.info.full_name!r} is not a picture: {dtype} {shape}")
    return key


def label_feature(builder, task):
    """The feature with the labels of a task, and how it is read.

    Returns:
        Its name, a function from its value to the label, and the names of the classes or targets.

    Raises:
        ValueError: unless exactly one feature has labels of that task, or is the supervised one.
    """
    tasks, fitting = [], {}
    for key, feature in sorted(builder.info.features.items()):
        for own, storage in label_storages().items():
            if read := storage.of_feature(builder.info.name, key, feature):
                tasks.append(f"{key} ({own})")
                fitting |= {key: read} if own == task else {}
    _, supervised = builder.info.supervised_keys or (None, None)
    if supervised not in fitting and len(fitting) != 1:
        raise ValueError(
            f"task {task!r} needs exactly one feature of such labels; {builder.info.full_name!r} has "
            f"{', '.join(tasks) or 'no labels'}"
        )
    key = supervised if supervised in fitting else [*fitting][0]
    return key, *fitting[key]


def preset(builder):
    """The part of the data set that each split is, as TensorFlow Datasets writes it, by split.

    The official preset if there is one, else the data set's own splits. A missing test split is the
    validation split, or the last fifth of the training split; a missing validation split is the last tenth of
    the rest of the training split. TensorFlow Datasets shuffles when it writes, so these are random. A data
    set with validation and test splits alone, such as `imagenet_v2`, has no training split.
    """
    if builder.info.name in PRESETS:
        return dict(zip(SPLITS, PRESETS[builder.info.name]))
    stored = set(builder.info.splits)
    if stored <= {"validation", "test"}:
        return {split: split for split in SPLITS if split in stored} | {"test": max(stored, key=SPLITS.index)}
    if "train" not in stored and len(stored) > 1:
        raise ValueError(f"{builder.info.full_name!r} has no train split; it has {', '.join(sorted(stored))}")
    train = "train" if "train" in stored else stored.pop()
    if {"validation", "test"} <= stored:
        return {split: split for split in SPLITS} | {"train": train}
    if stored & {"validation", "test"}:
        test = "test" if "test" in stored else "validation"
        return {"train": f"{train}[:90%]", "validation": f"{train}[90%:]", "test": test}
    return {"train": f"{train}[:72%]", "validation": f"{train}[72%:80%]", "test": f"{train}[80%:]"}


def parser(builder, image, label, read_label, read_image=lambda encoded: encoded):
    """A function from a record to (encoded image, label); the image is not decoded.

    Args:
        builder: The data set's builder.
        image, label: The names of the features to read.
        read_label: A function from the label's feature to the label; an image is not decoded before.
        read_image: A function from the stored image to the encoded one.
    """
    features = tfds.features.FeaturesDict({key: builder.info.features[key] for key in (image, label)})
    encoded = [key for key, feature in features.items() if isinstance(feature, tfds.features.Image)]

    def parse(record):
        decoders = {key: tfds.decode.SkipDecoding() for key in encoded}
        example = features.deserialize_example(record, decoders=decoders)
        return read_image(example[image]), read_label(example[label])

    return parse


def samples(builder, split, parse, task=None):
    """The samples of a part of a data set, such as "train[:98%]", with labels of a task.

    Raises:
        ValueError: if there is no such part, it is empty, or its files are neither ArrayRecord nor TFRecord.
    """
    try:
        files = builder.info.splits[split].file_instructions
    except (ValueError, KeyError, AssertionError) as error:
        raise ValueError(
            f"{builder.info.full_name!r} has no {split!r}; it has {', '.join(builder.info.splits)}"
        ) from error
    if not files:
        raise ValueError(f"{split!r} of {builder.info.full_name!r} is empty")
    file_format = builder.info.file_format
    if file_format == tfds.core.FileFormat.ARRAY_RECORD:
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        return IndexedRecords(builder.as_data_source(split, deserialize_method=raw), parse, task)
    if file_format == tfds.core.FileFormat.TFRECORD:
        files = tuple((os.fspath(f.filename), f.skip, f.take) for f in files)
        counts = tuple(count for _, _, count in files)
        return ChunkedRecords(counts, record_reader(files), parse, task=task)
    raise ValueError(
        f"{builder.info.full_name!r} is stored as {file_format.value}; expected array_record or tfrecord"
    )
