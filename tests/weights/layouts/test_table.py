import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.table import CONV, LINEAR, MappedArrays, Row, Table, find_prefix

INDICES = st.integers(0, 120)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def filled(template, i, j):
    """The template with indices, independently of the table's own code."""
    for place, index in (("{i}", i), ("{i+1}", i + 1), ("{j}", j), ("{j+1}", j + 1)):
        template = template.replace(place, str(index))
    return template


def groups(table):
    """The rows of a table, with those that share a key of the file together."""
    by_key = {}
    for row in table.rows:
        by_key.setdefault(row.theirs, []).append(row)
    return by_key.values()


# The tables of the layouts -------------------------------------------------------------------------


@every_layout
@given(i=INDICES, j=INDICES, sides=st.tuples(*[st.integers(1, 4)] * 4), seed=st.integers(0, 99))
def test_arrays_are_read_as_they_were_written(layout, i, j, sides, seed):
    rng, table = np.random.default_rng(seed), LAYOUTS[layout].table
    for rows in groups(table):
        shape = sides[: 2 if rows[0].order is None else len(rows[0].order.read)]
        ours = {filled(row.ours, i, j): rng.standard_normal(shape).astype("float32") for row in rows}
        written = table.write(ours)
        assert [*written] == [filled(rows[0].theirs, i, j)]
        mapped = table.read(written)
        assert mapped.arrays.keys() == ours.keys()
        for name, array in ours.items():
            np.testing.assert_array_equal(mapped.arrays[name], array)
        assert mapped[1:] == ({name: key for name in ours for key in written}, [], [])
        for array in written.values():
            assert array.flags.c_contiguous  # safetensors writes the memory in its order


@every_layout
def test_names_are_distinct_on_both_sides(layout):
    table, ours, theirs = LAYOUTS[layout].table, {}, {}
    for row in table.rows:
        for i, j in itertools.product(range(3), repeat=2):
            ours.setdefault(filled(row.ours, i, j), set()).add(row)
            theirs.setdefault((filled(row.theirs, i, j), row.part and row.part[0]), set()).add(row)
    assert all(len(rows) == 1 for rows in (*ours.values(), *theirs.values()))
    for rows in groups(table):
        assert [row.part for row in rows] in ([None], [(index, len(rows)) for index in range(len(rows))])
        assert len({row.order for row in rows}) == 1


# One table -----------------------------------------------------------------------------------------

TINY = Table(
    [
        Row("block{i+1}_unit{j+1}/kernel", "stages.{i}.blocks.{j}.weight", CONV),
        Row("dense_{i}/kernel", "fc.{i}.weight", LINEAR),
        *(Row(f"{part}/bias", "qkv.bias", part=(n, 3)) for n, part in enumerate(("query", "key", "value"))),
        Row("a.b", "c.d"),
    ]
)


def test_indices_may_start_at_another_number():
    kernel = np.arange(120).reshape(4, 5, 2, 3)
    written = TINY.write({"block1_unit10/kernel": kernel, "block12_unit1/kernel": kernel})
    assert {*written} == {"stages.0.blocks.9.weight", "stages.11.blocks.0.weight"}
    theirs = written["stages.0.blocks.9.weight"]  # torch's (out, in, height, width)
    assert all(theirs[o, c, y, x] == kernel[y, x, c, o] for y, x, c, o in np.ndindex(kernel.shape))
    assert TINY.read({"stages.0.blocks.9.weight": theirs}).arrays.keys() == {"block1_unit10/kernel"}


@pytest.mark.parametrize(
    "name", ["block0_unit1/kernel", "dense_01/kernel", "axb", "dense_1/kernel/0", "query/kernel"]
)
def test_a_name_that_the_table_does_not_have_cannot_be_written(name):
    with pytest.raises(KeyError, match=name):
        TINY.write({name: np.zeros((1, 1, 1, 1))})


@pytest.mark.parametrize(
    "key",
    [
        *("fc.01.weight", "fc.-1.weight", "fc.x.weight", "fc..weight", "fc. 1.weight", "fc.1.weight.0"),
        *("xfc.1.weight", "fc.1_weight", "fc.².weight", "fc.١.weight", "fc.1.weight\n", "cxd", ""),
    ],
)
def test_a_similar_key_is_unknown(key):
    assert TINY.read({key: np.zeros(3)}) == MappedArrays({}, {}, [key], [])


def test_several_arrays_are_concatenated():
    parts = {f"{part}/bias": np.full(4, n) for n, part in enumerate(("query", "key", "value"))}
    written = TINY.write({name: parts[name] for name in ("value/bias", "query/bias", "key/bias")})
    assert {key: a.tolist() for key, a in written.items()} == {"qkv.bias": [0] * 4 + [1] * 4 + [2] * 4}
    read = TINY.read(written)
    assert {name: a.tolist() for name, a in read.arrays.items()} == {n: a.tolist() for n, a in parts.items()}
    assert {*read.keys.values()} == {"qkv.bias"}


@pytest.mark.parametrize("shape", [(), (4,), (7, 3)])
def test_an_array_that_cannot_be_split_is_refused_by_name(shape):
    with pytest.raises(ValueError, match=r"expected qkv.bias to hold 3 arrays of one size; got shape \("):
        TINY.read({"qkv.bias": np.zeros(shape)})


def test_renamed_keys_are_reported_as_in_the_file():
    mapped = TINY.read({"C.D": np.zeros(1), "OLD": np.zeros(1)}, str.lower)
    assert (mapped.keys, mapped.unknown) == ({"a.b": "C.D"}, ["OLD"])
    with pytest.raises(ValueError, match="c.D and c.d both map to a.b; expected each array once"):
        TINY.read({"c.d": np.zeros(1), "c.D": np.zeros(1)}, str.lower)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_an_array_of_another_rank_does_not_change(shape):
    array = np.arange(np.prod(shape, dtype=int), dtype="float16").reshape(shape)
    np.testing.assert_array_equal(
        TINY.read({"fc.0.weight": array}).arrays["dense_0/kernel"], array, strict=True
    )


# Prefixes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys, expected",
    [(["params/x", "y"], "params/"), (["b/z"], "b/"), ({"x": 0}, ""), (["c/x", "xx"], None), ([], None)],
)
def test_the_prefix_is_that_of_an_anchor(keys, expected):
    assert find_prefix(keys, ["x", "z"], ["", "params/", "b/"]) == expected


def test_two_prefixes_are_refused():
    with pytest.raises(ValueError, match="the file holds x and a/x: two models"):
        find_prefix(["a/x", "x"], ["x"], ["", "a/"])
