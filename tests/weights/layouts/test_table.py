import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.table import CONV, LINEAR, MappedArrays, Row, Table, find_prefix

TABLES = {name: layout.table for name, layout in LAYOUTS.items()}
NUMBERS = st.integers(0, 120)
SIDES = st.tuples(*[st.integers(1, 4)] * 4)

every_table = pytest.mark.parametrize("layout", [*TABLES])


def filled(template, i, j):
    """The template with numbers put in: an independent reading of {i} and {i+1}."""
    for mark, number in (("{i}", i), ("{i+1}", i + 1), ("{j}", j), ("{j+1}", j + 1)):
        template = template.replace(mark, str(number))
    return template


def groups(table):
    """The rows of a table, those that share a key of the file together."""
    by_key = {}
    for row in table.rows:
        by_key.setdefault(row.theirs, []).append(row)
    return by_key.values()


def shape_of(order, sides, rank):
    return sides[: rank if order is None else len(order.read)]


# Reading and writing are one table in two directions ---------------------------------------------


@every_table
@given(i=NUMBERS, j=NUMBERS, sides=SIDES, rank=st.integers(1, 4), seed=st.integers(0, 99))
def test_what_is_written_is_read_as_it_was(layout, i, j, sides, rank, seed):
    rng = np.random.default_rng(seed)
    for rows in groups(TABLES[layout]):
        ours = {
            filled(row.ours, i, j): rng.standard_normal(shape_of(row.order, sides, rank)).astype("float32")
            for row in rows
        }
        written = TABLES[layout].write(ours)
        assert [*written] == [filled(rows[0].theirs, i, j)]
        reading = TABLES[layout].read(written)
        assert reading.arrays.keys() == ours.keys()
        for name, array in ours.items():
            np.testing.assert_array_equal(reading.arrays[name], array)
        assert reading[1:] == ({name: key for name in ours for key in written}, [], [])
        again = TABLES[layout].write(reading.arrays)
        for key, array in written.items():
            np.testing.assert_array_equal(again[key], array, strict=True)
            assert again[key].flags.c_contiguous  # safetensors writes the memory as it lies


@every_table
def test_names_are_distinct_on_both_sides(layout):
    numbers = [*itertools.product(range(3), repeat=2)]
    ours, theirs = {}, {}
    for row in TABLES[layout].rows:
        for i, j in numbers:
            ours.setdefault(filled(row.ours, i, j), set()).add(row)
            theirs.setdefault((filled(row.theirs, i, j), row.part and row.part[0]), set()).add(row)
    assert all(len(rows) == 1 for rows in (*ours.values(), *theirs.values()))
    for rows in groups(TABLES[layout]):
        parts = [row.part for row in rows]
        assert parts in ([None], [(place, len(rows)) for place in range(len(rows))])
        assert len({row.order for row in rows}) == 1


@every_table
def test_a_name_is_found_in_one_row_only(layout):
    """No pattern takes in the names of another row."""
    table = TABLES[layout]
    for rows in groups(table):
        key = filled(rows[0].theirs, 7, 3)
        array = np.zeros((len(rows), 1, 1, 1), "float32")
        assert {*table.read({key: array}).arrays} == {filled(row.ours, 7, 3) for row in rows}


# One table ---------------------------------------------------------------------------------------

TINY = Table(
    [
        Row("block{i+1}_unit{j+1}/kernel", "stages.{i}.blocks.{j}.weight", CONV),
        Row("dense_{i}/kernel", "fc.{i}.weight", LINEAR),
        *(Row(f"{part}/bias", "qkv.bias", part=(n, 3)) for n, part in enumerate(("query", "key", "value"))),
        Row("a.b", "c.d"),
    ]
)


def test_numbers_may_be_counted_from_elsewhere():
    array = np.zeros((5, 4, 3, 2))
    written = TINY.write({"block1_unit10/kernel": array, "block12_unit1/kernel": array})
    assert {key: a.shape for key, a in written.items()} == {
        "stages.0.blocks.9.weight": (2, 3, 5, 4),
        "stages.11.blocks.0.weight": (2, 3, 5, 4),
    }
    reading = TINY.read({"stages.0.blocks.9.weight": array})
    assert {name: a.shape for name, a in reading.arrays.items()} == {"block1_unit10/kernel": (3, 2, 4, 5)}


@pytest.mark.parametrize("name", ["block0_unit1/kernel", "block1_unit0/kernel"])
def test_there_is_no_number_before_the_first(name):
    with pytest.raises(KeyError, match=name):
        TINY.write({name: np.zeros((1, 1, 1, 1))})


@pytest.mark.parametrize(
    "key",
    [
        *("fc.01.weight", "fc.00.weight", "fc.-1.weight", "fc.x.weight", "fc..weight", "fc. 1.weight"),
        *("fc.1.weight.0", "xfc.1.weight", "fc.1_weight", "fc.².weight", "fc.١.weight", "fc.1.weight\n"),
        *("stages.01.blocks.0.weight", "cxd", ""),
    ],
)
def test_what_only_looks_like_a_name_is_handed_back(key):
    assert TINY.read({key: np.zeros(3)}) == MappedArrays({}, {}, [key], [])
    assert TINY.read({key: np.zeros(3)}).unknown == [key]


@pytest.mark.parametrize(
    "name", ["dense_01/kernel", "axb", "dense_1/kernel/0", "fc.1.weight", "query/kernel"]
)
def test_a_name_that_the_table_does_not_have_cannot_be_written(name):
    with pytest.raises(KeyError):
        TINY.write({name: np.zeros((1, 1))})


def test_several_arrays_stand_in_one():
    parts = {f"{part}/bias": np.full(4, n) for n, part in enumerate(("query", "key", "value"))}
    shuffled = {name: parts[name] for name in ("value/bias", "query/bias", "key/bias")}
    written = TINY.write(shuffled)
    assert {key: array.tolist() for key, array in written.items()} == {
        "qkv.bias": [0] * 4 + [1] * 4 + [2] * 4
    }
    reading = TINY.read(written)
    assert {name: a.tolist() for name, a in reading.arrays.items()} == {
        n: a.tolist() for n, a in parts.items()
    }
    assert {*reading.keys.values()} == {"qkv.bias"}


@pytest.mark.parametrize("shape", [(), (4,), (7, 3)])
def test_an_array_that_cannot_hold_several_is_refused_by_name(shape):
    with pytest.raises(ValueError, match=r"expected qkv.bias to hold 3 arrays of one size; got shape \("):
        TINY.read({"qkv.bias": np.zeros(shape)})


def test_two_keys_for_one_array_are_refused():
    with pytest.raises(ValueError, match="c.D and c.d both map to a.b; .* each array once"):
        TINY.read({"c.d": np.zeros(1), "c.D": np.zeros(1)}, str.lower)


def test_a_key_is_reported_as_the_file_has_it():
    reading = TINY.read({"C.D": np.zeros(1), "OLD": np.zeros(1)}, str.lower)
    assert reading.keys == {"a.b": "C.D"}
    assert reading.unknown == ["OLD"]


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_an_array_of_another_rank_is_handed_on_as_it_is(shape):
    array = np.arange(np.prod(shape, dtype=int), dtype="float32").reshape(shape)
    np.testing.assert_array_equal(TINY.read({"fc.0.weight": array}).arrays["dense_0/kernel"], array)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_stored_type_is_kept(dtype):
    assert TINY.read({"fc.0.weight": np.zeros((2, 3), dtype)}).arrays["dense_0/kernel"].dtype == dtype
    assert TINY.write({"dense_0/kernel": np.zeros((2, 3), dtype)})["fc.0.weight"].dtype == dtype


def test_the_forms_are_those_of_torch():
    """A dense layer's (out, in), a convolution's (out, in, height, width)."""
    written = TINY.write({"dense_0/kernel": np.zeros((2, 3)), "block1_unit1/kernel": np.zeros((4, 5, 2, 3))})
    assert [array.shape for array in written.values()] == [(3, 2), (3, 2, 4, 5)]
    kernel = np.arange(120).reshape(4, 5, 2, 3)
    torch_kernel = TINY.write({"block1_unit1/kernel": kernel})["stages.0.blocks.0.weight"]
    assert all(torch_kernel[o, c, y, x] == kernel[y, x, c, o] for y, x, c, o in np.ndindex(kernel.shape))


# Prefixes ----------------------------------------------------------------------------------------


def test_the_prefix_is_what_stands_before_an_anchor():
    assert find_prefix(["params/x/kernel", "y"], ["x/kernel"], ["", "params/"]) == "params/"
    assert find_prefix(["b/z"], ["x", "z"], ["", "a/", "b/"]) == "b/"
    assert find_prefix({"x": 0}, ["x"], ["", "a/"]) == ""
    assert find_prefix(["c/x", "xx"], ["x"], ["", "a/"]) is None
    assert find_prefix([], ["x"], [""]) is None


def test_two_prefixes_are_refused():
    with pytest.raises(ValueError, match="the file holds x and a/x: two models") as caught:
        find_prefix(["a/x", "x"], ["x"], ["", "a/"])
    assert "\n" not in str(caught.value)
