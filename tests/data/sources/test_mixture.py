import dataclasses
import shutil

import numpy as np
import pytest
from made.folders import write_captions, write_classes, write_masks
from made.prepared import prepare
from made.sampling import some
from made.shards import encoded, encoded_mask, read_splits, stored, structs, tar_of, write_parquet
from made.tables import by_table
from made.workers import end_of
from reference.small import NO_TRANSFORMER, SMALL

from keras_vit.data import chunked_records
from keras_vit.data.damage import damage_named
from keras_vit.data.datasets import absolute_name, folder_of, load_dataset, sources_of, title_of
from keras_vit.data.fingerprint import differences, fingerprint
from keras_vit.training import Recipe
from keras_vit.training.run import load_data, train
from keras_vit.training.run_config import RunConfig

MODEL = {name: value for name, value in SMALL.items() if name != "num_classes"} | NO_TRANSFORMER
RECIPE = Recipe("sgd", 0.1, 2, 1, batch_size=8, checkpoint_every=1, eval_every=2)


def parquet(folder, names, numbers=range(30)):
    """A data set of Parquet files with class names."""
    numbers = [*numbers]
    columns = {"image": structs(numbers), "label": [names[n % len(names)] for n in numbers]}
    return f"parquet:{write_parquet(folder / 'a.parquet', columns)}"


def load_named(name, **options):
    return load_dataset(name, fields=("label=label",), **options)


def test_weights_follow_the_names():
    assert sources_of("webdataset:a*0.7 + parquet:b*.3") == [("webdataset:a", "*0.7"), ("parquet:b", "*.3")]
    assert sources_of("digits + tfds:cifar10*2") == [("digits", ""), ("tfds:cifar10", "*2")]
    assert sources_of("webdataset:train-*.tar*2 + digits")[0] == ("webdataset:train-*.tar", "*2")


@by_table("name", ["folder:cats + dogs", "folder:a + cats:b", "folder:cats*2", "folder:a + folder", "digits"])
def test_other_names_are_of_one_source(name):
    assert sources_of(name) == [(name, "")]


def test_names_and_titles_treat_each_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "folder:cats*0.5 + webdataset:a.tar::b.tar + digits"
    expected = f"folder:{tmp_path}/cats*0.5 + webdataset:{tmp_path}/a.tar::{tmp_path}/b.tar + digits"
    assert absolute_name(name) == expected
    assert title_of("folder:/me/cats*0.5 + digits") == "cats*0.5 + digits"
    assert folder_of(name) is None


@pytest.mark.slow
@by_table(
    "name, words",
    [
        ("digits*0 + digits", r"expected positive weights of sources; got 'digits\*0 \+ digits'"),
        ("digits + parqet:b", r"data set 'parqet:b' is unknown \(did you mean 'parquet'\?\)"),
        ("digits + folder:nowhere", "no such folder: 'nowhere'"),
        ("digits + digits_scenes", "digits_scenes has no labels for task 'single_label'"),
    ],
)
def test_wrong_sources_are_refused(name, words):
    with pytest.raises(ValueError, match=words):
        load_dataset(name)


def test_splits_are_those_of_the_sources_one_after_another(tmp_path):
    tar, table = stored(tmp_path / "tar", "webdataset"), stored(tmp_path / "table", "parquet")
    data = load_dataset(f"{tar}*0.7 + {table}*0.3")
    parts = [load_dataset(name) for name in (tar, table)]
    for split in ("validation", "test"):
        expected = sorted(record for part in parts for record in read_splits(part, split))
        assert read_splits(data, split) == expected
    assert data.split("train").shares(10) == [7, 3]
    counts = "3 classes (0, 1, 2): 90 train, 6 validation, 24 test"
    assert data.summary() == f"{counts}; validation and test held out"


def test_a_source_without_a_training_split_is_refused_beside_others(tmp_path):
    prepare(tmp_path / "all", {"train": 40})
    scored = f"tfds:{prepare(tmp_path / 'test', {'test': 40})}/toy/1.0.0"
    both = f"{scored} + tfds:{tmp_path}/all/toy/1.0.0*3"
    with pytest.raises(ValueError, match="^expected sources with a training split; tfds:.* have none$"):
        load_dataset(both)
    assert len(load_dataset(both, seed=None).split("test")) == 48
    assert len(load_dataset(f"{scored} + {scored}").split("test")) == 80


def test_other_classes_are_refused_with_the_first_difference(tmp_path):
    first, second = parquet(tmp_path / "a", ("cat", "dog")), parquet(tmp_path / "b", ("cat", "hound", "owl"))
    words = (
        f"expected the classes of '{first}' in '{second}', in this order: class 1 'dog'; got 'hound'; --cl"
    )
    with pytest.raises(ValueError, match=words):
        load_named(f"{first} + {second}")
    more = parquet(tmp_path / "c", ("cat", "dog", "owl"))
    with pytest.raises(ValueError, match="class 2 none; got 'owl'"):
        load_named(f"{first} + {more}")


def test_a_file_of_classes_names_those_of_all_sources(tmp_path):
    name = f"{parquet(tmp_path / 'a', ('cat', 'dog'))} + {parquet(tmp_path / 'b', ('hound', 'owl', 'tabby'))}"
    file = tmp_path / "classes.txt"
    file.write_text("dog\thound\nfish\nowl\ncat\ttabby\n")
    data = load_named(name, classes=file)
    assert data.class_names == ("dog", "fish", "owl", "cat")
    numbers = [*((n, (3, 0)[n % 2]) for n in range(30)), *((n, (0, 2, 3)[n % 3]) for n in range(30))]
    assert read_splits(data, "train", "validation", "test") == sorted(numbers)
    assert {*data.split("train").labels} == {0, 2, 3}
    file.write_text("dog\nowl\ncat\ttabby\n")
    with pytest.raises(ValueError, match="lacks classes of 'parquet:.*': hound"):
        load_named(name, classes=file)


def test_classes_of_records_whose_labels_are_unknown_are_mapped(tmp_path):
    name = f"tfds:{prepare(tmp_path / 'data', {'train': 30})}/toy/1.0.0"
    file = tmp_path / "classes.txt"
    file.write_text("other\nwarm\tred\ncold\tgreen\tblue")
    found = load_dataset(name, classes=file).split("train").evaluation_records()
    expected = load_dataset(name).split("train").evaluation_records()
    assert [int(label) for _, label in found] == [(1, 2, 2)[int(label)] for _, label in expected]


@pytest.mark.parametrize(
    "text, words",
    some(
        [
            ("cat\ndog\tcat", "line 2: expected another name; got 'cat'"),
            ("cat\n\ndog", "line 2: expected another name; got ''"),
            ("cat\ttabby", "expected a class on each of two or more lines; got 1"),
        ],
        3,
    ),
)
def test_a_wrong_file_of_classes_is_refused(text, words, tmp_path):
    (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(ValueError, match=words):
        load_dataset("digits", classes=tmp_path / "classes.txt")
    with pytest.raises(ValueError, match="'.*none.txt' is not a readable text file"):
        load_dataset("digits", classes=tmp_path / "none.txt")


def test_classes_are_refused_without_class_labels(tmp_path):
    with pytest.raises(ValueError, match="classes are for the task single_label, without captions"):
        load_dataset("digits_scenes", task="segmentation", classes=tmp_path / "classes.txt")


def test_fields_are_for_all_sources_that_have_them(tmp_path):
    table = write_parquet(
        tmp_path / "a.parquet", {"image": structs(range(20)), "kind": [0, 1] * 10, "x": [0] * 20}
    )
    name = f"parquet:{table} + folder:{write_classes(tmp_path / 'images', ('0', '1'))}"
    assert load_dataset(name, fields=("label=kind",)).class_names == ("0", "1")
    with pytest.raises(ValueError, match="digits has no fields to choose from; got label=kind"):
        load_dataset("digits + digits", fields=("label=kind",))


def test_a_field_may_be_for_one_source(tmp_path):
    numbers = range(30)
    kinds = [number % 2 for number in numbers]
    table = write_parquet(tmp_path / "a.parquet", {"image": structs(numbers), "kind": kinds})
    values = [{"class": n % 3 % 2} for n in numbers]
    tar = tar_of(tmp_path / "a.tar", map(encoded, numbers), json=values)
    name = f"parquet:{table} + webdataset:{tar}"
    mixture = load_dataset(name, fields=("1:label=kind", "2:label=json:class"))
    of_table, of_tar = (read_splits(part, "train", "validation", "test") for part in mixture.parts)
    assert of_table == [(n, n % 2) for n in numbers] and of_tar == [(n, n % 3 % 2) for n in numbers]
    with pytest.raises(ValueError, match="expected the number of a source, from 1 to 2; got '3:label=kind'"):
        load_dataset(name, fields=("3:label=kind",))


def test_captions_belong_to_their_images(tmp_path):
    write_captions(tmp_path / "images", count=10)
    table = {"image": structs(range(20)), "caption": [[f"photo {n}", f"the photo {n}"] for n in range(20)]}
    path = write_parquet(tmp_path / "a.parquet", table)
    parts = [load_dataset(f"{name}", texts=True) for name in (f"folder:{tmp_path}/images", f"parquet:{path}")]
    data = load_dataset(" + ".join(part.name for part in parts), texts=True)
    for split in ("validation", "test"):
        expected = sorted(
            (encoded, part.captions(split)[label])
            for part in parts
            for encoded, label in part.split(split).evaluation_records().as_numpy_iterator()
        )
        records = data.split(split).evaluation_records().as_numpy_iterator()
        assert sorted((encoded, data.captions(split)[label]) for encoded, label in records) == expected
        assert data.split(split).labels == (*range(len(expected)),)


def test_masks_are_read_by_the_classes_of_each_source(tmp_path):
    masks = {"mask.png": [encoded_mask(9)] * 20}
    tar_of(tmp_path / "tar" / "a.tar", map(encoded, range(20)), **masks)
    (tmp_path / "tar" / "classes.txt").write_text("sky\t4\nsea\t9")
    write_masks(tmp_path / "folder", classes=2)
    (tmp_path / "folder" / "classes.txt").write_text("sky\nsea")
    data = load_dataset(f"webdataset:{tmp_path}/tar + folder:{tmp_path}/folder", task="segmentation")
    assert data.class_names == ("sky", "sea")
    labels = [label for _, label in data.split("test").evaluation_records().as_numpy_iterator()]
    assert {*np.unique(labels[0])} == {1} and {*np.unique(labels[-1])} <= {0, 1, 255}


def test_other_classes_are_taken_where_labels_are_not_needed(tmp_path):
    name = f"folder:{write_classes(tmp_path / 'images')} + {stored(tmp_path / 'tar', 'webdataset')}"
    data = load_dataset(name, labels=False)
    assert data.class_names == () and {*data.split("train").labels} == {0}


def test_sources_in_files_that_are_sorted_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(chunked_records, "WINDOW_RECORDS", 16)
    columns = {"image": structs(range(60)), "label": [0] * 30 + [1] * 30}
    path = write_parquet(tmp_path / "a.parquet", columns)
    name = f"folder:{write_classes(tmp_path / 'images', ('0', '1'))} + parquet:{path}"
    with pytest.raises(ValueError, match=f"'parquet:{path}': expected training images in a random order"):
        load_data(RunConfig(name, RECIPE, MODEL))


def test_the_fingerprint_notices_a_change_of_a_source(tmp_path):
    root = write_classes(tmp_path / "images", ("0", "1"))
    name = f"folder:{root} + {parquet(tmp_path / 'table', ('0', '1'))}"
    before = fingerprint(load_named(name))
    for file in root.rglob("*.*"):
        file.touch()
    assert differences(before, fingerprint(load_named(name))) == []
    first, second = sorted(root.glob("0/*"))[:2]
    second.write_bytes(first.read_bytes() + b" ")
    [line] = differences(before, fingerprint(load_named(name)))
    assert line.startswith("version: was mixture ")


def test_the_fingerprint_notices_other_names_for_classes(tmp_path):
    file, found = tmp_path / "classes.txt", []
    for text in ("even\t0\t2\t4\t6\t8\nodd\t1\t3\t5\t7\t9", "even\t0\t2\t4\t6\nodd\t1\t3\t5\t7\t9\t8"):
        file.write_text(text)
        found.append(fingerprint(load_dataset("digits", classes=file)))
    assert "version" in differences(*found)[0]


def test_a_folder_with_other_names_for_its_classes_has_a_fingerprint(tmp_path):
    root = write_classes(tmp_path / "images")
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    data = load_dataset(f"folder:{root}", classes=tmp_path / "classes.txt")
    before = fingerprint(data)
    assert before["version"].startswith("mixture ") and before["classes"] == ["dog", "cat"]
    (root / "cat" / "00.png").write_bytes(b"another image")
    assert differences(
        before,
        fingerprint(load_dataset(f"folder:{root}", classes=tmp_path / "classes.txt", on_bad_image="keep")),
    )


@pytest.mark.slow
def test_images_of_a_source_that_cannot_be_read_any_more_are_named(tmp_path):
    root = write_classes(tmp_path / "images")
    data = load_dataset(f"digits + folder:{root}", labels=False)
    (root / "cat" / "03.png").unlink()
    words = r"1 image\(s\) cannot be read: .*cat/03.png \(No such file or directory\); restore them"
    with pytest.raises(ValueError, match=words), damage_named(data.splits.values()):
        for samples in data.splits.values():
            assert [*samples.evaluation_records()]


@pytest.fixture
def config(tmp_path):
    """A run on tar files, Parquet files and a folder."""
    return RunConfig(stored(tmp_path, "mixture"), RECIPE, MODEL)


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_a_run_resumes_bit_for_bit(config, tmp_path):
    workdir, record = train(config, tmp_path / "run", verbose=0)
    assert record["data"].startswith("3 classes (0, 1, 2): ")
    expected = end_of(workdir.path)
    shutil.rmtree(workdir.checkpoints / "step-00000002")
    for name in ("result.json", "model.keras"):
        (workdir.path / name).unlink()
    train(config, workdir.path, verbose=0)
    np.testing.assert_equal(end_of(workdir.path)[1:], expected[1:])


def test_a_batch_that_is_too_small_is_refused_before_the_folder_is_made(config, tmp_path):
    config = dataclasses.replace(config, recipe=RECIPE.with_changes(batch_size=1))
    with pytest.raises(ValueError, match="a batch of 1 has no sample of 'parquet:.*size of at least 4"):
        train(config, tmp_path / "run", verbose=0)
    assert not (tmp_path / "run").exists()
