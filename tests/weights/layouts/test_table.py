import numpy as np
import pytest
from made.tables import by_table
from reference.comparing import assert_same_arrays

from keras_vit.weights.layouts import LAYOUTS
from keras_vit.weights.layouts.table import CONV, LINEAR, MappedArrays, Row, Table

INDICES = {"i": 2, "i+1": 3, "j": 13, "j+1": 14}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_are_read_as_they_were_written(layout, rng):
    """All of a table at once, so that no two names or keys are the same."""
    table = LAYOUTS[layout].table
    ours = {
        row.ours.format(**INDICES): rng.standard_normal(
            (1,) * row.leading + (2, 3, 4, 5)[: len(row.axes or "x")]
        )
        for row in table.rows
    }
    written = table.write(ours)
    mapped = table.read(written)
    assert mapped.keys.keys() == ours.keys()
    assert ({*mapped.keys.values()}, mapped.unknown, mapped.skipped) == ({*written}, [], [])
    assert_same_arrays(mapped.arrays, ours)


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


@by_table("name", ["block0_unit1/kernel", "dense_01/kernel", "axb", "dense_1/kernel/0", "query/kernel"])
def test_a_name_that_the_table_does_not_have_cannot_be_written(name):
    with pytest.raises(KeyError, match=name):
        TINY.write({name: np.zeros((1, 1, 1, 1))})


@by_table(
    "key",
    ["fc.01.weight", "fc.-1.weight", "fc.1.weight.0", "xfc.1.weight", "fc.².weight", "fc.١.weight", "cxd"],
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


def test_of_several_names_the_first_is_written():
    table = Table([Row("a", "new"), Row("a", "old")])
    assert [*table.write({"a": np.zeros(1)})] == ["new"]
    assert table.read({"old": np.zeros(1)}).keys == {"a": "old"}
    with pytest.raises(ValueError, match="new and old both map to a"):
        table.read({"old": np.zeros(1), "new": np.zeros(1)})
