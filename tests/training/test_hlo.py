"""Collectives and operations in the text of programs, as XLA for TPUs writes it."""

import pathlib

import pytest
from made.tables import by_table

from keras_vit.training.hlo import collectives, operation_name, operations, shape_bytes

PROGRAM = pathlib.Path(__file__).with_name("program.hlo").read_text()


def test_collectives_are_counted_with_their_bytes_as_often_as_they_run():
    assert collectives(PROGRAM) == {
        "all-gather": {"count": 3, "bytes": 3 * 16 * 8 * 2},
        "all-reduce": {"count": 1, "bytes": 4 + 16 * 8 * 4 + 16},
        "reduce-scatter": {"count": 1, "bytes": 4 * 8 * 4},
    }


@pytest.mark.parametrize("known", [False, True])
def test_the_cycles_of_a_loop_count_as_often_as_it_runs(known):
    text = PROGRAM.replace(
        '"known_init_step"', '"known_trip_count":{"n":"3"},"known_init_step"' * known or "0"
    )
    assert [*operations(text).items()] == [
        ("forward encoder_block_*/mlp/dense_0/dot_general", {"count": 3, "cycles": 3000}),
        ("backward encoder_block_*/mlp/dense_0/dot_general", {"count": 1, "cycles": 500}),
        ("copy", {"count": 1, "cycles": 20}),
    ]


def test_the_bytes_of_shapes():
    assert shape_bytes("f32[]{:T(128)}") == [4] and shape_bytes("f8e4m3fnuz[7]{0}") == [7]
    assert shape_bytes("(bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, s8[5]{0}, u32[]{:S(2)})") == [12, 5, 4]


@by_table(
    "op_name, name",
    [
        ("jit(train_step)/adam_w_12/mul", "update adam_w/mul"),
        ("jit(train_step)/transpose(jvp(head))/reduce_sum", "backward head/reduce_sum"),
        (
            "jit(train_step)/while/body/closed_call/jvp(encoder_block_3)/attention/query/dot_general",
            "forward encoder_block_*/attention/query/dot_general",
        ),
        (
            "jit(train_step)/transpose(jvp(encoder_block_3))/rematted_computation/encoder_block_3/mlp/dense_1/"
            "dot_general",
            "again encoder_block_*/mlp/dense_1/dot_general",
        ),
    ],
)
def test_operations_are_named_by_their_phase_and_layer(op_name, name):
    assert operation_name(op_name) == name
