import os
import subprocess
import sys
import zipfile

import keras
import pytest
from keras.src.backend.common import global_state
from made.archives import rezipped
from made.limited import peak_of
from made.sampling import some
from reference.comparing import arrays, assert_same_arrays
from reference.small import one_block

from keras_vit import VisionTransformer, from_pretrained, save_weights
from keras_vit.weights.checkpoint import read_checkpoint, read_model


@pytest.fixture(scope="module")
def large():
    """A model of 52 MB with few layers, whose Python objects (up to 5 MB) are small."""
    sizes = {"hidden_size": 512, "num_heads": 4, "mlp_dim": 2048, "num_layers": 4}
    return VisionTransformer(image_size=64, patch_size=16, num_classes=10, **sizes)


@pytest.mark.parametrize("layout, most", some([("timm", 1.35), ("vit_jax", 1.25), ("huggingface", 1.25)], 3))
def test_saving_holds_the_arrays_about_once(layout, most, large, tmp_path):
    target = tmp_path / {"timm": "model.safetensors", "vit_jax": "model.npz"}.get(layout, "model")
    path = save_weights(one_block(), target, layout, overwrite=True)  # imports
    peak = peak_of(lambda: save_weights(large, target, layout, overwrite=True))
    assert peak < most * os.path.getsize(path)


@pytest.mark.slow
@pytest.mark.parametrize("read", [from_pretrained, read_model])
def test_loading_holds_few_arrays_besides_the_model(read, large, tmp_path):
    """TensorFlow's memory, which the model has, is not traced."""
    large.save(tmp_path / "model.keras")
    one_block().save(tmp_path / "small.keras")
    read(tmp_path / "small.keras")
    assert peak_of(lambda: read(tmp_path / "model.keras")) < os.path.getsize(tmp_path / "model.keras") / 2


LOAD = """
import sys
from keras_vit import from_pretrained, save_weights
def peak(call):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    status = lambda name: next(
        int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)
    )
    before = status("VmRSS")
    call()
    return (status("VmHWM") - before) * 1024
folder = sys.argv[1]
save_weights(from_pretrained(f"{folder}/small.keras"), f"{folder}/small.safetensors", "timm")
models = []
print(peak(lambda: models.append(from_pretrained(f"{folder}/model.keras"))))
print(peak(lambda: save_weights(models[0], f"{folder}/model.safetensors", "timm")))
"""


@pytest.mark.slow
def test_a_model_of_400_mb_takes_little_more_memory_than_its_file(tmp_path):
    sizes = {"hidden_size": 1024, "num_heads": 16, "mlp_dim": 4096, "num_layers": 8}
    VisionTransformer(image_size=224, patch_size=16, num_classes=1000, **sizes).save(tmp_path / "model.keras")
    one_block().save(tmp_path / "small.keras")
    done = subprocess.run([sys.executable, "-c", LOAD, tmp_path], capture_output=True, text=True, check=True)
    peaks = [int(line) / os.path.getsize(tmp_path / "model.keras") for line in done.stdout.splitlines()[-2:]]
    print(peaks)
    assert max(peaks) < 1.45


def test_variables_without_values_leave_nothing_behind(tmp_path):
    one_block().save(tmp_path / "model.keras")
    read_checkpoint(tmp_path / "model.keras")
    assert not global_state.get_global_attribute("uninitialized_variables", [])
    with keras.StatelessScope():
        pass


@pytest.mark.parametrize("change", some(["quantized", "lora"], 2))
def test_changed_layers_are_read_with_their_model(change, tmp_path):
    model = one_block()
    model.quantize("int8") if change == "quantized" else model.enable_lora(2)
    model.save(tmp_path / "model.keras")
    stored = read_checkpoint(tmp_path / "model.keras").arrays
    assert isinstance(stored, dict) and {array.dtype.name for array in stored.values()} == {"float32"}


def test_a_compressed_file_is_read(tmp_path):
    model = one_block(representation_size=8, layer_scale=0.1, class_names=[*"abcde"])
    model.save(tmp_path / "model.keras")
    again = from_pretrained(rezipped(tmp_path / "model.keras", zipfile.ZIP_DEFLATED))
    assert {**again.get_config(), "name": ""} == {**model.get_config(), "name": ""}
    assert_same_arrays(arrays(again), arrays(model))


def test_a_changed_byte_of_the_weights_is_refused(tmp_path):
    one_block().save(tmp_path / "model.keras")
    content = bytearray((tmp_path / "model.keras").read_bytes())
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        entry = archive.getinfo("model.weights.h5")
    content[entry.header_offset + entry.file_size] ^= 1
    (tmp_path / "model.keras").write_bytes(content)
    for read in (from_pretrained, read_model):
        with pytest.raises(ValueError, match="not a readable .keras file: Bad CRC-32"):
            read(tmp_path / "model.keras")
