"""`keras-vit benchmark`: the measurements of each format, and errors of its processes."""

import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import pathlib
import tempfile

import pytest

from keras_vit.cli import benchmark, measuring
from keras_vit.cli.parser import parser
from keras_vit.export import formats
from keras_vit.export.formats import SAVED_MODEL
from keras_vit.names import ONNX_PRECISIONS

ALL = ["live", "saved_model", "tflite", "onnx"], ["float32", "float16", "dynamic_int8", "int8"]
MANY = 4096  # images, which take longer than one on a busy machine, too


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """The folder of temporary files, which must be empty at the end."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    left = [path for path in folder.iterdir() if "autograph" not in path.name]  # which TensorFlow removes
    assert not left and not multiprocessing.active_children()


def given(source, *options):
    return parser().parse_args(["benchmark", "--model", str(source), *map(str, options)])


@pytest.fixture
def in_process(request, monkeypatch):
    """Measure one format in a thread, which saves the imports of a process."""
    if request.param:
        monkeypatch.setattr(measuring, "_process", lambda: concurrent.futures.ThreadPoolExecutor(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "formats, precisions, in_process", [(["live"], [], True), (*ALL, False)], indirect=["in_process"]
)
def test_every_format_is_timed_at_every_batch_size(
    formats, precisions, in_process, keras_vit, model, tmp_path
):
    asked = ("--formats", ",".join(formats), "--precisions", ",".join(precisions or ["float32"]))
    asked = (*asked, "--batch_sizes", f"{MANY},1", "--rounds", 3, "--image_size", 24)
    output = tmp_path / "found.json"
    done = keras_vit("benchmark", "--model", model, *asked, "--json", output)
    assert done.stderr == ""
    found = json.loads(output.read_text())
    rows = found.pop("rows")
    about = {"image_size": [24, 24], "live": "graph", "rounds": 3, "threads": None, "cores": os.cpu_count()}
    assert found == {"model": str(model), **about}
    of_onnx = [f"onnx_{precision}" for precision in ONNX_PRECISIONS if "onnx" in formats]
    names = [*formats[:2], *("tflite_" + precision for precision in precisions), *of_onnx]
    assert [(row["batch"], row["format"]) for row in rows] == [(n, name) for n in (1, MANY) for name in names]
    small, large = rows[: len(names)], rows[len(names) :]
    for live, row in [(small[0], row) for row in small] + [(large[0], row) for row in large]:
        assert row["images_per_second"] == pytest.approx(1e3 * row["batch"] / row["ms"])
        assert row["ratio"] == pytest.approx(row["images_per_second"] / live["images_per_second"])
    for row, later in zip(small, large):
        assert row["ms"] < later["ms"] and row["bytes"] == later["bytes"]
        imports, peak, last = row["imports_bytes"], row["peak_bytes"], later["peak_bytes"]
        # Linux counts the pages of a process only roughly, so that a later peak may be a little lower.
        assert 50 * benchmark.MIB < imports < peak + benchmark.MIB and peak < last + benchmark.MIB
    assert abs(small[0]["bytes"] - model.stat().st_size) < 1000  # but for what the file says of its date
    header, *lines = done.stdout.splitlines()
    assert header.split()[:4] == ["format", "batch", "ms", "images/s"]
    assert [line.split()[:2] for line in lines[: len(rows)]] == [[r["format"], str(r["batch"])] for r in rows]
    assert "images of 24x24 pixels; medians of 3" in done.stdout


@pytest.mark.slow
def test_a_process_that_ends_early_is_reported():
    with measuring._process() as process, pytest.raises(ValueError, match="the process of live ended early"):
        measuring._result("live", process.submit(os._exit, 1))


def test_a_variants_name_is_a_model_of_random_weights():
    assert measuring._live("mu/8", (16, 24)).image_size == (16, 24)
    model = measuring._live("mu/32", None)
    assert (model.image_size, model.num_classes) == ((224, 224), 1000)
    assert measuring._live("mu/8", (16, 24), 4).patch_size == (4, 4)


def test_only_the_given_formats_are_exported(model, tmp_path):
    assert measuring.files_of(given(model, "--formats", "live"), tmp_path).keys() == {"live"}
    assert not (tmp_path / "saved_model").exists()


@pytest.mark.parametrize("name, format", [("1/saved_model.pb", "saved_model"), ("m.onnx", "onnx")])
def test_an_export_is_measured_as_it_is(name, format, tmp_path):
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    source = file if format == "onnx" else tmp_path / "out"
    assert measuring.files_of(given(source), None) == {format: file if format == "onnx" else file.parent}
    for option in (("--formats", "live"), ("--precisions", "int8"), ("--patch_size", 8)):
        with pytest.raises(ValueError, match=f"is an export and is measured as it is; omit {option[0]}"):
            measuring.files_of(given(source, *option), None)


def test_the_peak_is_the_systems(monkeypatch):
    peak = measuring.peak_memory()

    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(pathlib.Path, "read_text", missing)
    other = measuring.peak_memory()  # as on systems without /proc
    assert peak <= other * 1.01 and other > 10 * benchmark.MIB


def test_unknown_memory_is_a_dash():
    row = {"format": "onnx", "batch": 2, "ms": 4.0, "images_per_second": 500.0, "ratio": 1.0}
    row |= {"bytes": benchmark.MIB, "peak_bytes": None, "imports_bytes": None}
    text = benchmark.summary(
        {"rows": [row], "image_size": [8, 8], "rounds": 1, "threads": None, "live": None}
    )
    assert text.splitlines()[1].split() == ["onnx", "2", "4.0", "500.0", "1.0", "1.0", "-", "-"]
    assert "live" not in text


@pytest.mark.slow
def test_all_formats_are_compared_with_the_live_model(model, images, monkeypatch, tmp_path):
    """A format whose package is missing is named with the reason."""

    def refuse(job):
        raise ImportError("a package is missing")

    monkeypatch.setattr(measuring, "_process", lambda: concurrent.futures.ThreadPoolExecutor(1))
    other = dataclasses.replace(SAVED_MODEL, option="other", check=refuse)
    monkeypatch.setattr(measuring, "FORMATS", [other])
    args = given(model, "--all", "--dataset", f"folder:{images}", "--image_size", 24, "--rounds", 1)
    files, missing, reference = measuring.all_files(args, tmp_path)
    assert files == {"live": tmp_path / "model.keras"} and missing == {"other": "a package is missing"}
    assert reference.images.shape[1:] == (24, 24, 3)
    found = measuring.measure(files, args, reference)
    for row in found["rows"]:
        assert row["agreement"] == 1 and row["max_logit_difference"] < 1e-5
        assert row["score"] == reference.compare(reference.outputs)["score"]
    lines = benchmark.comparison(found | {"missing": missing}).splitlines()
    assert lines[0].split()[:5] == ["format", "ms", "for", "1", "ms"] and lines[1].startswith("live")
    assert "other: a package is missing" in lines


@pytest.mark.slow
def test_all_measures_every_format_in_its_runtime(keras_vit, model, tmp_path):
    output = tmp_path / "found.json"
    done = keras_vit("benchmark", "--model", model, "--all", "--rounds", 2, "--json", output)
    assert done.stderr == ""
    found = json.loads(output.read_text())
    names = {row["format"] for row in found["rows"]} | {*found["missing"]}
    assert names == {"live", *(f.name for f in formats.FORMATS if f.option not in ("hub", "web"))}
    measured = {row["format"] for row in found["rows"]}
    assert {"live", "saved_model", "tflite_dynamic_int8", "onnx_float32"} <= measured
