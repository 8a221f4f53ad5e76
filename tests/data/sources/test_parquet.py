import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from made.shards import encoded, encoded_mask, read, read_splits, structs, write_parquet
from made.tables import by_table

from keras_vit.data import chunked_records, parquet_samples
from keras_vit.data.datasets import load_dataset
from keras_vit.data.samples import worker_slots
from keras_vit.training.named_recipes import find_recipe
from keras_vit.training.run import load_data
from keras_vit.training.run_config import RunConfig

NAMES = ["cat", "dog", "owl"]
CLASSES = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": NAMES}}


@pytest.fixture
def folder(tmp_path):
    """30 training images in two files of 4 row groups, and 6 test images, of three named classes."""
    for name, numbers in (
        ("train-00000-of-00002", range(15)),
        ("train-00001-of-00002", range(15, 30)),
        ("test-00000-of-00001", range(30, 36)),
    ):
        columns = {"image": structs(numbers), "label": [number % 3 for number in numbers]}
        write_parquet(tmp_path / "toy" / "data" / f"{name}.parquet", columns, CLASSES)
    return tmp_path / "toy"


def load(path, **options):
    return load_dataset(f"parquet:{path}", **options)


def test_a_folder_of_files_is_a_data_set(folder):
    data = load(folder)
    assert data.summary() == (
        "3 classes (cat, dog, owl): 27 train, 3 validation, 6 test; train from train-00000-of-00002.parquet, "
        "train-00001-of-00002.parquet, validation held out, test from test-00000-of-00001.parquet"
    )
    assert read_splits(data, "test") == [(n, n % 3) for n in range(30, 36)]
    assert read_splits(data, "train", "validation") == [(n, n % 3) for n in range(30)]
    assert data.split("train").labels.count(0) == 9


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 1, 4])
def test_any_number_of_workers_reads_the_same_batches_from_any_step(folder, workers):
    samples = load(folder).split("train")
    whole = read(samples.training_records(3, 0, 20, 8))
    epoch = read(samples.training_records(3, 0, 9, 3))
    assert sorted(epoch) == sorted(read(samples.evaluation_records()))
    parts = [
        read(samples.training_records(3, 5, 20, 8, worker_slots(8, worker, workers)))
        for worker in range(workers)
    ]
    local = 8 // workers
    steps = [part[local * step : local * (step + 1)] for step in range(15) for part in parts]
    assert sum(steps, []) == whole[40:]


def test_images_of_very_different_sizes_are_read_in_one_batch(tmp_path):
    images = [encoded(n, (900, 1200) if n == 3 else (2, 2)) for n in range(12)]
    assert len(images[3]) > 1_000_000 > 10_000 * len(images[2]) / 2
    path = write_parquet(tmp_path / "a.parquet", {"image": images, "label": [n % 2 for n in range(12)]})
    data = load(path)
    assert read_splits(data, "train", "validation", "test") == [(n, n % 2) for n in range(12)]


def test_bytes_are_images_and_numbers_are_names_without_metadata(tmp_path):
    path = write_parquet(
        tmp_path / "a.parquet",
        {"photo": [encoded(number) for number in range(20)], "y": [n % 2 for n in range(20)]},
    )
    assert load(path).class_names == ("0", "1")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    assert load(f"{tmp_path}/*.parquet").class_names == ("cat", "dog")


def test_texts_name_classes_where_a_field_says_so(tmp_path):
    columns = {"image": structs(range(20)), "animal": [NAMES[n % 3] for n in range(20)], "x": [0] * 20}
    columns["animal"] = pyarrow.array(columns["animal"]).dictionary_encode()
    (tmp_path / "classes.txt").write_text("of\nother\nfiles\n")
    data = load(write_parquet(tmp_path / "a.parquet", columns), fields=["label=animal"])
    assert data.class_names == ("cat", "dog", "owl")
    assert all(label == number % 3 for number, label in read(data.split("train").evaluation_records()))


def test_lists_of_classes_are_several_labels(tmp_path):
    several = [[number % 3, 1][: 1 + number % 2] for number in range(20)]
    features = CLASSES | {"label": {"_type": "List", "feature": CLASSES["label"]}}
    path = write_parquet(tmp_path / "a.parquet", {"image": structs(range(20)), "label": several}, features)
    data = load(path, task="multi_label")
    assert data.class_names == tuple(NAMES)
    for number, label in read(data.split("train").evaluation_records()):
        assert label == [float(c in several[number]) for c in range(3)]


def test_floats_are_targets(tmp_path):
    columns = {
        "image": structs(range(20)),
        "angle": [n / 2 for n in range(20)],
        "place": [[n, 1] for n in range(20)],
    }
    path = write_parquet(tmp_path / "a.parquet", columns)
    train = load(path, task="regression").split("train")
    assert all(label == [number / 2] for number, label in read(train.evaluation_records()))
    train = load(path, task="regression", fields=("label=place",)).split("train")
    assert all(label == [number, 1] for number, label in read(train.evaluation_records()))


def test_texts_are_captions_of_their_images(tmp_path):
    columns = {"image": structs(range(20)), "text": [[f"one {n}", f" also {n} "] for n in range(20)]}
    data = load(write_parquet(tmp_path / "a.parquet", columns), texts=True)
    for split in ("train", "validation", "test"):
        for number, index in read(data.split(split).evaluation_records()):
            assert data.captions(split)[index] == (f"one {number}", f"also {number}")


def test_a_second_column_of_images_is_masks(tmp_path):
    columns = {"image": structs(range(20)), "mask": [encoded_mask(number % 2) for number in range(20)]}
    path = write_parquet(tmp_path / "a.parquet", columns)
    with pytest.raises(ValueError, match="masks in Parquet files need .*classes.txt', a class name a line"):
        load(path, task="segmentation")
    (tmp_path / "classes.txt").write_text("sky\nsea\n")
    data = load(path, task="segmentation")
    assert data.class_names == ("sky", "sea")
    for number, label in read(data.split("test").evaluation_records()):
        np.testing.assert_equal(label, np.full((6, 8, 1), number % 2))


def test_images_without_labels_need_no_column_of_them(tmp_path):
    data = load(write_parquet(tmp_path / "a.parquet", {"image": structs(range(20))}), labels=False)
    assert data.summary() == (
        "images without labels: 15 train, 1 validation, 4 test; train from a.parquet, validation and test "
        "held out"
    )


IMAGE = {"image": structs(range(9))}
WRONG = {
    "no images": (
        {"label": [1] * 9},
        {},
        "has no columns of images for this task; expected one, or the field",
    ),
    "no labels": (IMAGE, {}, r"has no columns of labels .* its columns are image \(struct\)$"),
    "two labels": (IMAGE | {"x": [1] * 9, "y": [1] * 9}, {}, "has 2 columns of labels for this task"),
    "no such column": (IMAGE, {"fields": ["label=y"]}, "has no column 'y' of labels; it has image"),
    "other field": (IMAGE, {"fields": ["y"]}, "expected the fields image=COLUMN and label=COLUMN; got y"),
    "null": (
        IMAGE | {"label": [0] * 8 + [None]},
        {},
        "row group 2, row 0: expected an integer as label; got None",
    ),
    "no caption": (IMAGE | {"text": [""] * 9}, {"texts": True}, "row 0: expected a caption; got ''"),
    "one class": (IMAGE | {"label": [0] * 9}, {}, "the names of at least 2 classes"),
    "one name": (
        IMAGE | {"label": ["a"] * 9},
        {"fields": ["label=label"]},
        "the names of at least 2 classes, .*; got 1",
    ),
}


@by_table("case", WRONG)
def test_wrong_columns_and_labels_are_refused_in_one_line(case, tmp_path):
    columns, options, message = WRONG[case]
    path = write_parquet(tmp_path / "a.parquet", columns)
    with pytest.raises(ValueError, match=message) as refused:
        load(path, **options)
    assert "\n" not in str(refused.value)


def test_damaged_and_different_files_are_refused(folder):
    path = folder / "data" / "train-00001-of-00002.parquet"
    content = path.read_bytes()
    for damaged in (b"", content[:4], content[: len(content) // 2], content[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"'{path}' is no Parquet file, or is damaged: ") as refused:
            load(folder)
        assert "\n" not in str(refused.value)
    write_parquet(path, {"image": structs(range(3)), "label": [0, 1, 2]})
    expected = "has images in 'image' and labels in 'label'; .* has .* 'label' of 3 named classes"
    with pytest.raises(ValueError, match=expected):
        load(folder)
    write_parquet(path, {"image": structs(range(3)), "label": [0, 1, 2]}, features=[])
    with pytest.raises(ValueError, match="its metadata 'huggingface' have no features"):
        load(folder)


def test_rows_of_an_unknown_class_are_left_out_and_named(folder):
    labels = [number % 3 for number in range(30, 36)]
    path = folder / "data" / "test-00000-of-00001.parquet"
    write_parquet(path, {"image": structs(range(30, 36)), "label": [-1, *labels[1:5], -1]}, CLASSES)
    data = load(folder)
    assert data.unlabeled == (f"{path}, row 0 of row group 0", f"{path}, row 1 of row group 1")
    assert "; 2 samples of an unknown class left out (" + ", ".join(data.unlabeled) + ")" in data.summary()
    assert read_splits(data, "test") == [(n, n % 3) for n in range(31, 35)]
    assert len(load(folder, labels=False).split("test")) == 6


@pytest.mark.parametrize(
    "images, message",
    [
        (structs(range(5)) + [{"bytes": None, "path": "5.png"}], "got only the path '5.png'"),
        (structs(range(5)) + [None], "got none"),
        ([encoded(n) for n in range(5)] + [None], "got none"),
    ],
)
def test_a_row_without_an_image_is_named_when_it_is_loaded_or_read(images, message, folder):
    path = folder / "data" / "test-00000-of-00001.parquet"
    write_parquet(path, {"image": images, "label": [0] * 6}, CLASSES)
    message = f"{path}, row 1 of row group 1: expected the bytes of an image; {message}"
    with pytest.raises(ValueError, match=message):
        load(path, seed=None)
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table, path, row_group_size=4, write_statistics=False)
    with pytest.raises(Exception, match=message):
        read(load(f"{path}::{folder}/data/train-*.parquet").split("test").evaluation_records())


def test_a_file_that_changes_is_named_when_it_is_read(folder):
    test = load(folder).split("test")
    path = folder / "data" / "test-00000-of-00001.parquet"
    write_parquet(path, {"image": structs(range(2)), "label": [0] * 2}, CLASSES)
    with pytest.raises(Exception, match="test-00000.* has changed"):
        read(test.evaluation_records())


@by_table("names", [5, "cat", {"0": "cat"}, ["cat", 1], [["cat"]]])
def test_class_names_that_are_no_list_of_texts_are_refused(names, tmp_path):
    features = {"label": {"_type": "ClassLabel", "names": names}}
    path = write_parquet(tmp_path / "a.parquet", IMAGE | {"label": [0, 1, 2] * 3}, features)
    with pytest.raises(ValueError, match="its metadata 'huggingface' have no list of class names"):
        load(path)


@pytest.mark.parametrize("name", ["image", "label", "other"])
def test_two_columns_of_one_name_are_refused(name, tmp_path):
    columns = {"image": [encoded(0)] * 9, "label": [0, 1, 2] * 3, name: [1] * 9}
    arrays = [pyarrow.array(values) for values in columns.values()] + [pyarrow.array([1] * 9)]
    table = pyarrow.Table.from_arrays(arrays, names=[*columns, name])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=f"a.parquet' has several columns of the name '{name}'"):
        load(tmp_path / "a.parquet")


@pytest.mark.parametrize("is_dictionary", [True, False])
def test_a_dictionary_that_stands_for_more_labels_than_memory_holds_is_refused(
    is_dictionary, tmp_path, monkeypatch
):
    monkeypatch.setattr(parquet_samples, "LARGEST_LABELS", 1 << 16)
    labels = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0, 1] * 200, pyarrow.int32()), ["x" * 2000, "y"]
    )
    table = pyarrow.table(
        {"image": [b"x"] * 400, "label": labels if is_dictionary else labels.dictionary_decode()}
    )
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, compression="gzip")
    with pytest.raises(ValueError, match="a.parquet' has more than [0-9]+ bytes in label"):
        load(path, fields=("label=label",))


@pytest.mark.parametrize("encoding", ["dictionary", "DELTA_BYTE_ARRAY"])
def test_rows_that_repeat_a_large_image_are_not_decoded_at_once(encoding, tmp_path, monkeypatch):
    size = 1 << 20
    options = {} if encoding == "dictionary" else {"use_dictionary": False, "column_encoding": encoding}
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"image": [bytes(size)] * 8}), path, **options)
    monkeypatch.setattr(parquet_samples, "LARGEST_BATCH", 2 * size + size // 2)
    places = np.column_stack([np.zeros(8, int), np.arange(8)])
    batches = [images["image"] for _, images in parquet_samples.read_rows(path, ["image"], places)]
    assert [len(images) for images in batches] == [2, 2, 2, 2]
    assert {*map(len, batches[0])} == {size}


def test_columns_that_declare_more_than_a_file_can_hold_are_refused(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", {"image": [bytes(1 << 20)] * 4, "label": [0, 1] * 2})
    monkeypatch.setattr(parquet_samples, "LARGEST", 1 << 16)
    with pytest.raises(ValueError, match="a.parquet' declares [0-9]+ bytes in image, label; expected"):
        load(path)


def test_a_run_refuses_sorted_classes(tmp_path, monkeypatch):
    columns = {"image": structs(range(60)), "label": [n // 30 for n in range(60)]}
    path = write_parquet(tmp_path / "a.parquet", columns)
    config = RunConfig(f"parquet:{path}", find_recipe("finetune"), "Ti/16")
    load_data(config)
    monkeypatch.setattr(chunked_records, "WINDOW_RECORDS", 10)
    with pytest.raises(ValueError, match="where 22 follow one of another class; got .* by class: 1 do"):
        load_data(config)
    write_parquet(path, {**columns, "label": [n % 2 for n in range(60)]})
    load_data(config)
