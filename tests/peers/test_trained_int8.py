"""The trained DINOv2 in 8 bits, as a classifier of photographs."""

import importlib.util

import pytest
from made import trained

from keras_vit.export.folder import export_folder

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow_only("exports files")]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    from made import probes

    try:
        data = probes.photographs()
        model = probes.classifier(data)
    except trained.NotInstalled as error:
        pytest.skip(str(error))
    formats = ["tflite", "onnx", *(["openvino"] if importlib.util.find_spec("nncf") else [])]
    precisions = ("float32", "int8", "full_int8")
    folder = tmp_path_factory.mktemp("trained") / "export"
    return export_folder(model, folder, formats, precisions=precisions, dataset=data)


def test_int8_of_every_runtime_keeps_what_the_model_decides(report):
    assert report["failed"] == {} and report["images"] == 320 and report["live"]["decided"] >= 256
    for name, row in report["formats"].items():
        if not name.endswith("_full_int8"):
            assert row["decided_agreement"] >= 0.99 and row["warning"] is None, name
            assert row["score"] >= report["live"]["score"] - 0.01, name


def test_int8_has_less_than_a_third_of_the_size(report):
    rows = report["formats"]
    for name in ("tflite", "onnx", "openvino"):
        if f"{name}_int8" in rows:
            assert rows[f"{name}_int8"]["bytes"] <= 0.3 * rows[f"{name}_float32"]["bytes"]


def test_full_int8_loses_more_than_int8(report):
    mixed, full = (report["formats"][f"tflite_{name}"] for name in ("int8", "full_int8"))
    assert full["agreement"] < mixed["agreement"]
    assert full["mean_logit_difference"] > 3 * mixed["mean_logit_difference"]
