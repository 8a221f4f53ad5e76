"""The chips for which plans are compiled; tests/cli/test_plan.py compiles."""

import re
import sys

import pytest

from keras_vit.training.chips import find_chips, gpu_description, gpus, message_bytes


@pytest.mark.parametrize("topology", ["v9:2x2", "v5e", "gpu:2080", "gpu:a100:0", "gpu:a100:2x2"])
def test_unknown_topologies_are_refused(topology):
    with pytest.raises(ValueError, match=f"a topology such as v5e:4x4, .*gpu:t4.*; got '{topology}'"):
        find_chips(topology)


@pytest.mark.parametrize(
    "topology, package, extra", [("v5e:4x4", "libtpu", "tpu"), ("gpu:t4", "jax_cuda12_plugin", "gpu")]
)
def test_a_missing_compiler_is_named_with_its_extra(topology, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf'keras-vit plan requires {package}: pip install "\.\[{extra}\]"'):
        find_chips(topology)


def test_the_compilers_messages_have_the_memory():
    message = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required "
        "for HLO temporaries (36.50G) exceeds available HBM (15.75G). HLO module: jit_train_step."
    )
    assert message_bytes(message, "temporaries") == 36.5 * 2**30
    assert message_bytes(message, "available HBM") == 15.75 * 2**30


def test_a_description_has_the_numbers_of_the_table():
    text = gpu_description(gpus()["h100"], ["9", "8", "1", "2"], ["12", "9", "86"])
    fields = dict(re.findall(r"(\w+): (\S+)", text))
    assert fields["core_count"] == "132" and fields["clock_rate_ghz"] == "1.83"
    assert fields["shared_memory_per_core"] == str(228 * 1024)
    assert fields["device_memory_size"] == "80000000000"
    assert "major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES" in text
    assert 'runtime_version: "12.9.0"' in text and "major: 9 minor: 8 patch: 1" in text


@pytest.mark.parametrize("name", gpus())
def test_the_peak_of_each_gpu_is_what_its_multiprocessors_compute(name):
    """By NVIDIA's white papers; a mistyped number would show."""
    chip = gpus()[name]
    of_a_cycle = chip["tflops"] * 1e6 / (chip["multiprocessors"] * chip["clock_mhz"])
    expected = {"7.5": 1024, "8.0": 2048, "8.6": 1024, "8.9": 1024, "9.0": 4096}[chip["capability"]]
    assert of_a_cycle == pytest.approx(expected, rel=0.05)
