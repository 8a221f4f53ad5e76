"""OpenVINO models; all tests that run them are slow, because `make test` does not install OpenVINO."""

import importlib.util
import json
import socket
import sys

import numpy as np
import pytest
from made.exports import NAMES, digits, pixels, saved_function
from reference.comparing import assert_close
from reference.small import HYBRID, NEWER, one_block, run_live

from keras_vit.cli.quickstart import MODEL
from keras_vit.cli.source import open_model
from keras_vit.data.datasets import load_dataset
from keras_vit.export.exported_model import open_exported
from keras_vit.export.folder import export_folder
from keras_vit.export.openvino import TELEMETRY, export_openvino, few_shapes
from keras_vit.export.saved_model import export_saved_model
from keras_vit.training.named_recipes import RECIPES
from keras_vit.training.run import train
from keras_vit.training.run_config import RunConfig

BOUNDS = {"float32": 1e-5, "bfloat16": 0.03, "int8": 0.5}
MODELS = {
    "token": {"image_size": (16, 24)},
    "gap": {"pooling": "gap", "num_registers": 2},
    "map": {"pooling": "map", "in_channels": 1},
    "token_gap": {"pooling": "token_gap", "activation": "gelu_erf"},
    "hybrid": {**HYBRID, "resnet": (1, 1)},
    "no head": {"num_classes": None},
    "EVA-02-B": NEWER["EVA-02-B"],
    "DINOv3-S": NEWER["DINOv3-S"],
    "relative": {"relative_positions": True, "key_bias": False, "image_size": (19, 24)},
    "grouped queries": {"num_heads": 6, "num_kv_heads": 2, "qk_norm": True, "norm": "rms"},
    "any size": {"image_size": (None, None), "position_grid": (4, 4)},
}
needs_openvino = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("openvino", "nncf"))), reason="openvino and nncf are not installed"
)


@pytest.fixture(scope="module")
def folder(shared_folder, model):
    """An export to OpenVINO in each precision."""

    def export(folder):
        export_folder(model, folder / "export", ("openvino",), precisions=(*BOUNDS,), dataset=digits(40))

    return shared_folder("openvino", export) / "export"


@pytest.mark.slow
@needs_openvino
def test_a_folder_holds_every_precision(folder, model):
    names = {f"model_{precision}{suffix}" for precision in BOUNDS for suffix in (".xml", ".bin")}
    assert {file.name for file in (folder / "openvino").iterdir()} == names
    rows = json.loads((folder / "verification.json").read_text())["formats"]
    assert [*rows] == [f"openvino_{precision}" for precision in BOUNDS]
    weights = 4 * model.count_params()
    sizes = {name: (folder / "openvino" / f"model_{name}.bin").stat().st_size for name in BOUNDS}
    assert weights < sizes["float32"] < weights * 1.1 + 5000
    assert sizes["bfloat16"] < 0.6 * sizes["float32"] and sizes["int8"] < 0.5 * sizes["float32"]
    for name, size in sizes.items():
        row = rows[f"openvino_{name}"]
        assert row["bytes"] == size + (folder / "openvino" / f"model_{name}.xml").stat().st_size
        opened = open_exported(row["path"], 1)
        assert opened.class_names == NAMES and opened.description.output == "logits"
        for count in (0, 1, 2, 5):
            found = opened.outputs(pixels(5)[:count])
            assert {*found} == {"logits", "probabilities"} and len(found["logits"]) == count
        assert_close(found["logits"], run_live(model, pixels(5)), BOUNDS[name])


@pytest.mark.slow
@needs_openvino
@pytest.mark.parametrize("name", MODELS)
def test_every_option_computes_what_the_live_model_does(name, tmp_path):
    model = one_block(**MODELS[name])
    saved = export_saved_model(model, tmp_path / "1", warmup=())
    sizes = [(32, 32), (24, 48)] if model.image_size[0] is None else [model.image_size]
    images = [pixels(batch, size, model.in_channels) for batch in (1, 5) for size in sizes]
    for precision, bound in BOUNDS.items():
        calibration = pixels(5, sizes[0], model.in_channels) if precision == "int8" else None
        options = {"precision": precision, "calibration": calibration}
        opened = open_exported(export_openvino(saved, tmp_path / f"{precision}.xml", **options))
        for batch in images:
            assert_close(opened.predict_on_batch(batch), run_live(model, batch), bound)


@pytest.mark.parametrize("calls", [1, 60])
def test_models_of_few_shapes_are_compiled(calls):
    compiled = []
    model_for = few_shapes(lambda shape: compiled.append(shape) or [shape])
    found = [model_for(shape)[0] for shape in [(16,), (3,), (1,), (7,)] * calls]
    assert found == [(16,), (3,), None, None] * calls
    assert compiled == [(16,), (3,), None]


@pytest.mark.slow
@needs_openvino
def test_the_size_of_a_model_of_any_size_can_be_fixed(any_size, tmp_path):
    model, saved = any_size
    opened = open_exported(export_openvino(saved, tmp_path / "model.xml", image_size=(16, 24)))
    assert opened.image_size == (16, 24)
    assert_close(opened.predict_on_batch(pixels(2, (16, 24))), run_live(model, pixels(2, (16, 24))), 1e-5)


@pytest.mark.slow
@needs_openvino
def test_int8_keeps_the_accuracy_of_a_trained_model(shared_folder, tmp_path):
    config = RunConfig(dataset="digits", recipe=RECIPES["digits"], model=MODEL)
    run = shared_folder("quantized_run", lambda folder: train(config, folder / "run", verbose=0)) / "run"
    model, dataset = open_model(run), load_dataset("digits", RECIPES["digits"].seed)
    formats = ("onnx_int8", "openvino")
    report = export_folder(model, tmp_path / "export", formats, precisions=(*BOUNDS,), dataset=dataset)
    live = report["live"]["score"]
    for name in ("onnx_int8", "openvino_bfloat16", "openvino_int8"):
        row = report["formats"][name]
        assert row["score"] >= live - 0.003 and row["agreement"] >= 0.99


@pytest.mark.slow
@needs_openvino
def test_nncf_quantizes_our_onnx_file(exported, model):
    import nncf
    import openvino

    read = openvino.Core().read_model(exported / "model.onnx")
    data = nncf.Dataset([*pixels(4)[:, None]])
    options = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": 4}
    compiled = openvino.compile_model(nncf.quantize(read, data, **options), "CPU")
    assert_close(compiled({"images": pixels(2)})["logits"], run_live(model, pixels(2)), 0.5)


@pytest.mark.slow
@needs_openvino
def test_the_xml_file_contains_the_digest_of_its_weights(folder, tmp_path):
    for suffix in (".xml", ".bin"):
        (tmp_path / f"m{suffix}").write_bytes((folder / "openvino" / f"model_float32{suffix}").read_bytes())
    assert open_exported(tmp_path / "m.xml").predict_on_batch(pixels(1)).shape == (1, 10)
    weights = bytearray((tmp_path / "m.bin").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "m.bin").write_bytes(weights)
    with pytest.raises(ValueError, match="m.xml' is damaged, .*: m.bin is not the file that belongs to it"):
        open_exported(tmp_path / "m.xml")
    (tmp_path / "m.bin").unlink()
    with pytest.raises(ValueError, match="m.xml' is damaged"):
        open_exported(tmp_path / "m.xml")
    (tmp_path / "m.xml").write_text("<net/>")
    with pytest.raises(ValueError, match="m.xml' is damaged"):
        open_exported(tmp_path / "m.xml")


@pytest.mark.slow
@needs_openvino
def test_a_model_that_computes_nan_leaves_no_file(saved_model, tmp_path):
    import tensorflow as tf

    broken = saved_function(lambda x: tf.math.log(x - 2)[:, 0, 0], tmp_path / "saved", saved_model / "assets")
    with pytest.raises(ValueError, match="the outputs of the converted OpenVINO model are not all finite"):
        export_openvino(broken, tmp_path / "out" / "model.xml")
    assert [*(tmp_path / "out").iterdir()] == []


@pytest.mark.slow
@needs_openvino
def test_nothing_is_sent_and_nothing_printed(saved_model, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(socket, "socket", None)
    export_openvino(saved_model, tmp_path / "model.xml", precision="int8", calibration=pixels(2))
    assert capfd.readouterr() == ("", "")
    assert TELEMETRY not in sys.modules


def test_options_are_checked_before_a_package_is_imported(saved_model, tmp_path, monkeypatch):
    path = tmp_path / "model.xml"
    with pytest.raises(ValueError, match="the name of an OpenVINO file must end in .xml; got '.*model.bin'"):
        export_openvino(saved_model, tmp_path / "model.bin")
    with pytest.raises(ValueError, match="precision must be one of .*; got 'float16'"):
        export_openvino(saved_model, path, precision="float16")
    with pytest.raises(ValueError, match="calibrated on images, .*; got precision 'int8' without images"):
        export_openvino(saved_model, path, precision="int8")
    with pytest.raises(ValueError, match="got precision 'float32' with images"):
        export_openvino(saved_model, path, calibration=pixels(2))
    for name in ("openvino", "nncf"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="^OpenVINO requires openvino: pip install openvino nncf$"):
        export_openvino(saved_model, path)
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(ValueError, match="needs the .bin file next to it: download both"):
        open_exported("https://host/model.xml")


@pytest.mark.slow
@needs_openvino
def test_images_of_another_shape_do_not_calibrate(saved_model, tmp_path):
    with pytest.raises(ValueError, match="calibration images must be float32"):
        export_openvino(saved_model, tmp_path / "m.xml", precision="int8", calibration=np.zeros((2, 8, 8, 3)))
    assert [*tmp_path.iterdir()] == []
