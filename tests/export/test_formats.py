"""One contract for every format and every kind of model: a new row of `FORMATS` is tested by being there."""

import concurrent.futures
import dataclasses
import functools
import json

import keras
import numpy as np
import pytest
from made.exports import BOUNDS, EXPORTS, FILES, HEADS, NAMES, SEVERAL, digits, pixels, segmenter
from made.sampling import some
from made.tables import by_table
from reference.comparing import assert_close
from reference.small import NEWER, one_block, run_live

from keras_vit.export.description import describe
from keras_vit.export.exported_model import open_exported
from keras_vit.export.formats import FORMATS, SAVED_MODEL, ExportJob, choose_formats, format_of
from keras_vit.export.onnx import export_onnx
from keras_vit.export.openvino import export_openvino
from keras_vit.export.saved_model import export_saved_model, float32_copy
from keras_vit.export.tflite import export_tflite
from keras_vit.export.verify import BATCH
from keras_vit.layers import attention
from keras_vit.tasks import get_task

SLOW = pytest.mark.slow
AGREEMENTS = {  # of pixels
    **{"float32": 1, "float16": 0.98, "bfloat16": 0.8},
    **{"dynamic_int8": 0.8, "int8": 0.8, "full_int8": 0.7},
}
ONE_SIZE = ("tflite", "web")  # formats whose files have one image size
CONVERTED = [row for row in FORMATS if row is not SAVED_MODEL and not row.repackages]


def precision_of(row):
    return row.precision or (*row.holds, "float32")[0]


def rows(some=FORMATS, fast=lambda row: True):
    """The cases of a `parametrize`; the formats that are not in `exported` are slow."""
    return [
        pytest.param(row, id=row.name, marks=[] if row.name in FILES and fast(row) else SLOW) for row in some
    ]


def first_of_each(some):
    """A row of each runtime, or of each kind of file."""
    return [*{(row.suffixes, row.page): row for row in reversed(some)}.values()][::-1]


def checked(row, job):
    """The job, if the packages of the format are installed."""
    try:
        row.check(job)
    except ImportError as error:
        pytest.skip(str(error))
    return job


# Kinds of models ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A function from the name of a kind of model to its `ExportJob` and what it is compared with."""

    @functools.cache
    def write(name):
        folder = tmp_path_factory.mktemp("kind")
        if name in HEADS:
            model, about = segmenter(head=name, layers=1 if name == "up" else 2), {}
        else:
            options, about = EXPORTS[name]
            model = one_block(**options)
        live = float32_copy(model, about.get("representation", False))
        sizes = [(32, 32), (24, 48)] if model.image_size[0] is None else [model.image_size]
        images = [pixels(batch, size, model.in_channels) for size in sizes for batch in (1, 5)]
        calibration = [pixels(32, sizes[0], model.in_channels)]
        saved = SAVED_MODEL.target(folder, job := ExportJob(model, **about, calibration=calibration))
        SAVED_MODEL.write(job, saved)
        return dataclasses.replace(job, saved_model=saved), live, images

    return write


FAST = ("several-onnx",)
FEW = {  # kinds of models for formats that read the same graph as ONNX, in their own kernels
    "openvino": (
        *("gap", "map", "token_gap", "registers", "hybrid", "no head", "relative", "grouped queries"),
        *("any size", *NEWER),
    ),
    "onnx_dynamic_int8": ("gap", "map", "registers", "no head"),
}
CASES = [
    pytest.param(name, row, id=f"{name}-{row.name}", marks=[] if f"{name}-{row.name}" in FAST else SLOW)
    for row in (SAVED_MODEL, *CONVERTED)
    for name in FEW.get(row.name, FEW.get(row.option, (*EXPORTS, *HEADS)))
]


@pytest.mark.parametrize("name, row", CASES)
def test_a_file_computes_what_the_model_does(name, row, written, tmp_path, monkeypatch):
    if "chunked attention" in (name, *SEVERAL.get(name, ())):
        monkeypatch.setattr(attention, "MAX_CHUNK_SCORES", 10)  # two queries at a time
    job, live, images = written(name)
    path = job.saved_model
    if row is not SAVED_MODEL:
        path = row.target(tmp_path, job)
        row.write(checked(row, job), path)
    exported, described, bound = open_exported(path), describe(live, job.task), BOUNDS[precision_of(row)]
    if row.option in ONE_SIZE:
        described, images = described.with_size(images[0].shape[1:3]), images[:2]
    assert exported.description == described
    for batch in images:
        outputs, expected = exported.outputs(batch), run_live(live, batch)
        if described.is_map:
            classes = outputs["class_map"]
            assert np.mean(classes == expected.argmax(-1)) >= AGREEMENTS[precision_of(row)]
            expected_names = {"class_map"} if row.option in ONE_SIZE else {"class_map", "logits", "scores"}
            assert {*outputs} == expected_names
            if "logits" in outputs:
                assert_close(outputs["logits"], expected, bound)
                np.testing.assert_array_equal(classes, outputs["logits"].argmax(-1))
                scores = keras.ops.softmax(outputs["logits"]).numpy().max(-1)
                np.testing.assert_allclose(outputs["scores"], scores, atol=1e-5)
        else:
            assert_close(outputs[described.output], expected, bound)
            assert {*outputs} - {"probabilities"} == {described.output}
        if "probabilities" in outputs and (job.task or precision_of(row) == "float32"):
            activation = keras.ops.sigmoid if job.task == "multi_label" else keras.ops.softmax
            probabilities = activation(outputs["logits"].astype("float64"))
            np.testing.assert_allclose(outputs["probabilities"], probabilities, atol=max(bound / 30, 1e-6))


# One model in every format -----------------------------------------------------------------------


PICTURES = [np.random.default_rng(i).integers(0, 256, (20 + i, 30, 3)).astype("uint8") for i in range(3)]


@pytest.fixture(scope="module")
def verified(model):
    """The images on which exports were verified, their labels, and the live model's logits."""
    samples, prepare = digits(40).split("test"), describe(model).preprocessing
    images, labels = get_task("single_label").sampled(samples, prepare, 40)
    return images, labels, run_live(model, images)


@pytest.mark.parametrize("row", some(rows(), 4))
def test_a_row_of_the_report_says_what_its_file_computes(row, opened, folder_of, verified, model):
    exported, report = opened(row), json.loads((folder_of(row) / "verification.json").read_text())
    about = report["formats"][row.name]
    assert exported.description == describe(model)
    assert (exported.num_classes, exported.class_names, exported.image_size) == (10, NAMES, (16, 16))
    for batch in (1, 5, 0):
        outputs = exported.outputs(pixels(batch))
        assert {*outputs} == {"logits", "probabilities"}
        assert all(values.shape == (batch, 10) and values.dtype == np.float32 for values in outputs.values())
    images, labels, live = verified
    # Images of a batch share the scales of activations that ONNX Runtime rounds.
    batches = [images[start : start + BATCH] for start in range(0, len(images), BATCH)]
    outputs = np.concatenate([*map(exported.predict_on_batch, batches)])
    difference = np.abs(outputs - live).max() / np.abs(live).max()
    assert difference <= BOUNDS[precision_of(row)]
    assert about["max_logit_difference"] == pytest.approx(difference, rel=0.05, abs=1e-6)
    assert about["score"] == np.mean(outputs.argmax(-1) == labels)
    assert about["agreement"] == np.mean(outputs.argmax(-1) == live.argmax(-1))
    assert report["live"]["score"] == np.mean(live.argmax(-1) == labels)
    assert ("256 or more decided predictions" in (about["warning"] or "")) == (
        row.tolerance.metric == "agreement"
    )
    assert about["export_seconds"] > 0


RUNTIMES = rows(first_of_each([SAVED_MODEL, *CONVERTED]))


@pytest.mark.parametrize("row", RUNTIMES)
@pytest.mark.parametrize("calls", (10, pytest.param(1000, marks=SLOW)))
def test_sixteen_threads_with_mixed_batches_get_their_own_answers(row, calls, opened):
    exported = opened(row)
    batches = [pixels(30)[i : i + size] for i, size in enumerate((1, 2, 5, 1, 3, 8))]
    alone = [exported.outputs(images) for images in batches]

    def call_often(thread):
        for i in range(thread, thread + calls):
            outputs = exported.outputs(batches[i % len(batches)])
            for name, values in alone[i % len(batches)].items():
                np.testing.assert_allclose(outputs[name], values, rtol=1e-4, atol=1e-6)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(call_often, thread) for thread in range(16)]:
            done.result()


@pytest.mark.parametrize("row", RUNTIMES[1:])
def test_threads_can_be_chosen(row, model, path_of):
    exported = open_exported(path_of(row), 2)
    assert_close(exported.predict_on_batch(pixels(2)), run_live(model, pixels(2)), 1e-5)


# What is refused ---------------------------------------------------------------------------------


@pytest.fixture
def job(model, saved_model):
    return ExportJob(model, saved_model, calibration=[pixels(2)])


@pytest.mark.parametrize("row", rows(first_of_each(FORMATS)))
def test_existing_files_and_other_names_are_refused(row, job, tmp_path):
    path = row.target(tmp_path, checked(row, job))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    with pytest.raises(ValueError, match="' exists; '.*' is free"):
        row.write(job, path)
    if row in CONVERTED:
        with pytest.raises(ValueError, match=f"file must end in {row.suffixes[0]}; got '.*bin'"):
            row.write(job, tmp_path / "model.bin")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    assert path.read_text() == "mine"


@by_table(
    "export, suffix",
    [(export_tflite, ".tflite"), (export_onnx, ".onnx"), (export_openvino, ".xml")],
)
def test_other_precisions_and_those_without_their_images_are_refused(export, suffix, saved_model, tmp_path):
    for options, message in (
        ({"precision": "half"}, "precision must be one of 'float32', .*; got 'half'"),
        ({"precision": "int8"}, "int8 is calibrated on images: give some"),
        ({"calibration": pixels(1)}, "option of int8 and full_int8 only; got precision"),
    ):
        with pytest.raises(ValueError, match=message):
            export(saved_model, tmp_path / f"m{suffix}", **options)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("row", rows([row for row in first_of_each(FORMATS) if row is not SAVED_MODEL]))
def test_another_publishers_folder_is_refused(row, job, tmp_path):
    checked(row, job)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="was not exported by keras_vit"):
        row.write(dataclasses.replace(job, saved_model=tmp_path / "empty"), row.target(tmp_path / "out", job))
    assert [*tmp_path.iterdir()] == [tmp_path / "empty"]


@pytest.mark.parametrize("row", rows([row for row in first_of_each(FORMATS) if row.suffixes]))
def test_half_a_file_is_refused_in_one_line(row, path_of, cache, tmp_path):
    content = path_of(row).read_bytes()
    half = tmp_path / f"half{row.suffixes[0]}"
    half.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="^.*(damaged|was not exported|is no archive).*$"):
        open_exported(half)


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    """The SavedModel of a model with finite weights whose logits are not."""
    model = one_block()
    model.get_layer("encoder_norm").gamma.assign(np.full(12, 1e3))
    head = model.get_layer("head")
    head.kernel.assign(np.full(head.kernel.shape, 3e38))
    return export_saved_model(model, tmp_path_factory.mktemp("overflowing") / "1", warmup=())


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(first_of_each(CONVERTED)))
def test_outputs_that_are_not_finite_are_refused(row, job, overflowing, tmp_path):
    job = dataclasses.replace(checked(row, job), saved_model=overflowing)
    with pytest.raises(ValueError, match="^the converted .* model computes NaN or infinite logits.*$"):
        row.write(job, tmp_path / f"model{row.suffixes[0]}")
    assert [*tmp_path.iterdir()] == []


# The registry ------------------------------------------------------------------------------------


def test_the_tolerances_are_the_documented_ones():
    exact = ("saved_model", "hub", "onnx_float32", "tflite_float32", "openvino_float32")
    bounds = {row.name: row.tolerance.bound for row in FORMATS if row.tolerance.metric != "agreement"}
    assert bounds == {**dict.fromkeys(exact, 1e-5), "tflite_float16": 5e-3}
    assert {row.tolerance.bound for row in FORMATS if row.name not in bounds} == {0.99}
    assert [row.name for row in FORMATS if not row.tolerance.required] == ["tflite_full_int8"]


def test_formats_and_precisions_choose_rows():
    def chosen(*arguments):
        return [row.name for row in choose_formats(*arguments)]

    assert chosen(("hub", "tflite"), ("int8", "float16")) == ["tflite_float16", "tflite_int8", "hub"]
    of_litert = ["tflite_float32", "tflite_float16", "tflite_dynamic_int8"]
    assert chosen(("onnx", "tflite")) == [*of_litert, "onnx_float32"]
    assert chosen(("openvino", "web")) == ["openvino_float32", "web"]
    assert chosen(("onnx", "web"), ("int8", "float16")) == ["onnx_int8", "web"]
    assert chosen(("tflite", "openvino"), ("bfloat16", "int8")) == [
        *("tflite_int8", "openvino_bfloat16", "openvino_int8")
    ]


@by_table(
    "names, precisions, message",
    [
        (("openvino", "onnx"), ("float16",), "of openvino are float32, bfloat16, int8; got float16"),
        (("web",), ("int8", "full_int8"), "of web are dynamic_int8, float16, float32; got int8, full_int8"),
        (
            ("tflite", "onnx"),
            ("float32", "bfloat16"),
            "of tflite, onnx; got bfloat16, which none of them has",
        ),
        (("saved_model",), ("int8",), "expected precisions of saved_model; got int8, which none of them has"),
        (("onnx_int8",), None, "formats must be one of .*; got 'onnx_int8'"),
        (("onnx",), (), "precisions must be one of"),
    ],
)
def test_precisions_that_no_format_has_are_refused(names, precisions, message):
    with pytest.raises(ValueError, match=message):
        choose_formats(names, precisions)


def test_a_file_is_of_the_format_of_its_suffix_and_a_folder_is_a_page_or_a_saved_model(tmp_path):
    assert format_of(tmp_path) is SAVED_MODEL
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "index.html").touch()
    assert format_of(tmp_path / "web").option == "web"
    names = {"m.tflite": "tflite", "m.onnx": "onnx", "m.xml": "openvino", "v1.5.tar.gz": "hub"}
    assert {name: format_of(name).option for name in names} == names
    with pytest.raises(ValueError, match=r"expected a file that ends in .*; got 'm.zip'"):
        format_of("m.zip")
