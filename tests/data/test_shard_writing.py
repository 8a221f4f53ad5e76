import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import time

import numpy as np
import pyarrow.parquet
import pytest
from made.encoded import png_of
from made.folders import BROKEN, write_captions, write_classes
from made.photos import photo
from made.shards import encoded, encoded_mask, stored, structs, write_parquet
from PIL import Image

from keras_vit.data import shard_writing
from keras_vit.data.dataset import Dataset
from keras_vit.data.datasets import load_dataset
from keras_vit.data.decoding.model_input import decode
from keras_vit.data.samples import Samples
from keras_vit.data.shard_writing import write_shards
from keras_vit.labels.box_rows import encode_boxes
from keras_vit.preprocessing import read_image

FORMATS = pytest.mark.parametrize("file_format", ["webdataset", "parquet"])
SPLITS = ("train", "validation", "test")


def contents(dataset):
    """By split, the images with their labels, sorted."""
    return {
        split: sorted((image, np.asarray(label).tolist()) for image, label in records(dataset.split(split)))
        for split in SPLITS
    }


def records(samples):
    return samples.evaluation_records().as_numpy_iterator()


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}


@pytest.mark.slow
@FORMATS
@pytest.mark.parametrize("source", ["parquet", "tfrecord"])
def test_shards_have_the_images_and_labels_of_any_source_in_each_split(source, file_format, tmp_path):
    dataset = load_dataset(stored(tmp_path / "in", source), seed=3)
    write_shards(dataset, tmp_path / "out", file_format, images_per_shard=8)
    written = load_dataset(f"{file_format}:{tmp_path}/out")
    assert written.class_names == dataset.class_names and contents(written) == contents(dataset)
    assert not [*(tmp_path / "out").glob(".*")]


@FORMATS
def test_the_order_is_random_and_depends_on_the_seed_alone(file_format, tmp_path):
    dataset = load_dataset(f"folder:{write_classes(tmp_path / 'in', count=40)}")
    orders = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_shards(dataset, tmp_path / folder, file_format, seed=seed)
        orders.append(files_of(tmp_path / folder))
    assert orders[0] == orders[1] != orders[2]
    samples = load_dataset(f"{file_format}:{tmp_path}/a").split("train")
    assert 15 < np.count_nonzero(np.diff([label for _, label in records(samples)])) < 42  # 1 if sorted


def test_captions_are_read_again_and_several_need_parquet(tmp_path):
    for captions, file_format in ((1, "webdataset"), (2, "parquet")):
        folder = write_captions(tmp_path / file_format, captions=captions)
        options = {"texts": True, "labels": False}
        dataset = load_dataset(f"folder:{folder}", **options)
        write_shards(dataset, tmp_path / f"{file_format} out", file_format)
        written = load_dataset(f"{file_format}:{tmp_path}/{file_format} out", **options)
        for split in SPLITS:
            texts = [
                {image: of.captions(split)[label] for image, label in records(of.split(split))}
                for of in (dataset, written)
            ]
            assert texts[0] == texts[1]
    with pytest.raises(ValueError, match="an image has 2 captions: write parquet"):
        write_shards(dataset, tmp_path / "refused", "webdataset")
    assert not [*(tmp_path / "refused").glob("*.tar")]


def test_shards_are_equal_and_their_counts_are_written(tmp_path):
    dataset = load_dataset(f"folder:{write_classes(tmp_path / 'in', count=20)}")
    files = write_shards(dataset, tmp_path / "out", images_per_shard=9)
    sizes = json.loads((tmp_path / "out" / "sizes.json").read_text())
    assert [pathlib.Path(file).name for file in files] == [*sizes]
    assert [*sizes.values()] == [7, 8, 7, 8, 2, 8]
    train = json.loads((tmp_path / "out" / "_info.json").read_text())["splits"]["train"]
    assert train["num_samples"] == 30 and train["shard_lengths"] == [7, 8, 7, 8]
    assert train["filenames"][0] == "train-00000-of-00004.tar"


@pytest.mark.parametrize("source", ["folder", "parquet"])
def test_tiff_becomes_png_with_the_same_pixels(source, tmp_path):
    files = sorted(write_classes(tmp_path / "in", suffix=".tif").glob("*/*"))
    if source == "parquet":
        columns = {"image": [file.read_bytes() for file in files], "label": [0, 1] * 10}
        write_parquet(tmp_path / "in" / "a.parquet", columns)
    write_shards(load_dataset(f"{source}:{tmp_path}/in"), tmp_path / "out")
    expected = sorted(np.asarray(Image.open(file)).tobytes() for file in files)
    written = [Image.open(file) for file in unpacked(tmp_path / "out")]
    assert {image.format for image in written} == {"PNG"}
    assert sorted(np.asarray(image).tobytes() for image in written) == expected


def test_jpegs_with_a_second_picture_keep_their_bytes(tmp_path):
    files = [*write_classes(tmp_path / "in", suffix=".jpg").glob("*/*")]
    for file in files:
        image = Image.open(file).copy()
        image.save(file, "MPO", save_all=True, append_images=[image])
    [path] = write_shards(load_dataset(f"folder:{tmp_path}/in", seed=None), tmp_path / "out")
    with tarfile.open(path) as tar:
        assert {pathlib.Path(name).suffix for name in tar.getnames()} == {".jpg", ".cls"}
    written = sorted(file.getvalue() for file in unpacked(tmp_path / "out"))
    assert written == sorted(file.read_bytes() for file in files)


@pytest.mark.parametrize(
    "content", [BROKEN, png_of(bytes(10), 20_000, 20_000, 8, 0)], ids=["broken", "giant"]
)
def test_an_image_that_cannot_be_read_is_named(content, tmp_path):
    columns = {"image": [encoded(0), encoded(1), content] * 2, "label": [0, 1, 0] * 2}
    write_parquet(tmp_path / "in" / "train.parquet", columns)
    dataset = load_dataset(f"parquet:{tmp_path}/in", seed=None)
    with pytest.raises(ValueError, match=r"train.parquet, row [25] of row group 0: not a readable image: "):
        write_shards(dataset, tmp_path / "out")


def test_maps_wait_in_a_file(tmp_path):
    columns = {"image": [*map(encoded, range(9))], "mask": [*map(encoded_mask, range(9))]}
    write_parquet(tmp_path / "train.parquet", columns, rows=2)
    (tmp_path / "classes.txt").write_text("\n".join("abcdefghi"))
    samples = load_dataset(f"parquet:{tmp_path}", task="segmentation", seed=None).split("train")
    with shard_writing._at_random(samples, tmp_path) as copied:
        size = (tmp_path / shard_writing.COPY).stat().st_size
        assert size > sum(len(content) + label.nbytes for content, label in map(copied.__getitem__, range(9)))
        for number in range(9):
            content, label = copied[number]
            assert content == encoded(number) and label.shape == (6, 8, 1) and (label == number).all()


@FORMATS
def test_images_whose_orientation_is_ignored_are_not_turned(file_format, tmp_path):
    box = encode_boxes([[0, 0, 0.5, 1, 0, 0, 0.5]])
    samples = Samples((photo(6),) * 2, (box,) * 2, exif=False)
    write_shards(
        Dataset("made", ("cat",), {"train": samples}, task="detection"), tmp_path / "out", file_format
    )
    written = load_dataset(f"{file_format}:{tmp_path}/out", task="detection", seed=None).split("train")
    for expected, (image, label) in zip(records(samples), records(written)):
        np.testing.assert_array_equal(read_image(image), decode(expected[0], exif=False))
        np.testing.assert_allclose(label, expected[1])


def unpacked(folder):
    """Open the images of tar files."""
    for samples in load_dataset(f"webdataset:{folder}", seed=None).splits.values():
        for image, _ in records(samples):
            yield io.BytesIO(image)


@pytest.mark.slow
@FORMATS
def test_a_stopped_call_continues_with_the_missing_shards(file_format, tmp_path, monkeypatch):
    name = stored(tmp_path / "in", "parquet")
    dataset, out = load_dataset(name), tmp_path / "out"
    write_shards(dataset, tmp_path / "whole", file_format, images_per_shard=10)
    suffix, write, finish = shard_writing.FORMATS[file_format]

    def write_one(path, rows, of):
        if [*out.glob(f"*{suffix}")]:
            raise OSError("the disk is full")
        write(path, rows, of)

    monkeypatch.setitem(shard_writing.FORMATS, file_format, (suffix, write_one, finish))
    with pytest.raises(OSError, match="the disk is full"):
        write_shards(dataset, out, file_format, images_per_shard=10)
    [first] = out.glob(f"*{suffix}")
    with pytest.raises(ValueError, match="out' is not written to its end: run keras-vit data write again"):
        load_dataset(f"{file_format}:{out}")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="out' was begun with other data or options; remove it first"):
        write_shards(dataset, out, file_format, images_per_shard=20)
    time_of_first = first.stat().st_mtime_ns
    write_shards(dataset, out, file_format, images_per_shard=10)
    assert first.stat().st_mtime_ns == time_of_first and files_of(out) == files_of(tmp_path / "whole")


def test_a_stopped_call_does_not_continue_with_other_files(tmp_path, monkeypatch):
    root, out = write_classes(tmp_path / "in"), tmp_path / "out"

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setitem(shard_writing.FORMATS, "webdataset", (".tar", stop, stop))
    with pytest.raises(KeyboardInterrupt):
        write_shards(load_dataset(f"folder:{root}"), out)
    monkeypatch.undo()
    for names in (("cat", "kept"), ("dog", "cat"), ("kept", "dog")):
        (root / names[0]).rename(root / names[1])
    with pytest.raises(ValueError, match="out' was begun with other data or options; remove it first"):
        write_shards(load_dataset(f"folder:{root}"), out)


@pytest.mark.slow
def test_a_killed_command_continues(tmp_path):
    write_classes(tmp_path / "in", count=1000)
    command = [sys.executable, "-m", "keras_vit", "data", "write", "--dataset", f"folder:{tmp_path}/in"]
    command += ["--images_per_shard", "20", "--output"]
    out = tmp_path / "out"
    with subprocess.Popen([*command, str(out)]) as process:
        while len([*out.glob("*.tar")]) < 3:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    assert 3 <= len([*out.glob("*.tar")]) < 100
    for folder in (out, tmp_path / "whole"):
        subprocess.run([*command, str(folder)], check=True)
    assert files_of(out) == files_of(tmp_path / "whole")


def test_a_folder_with_files_and_names_of_several_lines_are_refused(tmp_path):
    dataset = load_dataset(f"folder:{write_classes(tmp_path / 'in')}")
    with pytest.raises(ValueError, match="in' is not empty; choose another folder"):
        write_shards(dataset, tmp_path / "in")
    with pytest.raises(ValueError, match="format must be one of 'webdataset', 'parquet'; got 'zip'"):
        write_shards(dataset, tmp_path / "out", "zip")
    columns = {"image": structs(range(6)), "label": [0, 1] * 3}
    for name in ("a\nb", "a\rb"):
        features = {"label": {"_type": "ClassLabel", "names": [name, "c"]}}
        file = write_parquet(tmp_path / "train.parquet", columns, features)
        with pytest.raises(ValueError, match="class names must each fit on a line of classes.txt; got a"):
            write_shards(load_dataset(f"parquet:{file}"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_images_in_parquet_have_no_dictionary(tmp_path):
    [*_, file] = write_shards(load_dataset("digits"), tmp_path / "out", "parquet")
    with pyarrow.parquet.ParquetFile(file) as written:
        group = written.metadata.row_group(0)
        columns = {column.path_in_schema: column for column in map(group.column, range(group.num_columns))}
    assert {name: column.has_dictionary_page for name, column in columns.items()} == {
        "image.bytes": False,
        "image.path": False,
        "label": True,
    }
