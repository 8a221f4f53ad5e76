"""`keras-vit plan`, which compiles in a process of its own with JAX."""

import json
import os
import subprocess
import sys

import pytest

from keras_vit.cli.plan import JAX, LIBTPU, _plan, as_text
from keras_vit.variants import cost

FOUND = {
    "versions": {"keras_vit": "0.1.0", "jax": "0.10.2"},
    "settings": {
        "model": "B/16",
        "objective": "classify",
        "image_size": [224, 224],
        "num_classes": 1000,
        "batch_size": 256,
        "strategy": "data_parallel",
        "mesh": {"batch": 4},
        "dtype": "mixed_bfloat16",
        "remat": False,
        "accumulation_steps": 1,
        "optimizer": "adamw",
        "extrapolated_from_blocks": None,
    },
    "chips": 4,
    "memory": {"weights": 2**28, "optimizer": 2**29, "total": 2**32, "available": 2**34},
    "fits": True,
    "flops": 6.6e12,
    "peak_flops": 197e12,
    "collectives": {"all-reduce": {"count": 2, "bytes": 2**20}},
    "operations": {"forward head/dot_general": {"count": 1, "cycles": 3}, "copy": {"count": 2, "cycles": 1}},
    "kernels": {"fusion": {"count": 30}},
    "seconds": 100.0,
    "refusal": None,
    "tried": [],
}


def test_a_plan_as_text():
    text = as_text(FOUND)
    lines = text.splitlines()
    assert "B/16, 224×224 px, 1000 classes; batch 256 on 4 chips (data_parallel 4, 64 images" in lines[0]
    assert "the compiler's estimate (whole program; keras_vit 0.1.0, jax 0.10.2); nothing was run" in lines
    assert "it fits" in lines
    assert "TFLOPs of a step on a chip: 6.6 in matmuls and convolutions, 33.5 ms at the chip's peak" in text
    operations = [line for line in lines if "dot_general" in line or line.startswith("copy")]
    assert [line.split()[-1] for line in operations] == ["75.0", "25.0"]


def test_a_plan_for_a_gpu_has_its_kernels_instead_of_cycles():
    lines = as_text({**FOUND, "operations": {}}).splitlines()
    assert [line.split() for line in lines if line.startswith("fusion")] == [["fusion", "30"]]
    assert "fusion" not in as_text(FOUND)


def test_the_largest_batches_are_shown():
    lines = as_text({**FOUND, "largest_batch": {"remat off": 0, "remat on": 24}}).splitlines()
    rows = [line.split("  ") for line in lines if line.startswith("remat o")]
    assert [(row[0], row[-1].strip()) for row in rows] == [("remat off", "none fits"), ("remat on", "24")]


def test_a_plan_that_does_not_fit_names_what_was_tried():
    tried = [{"change": "remat", "fits": False, "memory": {"total": 2**35}}]
    reason = {"fits": False, "refusal": "Ran out of memory on HBM", "collectives": {}, "operations": {}}
    lines = as_text({**FOUND, **reason, "tried": tried}).splitlines()
    assert "Ran out of memory on HBM" in lines and "remat: does not fit, 32,768 MiB (compiled)" in lines
    assert lines[-1].startswith("no change that was compiled fits")
    tried[0]["fits"] = True
    assert as_text({**FOUND, **reason, "tried": tried}).splitlines()[-1].startswith("remat: fits")


def test_a_field_is_not_given_twice():
    with pytest.raises(ValueError, match="expected --batch_size or --set batch_size=; got both"):
        _plan({"set": ["batch_size=4"], "batch_size": 8})


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, words",
    [
        # The parent has Keras on TensorFlow.
        ("--topology v5e:3x3", "expected a topology such as v5e:4x4"),
        ("--topology v5e:0x0", "expected a topology such as v5e:4x4"),
        ("--topology gpu:v5e", "gpu:l40s, gpu:a100-40gb, gpu:a100, gpu:h100"),
        ("--topology v5e:4x4 --strategy model_parallel=1x16", "attention heads; got 16 for the 12 heads"),
    ],
)
def test_what_the_chips_do_not_allow_is_refused_in_one_line(options, words, refused):
    pytest.importorskip("libtpu")
    refused(("plan", "--model", "B/16", *options.split()), words)


def compiled(*options, topology="v5e:2x2"):
    pytest.importorskip("jax_cuda12_plugin" if topology.startswith("gpu") else "libtpu")
    command = [sys.executable, "-m", "keras_vit", "plan", *options, "--topology", topology, "--json", "-"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, mib",
    [
        ("--model B/16 --recipe finetune", 3966),
        ("--model L/16 --recipe pretrain_jft --num_classes 18291 --remat", 5366),
    ],
    ids=["B16", "L16"],
)
def test_a_compiled_step_has_the_memory_flops_and_collectives_of_data_parallelism(options, mib):
    found = compiled(*options.split(), "--dtype", "mixed_bfloat16", "--batch_size", "256")
    assert found["fits"] and found["chips"] == 4
    assert found["memory"]["total"] / 2**20 == pytest.approx(mib, rel=0.05)
    assert {*found["collectives"]} == {"all-reduce"}


@pytest.mark.slow
def test_a_small_model_is_divided_by_fsdp():
    sizes = {"model": "mu/16", "image_size": 32, "batch_size": 64, "num_classes": 8, "strategy": "fsdp"}
    found = compiled(*(str(part) for name, value in sizes.items() for part in (f"--{name}", value)))
    parameters = cost("mu/16", 32, 8)["parameters"]
    assert found["memory"]["weights"] == pytest.approx(parameters, rel=0.1)  # a quarter of 4 bytes each
    assert found["memory"]["optimizer"] == pytest.approx(2 * parameters, rel=0.1)
    assert "all-gather" in found["collectives"]


@pytest.mark.slow
def test_a_model_may_have_one_chip():
    found = compiled("--model", "mu/16", "--recipe", "finetune", "--batch_size", "8", topology="v5e:1x1")
    assert (found["chips"], found["fits"], found["collectives"]) == (1, True, {})


def of_gpu(topology, *options):
    """The plan of a model of 197 tokens in two of its blocks, and the calls of cuDNN's attention."""
    sizes = '--model Ti/16 --set model={"num_layers":2} --recipe finetune --batch_size 16'
    found = compiled(*sizes.split(), *options, topology=topology)
    return found, {name: row["count"] for name, row in found["kernels"].items() if "cudnn$fmha" in name}


# The last block computes the class token alone, whose attention needs no such kernel.
FUSED = {"cudnn$fmhaSoftmax": 1, "cudnn$fmhaSoftmaxBackward": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "topology, dtype, kernels",
    [
        ("gpu:a100", "mixed_bfloat16", FUSED),
        ("gpu:l4:2", "mixed_float16", FUSED),
        ("gpu:a100", "float32", {}),
        ("gpu:t4", "mixed_float16", {}),
    ],
)
def test_a_step_for_a_gpu_has_cudnns_attention_if_the_gpu_has(topology, dtype, kernels):
    found, calls = of_gpu(topology, "--dtype", dtype)
    assert calls == kernels
    assert found["fits"] and found["chips"] == (2 if topology.endswith(":2") else 1)
    assert ("all-reduce" in found["collectives"]) == (found["chips"] == 2)
    assert found["memory"]["weights"] > 0 and found["flops"] > 0


@pytest.mark.slow
def test_attention_in_cudnn_stores_no_scores():
    options = ["--dtype", "mixed_float16", "--image_size", "512", "--batch_size", "32"]
    (a100, _), (t4, _) = of_gpu("gpu:a100", *options), of_gpu("gpu:t4", *options)
    scores = 2 * 32 * 3 * 1025**2  # bytes of one block in float16
    assert t4["memory"]["activations"] - a100["memory"]["activations"] > scores
    assert t4["flops"] == a100["flops"]


@pytest.mark.slow
def test_the_largest_batch_for_a_gpu_fits_and_is_larger_with_remat(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.04")  # of 16 GB
    found, _ = of_gpu("gpu:t4", "--dtype", "mixed_float16", "--largest_batch")
    largest = found["largest_batch"]
    assert found["memory"]["available"] == 64e7
    assert 16 < largest["remat off"] < largest["remat on"]


FLOPS = """
from keras_vit.training import plan
from keras_vit.training.run_config import RunConfig
from keras_vit.training.named_recipes import find_recipe

chips = plan.find_chips("v5e:2x2")
for model, recipe, objective, changes in {runs}:
    recipe = find_recipe(recipe).with_changes(batch_size=64, **changes)
    step = plan._Step(RunConfig("", recipe, model, objective=objective), 1000, chips, "auto", print)
    print(step.matmul_flops(step.build()) / 64)
"""


def step_flops(runs):
    """The FLOPs for each image of training steps: of (model, recipe, objective, changed fields) each."""
    pytest.importorskip("libtpu")
    command = [sys.executable, "-c", FLOPS.format(runs=runs)]
    environment = {**os.environ, **JAX, **LIBTPU}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return [*map(float, done.stdout.splitlines())]


@pytest.mark.slow
def test_the_flops_are_three_times_those_of_the_forward_pass():
    variants = [variant for variant in ("B/16", "L/16", "G/14") for _ in range(2)]
    changes = [{"model": {"pooling": "gap"}, "accumulation_steps": steps} for steps in (1, 4)] * 3
    runs = [(variant, "augreg", "classify", change) for variant, change in zip(variants, changes)]
    for variant, flops in zip(variants, step_flops(runs), strict=True):
        # Images need no gradient.
        assert flops == pytest.approx(3 * cost(variant, pooling="gap")["flops"], rel=0.02)


def blocks(tokens, layers, width, mlp):
    """The FLOPs of encoder blocks."""
    return layers * tokens * (8 * width**2 + 4 * tokens * width + 4 * width * mlp)


@pytest.mark.slow
def test_the_flops_without_labels_are_those_of_the_models_parts():
    head = 2 * (384 * 2048 + 2048**2 + 2048 * 256 + 256 * 65_536)
    large, small = (cost("S/16", size, None, pooling="gap")["flops"] for size in (224, 96))
    expected = {
        ("S/16", "mae"): 3 * (cost("S/16", 112, None)["flops"] + blocks(197, 8, 512, 2048)),
        (None, "digits_igpt"): 3 * blocks(64, 6, 64, 256),
        ("S/16", "dino"): 3 * (2 * large + 8 * small + 10 * head) + 2 * (large + head),
    }
    runs = [
        (model, recipe, recipe.removeprefix("digits_"), {"model": {"pooling": "gap"}} if model else {})
        for model, recipe in expected
    ]
    assert step_flops(runs) == pytest.approx([*expected.values()], rel=0.03)
