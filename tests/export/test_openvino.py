"""OpenVINO models; all tests that run them are slow, because `make test` does not install OpenVINO."""

import importlib.util
import json
import shutil
import socket
import sys

import pytest
from made.exports import pixels
from reference.comparing import assert_close
from reference.small import one_block, run_live

from keras_vit.export.exported_model import open_exported
from keras_vit.export.formats import precisions_of
from keras_vit.export.openvino import TELEMETRY, export_openvino
from keras_vit.export.saved_model import export_saved_model

needs_openvino = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("openvino", "nncf"))), reason="openvino and nncf are not installed"
)


@pytest.mark.slow
def test_a_folder_holds_every_precision(openvino_folder, model):
    folder, precisions = openvino_folder / "openvino", precisions_of("openvino")
    names = {f"model_{precision}{suffix}" for precision in precisions for suffix in (".xml", ".bin")}
    assert {file.name for file in folder.iterdir()} == names
    weights = 4 * model.count_params()
    sizes = {name: (folder / f"model_{name}.bin").stat().st_size for name in precisions}
    assert weights < sizes["float32"] < weights * 1.1 + 5000
    assert sizes["bfloat16"] < 0.6 * sizes["float32"]
    patches = 4 * model.get_layer("patch_embedding").count_params()  # int8 leaves them in float
    assert sizes["int8"] - patches < 0.75 * (sizes["float32"] - patches)
    rows = json.loads((openvino_folder / "verification.json").read_text())["formats"]
    for name, size in sizes.items():
        assert rows[f"openvino_{name}"]["bytes"] == size + (folder / f"model_{name}.xml").stat().st_size


@pytest.mark.slow
@needs_openvino
def test_the_size_of_a_model_of_any_size_can_be_fixed(any_size, tmp_path):
    model, saved = any_size
    opened = open_exported(export_openvino(saved, tmp_path / "model.xml", image_size=(16, 24)))
    assert opened.image_size == (16, 24)
    assert_close(opened.predict_on_batch(pixels(2, (16, 24))), run_live(model, pixels(2, (16, 24))), 1e-5)


@pytest.mark.slow
@needs_openvino
@pytest.mark.parametrize(
    "precision, options",
    [
        ("bfloat16", {"num_heads": 4, "hidden_size": 32}),  # as many heads as tokens
        ("int8", {"num_heads": 4, "hidden_size": 32}),
        # A product of the tokens' mean.
        ("int8", {"num_heads": 2, "hidden_size": 32, "representation_size": 6}),
    ],
    ids=str,
)
def test_what_the_runtime_computes_wrong_in_fewer_bits_stays_in_float(precision, options, tmp_path):
    model = one_block(pooling="gap", **options)
    saved = export_saved_model(model, tmp_path / "1", warmup=())
    calibration = pixels(32) if precision == "int8" else None
    path = export_openvino(saved, tmp_path / "model.xml", precision=precision, calibration=calibration)
    for batch in (1, 32):
        images = pixels(batch)
        assert_close(open_exported(path).predict_on_batch(images), run_live(model, images), 0.05)


@pytest.mark.slow
@needs_openvino
def test_nncf_quantizes_our_onnx_file(exported, model):
    import nncf
    import openvino

    read = openvino.Core().read_model(exported / "model_float32.onnx")
    data = nncf.Dataset([*pixels(4)[:, None]])
    options = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": 4}
    compiled = openvino.compile_model(nncf.quantize(read, data, **options), "CPU")
    assert_close(compiled({"images": pixels(2)})["logits"], run_live(model, pixels(2)), 0.5)


@pytest.mark.slow
def test_the_xml_file_contains_the_digest_of_its_weights(openvino_folder, tmp_path):
    for suffix in (".xml", ".bin"):
        shutil.copyfile(openvino_folder / f"openvino/model_float32{suffix}", tmp_path / f"m{suffix}")
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
def test_a_path_may_have_a_comma_and_is_not_in_the_file(saved_model, tmp_path):
    saved = shutil.copytree(saved_model, tmp_path / "a, b" / "1")
    path = export_openvino(saved, tmp_path / "a, b" / "m.xml")
    assert open_exported(path).predict_on_batch(pixels(1)).shape == (1, 10)
    path = export_openvino(saved_model, tmp_path / "m.xml")
    assert "input_model" not in path.read_text() and str(saved_model) not in path.read_text()


@pytest.mark.slow
@needs_openvino
def test_nothing_is_sent_and_nothing_printed(saved_model, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(socket, "socket", None)
    export_openvino(saved_model, tmp_path / "model.xml", precision="int8", calibration=pixels(2))
    assert capfd.readouterr() == ("", "")
    assert TELEMETRY not in sys.modules


def test_options_are_checked_before_a_package_is_imported(saved_model, tmp_path, monkeypatch):
    path = tmp_path / "model.xml"
    for name in ("openvino", "nncf"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match="int8 is calibrated on images: give some"):
        export_openvino(saved_model, path, precision="int8")
    with pytest.raises(ImportError, match="^OpenVINO requires openvino: pip install openvino nncf$"):
        export_openvino(saved_model, path)
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(ValueError, match="needs the .bin file next to it: download both"):
        open_exported("https://host/model.xml")
