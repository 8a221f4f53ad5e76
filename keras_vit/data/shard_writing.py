"""Write a data set as tar or Parquet files, in a random order."""

import contextlib
import dataclasses
import io
import itertools
import json
import os
import pathlib
import tarfile

import numpy as np
import pyarrow
import pyarrow.parquet

from keras_vit.data.column_types import IMAGE
from keras_vit.data.damage import damage_named
from keras_vit.data.decoding.exif import without_orientation
from keras_vit.data.files import CLASSES
from keras_vit.data.fingerprint import fingerprint_summary
from keras_vit.data.label_storage import storage_of
from keras_vit.data.shard_files import INCOMPLETE
from keras_vit.messages import listed
from keras_vit.preprocessing.image_files import image_bytes, image_header, read_image
from keras_vit.progress import Progress
from keras_vit.rules import integer, one_of
from keras_vit.writing import atomic_path, atomic_write

# By Pillow's name of the format. MPO is a JPEG with a second picture, as phones write it. Others become PNG,
# also BMP, since records of Parquet files have TIFF as BMP.
SUFFIXES = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "GIF": "gif", "WEBP": "webp"}
ROWS = 100  # of a row group, as the package datasets wrote for long
COPY = ".samples"  # the file of samples that have no random access


def write_shards(dataset, folder, file_format="webdataset", images_per_shard=5000, seed=0):
    """Write each split of a data set to files of equal numbers of images, in a random order.

    If the process is stopped, the same call continues with the first shard that is missing. Images keep their
    bytes, and BMP, TIFF, AVIF and HEIC become PNG. The EXIF orientation becomes 1 in images of a source that
    does not apply it, as of TensorFlow Datasets. `load_dataset` reads the files as "webdataset:FOLDER" or
    "parquet:FOLDER". The packages webdataset, timm and open_clip read the tar files, with the counts of
    `_info.json` and `sizes.json`, and the package datasets the Parquet files, with the class names.

    Args:
        dataset: A `Dataset`.
        folder: The folder, which is created, or that of a call that was stopped.
        file_format: "webdataset" or "parquet".
        images_per_shard: The largest number of images in a file.
        seed: An int; the order depends on it.

    Returns:
        The paths of the files, a list of str.

    Raises:
        ValueError: if the folder has other files, images have several captions, which tar files have no place
            for, a class name does not fit on a line, or an image is damaged.
        OSError: if an image cannot be read, or a file cannot be written.

    Example:
        >>> from keras_vit.data.shard_writing import write_shards
        >>> files = write_shards(load_dataset("digits"), tmp / "digits", images_per_shard=500)
        >>> len(files), load_dataset(f"webdataset:{tmp}/digits").summary()[:24]
        (5, '10 classes (0, 1, 2, 3, ')
    """
    one_of(tuple(FORMATS)).check("format", file_format)
    integer(at_least=1).check("images_per_shard", images_per_shard)
    suffix, write, finish = FORMATS[file_format]
    names = _lines(dataset.class_names)
    folder, plan = pathlib.Path(folder).expanduser(), {}
    for split, samples in dataset.splits.items():
        count = -(-len(samples) // images_per_shard)
        files = [f"{split}-{number:05}-of-{count:05}{suffix}" for number in range(count)]
        stops = [(number + 1) * len(samples) // count for number in range(count)]
        plan[split] = [*zip(files, [0, *stops], stops)]
    options = {"task": dataset.task, "seed": seed, "shards": plan}
    _begin(folder, {"dataset": dataset.name, "data": fingerprint_summary(dataset), **options})
    files = {CLASSES: "".join(f"{name}\n" for name in names)} if names else {}
    for name, content in (files | _storage(dataset).files(dataset)).items():
        atomic_write(folder / name, content)
    total = sum(map(len, dataset.splits.values()))
    bar = Progress(None, "writing", total=total, unit="image")
    with bar, damage_named(dataset.splits.values()):
        for number, (split, shards) in enumerate(plan.items()):
            order = np.random.default_rng([seed, number]).permutation(len(dataset.split(split)))
            missing = [shard for shard in shards if not (folder / shard[0]).exists()]
            bar.update(len(order) - sum(stop - start for _, start, stop in missing))
            if not missing:
                continue
            with _at_random(dataset.split(split), folder) as samples:
                for file, start, stop in missing:
                    chosen = ((n, int(order[n])) for n in range(start, stop))
                    rows = (_row(dataset, split, n, index, *samples[index]) for n, index in chosen)
                    with atomic_path(folder / file) as temporary:
                        write(temporary, rows, dataset)
                    bar.update(stop - start)
    finish(folder, plan)
    (folder / INCOMPLETE).unlink()
    return [os.fspath(folder / file) for shards in plan.values() for file, *_ in shards]


def _lines(names):
    """Class names that each fit on a line of `classes.txt`."""
    wrong = [name for name in names if name != name.strip() or not name or {*"\r\n"} & {*name}]
    if wrong:
        raise ValueError(f"class names must each fit on a line of {CLASSES}; got {listed(wrong)}")
    return names


def _begin(folder, plan):
    """Create the folder with its plan, or check that it is a folder of the same plan that was stopped."""
    plan, file = json.loads(json.dumps(plan)), folder / INCOMPLETE
    if file.is_file():
        if json.loads(file.read_text()) != plan:
            raise ValueError(f"{os.fspath(folder)!r} was begun with other data or options; remove it first")
        return
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{os.fspath(folder)!r} is not empty; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(file, json.dumps(plan))


@contextlib.contextmanager
def _at_random(samples, folder):
    """Samples by index; those that are read in chunks are first copied to one file."""
    if hasattr(samples, "__getitem__"):
        yield samples
        return
    file, places = folder / COPY, {}
    try:
        with open(file, "wb") as copy:
            records = samples.numbered_records(0, len(samples)).as_numpy_iterator()
            for index, content, label in records:
                places[int(index)] = copy.tell(), len(content)
                copy.write(content)
                np.save(copy, label)
        yield _Copied(file, places)
    finally:
        file.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class _Copied:
    """Samples in a file: its path, and by index the first byte and the number of bytes of the image.

    The label is behind the image, as of `np.save`.
    """

    file: pathlib.Path
    places: dict[int, tuple[int, int]]

    def __getitem__(self, index):
        first, size = self.places[index]
        with open(self.file, "rb") as file:
            file.seek(first)
            return file.read(size), np.load(file)[()]


def _row(dataset, split, number, index, content, label):
    """What is written of a sample: its name, the image with its suffix, and by field the label.

    Args:
        dataset, split: The `Dataset`, and the name of the split.
        number: Of the sample in the order in which it is written.
        index: Its index in the split.
        content, label: The sample.
    """
    if not dataset.split(split).exif:  # The orientation of images in shards is applied.
        content = without_orientation(content).numpy()
    try:
        suffix = SUFFIXES.get(image_header(content)[0])
        if suffix is None:
            content, suffix = image_bytes(read_image(content)), "png"
    except ValueError as error:
        raise ValueError(f"{dataset.split(split).place(index)}: {error}") from None
    name = f"{number:09}"
    row = {"name": name, "suffix": suffix, "image": {"bytes": content, "path": f"{name}.{suffix}"}}
    captions = dataset.captions(split)
    label = label if captions is None else captions[int(label)]
    return {**row, **_storage(dataset).columns_of(label, name, content)}


def _storage(dataset):
    """The `LabelStorage` of what a data set has."""
    has_names = bool(dataset.class_names)
    return storage_of(dataset.task, dataset.texts is not None and not has_names, has_names)


def _write_tar(path, rows, dataset):
    """Write samples as members of a tar file."""
    storage = _storage(dataset)
    with tarfile.open(path, "w") as tar:
        for row in rows:
            members = {row["suffix"]: row["image"]["bytes"]}
            members |= storage.members_of({name: row[name] for name in storage.types})
            for suffix, content in members.items():
                member = tarfile.TarInfo(f"{row['name']}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def _write_parquet(path, rows, dataset):
    """Write samples as rows of a Parquet file, with the class names in its metadata."""
    columns = {"image": IMAGE, **_storage(dataset).types}
    features = {name: feature(list(dataset.class_names)) for name, (_, feature) in columns.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pyarrow.schema([(name, of) for name, (of, _) in columns.items()], metadata)
    # Images do not repeat, and are read in less time without a dictionary.
    repeated = [name for name in columns if name != "image"]
    with pyarrow.parquet.ParquetWriter(path, schema, use_dictionary=repeated) as writer:
        while chunk := [*itertools.islice(rows, ROWS)]:
            chunk = [{name: row[name] for name in columns} for row in chunk]
            writer.write_table(pyarrow.Table.from_pylist(chunk, schema))


def _write_counts(folder, plan):
    """Write the counts of samples, as timm and open_clip read them."""
    splits = {
        split: {
            "name": split,
            "num_samples": sum(stop - start for _, start, stop in shards),
            "filenames": [file for file, *_ in shards],
            "shard_lengths": [stop - start for _, start, stop in shards],
        }
        for split, shards in plan.items()
    }
    sizes = {file: stop - start for shards in plan.values() for file, start, stop in shards}
    for name, value in (("_info.json", {"splits": splits}), ("sizes.json", sizes)):
        atomic_write(folder / name, json.dumps(value, indent=2) + "\n")


FORMATS = {
    "webdataset": (".tar", _write_tar, _write_counts),
    "parquet": (".parquet", _write_parquet, lambda folder, plan: None),
}
