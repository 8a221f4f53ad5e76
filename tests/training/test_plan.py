"""The parts of a plan that need no compiler for TPUs; tests/cli/test_plan.py compiles."""

import types

import pytest
from made.tables import by_table

from keras_vit.training import plan as planning
from keras_vit.training.chips import Chips
from keras_vit.training.named_recipes import find_recipe


def measured(blocks):
    names = {"head": 7, "forward encoder_block_*/mlp": 100 * blocks}
    return {
        "total": 1000 + 30 * blocks,
        "collectives": {"all-reduce": {"count": 2, "bytes": 8 + 4 * blocks}},
        "operations": {name: {"count": blocks, "cycles": cycles} for name, cycles in names.items()},
        "kernels": {"fusion": {"count": 10 * blocks}},
        "seconds": 1.0,
        "refusal": None,
    }


def test_the_line_through_two_depths_gives_a_deeper_model():
    assert planning._line(measured(2), measured(4), 48) == {**measured(48), "seconds": 2.0}
    nothing = {"collectives": {}, "operations": {}, "kernels": {}}
    refused = {**measured(4), **nothing, "refusal": "out of memory"}
    deep = planning._line(measured(2), refused, 48)
    assert (deep["total"], deep["collectives"], deep["refusal"]) == (1000 + 30 * 48, {}, "out of memory")


def found(strategy="data_parallel", remat=False, weights=10, optimizer=20, **mesh):
    settings = {"strategy": strategy, "mesh": {"batch": 4, **mesh}, "remat": remat}
    settings |= {"accumulation_steps": 1, "batch_size": 64}
    memory = {"weights": weights, "optimizer": optimizer, "batch": 1, "activations": 200, "available": 100}
    return {"settings": settings, "memory": memory}


@by_table(
    "of, words, strategy",
    [
        (found(), ["remat", "remat, fsdp", "remat, fsdp, 4 micro-batches"], "fsdp"),
        (found(weights=1, optimizer=2), ["remat", "remat, 4 micro-batches"], "data_parallel"),
        (found(weights=90), ["remat, fsdp", "remat, fsdp, 4 micro-batches"], "fsdp"),
        (found("fsdp", remat=True), ["4 micro-batches", "16 micro-batches"], "fsdp"),
        (found("model_parallel", True, model=2), ["4 micro-batches"], "model_parallel=4x2"),
    ],
)
def test_the_changes_that_are_tried_follow_from_the_parts_of_the_memory(of, words, strategy):
    changes = [*planning.smaller(of)]
    assert [change for change, *_ in changes][: len(words)] == words
    assert changes[-1][0].endswith("16 micro-batches") and changes[-1][2] == strategy


@by_table(
    "backend, recipe, message",
    [
        ("torch", "augreg", "a plan needs KERAS_BACKEND=jax; got 'torch'"),
        *(
            ("jax", name, "^expected a recipe without image_text; got one")
            for name in ("digits_words", "lit")
        ),
        ("jax", "flexi", r"^expected a recipe without patch_sizes, .*; got \(8, 10, 12, "),
    ],
)
def test_what_cannot_be_planned_is_refused(backend, recipe, message, monkeypatch):
    monkeypatch.setattr(planning.keras.backend, "backend", lambda: backend)
    with pytest.raises(ValueError, match=message):
        planning.plan("B/16", find_recipe(recipe), "v5e:4x4")


def test_a_batch_that_the_chips_do_not_divide_is_refused():
    recipe, chips = find_recipe("augreg").with_changes(batch_size=4104), Chips([None] * 16, 1e12, 2**30, ())
    with pytest.raises(ValueError, match="batch_size must be a multiple of 16, .*; got 4104"):
        planning._Step(types.SimpleNamespace(recipe=recipe), 10, chips, "auto", print)


@by_table(
    "topology, dtype, expected",
    [
        ("v5e:2x2", "auto", "mixed_bfloat16"),
        ("gpu:a100:8", "auto", "mixed_bfloat16"),
        ("gpu:t4", "auto", "mixed_float16"),
        ("gpu:t4", "float32", "float32"),
    ],
)
def test_the_dtype_auto_is_that_of_the_chip(topology, dtype, expected, monkeypatch):
    class Planned(Exception):
        """Ends the plan with the dtype of its configuration."""

    def step(config, *arguments):
        raise Planned(config.recipe.dtype)

    monkeypatch.setattr(planning.keras.backend, "backend", lambda: "jax")
    monkeypatch.setattr(planning, "find_chips", lambda topology: None)
    monkeypatch.setattr(planning, "_Step", step)
    with pytest.raises(Planned, match=f"^{expected}$"):
        planning.plan("B/16", find_recipe("augreg").with_changes(dtype=dtype), topology)


@by_table(
    "memory, unit, expected",
    [
        (lambda batch: 700 + 10 * batch, 1, 30),
        (lambda batch: 700 + 10 * batch, 8, 24),
        (lambda batch: 990 + 10 * batch, 1, 1),
        (lambda batch: 1001 + batch, 1, 0),  # not even one image
        (lambda batch: batch**2, 1, 31),
        (lambda batch: 900 * (batch > 40) + batch, 1, 100),  # more memory from a step on
    ],
)
def test_the_largest_batch_that_fits_is_found_with_few_compilations(memory, unit, expected):
    compiled = []

    def total(batch):
        compiled.append(batch)
        return memory(batch)

    assert planning.largest_batch(total, 1000, unit) == expected
    assert all(batch % unit == 0 for batch in compiled)
    assert len(compiled) == len({*compiled}) < 20
