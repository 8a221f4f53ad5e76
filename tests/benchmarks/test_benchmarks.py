"""The statements of the benchmarks' reports, and how their processes are run."""

import ast
import importlib
import json
import pathlib
import platform
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import tensorflow as tf
from made.tables import by_table

from keras_vit.layers import MlpBlock

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import depth
import detection
import families
import gpu
import gpu_speed
import harness
import ops
import pretraining
import real
import report
import servers
import tpu
from systems import PLAIN, SYSTEMS, Case

MEMORY = {"built": 100.0, "warming": 300.0, "running": 200.0, "device": None}
ABOUT = {
    **{"date": "2026-01-02 03:04", "command": "python benchmarks/speed.py", "processor": "a processor"},
    **{"cores": 4, "accelerator": None, "load": 0.5, "versions": {"Python": "3.11"}},
}


def test_what_the_programs_import_of_the_package_exists():
    """Also in functions, which run on other machines, or for hours."""
    root, names = pathlib.Path(__file__).parents[2], set()
    for folder in ("benchmarks", "docs", "examples"):
        for path in (root / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module.startswith("keras_vit"):
                    names |= {(node.module, alias.name) for alias in node.names}
    assert len(names) > 50
    missing = []
    for module, name in sorted(names):
        if not hasattr(importlib.import_module(module), name) and not find_spec(f"{module}.{name}"):
            missing.append(f"{module}.{name}")
    assert missing == []


def measured(*seconds):
    return {"first": 2.0, "seconds": list(seconds), "memory": MEMORY}


def case(**systems):
    found = {"peak": {"float32": {"gflops": 400.0, "by": "torch"}}, "gflops": 10.0, "task": "inference"}
    return ABOUT | found | {"precision": "float32", "batch": 1, "image_size": 224, "systems": systems}


def scaling():
    sizes = {"224": {"gflops": 2, "tokens": 200}, "1024": {"gflops": 40, "tokens": 4000}}
    return ABOUT | {"sizes": sizes, "systems": {"keras_vit": {"224": measured(0.1), "1024": measured(1.0)}}}


def test_systems_are_defined_without_keras():
    code = "import sys, systems; print(sorted({'keras', 'keras_vit', 'tensorflow'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=harness.HERE, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_case_is_compared_with_the_fastest_peer():
    peers = {"transformers": measured(0.06), "timm compiled": measured(0.1)}
    found = case(keras_vit=measured(0.05, 0.9, 0.04), **peers)
    row = report.rows(found)["keras_vit"]
    assert (row["ms"], row["ratio"], row["of_peak"], row["memory"]) == pytest.approx((50, 1.2, 0.5, 300))
    assert report.comparison({"a": found}) == [("a", "50.0", "transformers", "60.0", "1.20")]


def test_integer_operations_are_not_compared_with_the_peak_rate_of_floats():
    found = case(**{"keras_vit": measured(0.05), "keras_vit LiteRT dynamic int8": measured(0.01)})
    assert [row["of_peak"] for row in report.rows(found).values()] == [0.5, None]


def test_speed_and_memory_by_size_are_relative_to_the_smallest_and_to_the_model():
    largest = report.by_size(scaling())["keras_vit"]["1024"]
    assert (largest["ms"], largest["speed"], largest["memory"]) == pytest.approx((1000, 2, 100))


def test_cases_that_are_not_run_again_keep_their_results(tmp_path):
    path = tmp_path / "RESULTS.json"
    failed = {"transformers": {"error": "RuntimeError: no"}, "timm compiled": {"missing": ["timm"]}}
    report.update(path, "cases", {"first": case(keras_vit=measured(1.0)), "second": case()})
    report.update(path, "cases", {"second": case(keras_vit=measured(0.1), **failed)})
    report.update(path, "scaling", {"S/16 float32": scaling()})
    text = report.write_report(tmp_path)
    assert list(json.loads(path.read_text())["cases"]) == ["first", "second"]
    rows = ("| keras_vit | 1000.0 |", "| keras_vit | 100.0 |", "| keras_vit | 1024 | 4000 | 1000 | 2.00 |")
    notes = ("transformers failed: `RuntimeError: no`", "timm compiled: timm is not installed")
    assert all(part in text for part in (*rows, *notes))
    names = {"RESULTS.json", "RESULTS.md", "RESULTS.png", "SCALING.png"}
    assert {file.name for file in tmp_path.iterdir()} == names


@by_table(
    "name, write",
    [
        *(
            ("RESULTS", report.report),
            ("FAMILIES", families.report),
            ("DETECTION", detection.report),
            ("DEPTH", depth.report),
            ("REAL", real.report),
            ("SERVERS", servers.report),
        ),
        *(("TPU", tpu.report), ("GPU", gpu.report), ("PRETRAINING", pretraining.text_of)),
    ],
)
def test_a_page_is_that_of_the_stored_results(name, write):
    results = json.loads((harness.HERE / f"{name}.json").read_text())
    assert (harness.HERE / f"{name}.md").read_text() == write(results)


def test_a_family_is_compared_with_the_faster_form_of_its_peer():
    systems = {"keras_vit": measured(0.05), "transformers": measured(0.06), "timm": measured(0.04)}
    rows = families.ratios({"systems": systems | {"transformers compiled": {"error": "of no use"}}})
    assert rows["keras_vit"] == pytest.approx((50, 50, 50, 1.2))
    del systems["transformers"]
    assert families.ratios({"systems": systems})["keras_vit"][3] == pytest.approx(0.8)


def test_the_stored_differences_of_families_are_small():
    differences = json.loads(families.RESULTS.read_text())["differences"].values()
    assert all(value < families.BOUND for found in differences for value in found.values())
    for page in (detection, depth):
        cases = json.loads(page.RESULTS.read_text())["cases"].values()
        assert all(found["difference"] < page.BOUND for found in cases if found["difference"] is not None)


def test_a_process_that_fails_does_not_stop_the_others(tmp_path):
    answers = """
import sys
print("{}", flush=True)
for line in sys.stdin:
    print({"warm\\n": '{"first": 1}', "go\\n": '{"seconds": 2}'}.get(line, '{"memory": 3}'), flush=True)
"""
    wrong = "raise ValueError('of no use')"
    commands = {"good": [sys.executable, "-c", answers], "bad": [sys.executable, "-c", wrong]}
    assert harness.interleaved(commands, rounds=2) == {
        "good": {"first": 1, "seconds": [2, 2], "memory": 3},
        "bad": {"error": "ValueError: of no use"},
    }


def test_a_process_answers_once_with_what_a_function_returns():
    assert harness.measure("machine.versions", packages=[]) == {"Python": platform.python_version()}


def test_a_training_step_costs_three_forward_passes():
    assert Case("B/16").gflops == pytest.approx(35.1, abs=0.1)
    assert Case("B/16", "training").gflops == pytest.approx(3 * Case("B/16").gflops)


@by_table(
    "operation, kind",
    [
        ("tape/vit_1/encoder_block_0_1/attention_1/MatMul_1/MatMul|_MklBatchMatMulV2", "attention matmuls"),
        ("vit_1/encoder_block_0_1/attention_1/query_1/MatMul|_MklBatchMatMulV2", "other matmuls"),
        ("vit/encoder_block_0/mlp/dense_0/MatMul|_FusedMatMul", "other matmuls"),
        ("vit/encoder_block_0/attention_norm/Mul|Mul", "LayerNorm"),
        ("vit/encoder_block_0/mlp_1/Gelu/Pow|Mul", "GELU"),
        ("sgd/mul_718|Mul", "optimizer"),
        ("transpose|Transpose", "transposes"),
    ],
)
def test_operations_are_assigned_to_kinds(operation, kind):
    assert ops.kind_of(operation) == kind


def test_time_in_which_two_operations_run_counts_once():
    assert ops.busy([("a", 0, 2), ("b", 1, 3), ("c", 5, 6)]) == 4


@pytest.fixture
def grappler():
    """TensorFlow optimizes graphs, which the fast tests leave as they are."""
    options = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options(options)


@pytest.mark.tensorflow_only("TensorFlow's profiler")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="TensorFlow computes with oneDNN there")
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
def test_a_profile_shows_that_the_matmul_fuses_its_gelu(activation, grappler):
    layer = MlpBlock(64, activation)
    layer.build((None, 5, 32))
    compute, tokens = tf.function(layer), tf.ones((2, 5, 32))
    seconds, events = ops.profile(lambda: compute(tokens).numpy())
    names = [name for name, *_ in events]
    assert 0 < ops.busy(events) < ops.STEPS * seconds
    fused = [name for name in names if re.search(r"gelu/.*\|_Mkl\w*FusedMatMul", name)]
    assert len(fused) == ops.STEPS and not [name for name in names if re.search(r"\|(Tanh|Erf|Pow)", name)]


def test_a_server_is_compared_with_the_fastest_export():
    ours = {"keras_vit LiteRT dynamic int8": measured(0.03), "keras_vit OpenVINO int8": measured(0.02)}
    peers = {"timm OpenVINO int8": measured(0.021), "timm ONNX Runtime int8": {"error": "it failed"}}
    text = servers.report({**ABOUT, "cases": {"S/16, 1 thread": ours | peers}})
    assert re.search(r"\| keras_vit OpenVINO int8 \| 20\.0 \|", text)
    assert re.search(r"\| timm OpenVINO int8 \| 1\.05 \|", text)
    assert re.search(r"\| timm ONNX Runtime int8 \| – \|", text)


def test_loops_of_a_compiled_program_count_as_often_as_they_run():
    program = """HloModule m
%fused (x: f32[2]) -> f32[2] {
  ROOT %a = f32[2]{0} add(%x, %x), backend_config={"estimated_cycles":"7"}
}
%body (x: f32[2]) -> f32[2] {
  ROOT %copy.1 = f32[2]{0} copy(%x), metadata={op_name="step/mul"}, backend_config={"estimated_cycles":"5"}
}
ENTRY %main (x: f32[2]) -> f32[2] {
  %f = (f32[2]{0}, f32[]) fusion(%x), calls=%fused, backend_config={"estimated_cycles":"100"}
  ROOT %w = f32[2]{0} while(%f), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"3"}}
}
"""
    listed = tpu.instructions(program)
    assert listed == [("fusion", 1, 100, ""), ("copy", 3, 15, "step/mul")]


@by_table(
    "found, expected",
    [
        ({"test_accuracy": 0.5}, [0.5]),
        ({"accuracy": {"10": [0.25]}}, [0.25]),
        ({"accuracy": [[0.5], [0.75]]}, [0.5, 0.75]),
        ({"test_loss": 2.0}, []),
    ],
)
def test_what_each_command_writes_has_its_accuracies(found, expected):
    assert pretraining._accuracy(found) == expected


def speed_on(accelerator):
    found = {**case(**{"keras_vit JAX": measured(0.1)}), "accelerator": accelerator}
    return gpu.report({"programs": {}, "notes": [], "cases": {"S/16 inference": found}})


def test_the_page_of_gpus_tells_their_figures_from_those_of_a_trial():
    assert speed_on("NVIDIA H200").startswith("# Speed on GPUs")
    assert speed_on(None).startswith("# Trial without a GPU")
    stored = json.loads(gpu.RESULTS.read_text()).get("cases", {})
    assert all(found["accelerator"] for found in stored.values())


def test_speed_on_gpus_is_not_written_without_one(monkeypatch):
    monkeypatch.setattr(gpu_speed, "accelerator", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gpu_speed.py"])
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(SystemExit, match="expected an NVIDIA GPU"):
        gpu_speed.main()


def test_speed_on_gpus_needs_jax_with_cuda(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_speed, "accelerator", lambda: "NVIDIA H200")
    monkeypatch.setattr(gpu_speed, "measure", lambda function: {"jax": "cpu", "torch": None})
    monkeypatch.setattr(sys, "argv", ["gpu_speed.py", "--output", str(tmp_path)])
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(SystemExit, match="expected JAX with CUDA"):
        gpu_speed.main()
    assert not list(tmp_path.iterdir())


@by_table(
    "text",
    ["classifier S/16 224", "painter S/16 224 training-8", "depth S/14 0 training-8"],
)
def test_a_case_of_gpus_that_is_none_is_refused(text):
    with pytest.raises(SystemExit, match="expected a case such as"):
        gpu_speed.gpu_case(text)


def test_each_case_of_gpus_has_both_forms_of_attention_and_a_peer_in_inference():
    for text in gpu_speed.CASES:
        found = gpu_speed.gpu_case(text)
        names = {name for name in ("keras_vit JAX", PLAIN, *gpu_speed.PEERS) if SYSTEMS[name].takes(found)}
        assert names >= {"keras_vit JAX", PLAIN}
        assert any(SYSTEMS[name].peer for name in names) == (
            found.model == "classifier" or found.task == "inference"
        )


@pytest.mark.slow
@pytest.mark.tensorflow_only("its processes have a backend of their own")
def test_speed_on_gpus_is_tried_without_one(tmp_path):
    cases = ["classifier mu/8 32 inference-2", "detector mu/8 32 training-2"]
    options = ["--systems", "keras_vit JAX", PLAIN, "--rounds", "1", "--no-peak", "--output", str(tmp_path)]
    command = [sys.executable, "gpu_speed.py", "--cases", *cases, *options]
    done = subprocess.run(command, cwd=harness.HERE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "GPU.json").read_text())["cases"].values()
    assert [entry["gflops"] > 0 for entry in found] == [True, True]
    assert all(len(system["seconds"]) == 1 for entry in found for system in entry["systems"].values())
    assert (tmp_path / "GPU.md").read_text().count("| keras_vit JAX plain attention |") == 2
