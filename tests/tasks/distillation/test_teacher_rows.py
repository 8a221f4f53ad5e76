import dataclasses
import shutil

import numpy as np
import pytest
from made.folders import BROKEN, write_classes
from made.sampling import some
from made.shards import encoded, write_tar
from reference.small import small

from keras_vit.data.datasets import load_dataset
from keras_vit.data.samples import IndexedRecords
from keras_vit.embeddings import embed, plan_embeddings
from keras_vit.embeddings.plan import read_plan
from keras_vit.tasks.distillation.teacher_rows import teacher_in, teacher_rows

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture(scope="module")
def teacher():
    return small()


def inputs(teacher, samples):
    return teacher.preprocessing([samples.content(index) for index in range(len(samples))])


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Forty images of two classes, of which one is damaged."""
    images = write_classes(tmp_path_factory.mktemp("data") / "images", count=20)
    (images / "dog" / "03.png").write_bytes(BROKEN)
    return images


@pytest.fixture(scope="module")
def folder(teacher, images, tmp_path_factory):
    """Embeddings of these images."""
    out = tmp_path_factory.mktemp("embeddings") / "out"
    options = {"outputs": ("pooled", "tokens", "logits"), "dtype": "float16", "partitions": 2}
    embed(plan_embeddings(out, "", teacher, {"name": f"folder:{images}"}, **options))
    return out


def split_of(images, split="test", **options):
    return load_dataset(f"folder:{images}", on_bad_image="skip", **options).split(split)


@pytest.mark.parametrize("split", some(["train", "validation", "test"], 3))
def test_each_sample_of_a_split_has_its_row(split, folder, teacher, images):
    samples = split_of(images, split, seed=3)
    rows = teacher_rows(folder, samples)
    assert rows.dtype == np.float16
    np.testing.assert_allclose(rows, teacher.predict_on_batch(inputs(teacher, samples)), atol=5e-3)


def test_the_order_is_that_of_the_samples(folder, images):
    samples = split_of(images, "train")
    order = [*range(len(samples))][::-3]
    expected = teacher_rows(folder, samples, "pooled")[order]
    np.testing.assert_array_equal(teacher_rows(folder, samples.take(order), "pooled"), expected)


def test_relative_paths_are_those_of_embeddings(folder, images, monkeypatch):
    monkeypatch.chdir(images.parent)
    relative, absolute = map(split_of, (images.name, images))
    np.testing.assert_array_equal(teacher_rows(folder, relative), teacher_rows(folder, absolute))


def test_rows_in_a_file_are_mapped_to_memory(folder, teacher, images, tmp_path):
    samples = split_of(images)
    (tmp_path / "rows.npy").write_bytes(b"old")
    rows = teacher_rows(folder, samples, "tokens", file=tmp_path / "rows.npy")
    assert isinstance(rows, np.memmap) and not rows.flags.writeable and rows.dtype == np.float16
    np.testing.assert_array_equal(rows, teacher_rows(folder, samples, "tokens"))
    tokens = teacher.feature_extractor("tokens", grid=True).predict_on_batch(inputs(teacher, samples))
    np.testing.assert_allclose(rows, tokens["tokens"], atol=5e-3)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.npy"]


@pytest.mark.slow
def test_tar_files_and_folders_of_a_mixture_have_their_rows(teacher, tmp_path):
    members = [
        (f"{number:02}.{kind}", content)
        for number in range(12)
        for kind, content in (("png", encoded(number)), ("cls", str(number % 2).encode()))
    ]
    write_tar(tmp_path / "train-0.tar", members)
    write_classes(tmp_path / "images", names=("0", "1"), count=6)
    (tmp_path / "classes.txt").write_text("0\n1\n")
    name = f"webdataset:{tmp_path}/train-0.tar*0.5 + folder:{tmp_path}/images*0.5"
    options = {"name": name, "labels": True, "classes": str(tmp_path / "classes.txt")}
    embed(plan_embeddings(tmp_path / "out", "", teacher, options, outputs=("logits",), dtype="float32"))
    samples = load_dataset(name, classes=tmp_path / "classes.txt").split("train")
    expected = teacher.predict_on_batch(inputs(teacher, samples))
    np.testing.assert_allclose(teacher_rows(tmp_path / "out", samples), expected, atol=1e-5)


@pytest.mark.slow
def test_images_in_memory_have_their_rows(teacher, tmp_path):
    options = {"outputs": ("logits",), "dtype": "float32", "partitions": 3}
    embed(plan_embeddings(tmp_path / "out", "", teacher, {"name": "digits"}, **options))
    for split in ("train", "validation"):
        samples = load_dataset("digits", seed=1).split(split)
        expected = teacher.predict_on_batch(inputs(teacher, samples))
        np.testing.assert_allclose(teacher_rows(tmp_path / "out", samples), expected, atol=1e-5)


def test_an_image_that_could_not_be_read_is_refused(folder, images):
    samples = load_dataset(f"folder:{images}", None, "keep").split("train")
    bad = images / "dog" / "03.png"
    with pytest.raises(ValueError, match=rf"has no logits of 1 image, such as {bad} \(not a readable image"):
        teacher_rows(folder, samples)


def test_an_output_that_was_not_computed_is_refused(folder, images):
    message = "has the outputs pooled, tokens, logits; got 'classes': compute it with keras-vit embed --out"
    with pytest.raises(ValueError, match=message):
        teacher_rows(folder, split_of(images), "classes")


def test_samples_of_another_data_set_are_refused(folder, images, tmp_path):
    samples = split_of(write_classes(tmp_path / "others"))
    message = rf"lacks 4 of 4 images, such as {tmp_path}/others/.*png; it has those of folder:{images}$"
    with pytest.raises(ValueError, match=message):
        teacher_rows(folder, samples)


def test_a_data_set_that_has_changed_is_refused(folder, images):
    samples, image = split_of(images), images / "cat" / "03.png"
    content = image.read_bytes()
    image.write_bytes(content + b"more")
    try:
        with pytest.raises(ValueError, match="^the data set has changed since '.*out' was begun"):
            teacher_rows(folder, samples)
    finally:
        image.write_bytes(content)


def test_records_without_names_are_refused(folder):
    with pytest.raises(ValueError, match="^images of TensorFlow Datasets have no names"):
        teacher_rows(folder, IndexedRecords([b"0"], None))


def test_a_missing_part_is_refused_and_no_file_is_written(folder, images, tmp_path):
    out = shutil.copytree(folder, tmp_path / "out")
    (out / "part-00001-of-00002.parquet").unlink()
    with pytest.raises(ValueError, match="lacks 1 of 2 parts"):
        teacher_rows(out, split_of(images), file=tmp_path / "rows.npy")
    assert [*tmp_path.iterdir()] == [out]


def test_outputs_of_an_exported_file_are_another_teacher_than_those_of_the_model(folder, monkeypatch):
    plan = read_plan(folder)
    assert teacher_in(folder).digest == plan.model_digest
    exported = dataclasses.replace(plan, export_format="tflite")
    monkeypatch.setattr("keras_vit.tasks.distillation.teacher_rows.read_plan", lambda path: exported)
    assert teacher_in(folder).digest == f"{plan.model_digest} tflite"
