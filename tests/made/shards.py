"""Images for tar and Parquet files, and what is read of them."""

import io
import json
import tarfile

import numpy as np
import pyarrow
import pyarrow.parquet
import tensorflow as tf
from made.folders import picture, write_classes
from made.prepared import prepare

from keras_vit.preprocessing.image_files import image_bytes


def encoded(number, size=(6, 8)):
    """A PNG image whose first pixel says its number."""
    image = picture(0, number, size)
    image[0, 0, 0] = number
    return image_bytes(image)


def encoded_mask(value, size=(8, 6)):
    """A PNG mask of one value."""
    return image_bytes(np.full(size[::-1], value, "uint8"))


def read(records):
    """[(number of the image, label)] of records."""
    found = [(tf.io.decode_png(image), label) for *_, image, label in records]
    return [(int(image[0, 0, 0]), label.numpy().tolist()) for image, label in found]


def read_splits(data, *splits):
    """As `read`, of all images of some splits of a data set, sorted."""
    return sorted(record for split in splits for record in read(data.split(split).evaluation_records()))


def write_tar(path, members, mode="w"):
    """A tar file of (name, content) each; a dict or an int is written as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as tar:
        for name, content in members:
            content = json.dumps(content).encode() if isinstance(content, dict | int) else content
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def tar_of(path, images, **members):
    """A tar file of samples 0, 1, …, with these images, and by suffix what else each of them has."""
    members = {"png": images, **members}
    rows = enumerate(zip(*members.values(), strict=True))
    return write_tar(path, ((f"{n}.{s}", content) for n, row in rows for s, content in zip(members, row)))


def structs(numbers):
    """Images as the package datasets stores them."""
    return [{"bytes": encoded(number), "path": f"{number}.png"} for number in numbers]


def write_parquet(path, columns, features=None, rows=4):
    """A Parquet file with some rows in each group, and features in its metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table(columns)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(table, path, row_group_size=rows)
    return path


def stored(folder, source):
    """The name of a data set of 60 images of three classes in a kind of file, or of a mixture of such."""
    if source == "mixture":
        tar, table = (stored(folder / kind, kind) for kind in ("webdataset", "parquet"))
        return f"{tar}*2 + {table} + folder:{write_classes(folder / 'folder', '012')}"
    if source == "tfrecord":
        folder = prepare(folder, {"train": 60}, shards=5, file_format="tfrecord")
        return f"tfds:{folder}/toy/1.0.0"
    for shard in range(2):
        numbers, labels = range(30 * shard, 30 * shard + 30), [n % 3 for n in range(30)]
        if source == "parquet":
            write_parquet(folder / f"{shard}.parquet", {"image": structs(numbers), "label": labels})
        else:
            tar_of(folder / f"{shard}.tar", map(encoded, numbers), cls=labels)
    return f"{source}:{folder}"
