"""What is said of the numbers of a benchmark, and how its processes are asked for them."""

import json
import pathlib
import platform
import re
import sys

import pytest
import tensorflow as tf

from keras_vit.layers import MlpBlock

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import ops
import report
import speed
from contenders import Case

MEMORY = {"built": 100.0, "warming": 300.0, "running": 200.0, "device": None}
ABOUT = {
    "date": "2026-01-02 03:04",
    "command": "python benchmarks/speed.py",
    "processor": "a processor",
    "cores": 4,
    "accelerator": None,
    "load": 0.5,
    "versions": {"Python": "3.11"},
}


def measured(*seconds, memory=MEMORY):
    return {"first": 2.0, "seconds": list(seconds), "memory": memory}


def case(precision="float32", **contenders):
    ceiling = {precision: {"gflops": 400.0, "by": "torch"}}
    found = {"ceiling": ceiling, "gflops": 10.0, "task": "inference", "precision": precision, "batch": 1}
    return ABOUT | found | {"image_size": 224, "contenders": contenders}


def test_a_case_is_held_against_the_best_peer():
    peers = {"transformers": measured(0.06), "timm compiled": measured(0.1)}
    found = case(keras_vit=measured(0.05, 0.9, 0.04), **peers)
    row = report.rows(found)["keras_vit"]
    assert (row["ms"], row["ratio"], row["share"], row["peak"]) == pytest.approx((50, 1.2, 0.5, 300))
    ((_, wanted, value, met),) = report.targets({"cases": {"a": found}})
    assert (wanted, value, met) == ("1.15 × transformers", "1.20", True)
    low = found | {"precision": "bfloat16"}
    assert report.targets({"cases": {"a": low}})[0][1:3] == ("1 × transformers", "1.20")


def test_products_of_whole_numbers_are_not_held_against_the_ceiling_of_others():
    found = case(**{"keras_vit": measured(0.05), "keras_vit LiteRT dynamic int8": measured(0.01)})
    assert [row["share"] for row in report.rows(found).values()] == [0.5, None]


def growing(memory):
    sizes = {"224": 200, "512": 1000, "1024": 4000}
    return ABOUT | {
        "sizes": {size: {"gflops": tokens / 100, "tokens": tokens} for size, tokens in sizes.items()},
        "contenders": {
            "keras_vit": {
                size: measured(tokens / 1e4, memory=MEMORY | {"running": 100 + memory(tokens)})
                for size, tokens in sizes.items()
            }
        },
    }


@pytest.mark.parametrize("memory, met", [(lambda n: 7 + n / 10, True), (lambda n: n * n / 1e4, False)])
def test_memory_that_grows_faster_than_tokens_is_a_miss(memory, met):
    speed_of_it, linear = report.targets({"growth": {"S/16 float32": growing(memory)}})
    assert speed_of_it[2:] == ("1.00", True)
    assert linear[3] is met


def test_cases_that_are_not_run_again_keep_their_numbers(tmp_path):
    path = tmp_path / "RESULTS.json"
    failed = {"transformers": {"error": "RuntimeError: no"}, "Flax": {"missing": ["vit_jax"]}}
    report.update(path, "cases", {"first": case(keras_vit=measured(1.0)), "second": case()})
    report.update(path, "cases", {"second": case(keras_vit=measured(0.1), **failed)})
    report.update(path, "growth", {"S/16 float32": growing(lambda n: n)})
    text = report.write_report(tmp_path)
    assert list(json.loads(path.read_text())["cases"]) == ["first", "second"]
    for part in (
        "| keras_vit | 1000.0 |",
        "| keras_vit | 100.0 |",
        "transformers failed: `RuntimeError: no`",
    ):
        assert part in text
    assert {file.name for file in tmp_path.iterdir()} == {
        *("RESULTS.json", "RESULTS.md", "RESULTS.png", "GROWTH.png")
    }


def test_a_process_that_fails_is_a_line_and_not_the_end():
    answers = """
import sys
print("{}", flush=True)
for line in sys.stdin:
    print({"warm\\n": '{"first": 1}', "go\\n": '{"seconds": 2}'}.get(line, '{"memory": 3}'), flush=True)
"""
    wrong = "raise ValueError('of no use')"
    commands = {"good": [sys.executable, "-c", answers], "bad": [sys.executable, "-c", wrong]}
    assert speed.interleaved(commands, rounds=2) == {
        "good": {"first": 1, "seconds": [2, 2], "memory": 3},
        "bad": {"error": "ValueError: of no use"},
    }


def test_the_cost_of_a_step_of_training_is_three_forward_passes():
    assert Case("B/16").gflops == pytest.approx(35.1, abs=0.1)
    assert Case("B/16", "training").gflops == pytest.approx(3 * Case("B/16").gflops)


@pytest.mark.parametrize(
    "operation, kind",
    [
        ("tape/vit_1/encoder_block_0_1/attention_1/MatMul_1/MatMul|_MklBatchMatMulV2", "attention products"),
        ("vit_1/encoder_block_0_1/attention_1/query_1/MatMul|_MklBatchMatMulV2", "matrix products"),
        ("vit/encoder_block_0/mlp/dense_0/MatMul|_FusedMatMul", "matrix products"),
        ("vit/encoder_block_0/attention_norm/Mul|Mul", "LayerNorm"),
        ("vit/encoder_block_0/mlp_1/Gelu/Pow|Mul", "GELU"),
        ("sgd/mul_718|Mul", "optimizer"),
        ("transpose|Transpose", "transposes"),
    ],
)
def test_operations_are_told_apart(operation, kind):
    assert ops.kind_of(operation) == kind


def test_time_in_which_two_operations_run_counts_once():
    assert ops.busy([("a", 0, 2), ("b", 1, 3), ("c", 5, 6)]) == 4


@pytest.mark.tensorflow_only("TensorFlow's profiler")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN is what TensorFlow computes with there")
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
def test_a_profile_tells_that_the_product_takes_in_its_gelu(activation):
    layer = MlpBlock(64, activation)
    layer.build((None, 5, 32))
    compute, tokens = tf.function(layer), tf.ones((2, 5, 32))
    seconds, events = ops.profile(lambda: compute(tokens).numpy())
    names = [name for name, *_ in events]
    assert 0 < ops.busy(events) < ops.STEPS * seconds
    fused = [name for name in names if re.search(r"gelu/.*\|_Mkl\w*FusedMatMul", name)]
    assert len(fused) == ops.STEPS and not [name for name in names if re.search(r"\|(Tanh|Erf|Pow)", name)]
