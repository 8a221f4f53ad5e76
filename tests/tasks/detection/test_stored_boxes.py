"""Boxes in tar and Parquet files, and their copies."""

import io
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from made.shards import write_tar
from made.tables import by_table
from PIL import Image

from keras_vit.data import load_dataset
from keras_vit.data.shard_writing import write_shards
from keras_vit.labels.box_rows import in_pixels
from keras_vit.preprocessing.image_files import image_bytes
from keras_vit.tasks.detection.stored_boxes import objects_of

IMAGE = image_bytes(np.zeros((20, 40, 3), "uint8"))
OBJECTS = {"bbox": [[4, 2, 16, 10], [0, 0, 40, 20]], "category": [1, 0]}
ROWS = [[0.1, 0.1, 0.5, 0.6, 1, 0, 0.2], [0, 0, 1, 1, 0, 0, 1]]


def parquet_file(folder, objects, metadata=None, **columns):
    """Twelve rows with the same objects."""
    columns = {"image": IMAGE, "objects": objects, **columns}
    table = pyarrow.table({name: [value] * 12 for name, value in columns.items()})
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), folder / "train.parquet")
    return f"parquet:{folder}/train.parquet"


def tar_file(folder, value, image=IMAGE, kind="png"):
    members = [
        (f"{number}.{suffix}", content)
        for number in range(12)
        for suffix, content in ((kind, image), ("json", json.dumps(value).encode()))
    ]
    write_tar(folder / "train.tar", members)
    return f"webdataset:{folder}/train.tar"


def rows_of(name, **options):
    data = load_dataset(name, task="detection", **options)
    [rows, *others] = (label for _, label in records_of(data.split("test")))
    assert all(np.array_equal(rows, other) for other in others)
    return data.class_names, rows


LISTS = [{"bbox": box, "category": number} for box, number in zip(*OBJECTS.values())]


@pytest.mark.parametrize("objects", [OBJECTS, LISTS], ids=["struct of lists", "list of structs"])
@pytest.mark.parametrize("columns", [{}, {"width": 40, "height": 20}], ids=["without sizes", "with sizes"])
def test_parquet(objects, columns, tmp_path):
    names, rows = rows_of(parquet_file(tmp_path, objects, **columns))
    np.testing.assert_allclose(rows, ROWS, atol=1e-6)
    assert names == ("0", "1")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    assert load_dataset(f"parquet:{tmp_path}/train.parquet", task="detection").class_names == ("cat", "dog")


def test_the_names_of_parquet_are_in_its_metadata(tmp_path):
    label = {"feature": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "_type": "Sequence"}
    box = {"feature": {"dtype": "float32", "_type": "Value"}, "_type": "Sequence"}
    features = {"image": {"_type": "Image"}, "objects": {"bbox": box, "category": label}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    assert rows_of(parquet_file(tmp_path, OBJECTS, metadata))[0] == ("cat", "dog")
    wrapped = {"feature": features["objects"], "_type": "Sequence"}
    metadata = {"huggingface": json.dumps({"info": {"features": {**features, "objects": wrapped}}})}
    assert rows_of(parquet_file(tmp_path, OBJECTS, metadata))[0] == ("cat", "dog")


@pytest.mark.parametrize("sizes", [{}, {"width": 40, "height": 20}], ids=["without sizes", "with sizes"])
def test_webdataset(sizes, tmp_path):
    names, rows = rows_of(tar_file(tmp_path, {"objects": OBJECTS, **sizes}))
    np.testing.assert_allclose(rows, ROWS, atol=1e-6)
    assert names == ("0", "1")


def test_boxes_without_sizes_are_of_the_image_as_it_is_shown(tmp_path):
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 40)).save(file, "TIFF", exif=exif)
    rows = rows_of(tar_file(tmp_path, {"objects": OBJECTS}, file.getvalue(), "tif"))[1]
    np.testing.assert_allclose(rows, ROWS, atol=1e-6)


@by_table("width", [0, -40, 1e400, "40", [40], True, 40.5])
def test_a_size_that_is_no_number_of_pixels_is_refused(width, tmp_path):
    sizes = {"width": width, "height": 20}
    with pytest.raises(ValueError, match="expected the width and height of the image in pixels; got"):
        load_dataset(tar_file(tmp_path, {"objects": OBJECTS, **sizes}), task="detection")


def test_another_key_of_webdataset(tmp_path):
    name = tar_file(tmp_path, {"found": OBJECTS})
    np.testing.assert_allclose(rows_of(name, fields=("label=json:found",))[1], ROWS, atol=1e-6)
    with pytest.raises(ValueError, match="has no 'objects'; it has found"):
        load_dataset(name, task="detection")


@pytest.mark.parametrize("file_format", ["webdataset", "parquet"])
def test_a_copy_has_the_pixels_of_the_first_file(file_format, tmp_path):
    boxes = [[17.1, 9.07, 32, 32], [0.33, 0, 20.01, 46.99]]
    objects = {"bbox": boxes, "category": ["cat", "cat"], "area": [1024, 702.1057499999998]}
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(image_bytes(np.zeros((47, 53, 3), "uint8")))
    lines = [json.dumps({"file_name": f"{number}.png", "objects": objects}) for number in range(3)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    write_shards(load_dataset(tmp_path, task="detection"), tmp_path / "copy", file_format)
    copy = load_dataset(f"{file_format}:{tmp_path}/copy", task="detection")
    [(_, rows)] = records_of(copy.split("train"))
    expected = [[17.1, 9.07, 49.1, 41.07, 0, 0, 1024], [0.33, 0, 20.34, 46.99, 0, 0, 702.10575]]
    np.testing.assert_array_equal(in_pixels(rows, (47, 53)), expected)


def records_of(samples):
    return [(image.numpy(), label.numpy()) for image, label in samples.evaluation_records()]


@by_table(
    "box, category, message",
    [
        ([4, 2, -1, 10], [1], r"row 0 \(sides in the wrong order: left, top, right, bottom 4, 2, 3, 12\)"),
        ([4, 2, 60, 10], [1], r"row 0 \(outside of its image of 40×20 pixels: "),
        ([4, 2, 6], [1], r"row 0: expected 4 numbers of a box; got \[4"),
        ([4, 2, 6, 6], [1, 2], "expected bbox and category, a value of each object"),
        ([4, 2, 6, 6], [-1], "expected the number of a class; got -1"),
    ],
)
def test_wrong_boxes_are_refused_with_their_place(box, category, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_dataset(parquet_file(tmp_path, {"bbox": [box], "category": category}), task="detection")


@pytest.mark.parametrize("source", ["parquet", "webdataset"])
def test_images_with_wrong_boxes_can_be_left_out(source, tmp_path):
    outside, images = {"bbox": [[4, 2, 60, 10]], "category": [1]}, [IMAGE] * 11 + [b"no image"]
    objects = [OBJECTS] * 5 + [outside] + [OBJECTS] * 6
    if source == "parquet":
        file = tmp_path / "train.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"image": images, "objects": objects}), file)
        places = [f"{file}, row {number} of row group 0" for number in (5, 11)]
    else:
        file = tmp_path / "train.tar"
        rows = enumerate(zip(images, objects))
        members = [((f"{n}.png", image), (f"{n}.json", {"objects": own})) for n, (image, own) in rows]
        write_tar(file, [member for pair in members for member in pair])
        places = [f"{file}/{number}" for number in (5, 11)]
    with pytest.raises(ValueError, match=r"2 box\(es\) are wrong: .*; mend them or give --on_bad_image skip"):
        load_dataset(f"{source}:{file}", task="detection")
    data = load_dataset(f"{source}:{file}", seed=None, task="detection", on_bad_image="skip")
    assert [*data.bad_images] == places and len(records_of(data.split("train"))) == 10
    reasons = [*data.bad_images.values()]
    assert "(outside of its image of 40×20 pixels: " in reasons[0] and "cannot be read" in reasons[1]
    assert "2 unreadable images skipped" in data.summary()


def test_objects_may_lack_what_others_have():
    plain = {"bbox": [1, 1, 2, 2], "category": 0}
    crowd = {"bbox": [1, 1, 5, 5], "category": 0, "iscrowd": 1, "area": 7}
    expected = [(False, None), (True, 7)]
    assert [(item.crowd, item.area) for item in objects_of([plain, crowd], "a")] == expected
    assert [(item.crowd, item.area) for item in objects_of([crowd, plain], "a")] == expected[::-1]
    with pytest.raises(ValueError, match="^a: expected 4 numbers of a box; got None$"):
        objects_of([plain, {"category": 0}], "a")


def test_values_without_objects():
    assert objects_of({"bbox": [], "category": []}, "a") == objects_of([], "a") == objects_of(None, "a") == []
    with pytest.raises(ValueError, match="^a: expected bbox and category, a value of each object; got 7$"):
        objects_of(7, "a")
