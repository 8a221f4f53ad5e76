import dataclasses
import pathlib

import pytest
from made.exports import FILES, pixels

from keras_vit.export import formats
from keras_vit.export.exported_model import open_exported
from keras_vit.export.folder import export_folder
from keras_vit.export.formats import FORMATS, SAVED_MODEL, choose_formats, format_of, suffix_of

AGREEING = [
    *("tflite_dynamic_int8", "tflite_int8", "onnx_int8", "openvino_bfloat16", "openvino_int8"),
    "web",
]


def test_the_tolerances_are_the_documented_ones():
    assert {format.name: format.tolerance.bound for format in FORMATS} == {
        **dict.fromkeys(("saved_model", "hub", "onnx", "tflite_float32", "openvino_float32"), 1e-5),
        "tflite_float16": 5e-3,
        **dict.fromkeys(AGREEING, 0.99),
    }
    assert [format.name for format in FORMATS if format.tolerance.metric == "agreement"] == AGREEING
    assert [format.name for format in FORMATS if not format.tolerance.required] == ["tflite_int8"]


def test_formats_and_precisions_choose_rows():
    found = choose_formats(("hub", "tflite"), ("int8", "float16"))
    assert [format.name for format in found] == ["tflite_float16", "tflite_int8", "hub"]
    assert {format.name for format in FORMATS if format.option != "openvino"} == {*FILES}
    with pytest.raises(ValueError, match="precisions of openvino are float32, bfloat16, int8; got float16"):
        choose_formats(("openvino", "onnx"), ("float16",))


@pytest.mark.parametrize(
    "source, suffix",
    [
        *(("m.tflite", ".tflite"), ("~/runs/m.onnx", ".onnx"), (pathlib.Path("export/vit.tgz"), ".tgz")),
        *(("https://host/m.tflite?download=true", ".tflite"), ("http://host/vit.tar.gz?a=b#c", ".tar.gz")),
        *(("https://host/vit.npz?like=m.onnx", None), ("https://host/vit.npz#.tgz", None), ("m.keras", None)),
    ],
)
def test_exports_are_recognized_by_their_suffix(source, suffix):
    assert suffix_of(source) == suffix


def test_a_file_is_of_the_format_of_its_suffix_and_a_folder_is_a_page_or_a_saved_model(tmp_path):
    assert format_of(tmp_path) is SAVED_MODEL
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "index.html").touch()
    assert format_of(tmp_path / "web").option == "web"
    names = {"m.tflite": "tflite", "m.onnx": "onnx", "m.xml": "openvino", "v1.5.tar.gz": "hub"}
    assert {name: format_of(name).option for name in names} == names


def test_a_new_row_is_written_verified_and_opened(model, copied, tmp_path, monkeypatch):
    def write(job, path):
        path.write_bytes(b"converted from " + bytes(job.saved_model))

    def open_npz(path, threads):
        return SAVED_MODEL.open(path.parent / "saved_model" / "1", threads)

    row = dataclasses.replace(
        SAVED_MODEL, option="npz", path="m.npz", suffix=".npz", write=write, open=open_npz
    )
    monkeypatch.setattr(formats, "FORMATS", (*FORMATS, row))
    report = export_folder(model, tmp_path / "export", ("saved_model", "npz"))
    assert [*report["formats"]] == ["saved_model", "npz"]
    assert report["formats"]["npz"]["path"] == str(tmp_path / "export" / "m.npz")
    opened = open_exported(tmp_path / "export" / "m.npz")
    assert opened.predict_on_batch(pixels(2)).shape == (2, 10)


def test_a_file_of_no_format_is_refused():
    with pytest.raises(ValueError, match=r"expected a file that ends in .*; got 'm.zip'"):
        format_of("m.zip")
