"""Parquet files, such as those of the Hugging Face Hub: a row is a sample."""

import dataclasses
import functools
import json
import re

import numpy as np
import pyarrow
import pyarrow.parquet
from pyarrow import types

from keras_vit.data.chunked_samples import ChunkedSamples
from keras_vit.data.column_types import IMAGES, is_image, is_text
from keras_vit.data.label_storage import storage_of
from keras_vit.data.parquet_samples import BoundedReader, check_declared, check_images, read_rows, row_name
from keras_vit.data.shard_cache import is_remote, opened, read_shards
from keras_vit.data.shard_files import ReadSamples, dataset_of_shards, split_shards
from keras_vit.data.stored_labels import is_unknown, what_is_wrong
from keras_vit.messages import listed


def load_parquet(argument, *, task, seed, on_bad_image, texts, labels, fields, **options):
    """Load the rows of Parquet files.

    Images are a column of bytes, or of structs of `bytes` and `path`, as the package datasets writes them.
    Labels are the one column that fits the task: for "single_label" integers, or class names; for
    "multi_label" lists of the numbers of classes; for "regression" floats, or lists of them; for
    "segmentation" a second column of images; for captions texts, or lists of them. Where several columns
    fit, the one with a usual name does. The class names are those in the metadata of datasets. Rows of a
    negative class, which is unknown, are left out.

    Args:
        argument: A Parquet file, a folder of them, a pattern such as `train-*.parquet`, or several of these,
            joined by `::`, as paths or URLs; or a dict from paths to splits. A file belongs to the split that
            its name or folders have as a word: `train`, `val`, `validation` or `test`; to train if they have
            none.
            `classes.txt` beside the first one names classes that have no names in the files; for masks as of
            `keras_vit.tasks.segmentation.folder`.
        task, seed, on_bad_image, texts, labels: As for `load_dataset`.
        fields: ("image=COLUMN", "label=COLUMN"), or one of them.

    Returns:
        dict of `class_names`, `splits`, `version`, `bad_images`, `unlabeled` and `texts`, as of `Dataset`.

    Raises:
        ValueError: if a file is missing or damaged, files differ in their columns, not exactly one column
            fits, or a label is missing or does not fit the task.

    Example:
        >>> import pyarrow.parquet
        >>> digits = load_dataset("digits").split("test")
        >>> table = pyarrow.table({"image": digits.images, "label": digits.labels})
        >>> pyarrow.parquet.write_table(table, tmp / "train.parquet")
        >>> load_dataset(f"parquet:{tmp}/train.parquet").split_sources
        {'train': 'from train.parquet', 'validation': 'held out', 'test': 'held out'}

    Source: https://huggingface.co/docs/hub/datasets-image, the section "Parquet".
    """
    shards, storage = split_shards(argument, ".parquet"), storage_of(task, texts, labels)
    paths, chosen = tuple(shards), _chosen(fields)
    by_file = any(map(is_remote, paths))  # A file is then a chunk, not a row group: it is fetched once.
    contents = read_shards(
        paths, ["parquet", storage.purpose, chosen], lambda path: _read(path, storage, chosen)
    )
    chunks, stored, columns = [], ReadSamples(), None
    for path, ((fields_of_file, groups), digest) in zip(paths, contents):
        columns_of_file = Columns(*fields_of_file)
        columns = columns or columns_of_file
        if columns_of_file != columns:
            raise ValueError(f"{path!r} has {columns_of_file}; {paths[0]!r} has {columns}")
        stored.digests.append(digest)
        for group, values in enumerate(groups):
            if group == 0 or not by_file:
                chunks.append(path)
            reasons = {n: wrongs for n, value in enumerate(values) if (wrongs := what_is_wrong(value))}
            unknown = [n for n, value in enumerate(values) if is_unknown(value)]
            numbers = np.setdiff1d(np.arange(len(values)), [*reasons, *unknown])
            stored.unlabeled += (row_name(path, (group, n)) for n in unknown)
            stored.wrong |= {row_name(path, (group, n)): wrongs for n, wrongs in reasons.items()}
            locations = np.full_like(numbers, len(chunks) - 1), np.full_like(numbers, group), numbers
            stored.add(shards[path], np.column_stack(locations), (values[n] for n in numbers))

    def samples(places, values, labels, reader):
        names = (columns.image, columns.label) if reader else (columns.image,)
        arguments = tuple(chunks), places, names, labels, reader, storage.task
        return ChunkedSamples(*arguments, read=read_rows, name=row_name)

    options = {"seed": seed, "on_bad_image": on_bad_image, "texts": texts}
    return dataset_of_shards(shards, storage, stored, samples, "Parquet", columns.class_names, **options)


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of images and labels of a file, and what is known of the classes."""

    image: str
    label: str | None = None
    has_texts: bool = False
    class_names: list[str] | None = None
    has_others: bool = False

    def __str__(self):
        names = "" if self.class_names is None else f" of {len(self.class_names)} named classes"
        return f"images in {self.image!r}" + (f" and labels in {self.label!r}{names}" if self.label else "")


def _columns(schema, path, storage, chosen):
    """The `Columns` of a schema; `chosen` has the names that fields give."""
    features = _features(schema, path)
    if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise ValueError(f"{path!r} has several columns of the name {twice[0]!r}")
    image = _column(schema, path, "image", IMAGES, chosen)
    if storage.column is None:
        return Columns(image)
    label = _column(schema, path, "label", storage.column, chosen, other=image)
    return Columns(
        image,
        label,
        is_text(_type(schema, label)),
        None if is_image(_type(schema, label)) else _class_names(features.get(label), storage, path),
        bool(storage.others) and {*storage.others} <= {*schema.names},
    )


def _column(schema, path, role, form, chosen, other=None):
    """The name of the column of a role."""
    accepts, accepts_chosen, usual = form
    name = chosen.get(role)
    if name is not None:
        if name not in schema.names or not accepts_chosen(_type(schema, name)):
            raise ValueError(f"{path!r} has no column {name!r} of {role}s; it has {_described(schema)}")
        return name
    fitting = [name for name in schema.names if name != other and accepts(_type(schema, name))]
    named = [name for name in fitting if name in usual]
    for names in (named, fitting):
        if len(names) == 1:
            return names[0]
    raise ValueError(
        f"{path!r} has {len(fitting) or 'no'} columns of {role}s for this task; expected one, or the field "
        f"{role}=COLUMN; its columns are {_described(schema)}"
    )


def _type(schema, name):
    type = schema.field(name).type
    return type.value_type if types.is_dictionary(type) else type


def _described(schema):
    return listed([f"{name} ({str(schema.field(name).type).partition('<')[0]})" for name in schema.names], 20)


def _features(schema, path):
    """The features that the package datasets describes in the metadata, by column."""
    text = (schema.metadata or {}).get(b"huggingface")
    if text is None:
        return {}
    try:
        features = json.loads(text)["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        features = None
    if not isinstance(features, dict):
        raise ValueError(f"{path!r}: its metadata 'huggingface' have no features")
    return features


def _class_names(feature, storage, path):
    """The class names of a feature, or of the items of its lists; None if it has none."""
    while isinstance(feature, (list, dict)):
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            names = feature.get("names") or ()
            if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
                raise ValueError(f"{path!r}: its metadata 'huggingface' have no list of class names")
            return tuple(names)
        if isinstance(feature, dict) and (of_classes := storage.class_feature(feature)) is not None:
            feature = of_classes
            continue
        feature = feature[0] if isinstance(feature, list) and feature else dict(feature).get("feature")
    return None


def _read(path, storage, chosen):
    """The columns of a file, and by row group the values of each row."""
    with opened(path) as opened_file:
        try:
            with pyarrow.parquet.ParquetFile(opened_file) as file:
                columns = _columns(file.schema_arrow, path, storage, chosen)
                check_declared(file, path, [columns.image, *([columns.label] if columns.label else [])])
                check_images(file, path, columns.image)
                reader, values = BoundedReader(file, path), []
                for number in range(file.num_row_groups):
                    count, read = file.metadata.row_group(number).num_rows, functools.partial(reader, number)
                    row_group = f"{path!r}, row group {number}, row"
                    values.append(storage.column_values(read, count, columns, row_group))
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(
                f"{path!r} is no Parquet file, or is damaged: {str(error).splitlines()[0]}"
            ) from None
    return dataclasses.astuple(columns), values


def _chosen(fields):
    """The columns that `fields` names, by their role."""
    chosen = {}
    for field in fields:
        match = re.fullmatch("(image|label)=(.+)", field)
        if match is None or match[1] in chosen:
            raise ValueError(f"expected the fields image=COLUMN and label=COLUMN; got {', '.join(fields)}")
        chosen[match[1]] = match[2]
    return chosen
